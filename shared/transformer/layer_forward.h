// LayerForward writes the steps of one layer's forward pass. The backward pass uses it again if the layer is
// recomputed.
#pragma once

#include <vector>

#include "shared/transformer/activations.h"
#include "shared/transformer/expert_writer.h"
#include "shared/transformer/kv_cache.h"
#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/row_rules_of.h"
#include "shared/transformer/step_writer.h"

namespace cp {

// The parameters of a layer.
struct LayerPieces {
  Window layer, experts;  // `experts` has no meaning if the model has none
};

// Where an MLP that computes all rows keeps what is inside of it.
struct MlpActivations {
  Activation gate_up, activated;
};
MlpActivations mlp_activations(const LayerPlace& place);

// Rows that a dense MLP computes at once: `count` of them from `first` on.
struct RowChunk {
  std::int64_t first = 0, count = 0;
};
std::vector<RowChunk> mlp_chunks(const StepContext& context);
// The place of a chunk's intermediate rows. All chunks use the place of the first one, one after the other.
View of_chunk(const View& rows, const RowChunk& chunk);

// The gate of the shared MLP: the factor of each row's output, f32, and the expert that all rows choose,
// which is number 0; both [tokens, 1].
struct SharedGate {
  View weights, chosen;
};
SharedGate shared_gate_of(StepWriter& writer, const View& logits);

// What the norms of q and k read beside the gradients: q and k, and their weights, if they have some.
std::vector<View> qk_norm_operands(const LayerWeights& layer, const View& qk, const Window& weights);

// The rows from which latent attention projects q, and k and v, [tokens, ...], gathered from the rank's own
// rows of its norms. With q_rank = 0 the former are those of the layer's norm.
View gather_q_latents(StepWriter& writer, Activations& activations, const LayerPlace& place,
                      const View& norm);
View gather_kv_latents(StepWriter& writer, Activations& activations, const LayerPlace& place);

// The sinks of a layer as attention takes them, f32, one for each query head of the rank.
View sinks_of_attention(StepWriter& writer, const LayerPlace& place, const Window& weights);

// Writers of the mixers beside attention that a model has, by Mixer.
using MixerWriters = std::array<std::unique_ptr<MixerWriter>, kMixers.size()>;
MixerWriters mixer_writers(StepWriter& writer, Activations& activations, KvCache* cache);

class LayerForward {
 public:
  // `cache` is null unless the workload is one of serving; `again`: layers are computed again.
  LayerForward(StepWriter& writer, Activations& activations, KvCache* cache, bool again = false)
      : writer_(writer),
        context_(writer.context()),
        activations_(activations),
        cache_(cache),
        mixers_(mixer_writers(writer, activations, cache)),
        experts_(writer, activations, again) {}

  // Computes x_next from x; both are [tokens_tp, hidden].
  void write(const LayerPlace& place, const LayerPieces& weights, const View& x, const View& x_next);
  // The output of attention, times its gates where it has some.
  View gated(const LayerPlace& place, const View& out);

 private:
  using A = Activation;

  // mid = x + the mixer of its norm.
  void mix(const LayerPlace& place, const Window& weights, const View& x, const View& mid);
  // next = x + what attention and MLP make of one norm of x.
  void parallel_block(const LayerPlace& place, const LayerPieces& weights, const View& x, const View& next);
  // From the norm, of the rank's own rows, to what the projection out takes: [tokens, width]; of latent
  // attention, and of attention that takes the norm's gathered rows.
  View latent_attention(const LayerPlace& place, const Window& weights, const View& norm);
  View attention(const LayerPlace& place, const Window& weights, const View& rows);
  // Compute what attention takes, q and k and v or q and latent rows, from the norm: of the rank's own rows
  // for latent attention, which gathers its latent rows, and of the gathered ones else.
  void project_latent(const LayerPlace& place, const Window& weights, const View& norm);
  void project(const LayerPlace& place, const Window& weights, const View& rows);
  void project_with_norms(const LayerPlace& place, const Window& weights, const View& rows);
  // The sums of squares of q's and of k's rows over all tp ranks, [tokens, 2]. Ranks that share a kv head all
  // count it.
  View norm_squares(const LayerPlace& place, const View& qk);
  void project_gates(const LayerPlace& place, const Window& weights, const View& rows);
  // Where queries are absorbed: multiplies them with the part of kv_up that makes keys, and attention's
  // output with the part that makes values. The former also rotates queries and latent rows.
  void absorb_queries(const LayerPlace& place, const Window& weights, const View& q, const View& of_kv);
  View expand_output(const LayerPlace& place, const Window& weights);
  // Rotates to what attention takes, from the projections' output or from that of the norms of q and k.
  void rotate(const LayerPlace& place, RotaryForm form, std::vector<View> products,
              std::vector<View> operands);
  void attend(const LayerPlace& place, const Window& weights);
  void mlp(const LayerPlace& place, const LayerPieces& weights, const View& x, const View& next);
  // From the gathered rows of a norm to the partial sums of what the MLP gives, which are written.
  void mlp_of_rows(const LayerPlace& place, const LayerPieces& weights, const View& rows,
                   const View& partial);
  // The MLP that computes all rows: the dense one, or the shared one, which adds to what experts made.
  void dense_mlp(const LayerPlace& place, const Window& weights, const View& rows, const View& partial);
  // What mixer or MLP takes: the norm of x, or x itself where there is none before them.
  View normed(A what, const LayerPlace& place, const View& x, const View& weight, const std::string& label);
  // What mixer or MLP ends with: the place of its output, which is that of the next rows unless there
  // is a norm behind it.
  struct Region {
    View output, norm_behind, bias;
    std::string label;
  };
  View region_output(const LayerPlace& place, A before_norm, const View& next);
  // next = x + the sum of `partial` over the tp ranks and of the bias, or x + its norm.
  void close_region(const Region& region, const View& partial, const View& x, const View& next);

  const LayerWeights& layer(const LayerPlace& place) const { return context_.layer[place.parts]; }
  View k_rows(const LayerPlace&place), v_rows(const LayerPlace&place), latent_rows(const LayerPlace&place);

  StepWriter& writer_;
  const StepContext& context_;
  Activations& activations_;
  KvCache* cache_;
  MixerWriters mixers_;
  ExpertWriter experts_;
};

}  // namespace cp
