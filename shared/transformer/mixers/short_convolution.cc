// The gated short convolution (LFM2): a projection of the rows gives B, C and x; B times x goes through a
// causal convolution along the sequence, each column by itself, and C times that through the projection out.
//
// It asks for nothing but a few rows before a rank's own, so that its rows stay where the layers around it
// have theirs, and cp costs it a halo of taps - 1 rows for each chunk. What the projection and the
// convolution give stands side by side, in the order B, x, C, convolved: what a gate multiplies is beside it
// then, and both products are one operation.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/context_parallel/sharding.h"
#include "shared/recurrence/chunks.h"
#include "shared/transformer/activations.h"
#include "shared/transformer/complaints.h"
#include "shared/transformer/halo_writer.h"
#include "shared/transformer/mixers/mixers.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/placing.h"
#include "shared/transformer/step_writer.h"
#include "shared/transformer/tensor_blocks.h"

namespace cp {
namespace {

namespace short_convolution {

// ---- the model ----

bool is_described(const Transformer& model) { return model.convolution.has_value(); }
bool has_out_bias(const Transformer& model) { return model.convolution->bias; }
void forget(Transformer& model) { model.convolution.reset(); }

void check(const Transformer& model, detail::Complaints& complaints) {
  complaints.require_range("convolution.taps", model.convolution->taps, 1, detail::kMaxCount);
}

MixerParameters parameters(const Transformer& model) {
  const auto& [taps, bias] = *model.convolution;
  // Biases are those of the projection in, of the convolution, and of the projection out.
  return {4 * model.hidden * model.hidden, model.hidden * (taps + (bias ? 3 + 1 + 1 : 0))};
}

double estimated(const Transformer& model) {
  return 4 * static_cast<double>(model.hidden) * static_cast<double>(model.hidden);
}

void hash(Hasher& hasher, const Transformer& model) {
  hasher.add(std::string_view("convolution")).add(model.convolution->taps).add(model.convolution->bias);
}

std::string text(const Transformer& model) {
  return str("a gated convolution of ", model.convolution->taps,
             model.convolution->taps == 1 ? " row" : " rows");
}

std::int64_t request_bytes(const Transformer& model, DType dtype) {
  return (model.convolution->taps - 1) * model.hidden * size_bytes(dtype);
}

// ---- a layout ----

std::int64_t dealt(const Transformer& model) { return model.hidden; }

bool takes(const Balance& balance) {
  return balance.kind != Balance::Kind::striped && balance.kind != Balance::Kind::cost;
}

std::optional<LayoutRefusal> refuse_layout(const Transformer& model, const Workload& /*workload*/,
                                           const ParallelLayout& layout) {
  const Balance& balance = layout.strategy.balance;  // a balance of some layers is one that it takes
  if (takes(balance)) return std::nullopt;
  return LayoutRefusal{
      "stripes of a convolution",
      str("balance=", to_string(balance), " gives a rank rows in many places, and a convolution needs ",
          model.convolution->taps - 1, " rows before each"),
      "use balance=head_tail or contiguous"};
}

// Which all sequences of a micro-batch have: others are refused.
std::vector<std::int64_t> starts_of_documents(const StepContext& context) {
  const AttentionProblem& problem = context.attention.front().problem;
  return document_starts(problem.cu_seqlens, problem.q_len);
}

// The chunks of all cp ranks, at a home.
std::vector<Chunk> chunks_at(const StepContext& context, int home) {
  const AttentionSharding sharding(context.attention.front().problem, context.layout.cp,
                                   strategy_at_home(context.layout, home));
  std::vector<IndexSet> rows;
  rows.reserve(idx(context.layout.cp));
  for (int index = 0; index < context.layout.cp; ++index) rows.push_back(sharding.home_q(index).rows);
  return chunks_of(starts_of_documents(context), rows);
}

// ---- weights ----

void lay_alike(const Transformer& /*model*/, const LocalSizes& /*sizes*/, Placing& /*placing*/,
               LayerWeights& /*weights*/) {}

void lay(const Transformer& model, const LocalSizes& sizes, Placing& placing, LayerWeights& weights) {
  const auto& [taps, bias] = *model.convolution;
  const std::int64_t width = sizes.channels;
  weights.projection = placing.matrix(3 * width, model.hidden);
  weights.projection_bias = placing.vector(bias ? 3 * width : 0);
  weights.convolution = placing.matrix(width, taps);
  weights.convolution_bias = placing.vector(bias ? width : 0);
  weights.out = placing.matrix(model.hidden, width);
}

// On disk the rows of B, C and x stand one behind the other.
void name_tensors(TensorBlocks& blocks, const StepContext& context, const LayerWeights& weights) {
  const std::int64_t width = context.sizes.channels, hidden = context.hidden, first = blocks.tp() * width;
  constexpr std::array<std::int64_t, 3> kOnDisk = {0, 2, 1};  // of B, x and C
  for (std::size_t part = 0; part < kOnDisk.size(); ++part) {
    const std::int64_t begin = static_cast<std::int64_t>(part) * width, row = kOnDisk[part] * hidden + first;
    blocks.matrix(weights.projection.part(begin, width), "conv.in_proj.weight", row);
    if (weights.projection_bias.numel() > 0)
      blocks.vector({weights.projection_bias.begin + begin, 1, width}, "conv.in_proj.bias", row);
  }
  blocks.rows(weights.convolution, "conv.conv.weight");
  blocks.vector(weights.convolution_bias, "conv.conv.bias", first);
  blocks.columns(weights.out, "conv.out_proj.weight");
  blocks.vector(weights.out_bias, "conv.out_proj.bias");
}

MixerCache cache(const StepContext& context) {
  const bool has_first_row = chunks_at(context, 0).front().index == context.groups.cp();
  const std::int64_t reach = context.model.convolution->taps - 1;
  return {0, {context.layout.micro_batch, has_first_row ? reach : 0, context.sizes.channels}};
}

// ---- steps ----

// One of the two gates of a layer: its columns and those that it multiplies, side by side.
constexpr std::int64_t kIn = 0, kOut = 2;

class Writer : public MixerWriter {
 public:
  Writer(StepWriter& writer, Activations& activations, KvCache* cache)
      : writer_(writer),
        context_(writer.context()),
        activations_(activations),
        cache_(cache),
        width_(context_.sizes.channels) {}

