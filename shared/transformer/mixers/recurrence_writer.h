// RecurrenceWriter writes the steps of a layer's recurrence: the projection, the short convolution along the
// sequence, the recurrence itself over the cp ranks, and the norm and gates of its output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/transformer/activations.h"
#include "shared/transformer/halo_writer.h"
#include "shared/transformer/kv_cache.h"
#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/step_writer.h"

namespace cp {

class RecurrenceWriter : public MixerWriter {
 public:
  // `cache` is null unless the workload is one of serving.
  RecurrenceWriter(StepWriter& writer, Activations& activations, KvCache* cache);

  // What the projection out takes is [tokens, value heads x value_dim].
  View forward(const LayerPlace& place, const Window& weights, const View& rows) override;
  View output(const LayerPlace& place, const Window& weights) override;
  void backward(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                const View& rows, const View& d_out, const View& d_rows) override;

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
  const LayerWeights& layer(const LayerPlace& place) const { return context_.layer[place.parts]; }

  StepWriter& writer_;
  const StepContext& context_;
  Activations& activations_;
  KvCache* const cache_;
  const Recurrence& r_;  // of one tp rank
  HaloWriter halo_;
};

}  // namespace cp
