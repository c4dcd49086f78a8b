#include "shared/transformer/parallel_layout.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <set>

#include "shared/base/error.h"

namespace cp {
namespace {

constexpr std::array<std::string_view, 4> kOrders{"tp-cp-dp-pp", "cp-tp-dp-pp", "tp-dp-cp-pp", "tp-cp-pp-dp"};
constexpr std::array<std::string_view, 4> kCores{"all_gather", "ring", "need_only", "pass_q"};
constexpr std::string_view kKeys =
    "dp_replicate, dp_shard, cp, tp, pp, ep, virtual_stages, strategy, ulysses_degree, inner_ring, "
    "axis_order, rotation, "
    "balance, sharding, order, micro_batch, recompute, loss_chunks";

int parse_degree(std::string_view text, std::string_view key) {
  const std::int64_t value = parse_int(text, key);
  if (value < 1 || value > Mesh::kMaxRanks) {
    throw InvalidInput(str(key, "=", value, " of a layout; use 1 to ", Mesh::kMaxRanks));
  }
  return static_cast<int>(value);
}

// The number at most `value` that divides both best: the nearest degree that works.
std::int64_t nearest_divisor(std::int64_t number, std::int64_t value) {
  for (std::int64_t degree = std::min(value, number); degree > 1; --degree) {
    if (number % degree == 0) return degree;
  }
  return 1;
}

// ---- why not ----

std::optional<LayoutRefusal> refuse_batch(const Workload& workload, const ParallelLayout& layout) {
  const std::int64_t at_once = layout.dp() * layout.micro_batch, batch = workload.global_batch;
  if (batch % at_once != 0) {
    return LayoutRefusal{"batch does not divide",
                         str("global_batch=", batch, " is not a multiple of dp * micro_batch = ", layout.dp(),
                             " * ", layout.micro_batch, "; use a batch of ", (batch / at_once + 1) * at_once,
                             ", or dp * micro_batch = ", nearest_divisor(batch, at_once))};
  }
  if (workload.phase != Phase::training && batch != at_once) {
    return LayoutRefusal{"serving takes the requests of a replica at once",
                         str("micro_batch=", layout.micro_batch, " of ", batch / layout.dp(),
                             " requests of a replica; use micro_batch=", batch / layout.dp())};
  }
  if (layout.virtual_stages > 1 && (batch / at_once) % layout.pp != 0) {
    return LayoutRefusal{"interleaved schedule",
                         str(batch / at_once, " micro-batches are not a multiple of pp=", layout.pp,
                             ", which the interleaved schedule needs; use virtual_stages=1")};
  }
  return std::nullopt;
}

std::optional<LayoutRefusal> refuse_heads(const Transformer& model, const ParallelLayout& layout) {
  const int tp = layout.tp;
  if (model.q_heads % tp != 0) {
    return LayoutRefusal{"tp does not divide the heads",
                         str("num_attention_heads=", model.q_heads, " is not divisible by tp=", tp,
                             "; use tp=", nearest_divisor(model.q_heads, tp))};
  }
  if (model.kv_heads % tp != 0 && tp % model.kv_heads != 0) {
    return LayoutRefusal{"tp does not divide the kv heads",
                         str("num_key_value_heads=", model.kv_heads, " and tp=", tp,
                             " do not divide each other; use tp=", nearest_divisor(model.kv_heads, tp))};
  }
  const std::int64_t columns = model.experts ? model.experts->intermediate : model.intermediate;
  if (columns % tp != 0) {
    return LayoutRefusal{"tp does not divide the MLP",
                         str("intermediate_size=", columns, " is not divisible by tp=", tp,
                             "; use tp=", nearest_divisor(std::gcd(columns, model.q_heads), tp))};
  }
  return std::nullopt;
}

std::optional<LayoutRefusal> refuse_experts(const Transformer& model, const ParallelLayout& layout) {
  if (layout.ep == 1) return std::nullopt;
  if (!model.experts) {
    return LayoutRefusal{"ep without experts",
                         str("ep=", layout.ep, " of a model without experts; use ep=1")};
  }
  const std::int64_t ranks = layout.dp_shard * layout.cp;
  if (model.experts->count % layout.ep != 0 || ranks % layout.ep != 0 ||
      layout.sharding_size() % layout.ep != 0) {
    return LayoutRefusal{
        "ep does not divide",
        str("ep=", layout.ep, " must divide the ", model.experts->count,
            " experts and the ranks that parameters are sharded over, ", layout.sharding_size(),
            "; use ep=", nearest_divisor(std::gcd(model.experts->count, layout.sharding_size()), layout.ep))};
  }
  return std::nullopt;
}

std::optional<LayoutRefusal> refuse_stages(const Transformer& model, const Workload& workload,
                                           const ParallelLayout& layout) {
  const std::int64_t stages = std::int64_t{layout.pp} * layout.virtual_stages;
  if (layout.virtual_stages > 1 && (layout.pp == 1 || workload.phase != Phase::training)) {
    return LayoutRefusal{
        "virtual stages without a pipeline",
        str("virtual_stages=", layout.virtual_stages, " need pp > 1 and training; use virtual_stages=1")};
  }
  if (stages > model.layers) {
    return LayoutRefusal{"more stages than layers",
                         str("pp * virtual_stages = ", stages, " of ", model.layers, " layers; use at most ",
                             model.layers, " stages")};
  }
  const std::int64_t smallest = model.layers / stages;
  if (layout.recompute.kind == Recompute::Kind::every &&
      (layout.recompute.every < 2 || layout.recompute.every > smallest)) {
    return LayoutRefusal{"recompute more layers than there are",
                         str("recompute=", to_string(layout.recompute), " of stages of ", smallest,
                             " layers; use every:2 to every:", smallest, ", or full")};
  }
  return std::nullopt;
}

std::optional<LayoutRefusal> refuse_sequence(const Transformer& model, const Workload& workload,
                                             const ParallelLayout& layout) {
  const std::int64_t rows =
      workload.phase == Phase::decode ? workload.seq_len : workload.seq_len - workload.cached;
  if (rows < std::int64_t{layout.cp} * layout.tp) {
    return LayoutRefusal{"sequence too short",
                         str(rows, " tokens over cp * tp = ", layout.cp, " * ", layout.tp,
                             " ranks: some have none; use at most ", rows, " ranks")};
  }
  if (layout.loss_chunks > std::max<std::int64_t>(1, rows / layout.cp)) {
    return LayoutRefusal{"more loss chunks than rows", str("loss_chunks=", layout.loss_chunks, " of ",
                                                           rows / layout.cp, " rows; use at most that many")};
  }
  if (layout.cp == 1) return std::nullopt;
  const auto refusal = refuse(attention_problem(model, workload, layout), layout.cp, layout.strategy);
  if (refusal) return LayoutRefusal{"strategy", refusal->reason};
  return std::nullopt;
}

std::optional<LayoutRefusal> refuse_serving(const Workload& workload, const ParallelLayout& layout) {
  if (workload.phase == Phase::training) return std::nullopt;
  if (layout.recompute.kind != Recompute::Kind::none || layout.loss_chunks != 1 || layout.dp_shard != 1) {
    return LayoutRefusal{
        "a choice of training",
        str(name(workload.phase), " has no backward pass, loss or sharded parameters (", to_string(layout),
            "); use recompute=none, loss_chunks=1, dp_shard=1, and dp_replicate for replicas")};
  }
  return std::nullopt;
}

// ---- text ----

// The values of the keys that a text gives.
class LayoutText {
 public:
  explicit LayoutText(std::string_view text) : text_(text) {
    for (const std::string_view part : split(text, ',')) {
      const std::size_t equals = part.find('=');
      const std::string_view key = trim(part.substr(0, equals));
      if (equals == std::string_view::npos ||
          str(", ", kKeys, ",").find(str(" ", key, ",")) == std::string::npos) {
        throw InvalidInput(
            str("'", part, "' in the layout '", text, "' is no key=value of a layout; its keys are ", kKeys));
      }
      for (const auto& [other, value] : values_) {
        if (other == key)
          throw InvalidInput(str(key, " comes twice in the layout '", text, "'; give it once"));
      }
      values_.emplace_back(key, trim(part.substr(equals + 1)));
    }
  }
  std::optional<std::string_view> find(std::string_view key) const {
    for (const auto& [known, value] : values_) {
      if (known == key) return value;
    }
    return std::nullopt;
  }
  void degree(std::string_view key, int& out) const {
    if (const auto value = find(key)) out = parse_degree(*value, key);
  }
  // One of two words.
  template <class T>
  void word(std::string_view key, std::string_view first, T first_value, std::string_view second,
            T second_value, T& out) const {
    const auto value = find(key);
    if (!value) return;
    if (*value != first && *value != second)
      throw InvalidInput(str(key, "=", *value, " of the layout '", text_, "'; use ", first, " or ", second));
    out = *value == first ? first_value : second_value;
  }