  View forward(const LayerPlace& place, const Window& weights, const View& rows) override {
    const LayerWeights& layer = context_.layer[place.parts];
    HaloWriter& halos = halos_at(place.home);
    const View all = this->all(place), projected = columns_of(all, 0, 3 * width_), gated = this->gated(place);
    writer_.matmul(rows, layer.projection.transposed(weights), projected, "convolution projection");
    if (layer.projection_bias.numel() > 0)
      writer_.kernel({RowOperation::add_bias, {layer.projection_bias.flat(weights)}, {}, {projected}},
                     "bias of a convolution's projection");
    gate(place, kIn, "gate before a convolution");
    const View halo = this->halo(place);
    halos.fetch(place, gated, halo);
    writer_.kernel({RowOperation::short_convolution,
                    operands(place, weights),
                    {columns_of(all, 3 * width_, width_)},
                    halos.cached(place),
                    rule(place)},
                   "gated convolution");
    halos.cache_last_rows(place, gated, halo);
    gate(place, kOut, "gate behind a convolution");
    return out(place);
  }

  View output(const LayerPlace& place, const Window& /*weights*/) override {
    if (!place.recomputed && !activations_.keeps(A::convolved_out, place)) {
      gate(place, kIn, "gate before a convolution again");
      gate(place, kOut, "gate behind a convolution again");
    }
    return out(place);
  }

  void backward(const LayerPlace& place, const Window& weights, const GradientPlace& gradients,
                const View& rows, const View& d_out, const View& d_rows) override {
    const LayerWeights& layer = context_.layer[place.parts];
    HaloWriter& halos = halos_at(place.home);
    const View d_all = writer_.working_rows("d convolution", context_.tokens, 4 * width_),
               d_projected = columns_of(d_all, 0, 3 * width_),
               d_gated = writer_.working_rows("d gated", context_.tokens, width_),
               d_halo = writer_.working_rows("d convolution halo", halos.rows(), width_);
    gate_backward(place, kOut, d_out, d_all, "gate behind a convolution, backward");
    std::vector<View> reads = operands(place, weights), writes{d_gated};
    reads.push_back(columns_of(d_all, 3 * width_, width_));
    if (halos.rows() > 0) writes.push_back(d_halo);
    std::vector<Weight> learnt{layer.convolution};
    if (layer.convolution_bias.numel() > 0) learnt.push_back(layer.convolution_bias);
    writer_.kernel_with_gradients(
        {RowOperation::short_convolution_backward, std::move(reads), std::move(writes), {}, rule(place)},
        learnt, gradients, "gated convolution, backward");
    // The gradients of the halo go back to the ranks that its rows came from.
    halos.give_back(d_halo, d_gated);
    gate_backward(place, kIn, d_gated, d_all, "gate before a convolution, backward");
    if (layer.projection_bias.numel() > 0)
      writer_.kernel_with_gradients({RowOperation::add_bias, {d_projected}, {}, {}}, {layer.projection_bias},
                                    gradients, "bias of a convolution's projection, backward");
    writer_.matmul(d_projected, layer.projection.matrix(weights), d_rows, "convolution projection, dgrad");
    writer_.weight_gradient(transposed(d_projected), rows, layer.projection, gradients,
                            "convolution projection, wgrad");
  }

 private:
  using A = Activation;

  View all(const LayerPlace& place) {
    return activations_.rows(A::convolution, place, context_.tokens, 4 * width_);
  }
  View gated(const LayerPlace& place) {
    return activations_.rows(A::convolution_in, place, context_.tokens, width_);
  }
  View out(const LayerPlace& place) {
    return activations_.rows(A::convolved_out, place, context_.tokens, width_);
  }
  View halo(const LayerPlace& place) {
    return activations_.rows(A::convolution_halo, place, halos_at(place.home).rows(), width_);
  }

