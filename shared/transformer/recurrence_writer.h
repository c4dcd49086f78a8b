// RecurrenceWriter writes the steps of a layer's recurrence: the projection, the short convolution along the
// sequence, the recurrence itself over the cp ranks, and the norm and gates of its output.
//
// The rows of a convolution see the rows before them, so that each rank first gets a few rows from the rank
// whose chunk comes before its own (shared/recurrence/halo.h), in place of the layer's whole input. They are
// kept for the backward pass, which sends their gradients back.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shared/recurrence/halo.h"
#include "shared/transformer/activations.h"
#include "shared/transformer/step_writer.h"

namespace cp {

class RecurrenceWriter {
 public:
  RecurrenceWriter(StepWriter& writer, Activations& activations);

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
  void normalize(const LayerPlace& place, const Window& weights, const View& normed,
                 const std::string& label);

  View halo(const LayerPlace& place);
  // Rows of all sequences of the micro-batch: [batch, rows, width].
  View rows_of_batch(const View& matrix, std::int64_t first, std::int64_t count) const;
  View packed(const View& buffer, std::int64_t first, std::int64_t count) const;
  // Moves the rows of each part from `matrix` to the halo; back, adds what the halo has to the rows.
  void fetch(const View& matrix, const View& halo);
  void give_back(const View& halo, const View& matrix);
  struct Way {
    bool sends;
    int peer;
    View view;
  };
  // What this rank's rows are in halos, and what it sends and receives; `back` is the way of gradients.
  struct HaloMoves {
    std::vector<std::pair<View, View>> own_rows;  // in the matrix, and in the halo or packed for another rank
    std::vector<Way> ways;
  };
  HaloMoves halo_moves(const View& matrix, const View& halo, const char* packed_name, bool back);
  void exchange(const std::vector<Way>& ways, bool back, const std::string& label);

  const LayerWeights& layer(const LayerPlace& place) const { return context_.layer[place.parts]; }

  StepWriter& writer_;
  const StepContext& context_;
  Activations& activations_;
  const Recurrence& r_;  // of one tp rank
  std::vector<HaloPart> parts_;
  std::int64_t halo_rows_ = 0;
};

}  // namespace cp
