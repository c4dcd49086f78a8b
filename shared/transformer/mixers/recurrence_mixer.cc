// The row of recurrences: gated delta nets and Mamba-2.
#include <algorithm>

#include "shared/base/text.h"
#include "shared/transformer/complaints.h"
#include "shared/transformer/mixers/mixers.h"
#include "shared/transformer/mixers/recurrence_memory.h"
#include "shared/transformer/mixers/recurrence_writer.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/placing.h"
#include "shared/transformer/tensor_blocks.h"

namespace cp {
namespace {

namespace recurrence_mixer {

// Chosen far above any model, and so low that the states of all layers together fit into 64 bits.
constexpr double kMaxState = 1e12;

bool is_described(const Transformer& model) { return model.recurrence.has_value(); }
void forget(Transformer& model) { model.recurrence.reset(); }
bool has_out_bias(const Transformer& /*model*/) { return false; }

void check(const Transformer& model, detail::Complaints& complaints) {
  const Recurrence& recurrence = *model.recurrence;
  const double state = static_cast<double>(recurrence.value_heads) * static_cast<double>(recurrence.key_dim) *
                       static_cast<double>(recurrence.value_dim);
  complaints.require(state <= kMaxState,
                     str("a state of recurrence.value_heads x key_dim x value_dim = ", state,
                         " elements is more than ", kMaxState, ", the largest that is counted"));
  complaints.require_size("recurrence.key_dim", recurrence.key_dim);
  complaints.require_size("recurrence.value_dim", recurrence.value_dim);
  complaints.require_range("recurrence.convolution", recurrence.convolution, 1, detail::kMaxCount);
  const bool values = complaints.require_count("recurrence.value_heads", recurrence.value_heads);
  if (complaints.require_count("recurrence.key_heads", recurrence.key_heads) && values &&
      recurrence.value_heads % recurrence.key_heads != 0) {
    complaints.add(str("recurrence.key_heads=", recurrence.key_heads,
                       " does not divide recurrence.value_heads=", recurrence.value_heads, "; use one of ",
                       detail::divisors_text(recurrence.value_heads)));
  }
}

MixerParameters parameters(const Transformer& model) {
  const Recurrence& r = *model.recurrence;
  return {model.hidden * (r.projected() + r.value_width()),
          r.convolved() * (r.convolution + (r.convolution_bias ? 1 : 0)) + r.norm_width() +
              r.head_numbers() * r.value_heads};
}

double estimated(const Transformer& model) {
  const auto f = [](std::int64_t value) { return static_cast<double>(value); };
  const Recurrence& r = *model.recurrence;
  return f(model.hidden) * 4 * (f(r.key_heads) * f(r.key_dim) + f(r.value_heads) * f(r.value_dim));
}

void hash(Hasher& hasher, const Transformer& model) {
  const auto& [rule, key_heads, value_heads, key_dim, value_dim, convolution, bias] = *model.recurrence;
  hasher.add(std::string_view("recurrence")).add(static_cast<int>(rule)).add(key_heads).add(value_heads);
  hasher.add(key_dim).add(value_dim).add(convolution).add(bias);
}

std::string text(const Transformer& model) {
  const Recurrence& recurrence = *model.recurrence;
  return str(recurrence.rule == RecurrenceRule::delta ? "a gated delta net" : "Mamba-2", " with states of ",
             recurrence.key_dim, " x ", recurrence.value_dim);
}

std::int64_t request_bytes(const Transformer& model, DType dtype) {
  const RecurrentCache cache = recurrent_cache(*model.recurrence, dtype);
  return cache.state + cache.convolved;
}

std::int64_t dealt(const Transformer& model) { return model.recurrence->key_heads; }

bool takes(const Balance& balance) { return balance.kind != Balance::Kind::striped; }

std::optional<LayoutRefusal> refuse_layout(const Transformer& model, const Workload& workload,
                                           const ParallelLayout& layout) {
  if (!takes(layout.strategy.balance)) {
    return LayoutRefusal{"stripes of a recurrence",
                         str("balance=", to_string(layout.strategy.balance), " gives a rank chunks of ",
                             layout.strategy.balance.block, " rows, and a recurrence's convolution needs ",
                             model.recurrence->convolution - 1, " rows before each"),
                         "use balance=head_tail or contiguous"};
  }
  if (!is_scan_of(workload, layout.scan)) {
    return LayoutRefusal{"the same layout twice",
                         str("scan=", name(layout.scan), " and ", name(StateScan::all_gather),
                             " mean the same where a token is written: there is nothing to scan"),
                         str("use scan=", name(StateScan::all_gather), " or ", name(StateScan::heads))};
  }
  const auto refusal = refuse(recurrence_problem(model, workload, layout), layout.cp,
                              recurrence_strategy(layout), shape_target());
  if (!refusal) return std::nullopt;
  const bool other = refusal->strategy.scan != layout.scan;
  return LayoutRefusal{"scan", refusal->reason, other ? str("use scan=", name(refusal->strategy.scan)) : ""};
}

bool has_norm_of_heads(const Recurrence& r) { return r.rule == RecurrenceRule::delta; }

void lay_alike(const Transformer& /*model*/, const LocalSizes& sizes, Placing& placing,
               LayerWeights& weights) {
  const Recurrence& r = sizes.recurrence;
  weights.head_norm = placing.vector(has_norm_of_heads(r) ? r.norm_width() : 0);
}

void lay(const Transformer& model, const LocalSizes& sizes, Placing& placing, LayerWeights& weights) {
  const Recurrence& r = sizes.recurrence;
  weights.projection = placing.matrix(r.projected(), model.hidden);
  weights.convolution = placing.matrix(r.convolved(), r.convolution);
  weights.convolution_bias = placing.vector(r.convolution_bias ? r.convolved() : 0);
  weights.numbers = placing.vector(2 * r.value_heads);
  weights.skip = placing.vector((r.head_numbers() - 2) * r.value_heads);
  weights.row_norm = placing.vector(has_norm_of_heads(r) ? 0 : r.norm_width());
  weights.out = placing.matrix(model.hidden, r.value_width());
}

void name_tensors(TensorBlocks& blocks, const StepContext& context, const LayerWeights& weights) {
  const Recurrence &r = context.sizes.recurrence, &whole = *context.model.recurrence;
  const std::int64_t keys = r.key_width(), values = r.value_width(), heads = r.value_heads, tp = blocks.tp();
  // q, k and v stand one behind the other in the whole tensor too.
  const auto convolved = [&](const Weight& weight, const std::string& name, bool is_vector) {
    const auto part = [&](std::int64_t first, std::int64_t count, std::int64_t row) {
      if (is_vector)
        blocks.vector({weight.begin + first, 1, count}, name, row);
      else
        blocks.matrix(weight.part(first, count), name, row);
    };
    part(0, keys, tp * keys), part(keys, keys, whole.key_width() + tp * keys);
    part(2 * keys, values, 2 * whole.key_width() + tp * values);
  };
  convolved(weights.projection, "linear_attn.in_proj_qkv.weight", false);
  const std::int64_t behind = r.convolved() + values;
  blocks.rows(weights.projection.part(r.convolved(), values), "linear_attn.in_proj_z.weight");
  if (r.rule == RecurrenceRule::delta) {
    blocks.rows(weights.projection.part(behind, heads), "linear_attn.in_proj_b.weight");
    blocks.rows(weights.projection.part(behind + heads, heads), "linear_attn.in_proj_a.weight");
  } else {
    blocks.rows(weights.projection.part(behind, heads), "linear_attn.in_proj_dt.weight");
  }
  convolved(weights.convolution, "linear_attn.conv1d.weight", false);
  if (r.convolution_bias) convolved(weights.convolution_bias, "linear_attn.conv1d.bias", true);
  blocks.vector({weights.numbers.begin, 1, heads}, "linear_attn.A_log", tp * heads);
  blocks.vector({weights.numbers.begin + heads, 1, heads}, "linear_attn.dt_bias", tp * heads);
  blocks.vector(weights.skip, "linear_attn.D", tp * heads);
  blocks.vector(weights.head_norm, "linear_attn.norm.weight");
  blocks.vector(weights.row_norm, "linear_attn.norm.weight", tp * weights.row_norm.columns);
  blocks.columns(weights.out, "linear_attn.out_proj.weight");
}

MixerCache cache(const StepContext& context) {
  const Recurrence& r = context.sizes.recurrence;
  const bool has_first_row = chunks_of(*context.recurrence).front().index == context.groups.cp();
  return {cached_state_numel(*context.recurrence, context.groups.cp()),
          {context.layout.micro_batch, has_first_row ? r.convolution - 1 : 0, r.convolved()}};
}

std::unique_ptr<MixerWriter> make_writer(StepWriter& writer, Activations& activations, KvCache* cache) {
  return std::make_unique<RecurrenceWriter>(writer, activations, cache);
}

std::unique_ptr<MixerMemory> make_memory(const Transformer& model, const Workload& workload,
                                         const ParallelLayout& layout, const LocalSizes& sizes) {
  return std::make_unique<RecurrenceMemory>(model, workload, layout, sizes);
}

}  // namespace recurrence_mixer

}  // namespace

const MixerFacts kRecurrenceMixer = {
    .mixer = Mixer::recurrence,
    .with_mlp = "recurrent_",
    .alone = "recurrence_",
    .is_described = recurrence_mixer::is_described,
    .forget = recurrence_mixer::forget,
    .has_out_bias = recurrence_mixer::has_out_bias,
    .check = recurrence_mixer::check,
    .parameters = recurrence_mixer::parameters,
    .estimated = recurrence_mixer::estimated,
    .hash = recurrence_mixer::hash,
    .text = recurrence_mixer::text,
    .request_bytes = recurrence_mixer::request_bytes,
    .cached_name = "states of recurrent layers f32",
    .dealt = recurrence_mixer::dealt,
    .dealt_name = "key heads of recurrences",
    .takes = recurrence_mixer::takes,
    .refuse = recurrence_mixer::refuse_layout,
    .lay_alike = recurrence_mixer::lay_alike,
    .lay = recurrence_mixer::lay,
    .name_tensors = recurrence_mixer::name_tensors,
    .cache = recurrence_mixer::cache,
    .writer = recurrence_mixer::make_writer,
    .memory = recurrence_mixer::make_memory,
};

}  // namespace cp
