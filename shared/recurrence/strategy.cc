#include "shared/recurrence/strategy.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/base/text.h"
#include "shared/plan/recurrence_rules.h"
#include "shared/recurrence/chunks.h"
#include "shared/recurrence/recurrence_plan.h"

namespace cp {
namespace {

constexpr std::array<std::pair<StateScan, std::string_view>, 4> kNames = {
    {{StateScan::sequential, "sequential"},
     {StateScan::recursive_doubling, "recursive_doubling"},
     {StateScan::all_gather, "all_gather"},
     {StateScan::heads, "heads"}}};

// The most chunks that a rank has of one document.
std::int64_t most_of_a_document(const RecurrenceRequest& request) {
  std::map<std::pair<int, std::int64_t>, std::int64_t> counts;
  std::int64_t document = 0, most = 0;
  for (const Chunk& chunk : chunks_of(request)) {
    if (!chunk.comes_in) ++document;
    most = std::max(most, ++counts[{chunk.index, document}]);
    document += static_cast<std::int64_t>(chunk.starts.size());
    if (!chunk.starts.empty()) most = std::max(most, ++counts[{chunk.index, document}]);
  }
  return most;
}

std::optional<RecurrenceRefusal> refuse_balance(const RecurrenceProblem& problem, int cp,
                                                const RecurrenceStrategy& strategy) {
  const Balance& balance = strategy.balance;
  if (balance.kind == Balance::Kind::cost || balance.kind == Balance::Kind::head_tail_exchange) {
    return RecurrenceRefusal{
        str("balance ", to_string(balance),
            " evens out the work of a mask, and every row of a recurrence costs the same; use contiguous"),
        {strategy.scan, {}}};
  }
  if (strategy.scan == StateScan::heads) return std::nullopt;
  // A ring's rank has one run of rows, or head_tail's two, of which one of a Ulysses group has a part: of
  // each document no more chunks than runs.
  const bool few_runs = balance.kind == Balance::Kind::contiguous || balance.kind == Balance::Kind::head_tail;
  if (few_runs && !balance.per_document) return std::nullopt;
  std::vector<Rank> ranks(static_cast<std::size_t>(cp));
  std::iota(ranks.begin(), ranks.end(), 0);
  constexpr std::int64_t kMostChunks = 2;  // head_tail's
  // Of stripes there may be more than anybody can list. Those of one document are the most that it has.
  const bool stripes = balance.kind == Balance::Kind::striped && cp > 1 && strategy.ulysses_degree == 1;
  const std::int64_t rows_of_all =
      balance.block > problem.seq_len / cp ? problem.seq_len : balance.block * cp;
  const std::int64_t most = stripes && problem.document_starts().size() == 1
                                ? (problem.seq_len + rows_of_all - 1) / rows_of_all
                                : most_of_a_document({problem, ranks, strategy});
  if (most <= kMostChunks) return std::nullopt;
  const bool heads = problem.key_heads % cp == 0;
  return RecurrenceRefusal{
      str("with ", to_string(balance), " a rank has ", most, " chunks of one document, and ",
          name(strategy.scan), " would move a state of ", problem.state_numel(), " elements for each; use ",
          heads ? "strategy heads, which moves each row once, or " : "", "balance contiguous or head_tail"),
      heads ? RecurrenceStrategy{StateScan::heads, balance} : RecurrenceStrategy{strategy.scan, {}}};
}

std::optional<RecurrenceRefusal> refuse_target(const RecurrenceProblem& problem,
                                               const RecurrenceStrategy& strategy, const Target& target) {
  if (!target.dtypes.contains(problem.dtype))
    return RecurrenceRefusal{str("target ", target.name, " has no ", name(problem.dtype)), strategy};
  if (target.fused_attention && problem.key_dim > kMostKeysOnGpus) {
    return RecurrenceRefusal{str("head_dim=", problem.key_dim, " is more than the ", kMostKeysOnGpus,
                                 " that the kernels of target ", target.name, " take; use ", kMostKeysOnGpus,
                                 " or less, or target ", host_target().name),
                             strategy};
  }
  for (const std::string_view kernel :
       {"recurrence_forward", "recurrence_summary", "recurrence_summary_gradient", "recurrence_join",
        "recurrence_backward"}) {
    if (!target.has_kernel(kernel)) {
      return RecurrenceRefusal{str("target ", target.name, " has no kernel ", kernel, "; use ",
                                   host_target().name, ", which has it"),
                               strategy};
    }
  }
  return std::nullopt;
}

}  // namespace

std::string_view name(StateScan scan) {
  for (const auto& [known, text] : kNames) {
    if (known == scan) return text;
  }
  return "?";
}

std::string to_string(const RecurrenceStrategy& strategy) {
  return str(name(strategy.scan), " ", to_string(strategy.balance));
}

Hasher& hash(Hasher& hasher, const RecurrenceStrategy& strategy) {
  hasher.add(name(strategy.scan)).add(std::string_view(to_string(strategy.balance)));
  if (strategy.ulysses_degree > 1)
    hasher.add(std::string_view("cut twice")).add(strategy.ulysses_degree).add(strategy.ulysses_inner);
  return hasher;
}

StateScan parse_state_scan(std::string_view text) {
  std::vector<std::string_view> names;
  for (const auto& [scan, known] : kNames) {
    if (known == text) return scan;
    names.push_back(known);
  }
  throw InvalidInput(str("strategy '", text, "' is none for recurrences; use one of ", join(names, ", "),
                         "; the nearest is ", nearest_name(text, names)));
}

const std::vector<StateScan>& state_scans() {
  static const std::vector<StateScan> kScans = [] {
    std::vector<StateScan> all;
    all.reserve(kNames.size());
    for (const auto& [scan, text] : kNames) all.push_back(scan);
    return all;
  }();
  return kScans;
}

std::optional<RecurrenceRefusal> refuse(const RecurrenceProblem& problem, int cp,
                                        const RecurrenceStrategy& strategy, const Target& target) {
  validate_problem(problem);
  if (cp < 1) throw InvalidInput(str("cp=", cp, " is no number of ranks; use at least 1"));
  if (strategy.ulysses_degree < 1 || cp % strategy.ulysses_degree != 0) {
    throw InvalidInput(str("ulysses_degree=", strategy.ulysses_degree, " does not divide cp=", cp, "; use ",
                           std::gcd(cp, std::max(1, strategy.ulysses_degree))));
  }
  if (strategy.balance.block < 1)
    throw InvalidInput(str("blocks of ", strategy.balance.block, " rows hold none; use at least 1"));
  if (auto refusal = refuse_target(problem, strategy, target)) return refusal;
  if (strategy.scan == StateScan::heads && problem.key_heads % cp != 0) {
    return RecurrenceRefusal{
        str("cp=", cp, " does not divide key_heads=", problem.key_heads,
            ", so that heads cannot give each rank whole heads; use cp=",
            std::gcd(problem.key_heads, static_cast<std::int64_t>(cp)), ", or strategy all_gather"),
        {StateScan::all_gather, {}}};
  }
  return refuse_balance(problem, cp, strategy);
}

}  // namespace cp
