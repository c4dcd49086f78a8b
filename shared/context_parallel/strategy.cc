#include "shared/context_parallel/strategy.h"

#include <algorithm>
#include <array>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/nearest.h"
#include "shared/context_parallel/copy_engines.h"
#include "shared/context_parallel/cores.h"
#include "shared/placement/split.h"

namespace cp {

namespace {

// ---- balances ----

struct BalanceName {
  std::string_view name;
  Balance::Kind kind;
  std::int64_t default_block;  // 0: it takes no block
  bool per_document;           // may act within each document
};
// The first name of a kind is the one that is written.
constexpr std::array<BalanceName, 7> kBalances = {{
    {"contiguous", Balance::Kind::contiguous, 0, true},
    {"none", Balance::Kind::contiguous, 0, true},
    {"head_tail", Balance::Kind::head_tail, 0, true},
    {"zigzag", Balance::Kind::head_tail, 0, true},  // ring-flash-attention's and others' word
    {"striped", Balance::Kind::striped, 1, true},
    {"cost", Balance::Kind::cost, 64, false},
    {"head_tail_exchange", Balance::Kind::head_tail_exchange, 0, false},
}};
constexpr std::string_view kPerDocument = "per_document:";
constexpr std::string_view kKnownBalances =
    "contiguous (or none), head_tail (or zigzag), striped[:BLOCK], cost[:BLOCK], head_tail_exchange, or "
    "per_document: "
    "before one "
    "of the "
    "first three";

// ---- degrees ----

// The largest divisor of n that is at most `limit`, which is at least 1.
int divisor_below(int n, std::int64_t limit) {
  int divisor = static_cast<int>(std::min<std::int64_t>(n, limit));
  while (n % divisor != 0) --divisor;
  return divisor;
}
// The largest divisor of n that is at most its square root.
int middle_divisor(int n) {
  int divisor = 1;
  for (int d = 1; d * d <= n; ++d) {
    if (n % d == 0) divisor = d;
  }
  return divisor;
}

std::string divisors(int n, std::int64_t limit) {
  std::vector<int> all;
  for (int d = 1; d <= n && d <= limit; ++d) {
    if (n % d == 0) all.push_back(d);
  }
  return join(all, ", ");
}

}  // namespace

std::string to_string(const Balance& balance) {
  for (const BalanceName& known : kBalances) {
    if (known.kind != balance.kind) continue;
    return str(balance.per_document ? kPerDocument : "", known.name,
               known.default_block == 0 ? "" : str(":", balance.block));
  }
  return "";
}

Balance parse_balance(std::string_view text) {
  const auto reject = [&](const auto&... reason) {
    throw InvalidInput(str("cannot read the balance '", text, "': ", reason..., "; known: ", kKnownBalances));
  };
  Balance balance;
  std::string_view rest = trim(text);
  if (rest.starts_with(kPerDocument)) {
    balance.per_document = true;
    rest.remove_prefix(kPerDocument.size());
  }
  const std::size_t colon = rest.find(':');
  const std::string_view word = rest.substr(0, colon);
  const auto known =
      std::find_if(kBalances.begin(), kBalances.end(), [&](const BalanceName& b) { return b.name == word; });
  if (known == kBalances.end()) reject("there is no '", word, "'");
  if (balance.per_document && !known->per_document) reject("'", word, "' cannot act within a document");
  balance.kind = known->kind;
  if (known->default_block > 0) balance.block = known->default_block;
  if (colon == std::string_view::npos) return balance;
  if (known->default_block == 0) reject("'", word, "' has no block");
  balance.block = parse_int(rest.substr(colon + 1), str("block of the balance '", text, "'"));
  if (balance.block < 1) reject("a block of ", balance.block, " is below 1");
  return balance;
}

std::string to_string(const Strategy& strategy, int cp) {
  const CoreFacts& of_core = facts(strategy.core);
  std::string core(of_core.name);
  if (!of_core.name_of_inner_rings.empty() && strategy.inner_ring > 1)
    core = str(of_core.name_of_inner_rings, "(", strategy.inner_ring, ")");
  if (of_core.has_rotation && strategy.rotation == Strategy::Rotation::all_gather) core += "(gathered)";
  if (strategy.ulysses_degree > 1) {
    const std::string ulysses = str("ulysses(", strategy.ulysses_degree, ")");
    core = strategy.ulysses_degree == cp ? ulysses
           : strategy.ulysses_inner      ? str(ulysses, " x ", core)
                                         : str(core, " x ", ulysses);
  }
  return str(core, " ", to_string(strategy.balance),
             strategy.input_dtype_gradients ? ", gradients travel narrow" : "",
             strategy.input_dtype_merge ? ", merged narrow" : "", strategy.send_empty ? ", sends empty" : "",
             strategy.slots > kLeastSlots ? str(", ", strategy.slots, " slots") : "",
             strategy.pieces > 1 ? str(", ", strategy.pieces, " pieces") : "",
             strategy.transfers == Strategy::Transfers::copy_engine ? ", copy engines" : "",
             strategy.merges == Strategy::Merges::beside ? ", merges beside" : "",
             strategy.keys == Strategy::Keys::heads    ? ", heads travel"
             : strategy.keys == Strategy::Keys::latent ? ", latent rows travel"
                                                       : "");
}

Hasher& hash(Hasher& hasher, const Strategy& strategy) {
  hasher.add(std::string_view(name(strategy.core))).add(strategy.ulysses_degree).add(strategy.ulysses_inner);
  hasher.add(strategy.inner_ring).add(static_cast<int>(strategy.rotation)).add(to_string(strategy.balance));
  hasher.add(strategy.input_dtype_gradients).add(strategy.input_dtype_merge).add(strategy.send_empty);
  // Later than the others, so that plans without them keep their digests.
  if (strategy.slots > kLeastSlots) hasher.add(std::string_view("slots")).add(strategy.slots);
  if (strategy.pieces > 1) hasher.add(std::string_view("pieces")).add(strategy.pieces);
  if (strategy.transfers == Strategy::Transfers::copy_engine)
    hasher.add(std::string_view("transfers")).add(name(strategy.transfers));
  if (strategy.merges == Strategy::Merges::beside)
    hasher.add(std::string_view("merges")).add(name(strategy.merges));
  if (strategy.keys != Strategy::Keys::fewer_bytes)
    hasher.add(std::string_view("keys")).add(name(strategy.keys));
  return hasher;
}

std::string_view name(Strategy::Transfers transfers) {
  return transfers == Strategy::Transfers::sm ? "sm" : "copy_engine";
}

std::string_view name(Strategy::Merges merges) {
  return merges == Strategy::Merges::in_turn ? "in_turn" : "beside";
}

std::string_view name(Strategy::Keys keys) {
  switch (keys) {
    case Strategy::Keys::fewer_bytes:
      return "fewer_bytes";
    case Strategy::Keys::heads:
      return "heads";
    case Strategy::Keys::latent:
      return "latent";
  }
  return "";
}

Strategy::Keys parse_keys(std::string_view text) {
  using enum Strategy::Keys;
  for (const Strategy::Keys keys : {fewer_bytes, heads, latent}) {
    if (text == name(keys)) return keys;
  }
  throw InvalidInput(str("unknown travelling keys '", text, "'; use heads, latent or fewer_bytes"));
}

Strategy whole_ulysses(int cp) {
  Strategy strategy;
  strategy.core = Core::all_gather, strategy.ulysses_degree = cp;
  return strategy;
}

// ---- names ----

namespace {

using Place = CoreVariant::Place;

// A core alone, as a ring of rings, or between Ulysses groups.
struct StrategyName {
  std::string name;
  Core core;
  Place place;
};

std::string name_of(const CoreFacts& core, Place place) {
  if (place == Place::hybrid) return str("ulysses_", core.name);
  return std::string(place == Place::inner_rings ? core.name_of_inner_rings : core.name);
}

// But whole Ulysses, which is of no core.
const std::vector<StrategyName>& names_of_cores() {
  static const std::vector<StrategyName> kNames = [] {
    std::vector<StrategyName> names, hybrids;
    const auto add = [](std::vector<StrategyName>& to, const CoreFacts& core, Place place) {
      to.push_back({name_of(core, place), core.core, place});
    };
    for (const CoreFacts* core : all_cores()) {
      add(names, *core, Place::alone);
      if (!core->name_of_inner_rings.empty()) add(names, *core, Place::inner_rings);
      const bool is_hybrid = std::any_of(core->compared.begin(), core->compared.end(),
                                         [](const CoreVariant& v) { return v.place == Place::hybrid; });
      if (is_hybrid) add(hybrids, *core, Place::hybrid);
    }
    names.insert(names.end(), hybrids.begin(), hybrids.end());
    return names;
  }();
  return kNames;
}

bool is_at(std::string_view name, Place place) {
  const std::vector<StrategyName>& names = names_of_cores();
  return std::any_of(names.begin(), names.end(),
                     [&](const StrategyName& of) { return of.name == name && of.place == place; });
}

}  // namespace

bool is_hybrid(std::string_view name) { return is_at(name, Place::hybrid); }
bool has_inner_rings(std::string_view name) { return is_at(name, Place::inner_rings); }

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names = {"ulysses"};
    for (const StrategyName& of_core : names_of_cores()) names.push_back(of_core.name);
    return names;
  }();
  return kNames;
}