 private:
  std::string_view text_;
  std::vector<std::pair<std::string_view, std::string_view>> values_;
};

void read_strategy(const LayoutText& text, ParallelLayout& layout) {
  StrategyRequest request;
  if (const auto value = text.find("strategy")) request.name = *value;
  AttentionProblem any;
  any.q_heads = Mesh::kMaxRanks;  // does not bound the degree
  int degree = 0, inner = 0;
  text.degree("ulysses_degree", degree), text.degree("inner_ring", inner);
  if (degree > 0) request.ulysses_degree = degree;
  if (inner > 0) request.inner_ring = inner;
  layout.strategy = named_strategy(request, any, layout.cp);
  if (const auto value = text.find("balance")) layout.strategy.balance = parse_balance(*value);
  text.word("rotation", "exchange", Strategy::Rotation::exchange, "all_gather",
            Strategy::Rotation::all_gather, layout.strategy.rotation);
  text.word("axis_order", "ulysses_inner", true, "ring_inner", false, layout.strategy.ulysses_inner);
}

std::string strategy_text(const ParallelLayout& layout) {
  const Strategy& strategy = layout.strategy;
  const bool whole = strategy.ulysses_degree == layout.cp;
  std::string text =
      whole ? ",strategy=ulysses" : str(",strategy=", kCores[static_cast<std::size_t>(strategy.core)]);
  if (!whole && strategy.ulysses_degree > 1) text += str(",ulysses_degree=", strategy.ulysses_degree);
  if (strategy.inner_ring > 1) text += str(",inner_ring=", strategy.inner_ring);
  if (!strategy.ulysses_inner) text += ",axis_order=ring_inner";
  if (strategy.rotation == Strategy::Rotation::all_gather) text += ",rotation=all_gather";
  return text + ",balance=" + to_string(strategy.balance);
}

}  // namespace

std::string to_string(const Recompute& recompute) {
  switch (recompute.kind) {
    case Recompute::Kind::none:
      return "none";
    case Recompute::Kind::selective:
      return "selective";
    case Recompute::Kind::full:
      return "full";
    case Recompute::Kind::every:
      return str("every:", recompute.every);
  }
  return {};
}

Recompute parse_recompute(std::string_view text) {
  for (const auto kind : {Recompute::Kind::none, Recompute::Kind::selective, Recompute::Kind::full}) {
    if (text == to_string(Recompute{kind, 1})) return {kind, 1};
  }
  if (text.starts_with("every:")) {
    const std::int64_t every = parse_int(text.substr(6), "recompute=every");
    if (every >= 2 && every <= 1024) return {Recompute::Kind::every, static_cast<int>(every)};
  }
  throw InvalidInput(
      str("recompute '", text, "'; use none, selective, full, or every:K with K from 2 to 1024"));
}

std::string to_string(AxisOrder order) { return std::string(kOrders[static_cast<std::size_t>(order)]); }

AxisOrder parse_axis_order(std::string_view text) {
  for (const AxisOrder order : axis_orders()) {
    if (text == kOrders[static_cast<std::size_t>(order)]) return order;
  }
  throw InvalidInput(
      str("axis order '", text, "'; use one of ", join(kOrders, ", "), " (the first varies fastest)"));
}

const std::vector<AxisOrder>& axis_orders() {
  static const std::vector<AxisOrder> orders{AxisOrder::tp_cp_dp_pp, AxisOrder::cp_tp_dp_pp,
                                             AxisOrder::tp_dp_cp_pp, AxisOrder::tp_cp_pp_dp};
  return orders;
}

std::string to_string(const ParallelLayout& layout) {
  std::string text;
  const auto add = [&](std::string_view key, std::int64_t value) {
    if (value > 1) text += str(",", key, "=", value);
  };
  add("tp", layout.tp), add("cp", layout.cp), add("dp_shard", layout.dp_shard);
  add("dp_replicate", layout.dp_replicate), add("pp", layout.pp), add("ep", layout.ep);
  add("virtual_stages", layout.virtual_stages);
  if (layout.cp > 1) text += strategy_text(layout);
  if (layout.sharding == ShardingGroup::dp_shard) text += ",sharding=dp_shard";
  if (layout.order != AxisOrder::tp_cp_dp_pp) text += str(",order=", to_string(layout.order));
  add("micro_batch", layout.micro_batch);
  if (layout.recompute.kind != Recompute::Kind::none) text += str(",recompute=", to_string(layout.recompute));
  add("loss_chunks", layout.loss_chunks);
  return text.empty() ? "tp=1" : text.substr(1);
}

ParallelLayout parse_parallel_layout(std::string_view text, int world) {
  const LayoutText values(text);
  ParallelLayout layout;
  values.degree("dp_replicate", layout.dp_replicate), values.degree("dp_shard", layout.dp_shard);
  values.degree("cp", layout.cp), values.degree("tp", layout.tp), values.degree("pp", layout.pp);
  values.degree("ep", layout.ep), values.degree("virtual_stages", layout.virtual_stages);
  values.degree("loss_chunks", layout.loss_chunks);
  if (!values.find("dp_shard") && world > 0) {
    const std::int64_t rest = std::int64_t{layout.dp_replicate} * layout.cp * layout.tp * layout.pp;
    if (world % rest != 0) {
      throw InvalidInput(str("the layout '", text, "' takes ", rest, " ranks, which do not divide the ",
                             world, " GPUs; use degrees whose product divides ", world));
    }
    layout.dp_shard = static_cast<int>(world / rest);
  }
  if (const auto value = values.find("micro_batch")) layout.micro_batch = parse_degree(*value, "micro_batch");
  if (const auto value = values.find("recompute")) layout.recompute = parse_recompute(*value);
  if (const auto value = values.find("order")) layout.order = parse_axis_order(*value);
  values.word("sharding", "dp_shard", ShardingGroup::dp_shard, "dp_shard_cp", ShardingGroup::dp_shard_cp,
              layout.sharding);
  if (layout.cp > 1) read_strategy(values, layout);
  return layout;
}

std::int64_t accumulation(const Workload& workload, const ParallelLayout& layout) {
  return workload.global_batch / (layout.dp() * layout.micro_batch);
}

std::optional<LayoutRefusal> refuse(const Transformer& model, const Workload& workload,
                                    const ParallelLayout& layout) {
  if (layout.sharding == ShardingGroup::dp_shard && layout.cp == 1) {
    return LayoutRefusal{
        "the same layout twice",
        "sharding=dp_shard and dp_shard_cp mean the same with cp=1; use sharding=dp_shard_cp"};
  }
  if (auto refusal = refuse_serving(workload, layout)) return refusal;
  if (auto refusal = refuse_heads(model, layout)) return refusal;
  if (auto refusal = refuse_batch(workload, layout)) return refusal;
  if (auto refusal = refuse_experts(model, layout)) return refusal;
  if (auto refusal = refuse_stages(model, workload, layout)) return refusal;
  return refuse_sequence(model, workload, layout);
}

std::vector<MeshAxis> mesh_axes(const ParallelLayout& layout) {
  const MeshAxis replicate{"dp_replicate", layout.dp_replicate}, shard{"dp_shard", layout.dp_shard},
      cp{"cp", layout.cp}, tp{"tp", layout.tp}, pp{"pp", layout.pp};
  switch (layout.order) {
    case AxisOrder::tp_cp_dp_pp:
      return {pp, replicate, shard, cp, tp};
    case AxisOrder::cp_tp_dp_pp:
      return {pp, replicate, shard, tp, cp};
    case AxisOrder::tp_dp_cp_pp:
      return {pp, cp, replicate, shard, tp};
    case AxisOrder::tp_cp_pp_dp:
      return {replicate, shard, pp, cp, tp};
  }
  CP_INVARIANT(false, "order ", static_cast<int>(layout.order));
  return {};
}

Mesh build_mesh(const ParallelLayout& layout) { return Mesh(mesh_axes(layout)); }

std::vector<std::int64_t> stage_layers(const Transformer& model, const ParallelLayout& layout) {
  const std::int64_t stages = std::int64_t{layout.pp} * layout.virtual_stages, extra = model.layers % stages;
  std::vector<std::int64_t> layers(static_cast<std::size_t>(stages), model.layers / stages);
  for (std::int64_t i = 0; i < extra; ++i) {
    const std::int64_t middle = stages - 2, at = i < middle ? i + 1 : 0;
    ++layers[static_cast<std::size_t>(at)];
  }
  return layers;
}

std::int64_t in_flight(int rank, int ranks, int virtual_stages, std::int64_t micro_batches) {
  if (virtual_stages == 1) return std::min<std::int64_t>(ranks - rank, micro_batches);
  const std::int64_t warm_up = 2 * (ranks - rank - 1) + std::int64_t{virtual_stages - 1} * ranks;
  return std::min(warm_up + 1, micro_batches * virtual_stages);
}

AttentionProblem attention_problem(const Transformer& model, const Workload& workload,
                                   const ParallelLayout& layout) {
  AttentionProblem problem;
  problem.batch = layout.micro_batch;
  problem.kv_len = workload.seq_len;
  problem.q_len = workload.phase == Phase::decode ? 1 : workload.seq_len - workload.cached;
  problem.q_heads = model.q_heads / layout.tp;
  problem.kv_heads = std::max<std::int64_t>(1, model.kv_heads / layout.tp);
  problem.head_dim = problem.v_head_dim = model.head_dim;
  problem.dtype = workload.dtype;
  problem.causal = true;
  if (model.window && *model.window < workload.seq_len) problem.window = model.window;
  return problem;
}

Hasher& hash(Hasher& hasher, const ParallelLayout& layout) {
  hasher.add(layout.dp_replicate)
      .add(layout.dp_shard)
      .add(layout.cp)
      .add(layout.tp)
      .add(layout.pp)
      .add(layout.ep);
  hasher.add(layout.virtual_stages)
      .add(static_cast<int>(layout.sharding))
      .add(static_cast<int>(layout.order));
  hasher.add(layout.micro_batch).add(static_cast<int>(layout.recompute.kind)).add(layout.recompute.every);
  return hash(hasher.add(layout.loss_chunks), layout.strategy);
}

}  // namespace cp
