#include "sim/scenario/plan_fixed.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/context_parallel/cores.h"
#include "shared/transformer/short_layout.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/scenario/read_values.h"

namespace cp::sim {
namespace {

using FixedSetter = std::function<void(sim::Fixed&, std::string_view)>;

FixedSetter number(std::optional<int> sim::Fixed::*member, const char* key) {
  return [member, key](sim::Fixed& fixed, std::string_view text) {
    fixed.*member = static_cast<int>(parse_whole(str("--fix ", key), text, 1, Mesh::kMaxRanks));
  };
}

// Returns the name if it is one of a strategy. named_strategy() throws InvalidInput that lists the names if
// it is not.
std::string strategy_name(std::string_view text) {
  // Any number of ranks and heads for which all named strategies exist.
  constexpr int kAny = 4;
  AttentionProblem problem;
  problem.q_heads = kAny;
  named_strategy({std::string(text), {}, {}}, problem, kAny);
  return std::string(text);
}

template <class T>
T one_of(std::string_view text, std::string_view first, T first_value, std::string_view second,
         T second_value) {
  if (text == first) return first_value;
  if (text == second) return second_value;
  throw InvalidInput(str("unknown; use ", first, " or ", second));
}

ShardingGroup parse_sharding(std::string_view text) {
  for (const ShardingGroup group : {ShardingGroup::dp_shard, ShardingGroup::dp_shard_cp}) {
    if (sim::to_string(group) == text) return group;
  }
  throw InvalidInput("unknown; use dp_shard or dp_shard_cp");
}

using FixedKeys = std::vector<std::pair<std::string, FixedSetter>>;

FixedKeys keys_of_degrees() {
  FixedKeys keys;
  for (const std::string_view key : degree_keys())
    keys.emplace_back(key,
                      [key](sim::Fixed& fixed, std::string_view text) { read_degree(fixed, key, text); });
  return keys;
}

FixedKeys keys_of_choices() {
  using sim::Fixed;
  using Text = std::string_view;
  return {
      {"virtual_stages", number(&Fixed::virtual_stages, "virtual_stages")},
      {"strategy", [](Fixed& fixed, Text text) { fixed.strategy = strategy_name(text); }},
      {"ulysses_degree", number(&Fixed::ulysses_degree, "ulysses_degree")},
      {"inner_ring", number(&Fixed::inner_ring, "inner_ring")},
      {"axis_order",
       [](Fixed& fixed, Text text) {
         fixed.ulysses_inner = one_of(text, "ulysses_inner", true, "ring_inner", false);
       }},
      {"rotation",
       [](Fixed& fixed, Text text) {
         using enum Strategy::Rotation;
         fixed.rotation = one_of(text, "exchange", exchange, "all_gather", all_gather);
       }},
      {"balance", [](Fixed& fixed, Text text) { fixed.balance = parse_balance(text); }},
      {"slots",
       [](Fixed& fixed, Text text) {
         fixed.slots = static_cast<int>(parse_whole("--fix slots", text, kLeastSlots, kMostSlots));
       }},
      {"pieces", number(&Fixed::pieces, "pieces")},
      {"merges",
       [](Fixed& fixed, Text text) {
         using enum Strategy::Merges;
         fixed.merges = one_of(text, name(in_turn), in_turn, name(beside), beside);
       }},
      {"window_strategy", [](Fixed& fixed, Text text) { fixed.window_core = parse_window_core(text); }},
      {"window_balance",
       [](Fixed& fixed, Text text) { fixed.window_balance = parse_own_balance("window_balance", text); }},
      {"scan", [](Fixed& fixed, Text text) { fixed.scan = parse_state_scan(text); }},
      {"scan_balance",
       [](Fixed& fixed, Text text) { fixed.scan_balance = parse_own_balance("scan_balance", text); }},
      {"keys",
       [](Fixed& fixed, Text text) {
         using enum Strategy::Keys;
         fixed.keys = one_of(text, name(heads), heads, name(latent), latent);
       }},
      {"sharding", [](Fixed& fixed, Text text) { fixed.sharding = parse_sharding(text); }},
      {"order", [](Fixed& fixed, Text text) { fixed.order = parse_axis_order(text); }},
      {"micro_batch",
       [](Fixed& fixed, Text text) { fixed.micro_batch = parse_whole("--fix micro_batch", text, 1); }},
      {"recompute", [](Fixed& fixed, Text text) { fixed.recompute = parse_recompute(text); }},
      {"loss_chunks", number(&Fixed::loss_chunks, "loss_chunks")},
      {"mlp_chunks", number(&Fixed::mlp_chunks, "mlp_chunks")},
      {"zero", [](Fixed& fixed, Text text) { fixed.zero = parse_zero(text); }},
      {"reshard", [](Fixed& fixed, Text text) { fixed.reshard = parse_reshard(text); }},
      {"sync", [](Fixed& fixed, Text text) { fixed.sync_once = parse_sync(text); }},
      {"prefetch", [](Fixed& fixed, Text text) { fixed.prefetch = parse_prefetch(text); }},
      {"bucket", [](Fixed& fixed, Text text) { fixed.bucket = parse_bucket(text); }},
      {"threshold", [](Fixed& fixed, Text text) { fixed.threshold = parse_threshold(text); }},
      {"sequence_parallel",
       [](Fixed& fixed, Text text) { fixed.sequence_parallel = one_of(text, "yes", true, "no", false); }},
      {"activations",
       [](Fixed& fixed, Text text) { fixed.host_activations = one_of(text, "gpu", false, "host", true); }},
  };
}

const FixedKeys& fixed_keys() {
  static const FixedKeys all = [] {
    FixedKeys keys = keys_of_degrees();
    for (auto& key : keys_of_choices()) keys.push_back(std::move(key));
    return keys;
  }();
  return all;
}

std::vector<std::string> names_of_fixed() {
  std::vector<std::string> names;
  for (const auto& [name, set] : fixed_keys()) names.push_back(name);
  return names;
}

const FixedSetter& find_setter(std::string_view text, std::string_view part, const std::string& key) {
  for (const auto& [name, set] : fixed_keys()) {
    if (name == key) return set;
  }
  const std::string near = nearest(key, names_of_fixed());
  throw InvalidInput(str(
      "--fix ", text, ": '", part, "' is no KEY=VALUE of a layout; ",
      near.empty() ? str("its keys are ", join(names_of_fixed(), ", ")) : str("did you mean ", near, "=?")));
}

// Settles the degrees: each keeps one name only, and only those that are numbers stay.
void settle_degrees(sim::Fixed& fixed, Phase phase) {
  require_plannable(fixed);
  fixed.etp.reset();
  const std::optional<int> shard = given_dp_shard(fixed);
  if (phase == Phase::training || !fixed.dp) {
    fixed.dp_shard = shard;
  } else if (fixed.dp_replicate) {
    throw InvalidInput(
        str("dp=", *fixed.dp, " and dp_replicate=", *fixed.dp_replicate,
            ": serving shards no parameters, so that both are its replicas; give one of them"));
  } else {
    fixed.dp_replicate = shard;
  }
  fixed.dp.reset();
  for (std::optional<int>* degree : {&fixed.dp_shard, &fixed.dp_replicate}) {
    if (*degree == -1) degree->reset();
  }
}

}  // namespace

sim::Fixed parse_fixed(const std::vector<std::string>& texts, Phase phase) {
  sim::Fixed fixed;
  for (const std::string& typed : texts) {
    const std::string text = with_layout_keys(typed);
    std::vector<std::string> seen;
    for (const std::string_view part : split(text, ',')) {
      const std::size_t equals = part.find('=');
      const std::string key(trim(part.substr(0, equals)));
      const FixedSetter& set =
          find_setter(text, part, equals == std::string_view::npos ? std::string() : key);
      if (std::find(seen.begin(), seen.end(), key) != seen.end())
        throw InvalidInput(str("--fix ", text, ": ", key, " comes twice; give it once"));
      seen.push_back(key);
      value_of("--fix", part, [&] { return set(fixed, trim(part.substr(equals + 1))), 0; });
    }
  }
  value_of("--fix", join(texts), [&] { return settle_degrees(fixed, phase), 0; });
  return fixed;
}

std::string fixed_text(const sim::Fixed& fixed) {
  std::vector<std::string> words;
  const auto add = [&](std::string_view key, const auto& value) {
    if (value) words.push_back(str(key, "=", *value));
  };
  const auto add_text = [&](std::string_view key, const auto& value) {
    if (value) words.push_back(str(key, "=", to_string(*value)));
  };
  add("tp", fixed.tp), add("cp", fixed.cp), add("dp_shard", fixed.dp_shard);
  add("dp_replicate", fixed.dp_replicate), add("pp", fixed.pp), add("ep", fixed.ep);
  add("virtual_stages", fixed.virtual_stages), add("strategy", fixed.strategy);
  add("ulysses_degree", fixed.ulysses_degree), add("inner_ring", fixed.inner_ring);
  if (fixed.ulysses_inner)
    words.push_back(str("axis_order=", *fixed.ulysses_inner ? "ulysses_inner" : "ring_inner"));
  if (fixed.rotation) {
    const bool gathers = *fixed.rotation == Strategy::Rotation::all_gather;
    words.push_back(str("rotation=", gathers ? "all_gather" : "exchange"));
  }
  add_text("balance", fixed.balance);
  add("slots", fixed.slots), add("pieces", fixed.pieces);
  if (fixed.merges) words.push_back(str("merges=", name(*fixed.merges)));
  if (fixed.window_core)
    words.push_back(str("window_strategy=", *fixed.window_core ? name(**fixed.window_core) : kSameCore));
  const auto add_own = [&](std::string_view key, const std::optional<std::optional<Balance>>& own) {
    if (own) words.push_back(str(key, "=", *own ? to_string(**own) : std::string(kSameCore)));
  };
  add_own("window_balance", fixed.window_balance);
  if (fixed.scan) words.push_back(str("scan=", name(*fixed.scan)));
  add_own("scan_balance", fixed.scan_balance);
  if (fixed.keys) words.push_back(str("keys=", name(*fixed.keys)));
  if (fixed.sharding) words.push_back(str("sharding=", sim::to_string(*fixed.sharding)));
  add_text("order", fixed.order);
  add("micro_batch", fixed.micro_batch);
  add_text("recompute", fixed.recompute);
  add("loss_chunks", fixed.loss_chunks), add("mlp_chunks", fixed.mlp_chunks), add("zero", fixed.zero);
  if (fixed.reshard) words.push_back(str("reshard=", reshard_text(*fixed.reshard)));
  if (fixed.sync_once) words.push_back(str("sync=", sync_text(*fixed.sync_once)));
  add("prefetch", fixed.prefetch), add("bucket", fixed.bucket), add("threshold", fixed.threshold);
  if (fixed.sequence_parallel)
    words.push_back(str("sequence_parallel=", *fixed.sequence_parallel ? "yes" : "no"));
  if (fixed.host_activations) words.push_back(str("activations=", *fixed.host_activations ? "host" : "gpu"));
  return join(words);
}

}  // namespace cp::sim