Strategy named_strategy(const StrategyRequest& request, const AttentionProblem& problem, int cp) {
  const std::vector<std::string>& names = strategy_names();
  const std::string& wanted = request.name;
  if (std::find(names.begin(), names.end(), wanted) == names.end()) {
    throw InvalidInput(str("unknown strategy '", wanted, "'; did you mean ",
                           nearest_name(wanted, {names.begin(), names.end()}),
                           "? Known: ", join(names, ", ")));
  }
  Strategy strategy = whole_ulysses(cp);
  for (const StrategyName& named : names_of_cores()) {
    if (named.name != wanted) continue;
    strategy = {};
    strategy.core = named.core;
    const int middle = middle_divisor(cp);
    if (named.place == Place::hybrid) {
      strategy.ulysses_degree =
          divisor_below(cp, std::min<std::int64_t>(middle > 1 ? middle : cp, problem.q_heads));
    }
    if (named.place == Place::inner_rings) strategy.inner_ring = middle;
  }
  if (request.ulysses_degree) strategy.ulysses_degree = *request.ulysses_degree;
  if (request.inner_ring) strategy.inner_ring = *request.inner_ring;
  return strategy;
}

std::vector<Strategy> standard_strategies(const AttentionProblem& problem, int cp) {
  std::vector<Strategy> all = {whole_ulysses(cp)};
  const auto add = [&](const CoreFacts& core, const CoreVariant& variant) {
    if (variant.balance.per_document && !problem.has_documents()) return;
    Strategy strategy = named_strategy({name_of(core, variant.place), {}, {}}, problem, cp);
    strategy.balance = variant.balance, strategy.rotation = variant.rotation;
    strategy.ulysses_inner = variant.ulysses_inner;
    // Blocks small enough that each rank gets several.
    if (variant.balance.kind == Balance::Kind::cost)
      strategy.balance.block = std::clamp<std::int64_t>(problem.q_len / (8 * cp), 1, 64);
    all.push_back(strategy);
  };
  for (const bool hybrids : {false, true}) {
    for (const CoreFacts* core : all_cores()) {
      for (const CoreVariant& variant : core->compared) {
        if ((variant.place == Place::hybrid) == hybrids) add(*core, variant);
      }
    }
  }
  return all;
}

