// Layouts in words: "tp=2,cp=8,strategy=ulysses".
#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/context_parallel/cores.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/short_layout.h"

namespace cp {
namespace {

constexpr std::array<std::string_view, 4> kOrders{"tp-cp-dp-pp", "cp-tp-dp-pp", "tp-dp-cp-pp", "tp-cp-pp-dp"};
// Beside those of degree_keys().
constexpr std::string_view kKeys =
    "virtual_stages, strategy, ulysses_degree, inner_ring, axis_order, rotation, balance, slots, pieces, "
    "merges, window_strategy, window_balance, scan, scan_balance, keys, sharding, zero, reshard, sync, "
    "prefetch, bucket, threshold, order, sequence_parallel, micro_batch, recompute, loss_chunks, mlp_chunks, "
    "activations";

int parse_number(std::string_view text, std::string_view key) {
  const std::int64_t value = parse_int(text, key);
  if (value < 1 || value > Mesh::kMaxRanks) {
    throw InvalidInput(str(key, "=", value, " is out of range; use 1 to ", Mesh::kMaxRanks));
  }
  return static_cast<int>(value);
}

// The values of the keys that a text gives.
class LayoutText {
 public:
  explicit LayoutText(std::string_view text) : text_(text) {
    for (const std::string_view part : split(text, ',')) {
      const std::size_t equals = part.find('=');
      const std::string_view key = trim(part.substr(0, equals));
      const bool of_degree =
          std::find(degree_keys().begin(), degree_keys().end(), key) != degree_keys().end();
      if (equals == std::string_view::npos ||
          (!of_degree && str(", ", kKeys, ",").find(str(" ", key, ",")) == std::string::npos)) {
        throw InvalidInput(str("'", part, "' in the layout '", text,
                               "' is not a key=value that a layout has; its keys are ",
                               join(degree_keys(), ", "), ", ", kKeys));
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
  void number(std::string_view key, int& out) const {
    if (const auto value = find(key)) out = parse_number(*value, key);
  }
  ParallelConfig degrees() const {
    ParallelConfig config;
    config.expert_rule = ExpertRule::nested;
    for (const auto& [key, value] : values_) read_degree(config, key, value);
    return config;
  }
  // One of two words.
  template <class T>
  void word(std::string_view key, std::string_view first, T first_value, std::string_view second,
            T second_value, T& out) const {
    const auto value = find(key);
    if (!value) return;
    if (*value != first && *value != second)
      throw InvalidInput(
          str(key, "=", *value, " in the layout '", text_, "' is unknown; use ", first, " or ", second));
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
  text.number("ulysses_degree", degree), text.number("inner_ring", inner);
  if (degree > 0) request.ulysses_degree = degree;
  if (inner > 0) request.inner_ring = inner;
  layout.strategy = named_strategy(request, any, layout.cp);
  if (const auto value = text.find("balance")) layout.strategy.balance = parse_balance(*value);
  text.word("rotation", "exchange", Strategy::Rotation::exchange, "all_gather",
            Strategy::Rotation::all_gather, layout.strategy.rotation);
  text.word("axis_order", "ulysses_inner", true, "ring_inner", false, layout.strategy.ulysses_inner);
  text.number("slots", layout.strategy.slots), text.number("pieces", layout.strategy.pieces);
  using Merges = Strategy::Merges;
  text.word("merges", name(Merges::in_turn), Merges::in_turn, name(Merges::beside), Merges::beside,
            layout.strategy.merges);
  if (const auto value = text.find("window_strategy")) layout.window_core = parse_window_core(*value);
  if (const auto value = text.find("window_balance"))
    layout.window_balance = parse_own_balance("window_balance", *value);
  if (const auto value = text.find("scan")) layout.scan = parse_state_scan(*value);
  if (const auto value = text.find("scan_balance"))
    layout.scan_balance = parse_own_balance("scan_balance", *value);
  using Keys = Strategy::Keys;
  text.word("keys", name(Keys::heads), Keys::heads, name(Keys::latent), Keys::latent, layout.keys);
}

}  // namespace

std::optional<Core> parse_window_core(std::string_view text) {
  if (text == kSameCore) return std::nullopt;
  try {
    return parse_core(text);
  } catch (const InvalidInput& error) {
    throw InvalidInput(
        str("window_strategy=", text, ": ", error.what(), "; ", kSameCore, " is the strategy of all layers"));
  }
}

std::optional<Balance> parse_own_balance(std::string_view key, std::string_view text) {
  if (text == kSameCore) return std::nullopt;
  try {
    return parse_balance(text);
  } catch (const InvalidInput& error) {
    throw InvalidInput(str(key, "=", text, ": ", error.what(), "; ", kSameCore, " is that of all layers"));
  }
}

namespace {

void add_strategy(const ParallelLayout& layout, std::vector<LayoutItem>& items) {
  const Strategy& strategy = layout.strategy;
  const bool whole = strategy.ulysses_degree == layout.cp;
  items.push_back({"strategy", whole ? "ulysses" : std::string(name(strategy.core))});
  if (!whole && strategy.ulysses_degree > 1)
    items.push_back({"ulysses_degree", str(strategy.ulysses_degree)});
  if (strategy.inner_ring > 1) items.push_back({"inner_ring", str(strategy.inner_ring)});
  if (!strategy.ulysses_inner) items.push_back({"axis_order", "ring_inner"});
  if (strategy.rotation == Strategy::Rotation::all_gather) items.push_back({"rotation", "all_gather"});
  items.push_back({"balance", to_string(strategy.balance)});
  if (strategy.slots > kLeastSlots) items.push_back({"slots", str(strategy.slots)});
  if (strategy.pieces > 1) items.push_back({"pieces", str(strategy.pieces)});
  if (strategy.merges != Strategy::Merges::in_turn)
    items.push_back({"merges", std::string(name(strategy.merges))});
  if (layout.window_core) items.push_back({"window_strategy", std::string(name(*layout.window_core))});
  if (layout.window_balance) items.push_back({"window_balance", to_string(*layout.window_balance)});
  if (layout.scan != StateScan::all_gather) items.push_back({"scan", std::string(name(layout.scan))});
  if (layout.scan_balance) items.push_back({"scan_balance", to_string(*layout.scan_balance)});
  if (layout.keys != Strategy::Keys::heads) items.push_back({"keys", std::string(name(layout.keys))});
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
      str("recompute '", text, "' is unknown; use none, selective, full, or every:K with K from 2 to 1024"));
}

int parse_zero(std::string_view text) {
  for (const int stage : {1, 2, 3}) {
    if (text == str(stage)) return stage;
  }
  throw InvalidInput(str(
      "zero=", text, " is unknown; use 1 (states are sharded), 2 (gradients, too) or 3 (parameters, too)"));
}

int parse_reshard(std::string_view text) {
  for (const int value : {0, 1}) {
    if (text == reshard_text(value)) return value;
  }
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  const std::int64_t ranks = digits && text.size() < 10 ? parse_int(text, "reshard") : 0;
  if (ranks > 1 && ranks <= Mesh::kMaxRanks) return static_cast<int>(ranks);
  throw InvalidInput(str("reshard=", text,
                         " is unknown; use all (parameters are given up behind the forward pass), no (they "
                         "stay whole), or over how many ranks they stay split, 2 or more"));
}

std::string reshard_text(int reshard) { return reshard == 0 ? "all" : reshard == 1 ? "no" : str(reshard); }

bool parse_sync(std::string_view text) {
  for (const bool once : {false, true}) {
    if (text == sync_text(once)) return once;
  }
  throw InvalidInput(str("sync=", text,
                         " is unknown; use micro_batch (gradients are reduced behind each layer) or step "
                         "(once, behind the last micro-batch)"));
}

std::string sync_text(bool once) { return once ? "step" : "micro_batch"; }

namespace {

// A whole number between two; one that is too long for any is out of range, too.
std::int64_t parse_between(std::string_view key, std::string_view text, std::int64_t least, std::int64_t most,
                           std::string_view meaning) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  const std::int64_t value = digits && text.size() < 19 ? parse_int(text, key) : -1;
  if (value >= least && value <= most) return value;
  throw InvalidInput(str(key, "=", text, " is not a number from ", least, " to ", most, ": ", meaning));
}

}  // namespace

int parse_prefetch(std::string_view text) {
  return static_cast<int>(parse_between("prefetch", text, 0, kMostPrefetch,
                                        "so many layers ahead parameters are gathered; 1 is usual"));
}

int parse_bucket(std::string_view text) {
  return static_cast<int>(
      parse_between("bucket", text, 1, kMostBucket, "so many layers are gathered and reduced at once"));
}

std::int64_t parse_threshold(std::string_view text) {
  return parse_between("threshold", text, 0, kMostThreshold,
                       "tensors with fewer elements stay whole on every rank; with 0 none");
}

std::string to_string(AxisOrder order) { return std::string(kOrders[static_cast<std::size_t>(order)]); }

AxisOrder parse_axis_order(std::string_view text) {
  for (const AxisOrder order : axis_orders()) {
    if (text == kOrders[static_cast<std::size_t>(order)]) return order;
  }
  throw InvalidInput(str("axis order '", text, "' is unknown; use one of ", join(kOrders, ", "),
                         " (the first varies fastest)"));
}

const std::vector<AxisOrder>& axis_orders() {
  static const std::vector<AxisOrder> orders{AxisOrder::tp_cp_dp_pp, AxisOrder::cp_tp_dp_pp,
                                             AxisOrder::tp_dp_cp_pp, AxisOrder::tp_cp_pp_dp};
  return orders;
}

std::vector<LayoutItem> items_of(const ShardChoices& choices) {
  std::vector<LayoutItem> items;
  if (choices.reshard != 0) items.push_back({"reshard", reshard_text(choices.reshard)});
  if (choices.sync_once) items.push_back({"sync", sync_text(true)});
  if (choices.prefetch != kUsualPrefetch) items.push_back({"prefetch", str(choices.prefetch)});
  if (choices.bucket != 1) items.push_back({"bucket", str(choices.bucket)});
  if (choices.threshold != 0) items.push_back({"threshold", str(choices.threshold)});
  return items;
}

std::vector<LayoutItem> items_of(const ParallelLayout& layout) {
  std::vector<LayoutItem> items;
  const auto add = [&](std::string_view key, std::int64_t value) {
    if (value > 1) items.push_back({key, str(value)});
  };
  add("tp", layout.tp), add("cp", layout.cp), add("dp_shard", layout.dp_shard);
  add("dp_replicate", layout.dp_replicate), add("pp", layout.pp), add("ep", layout.ep);
  add("virtual_stages", layout.virtual_stages);
  if (layout.cp > 1) add_strategy(layout, items);
  if (layout.sharding == ShardingGroup::dp_shard) items.push_back({"sharding", "dp_shard"});
  if (layout.zero != 0) items.push_back({"zero", str(layout.zero)});
  for (LayoutItem& item : items_of(static_cast<const ShardChoices&>(layout)))
    items.push_back(std::move(item));
  if (!layout.sequence_parallel) items.push_back({"sequence_parallel", "no"});
  if (layout.order != AxisOrder::tp_cp_dp_pp) items.push_back({"order", to_string(layout.order)});
  add("micro_batch", layout.micro_batch);
  if (layout.recompute.kind != Recompute::Kind::none)
    items.push_back({"recompute", to_string(layout.recompute)});
  add("loss_chunks", layout.loss_chunks), add("mlp_chunks", layout.mlp_chunks);
  if (layout.host_activations) items.push_back({"activations", "host"});
  if (items.empty()) items.push_back({"tp", "1"});
  return items;
}

std::string to_string(const ParallelLayout& layout) { return join(items_of(layout)); }

void require_plannable(const ParallelConfig& degrees) {
  const int tp = degrees.tp.value_or(1);
  if (degrees.etp.value_or(tp) == tp) return;
  throw InvalidInput(
      str("etp=", *degrees.etp, " with tp=", tp, degrees.tp ? "" : " (not given)",
          ": a layout splits the products of experts over the tp ranks, as all others; leave etp "
          "out, or use etp=",
          tp));
}

ParallelLayout parse_parallel_layout(std::string_view text, int world) {
  const std::string whole = with_layout_keys(text);
  const LayoutText values(whole);
  ParallelLayout layout;
  const ParallelConfig degrees = values.degrees();
  require_plannable(degrees);
  static_cast<ParallelDegrees&>(layout) =
      infer_degrees(degrees, world > 0 ? std::optional<int>(world) : std::nullopt);
  values.number("virtual_stages", layout.virtual_stages), values.number("loss_chunks", layout.loss_chunks);
  values.number("mlp_chunks", layout.mlp_chunks);
  if (const auto value = values.find("micro_batch")) layout.micro_batch = parse_number(*value, "micro_batch");
  if (const auto value = values.find("recompute")) layout.recompute = parse_recompute(*value);
  if (const auto value = values.find("order")) layout.order = parse_axis_order(*value);
  values.word("sharding", "dp_shard", ShardingGroup::dp_shard, "dp_shard_cp", ShardingGroup::dp_shard_cp,
              layout.sharding);
  if (const auto value = values.find("zero")) layout.zero = parse_zero(*value);
  if (const auto value = values.find("reshard")) layout.reshard = parse_reshard(*value);
  if (const auto value = values.find("sync")) layout.sync_once = parse_sync(*value);
  if (const auto value = values.find("prefetch")) layout.prefetch = parse_prefetch(*value);
  if (const auto value = values.find("bucket")) layout.bucket = parse_bucket(*value);
  if (const auto value = values.find("threshold")) layout.threshold = parse_threshold(*value);
  values.word("sequence_parallel", "no", false, "yes", true, layout.sequence_parallel);
  values.word("activations", "gpu", false, "host", true, layout.host_activations);
  if (layout.cp > 1) read_strategy(values, layout);
  return layout;
}

}  // namespace cp