  static ActivationRule product() { return {ActivationFunction::identity, true, 0, 0, false}; }
  void gate(const LayerPlace& place, std::int64_t which, const std::string& label) {
    const View made = which == kIn ? gated(place) : out(place);
    writer_.kernel({RowOperation::gated_activation,
                    {columns_of(all(place), which * width_, 2 * width_)},
                    {made},
                    {},
                    product()},
                   label);
  }
  void gate_backward(const LayerPlace& place, std::int64_t which, const View& d_made, const View& d_all,
                     const std::string& label) {
    writer_.kernel({RowOperation::gated_activation_backward,
                    {columns_of(all(place), which * width_, 2 * width_), d_made},
                    {columns_of(d_all, which * width_, 2 * width_)},
                    {},
                    product()},
                   label);
  }

  // The rows, the taps, and the bias and the halo where there are these.
  std::vector<View> operands(const LayerPlace& place, const Window& weights) {
    const LayerWeights& layer = context_.layer[place.parts];
    std::vector<View> views{gated(place), layer.convolution.flat(weights)};
    if (layer.convolution_bias.numel() > 0) views.push_back(layer.convolution_bias.flat(weights));
    if (halos_at(place.home).rows() > 0) views.push_back(halo(place));
    return views;
  }
  RowRule rule(const LayerPlace& place) {
    if (cache_ != nullptr) return {};  // serving's kernel has shapes only
    ConvolutionRule rule = halos_at(place.home).rule();
    rule.plain = true;
    return rule;
  }

  // Of layers that have their rows at a home.
  HaloWriter& halos_at(int home) {
    std::optional<HaloWriter>& halos = halos_[idx(home)];
    if (!halos)
      halos.emplace(writer_, cache_,
                    ConvolvedSequence{chunks_at(context_, home), starts_of_documents(context_),
                                      context_.model.convolution->taps, width_});
    return *halos;
  }

  StepWriter& writer_;
  const StepContext& context_;
  Activations& activations_;
  KvCache* const cache_;
  const std::int64_t width_;
  std::array<std::optional<HaloWriter>, kMostHomes> halos_;
};

std::unique_ptr<MixerWriter> make_writer(StepWriter& writer, Activations& activations, KvCache* cache) {
  return std::make_unique<Writer>(writer, activations, cache);
}

// ---- memory ----

class Memory : public MixerMemory {
 public:
  Memory(const Transformer& model, const Workload& workload, const ParallelLayout& layout,
         const LocalSizes& sizes)
      : layout_(layout),
        phase_(workload.phase),
        rows_(sizes.tokens * sizes.channels * size_bytes(workload.dtype)),
        cached_(layout.micro_batch * (model.convolution->taps - 1) * sizes.channels *
                size_bytes(workload.dtype)) {}

  LayerKept kept() const override { return {.input = 0, .cheap = 2 * rows_, .rest = 4 * rows_}; }
  // What projection and convolution give, or the gradient of that, with the rows before the latter gate or
  // the gradient of these.
  std::int64_t bytes_inside() const override { return 5 * rows_; }
  // Of a prompt over several ranks nothing is claimed: others than the one that caches may need most.
  std::int64_t cached_bytes() const override {
    return layout_.cp > 1 && phase_ == Phase::prefill ? 0 : cached_;
  }

 private:
  const ParallelLayout& layout_;
  const Phase phase_;
  const std::int64_t rows_, cached_;
};

std::unique_ptr<MixerMemory> make_memory(const Transformer& model, const Workload& workload,
                                         const ParallelLayout& layout, const LocalSizes& sizes) {
  return std::make_unique<Memory>(model, workload, layout, sizes);
}

}  // namespace short_convolution

}  // namespace

const MixerFacts kShortConvolutionMixer = {
    .mixer = Mixer::convolution,
    .with_mlp = "convolution_",
    .alone = "convolution_alone_",
    .is_described = short_convolution::is_described,
    .forget = short_convolution::forget,
    .has_out_bias = short_convolution::has_out_bias,
    .check = short_convolution::check,
    .parameters = short_convolution::parameters,
    .estimated = short_convolution::estimated,
    .hash = short_convolution::hash,
    .text = short_convolution::text,
    .request_bytes = short_convolution::request_bytes,
    .cached_name = "rows that convolutions saw last",
    .dealt = short_convolution::dealt,
    .dealt_name = "channels of convolutions",
    .takes = short_convolution::takes,
    .refuse = short_convolution::refuse_layout,
    .lay_alike = short_convolution::lay_alike,
    .lay = short_convolution::lay,
    .name_tensors = short_convolution::name_tensors,
    .cache = short_convolution::cache,
    .writer = short_convolution::make_writer,
    .memory = short_convolution::make_memory,
};

}  // namespace cp