// ---- legality ----

namespace {

// Whether anything is moved whole before attention on it begins.
bool comes_at_once(const Strategy& strategy, int cp) {
  if (strategy.ulysses_degree > 1) return true;
  const CoreFacts& core = facts(strategy.core);
  return cp > 1 && (core.rotates == Rotates::nothing ||
                    (core.has_rotation && strategy.rotation == Strategy::Rotation::all_gather));
}

// Why what is to travel in place of K and V cannot; empty if it can.
std::string refuse_keys(const AttentionProblem& problem, int cp, const Strategy& strategy) {
  if (strategy.keys == Strategy::Keys::fewer_bytes) return "";
  if (!problem.has_latent())
    return " chooses between heads and latent rows, and the problem has no latent rows; leave keys out, or "
           "give the problem a latent rank";
  if (strategy.keys == Strategy::Keys::heads) return "";
  if (strategy.pieces > 1) {
    return str(" sends rows that all heads share, and pieces=", strategy.pieces,
               " cuts what travels by heads; use keys=heads, or pieces=1");
  }
  if (strategy.ulysses_degree == 1 && facts(strategy.core).rotates == Rotates::queries) {
    return str(" sends rows of keys, and with ", name(strategy.core),
               cp > 1 ? " queries travel and keys stay" : " on one rank nothing travels",
               "; use keys=heads, or a ring");
  }
  return "";
}

}  // namespace

