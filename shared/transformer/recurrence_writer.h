// RecurrenceWriter writes the steps of a layer's recurrence: the projection, the short convolution along the
// sequence, the recurrence itself over the cp ranks, and the norm and gates of its output.
//
// The rows of a convolution see the rows before them, so that each rank first gets a few rows from the rank
// whose chunk comes before its own (shared/recurrence/halo.h), in place of the layer's whole input. They are
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
#include "shared/transformer/activations.h"
#include "shared/transformer/kv_cache.h"
#include "shared/transformer/step_writer.h"

namespace cp {

class RecurrenceWriter {
 public:
  // `cache` is null unless the workload is one of serving.
  RecurrenceWriter(StepWriter& writer, Activations& activations, KvCache* cache);

  // Forward: from `rows`, the gathered rows of the norm, [tokens, hidden], to what the projection out takes,
  // [tokens, value heads x value_dim].
  View forward(const LayerPlace& place, const Window& weights, const View& rows);
  // The latter in the backward pass, kept or computed again.
  View output(const LayerPlace& place, const Window& weights);
  // Backward: from the gradient of the latter, `d_out`, to `d_rows`, the partial gradient of the rows. The
  // gradients of all weights but the projection out are written.
  void backward(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                const View& rows, const View& d_out, const View& d_rows);

 private:
  using A = Activation;

  // What the projection gives, cut: [tokens, ...] each.
  struct Projected {
    View all, convolved, gates, numbers;
  };
  Projected cut(const View& all) const;
  // Of the norm behind the recurrence, and of what is added there.
  std::vector<Weight> norm_weights(const LayerPlace& place) const;
  // Whether v itself is added to the output, as in Mamba-2.
  bool skips() const { return r_.rule == RecurrenceRule::decay; }
  // Which rows the convolution of this rank sees; none in serving, whose kernel has shapes only.
  RowRule convolution_rule() const;
  // x, the weights, and the bias and the halo where there are these.
  std::vector<View> convolved_views(const LayerPlace& place, const Window& weights, const View& x);
  void normalize(const LayerPlace& place, const Window& weights, const View& normed,
                 const std::string& label);

  View halo(const LayerPlace& place);
  // Rows of all sequences of the micro-batch: [batch, rows, width].
  View rows_of_batch(const View& matrix, std::int64_t first, std::int64_t count) const;
  View packed(const View& buffer, std::int64_t first, std::int64_t count) const;
  // Moves the rows of each part from `matrix` to the halo; back, adds what the halo has to the rows. In
  // serving the halo begins with the cached rows.
  void fetch(const LayerPlace& place, const View& matrix, const View& halo);
  void give_back(const View& halo, const View& matrix);
  // Moves the last rows, of `matrix` and before them of the halo, to the cache.
  void cache_last_rows(const LayerPlace& place, const View& matrix, const View& halo);
  struct Way {
    bool sends;
    int peer;
    View view;
  };
  // What this rank's rows are in halos, and what it sends and receives; `back` is the way of gradients.
  struct HaloMoves {
    std::vector<std::pair<View, View>> own_rows;  // in the matrix, and where they go or are packed to travel
    std::vector<Way> ways;
  };
  // `halo` has the cached rows that parts may be of, and `to` is where parts come to.
  HaloMoves halo_moves(const std::vector<HaloPart>& parts, const View& matrix, const View& halo,
                       const View& to, const char* packed_name, bool back);
  void exchange(const std::vector<HaloPart>& parts, const std::vector<Way>& ways, bool back,
                const std::string& label);
  // The rows before the first new one that a layer caches of a sequence.
  std::int64_t reach() const { return r_.convolution - 1; }
  bool has_first_row() const { return first_rank_ == context_.groups.cp(); }

  const LayerWeights& layer(const LayerPlace& place) const { return context_.layer[place.parts]; }

  StepWriter& writer_;
  const StepContext& context_;
  Activations& activations_;
  KvCache* const cache_;
  const Recurrence& r_;  // of one tp rank
  std::vector<Chunk> own_chunks_;
  std::vector<HaloPart> parts_, to_cache_;
  int first_rank_ = 0;               // among the cp ranks: the one that has the first row
  bool kernel_takes_cache_ = false;  // and leaves the last rows there
  std::int64_t halo_rows_ = 0;
};

}  // namespace cp
