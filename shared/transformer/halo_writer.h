// HaloWriter writes the steps that bring a rank what a short convolution along a split sequence sees: the few
// rows before each of its chunks (shared/recurrence/halo.h), in place of the layer's whole input. They are
// kept for the backward pass, which sends their gradients back.
//
// Serving goes on from the layer's cache. Where all new rows are one chunk, on one rank, the convolution's
// kernel takes the rows before them from there and leaves the last ones, as causal_conv1d does. Where they
// are on several ranks, the rank of the first row copies the cached ones to its halo, and the last ones are
// sent to its cache.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shared/recurrence/halo.h"
#include "shared/transformer/kv_cache.h"
#include "shared/transformer/step_writer.h"

namespace cp {

// What a convolution goes along, and how the cp ranks have it.
struct ConvolvedSequence {
  std::vector<Chunk> chunks;                  // of all ranks, in the order of the sequence
  std::vector<std::int64_t> document_starts;  // as document_starts() has them
  std::int64_t taps = 1;                      // rows that it sees, the row itself among them
  std::int64_t width = 0;                     // elements of a row
};

class HaloWriter {
 public:
  // `cache` is null unless the workload is one of serving.
  HaloWriter(StepWriter& writer, KvCache* cache, ConvolvedSequence sequence);

  // Of this rank's halo, all sequences of the micro-batch together: a matrix as wide as the rows.
  std::int64_t rows() const { return rows_; }
  // What the convolution's kernel takes of the cache and leaves there: one view, or none.
  std::vector<View> cached(const LayerPlace& place) const;
  // Which rows the convolution of this rank sees. Not of serving, whose kernels have shapes only.
  ConvolutionRule rule() const;

  // Moves rows of `matrix`, [tokens, width], to the halos that have them. In serving the halo of the first
  // rank begins with the cached rows.
  void fetch(const LayerPlace& place, const View& matrix, const View& halo);
  // Backward: adds what the halos have to the rows.
  void give_back(const View& halo, const View& matrix);
  // Serving: moves the last rows, of `matrix` and before them of the halo, to the cache.
  void cache_last_rows(const LayerPlace& place, const View& matrix, const View& halo);

 private:
  // Rows of all sequences of the micro-batch: [batch, rows, width].
  View rows_of_batch(const View& matrix, std::int64_t first, std::int64_t count) const;
  View packed(const View& buffer, std::int64_t first, std::int64_t count) const;
  struct Way {
    bool sends;
    int peer;
    View view;
  };
  // What this rank's rows are in halos, and what it sends and receives; `back` is the way of gradients.
  struct Moves {
    std::vector<std::pair<View, View>> own_rows;  // in the matrix, and where they go or are packed to travel
    std::vector<Way> ways;
  };
  // `halo` has the cached rows that parts may be of, and `to` is where parts come to.
  Moves moves(const std::vector<HaloPart>& parts, const View& matrix, const View& halo, const View& to,
              const char* packed_name, bool back);
  void exchange(const std::vector<HaloPart>& parts, const std::vector<Way>& ways, bool back,
                const std::string& label);
  // The rows before the first new one that a layer caches of a sequence.
  std::int64_t reach() const { return sequence_.taps - 1; }
  bool has_first_row() const { return first_rank_ == context_.groups.cp(); }

  StepWriter& writer_;
  const StepContext& context_;
  KvCache* const cache_;
  const ConvolvedSequence sequence_;
  std::vector<HaloPart> parts_, to_cache_;
  int first_rank_ = 0;               // among the cp ranks: the one that has the first row
  bool kernel_takes_cache_ = false;  // and leaves the last rows there
  std::int64_t rows_ = 0;
};

}  // namespace cp