int most_pieces(const AttentionProblem& problem, int cp, const Strategy& strategy) {
  if (!comes_at_once(strategy, cp)) return 1;
  std::int64_t most = problem.kv_heads;
  for (int u = 0; u < strategy.ulysses_degree; ++u) {
    const IndexRange q = *split_range(Balanced{}, {0, problem.q_heads}, strategy.ulysses_degree, u);
    most = std::min(most, ceil_div(q.end, problem.heads_per_kv()) - q.begin / problem.heads_per_kv());
  }
  return static_cast<int>(std::max<std::int64_t>(1, most));
}

std::optional<Refusal> refuse(const AttentionProblem& problem, int cp, const Strategy& strategy,
                              const Target& target) {
  validate_problem(problem);
  if (cp < 1) throw InvalidInput(str("cp=", cp, " ranks; use at least 1"));
  if (strategy.balance.block < 1) {
    throw InvalidInput(str("balance ", to_string(strategy.balance), " has a block below 1; use 1 or more"));
  }
  Refusal refusal{"", problem, strategy};
  const auto because = [&](const auto&... reason) {
    refusal.reason += str(refusal.reason.empty() ? "" : "; ", reason...);
  };
  for (const auto& [option, value] : problem.options) {
    const KernelOptionInfo& asked = info(option);
    because(asked.name, value.empty() ? "" : "=", value, ": ", asked.reason, "; ", asked.instead);
  }
  refusal.problem.options.clear();
  if (!is_floating(problem.dtype) || !target.dtypes.contains(problem.dtype)) {
    because("dtype=", cp::name(problem.dtype), " has no attention kernel; use f32, bf16 or f16");
    refusal.problem.dtype = DType::f32;
  }
  const int degree = strategy.ulysses_degree;
  if (degree < 1 || cp % degree != 0 || degree > problem.q_heads) {
    const int legal = divisor_below(cp, std::clamp<std::int64_t>(degree, 1, problem.q_heads));
    because("ulysses_degree=", degree,
            degree > problem.q_heads
                ? str(" is more than q_heads=", problem.q_heads, ", and each rank needs a head")
                : str(" does not divide cp=", cp),
            "; use ", legal, ", of {", divisors(cp, problem.q_heads), "}");
    refusal.strategy.ulysses_degree = legal;
  }
  const int ring = cp / refusal.strategy.ulysses_degree;
  if (strategy.inner_ring < 1 || ring % strategy.inner_ring != 0) {
    const int legal = divisor_below(ring, std::max(1, strategy.inner_ring));
    because("inner_ring=", strategy.inner_ring, " does not divide the ring of ", ring, " ranks; use ", legal,
            ", of {", divisors(ring, ring), "}");
    refusal.strategy.inner_ring = legal;
  }
  if (strategy.slots < kLeastSlots || strategy.slots > kMostSlots) {
    const int legal = std::clamp(strategy.slots, kLeastSlots, kMostSlots);
    because("slots=", strategy.slots, ": blocks arrive in turn in ", kLeastSlots, " or ", kMostSlots,
            " places; use ", legal);
    refusal.strategy.slots = legal;
  }
  if (strategy.pieces != 1) {
    const int most = most_pieces(problem, cp, refusal.strategy), legal = std::clamp(strategy.pieces, 1, most);
    if (strategy.pieces < 1) {
      because("pieces=", strategy.pieces, "; use 1 or more");
    } else if (strategy.pieces > most && most == 1 && !comes_at_once(refusal.strategy, cp)) {
      because("pieces=", strategy.pieces,
              " cuts what comes at once, and here nothing does; use 1, or Ulysses or a core that gathers");
    } else if (strategy.pieces > most) {
      because("pieces=", strategy.pieces, " needs a kv head for each, and some rank computes on ", most,
              "; use ", legal);
    }
    refusal.strategy.pieces = legal;
  }
  if (const std::string reason = refuse_keys(problem, cp, refusal.strategy); !reason.empty()) {
    because("keys=", name(strategy.keys), reason);
    refusal.strategy.keys = problem.has_latent() ? Strategy::Keys::heads : Strategy::Keys::fewer_bytes;
  }
  if (strategy.transfers == Strategy::Transfers::copy_engine) {
    // Of degrees that are legal: others say nothing of what is equal.
    if (const std::string reason = detail::refuse_copy_engines(problem, cp, refusal.strategy, target);
        !reason.empty()) {
      because("transfers=copy_engine ", reason, "; use transfers=sm");
      refusal.strategy.transfers = Strategy::Transfers::sm;
    }
  }
  if (refusal.reason.empty()) return std::nullopt;
  return refusal;
}

}  // namespace cp
