#include "shared/context_parallel/strategy.h"

#include <algorithm>
#include <array>

#include "shared/base/error.h"
#include "shared/base/nearest.h"

namespace cp {

std::string_view name(Core core) {
  switch (core) {
    case Core::all_gather:
      return "all_gather";
    case Core::ring:
      return "ring";
    case Core::need_only:
      return "need_only";
    case Core::pass_q:
      return "pass_q";
  }
  return "";
}

namespace {

// ---- balances ----

struct BalanceName {
  std::string_view name;
  Balance::Kind kind;
  std::int64_t default_block;  // 0: it takes no block
  bool per_document;           // may act within each document
};
// The first name of a kind is the one that is written.
constexpr std::array<BalanceName, 6> kBalances = {{
    {"contiguous", Balance::Kind::contiguous, 0, true},
    {"none", Balance::Kind::contiguous, 0, true},
    {"head_tail", Balance::Kind::head_tail, 0, true},
    {"striped", Balance::Kind::striped, 1, true},
    {"cost", Balance::Kind::cost, 64, false},
    {"head_tail_exchange", Balance::Kind::head_tail_exchange, 0, false},
}};
constexpr std::string_view kPerDocument = "per_document:";
constexpr std::string_view kKnownBalances =
    "contiguous (or none), head_tail, striped[:BLOCK], cost[:BLOCK], head_tail_exchange, or per_document: "
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
  std::string core(name(strategy.core));
  if (strategy.core == Core::ring && strategy.inner_ring > 1)
    core = str("double_ring(", strategy.inner_ring, ")");
  if (strategy.core == Core::ring && strategy.rotation == Strategy::Rotation::all_gather)
    core += "(gathered)";
  if (strategy.ulysses_degree > 1) {
    const std::string ulysses = str("ulysses(", strategy.ulysses_degree, ")");
    core = strategy.ulysses_degree == cp ? ulysses
           : strategy.ulysses_inner      ? str(ulysses, " x ", core)
                                         : str(core, " x ", ulysses);
  }
  return str(core, " ", to_string(strategy.balance),
             strategy.input_dtype_gradients ? ", gradients travel narrow" : "",
             strategy.input_dtype_merge ? ", merged narrow" : "", strategy.send_empty ? ", sends empty" : "");
}

Hasher& hash(Hasher& hasher, const Strategy& strategy) {
  hasher.add(std::string_view(name(strategy.core))).add(strategy.ulysses_degree).add(strategy.ulysses_inner);
  hasher.add(strategy.inner_ring).add(static_cast<int>(strategy.rotation)).add(to_string(strategy.balance));
  return hasher.add(strategy.input_dtype_gradients).add(strategy.input_dtype_merge).add(strategy.send_empty);
}

// ---- names ----

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> kNames = {
      "ulysses", "all_gather",         "ring",        "double_ring", "need_only",
      "pass_q",  "ulysses_all_gather", "ulysses_ring"};
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
  Strategy strategy;
  if (wanted == "all_gather" || wanted == "ulysses_all_gather" || wanted == "ulysses")
    strategy.core = Core::all_gather;
  if (wanted == "need_only") strategy.core = Core::need_only;
  if (wanted == "pass_q") strategy.core = Core::pass_q;
  if (wanted == "ulysses") strategy.ulysses_degree = cp;
  if (wanted.starts_with("ulysses_")) {
    const int middle = middle_divisor(cp);
    strategy.ulysses_degree =
        divisor_below(cp, std::min<std::int64_t>(middle > 1 ? middle : cp, problem.q_heads));
  }
  if (wanted == "double_ring") strategy.inner_ring = middle_divisor(cp);
  if (request.ulysses_degree) strategy.ulysses_degree = *request.ulysses_degree;
  if (request.inner_ring) strategy.inner_ring = *request.inner_ring;
  return strategy;
}

std::vector<Strategy> standard_strategies(const AttentionProblem& problem, int cp) {
  std::vector<Strategy> all;
  const auto add = [&](const char* name, const char* balance) -> Strategy& {
    all.push_back(named_strategy({name, {}, {}}, problem, cp));
    all.back().balance = parse_balance(balance);
    return all.back();
  };
  add("ulysses", "contiguous");
  add("all_gather", "contiguous");
  add("all_gather", "head_tail");
  add("all_gather", "head_tail_exchange");
  add("ring", "contiguous");
  add("ring", "head_tail");
  add("ring", "striped");
  add("ring", "head_tail").rotation = Strategy::Rotation::all_gather;
  if (problem.has_documents()) add("ring", "per_document:head_tail");
  add("double_ring", "head_tail");
  add("need_only", "contiguous");
  // Blocks small enough that each rank gets several.
  const std::int64_t block = std::clamp<std::int64_t>(problem.q_len / (8 * cp), 1, 64);
  add("need_only", "cost").balance.block = block;
  add("pass_q", "head_tail");
  add("ulysses_all_gather", "contiguous");
  add("ulysses_ring", "head_tail");
  add("ulysses_ring", "head_tail").ulysses_inner = false;
  return all;
}

// ---- legality ----

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
                ? str(" is more than the q_heads=", problem.q_heads, " that it would split")
                : str(" does not divide cp=", cp),
            "; use ", legal, ", of {", divisors(cp, problem.q_heads), "}");
    refusal.strategy.ulysses_degree = legal;
  }
  const int ring = cp / refusal.strategy.ulysses_degree;
  if (strategy.inner_ring < 1 || ring % strategy.inner_ring != 0) {
    const int legal = divisor_below(ring, std::max(1, strategy.inner_ring));
    because("inner_ring=", strategy.inner_ring, " does not divide the ring of ", ring, "; use ", legal,
            ", of {", divisors(ring, ring), "}");
    refusal.strategy.inner_ring = legal;
  }
  if (refusal.reason.empty()) return std::nullopt;
  return refusal;
}

}  // namespace cp
