#include "shared/context_parallel/copy_engines.h"

#include <cstdint>
#include <numeric>
#include <set>
#include <string_view>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/sharding.h"

namespace cp::detail {
namespace {

// The collectives by which copy engines would move the strategy's data.
std::set<std::string> moved_by(const AttentionProblem& problem, int cp, const Strategy& strategy) {
  std::set<std::string> operations;
  if (strategy.ulysses_degree > 1) {
    operations.insert("all_to_all");
    // Latent rows go to all of a Ulysses group, whole.
    if (problem.has_latent() && strategy.keys != Strategy::Keys::heads) operations.insert("all_gather");
  }
  if (strategy.ulysses_degree == cp) return operations;
  const bool rotates =
      facts(strategy.core).rotates != Rotates::nothing && strategy.rotation == Strategy::Rotation::exchange;
  operations.insert(rotates ? "exchange" : "all_gather");
  return operations;
}

std::string unequal(std::string_view what, const std::set<std::int64_t>& sizes, std::string_view advice) {
  return str("needs equal blocks on all ranks, and they hold ", join(sizes, " or "), " ", what, " each; ",
             advice);
}

// What comes at once, of every rank.
std::string refuse_blocks(const AttentionProblem& problem, int cp, const Strategy& strategy) {
  const AttentionSharding sharding(problem, cp, strategy);
  std::set<std::int64_t> q_rows, kv_rows, q_heads, kv_heads;
  for (int index = 0; index < cp; ++index) {
    q_rows.insert(sharding.home_q(index).num_rows()), kv_rows.insert(sharding.home_kv(index).num_rows());
    q_heads.insert(sharding.compute_q(index).num_heads());
    kv_heads.insert(sharding.compute_kv(index).num_heads());
  }
  const std::string pad = str("pad the sequence to a multiple of ", 2 * cp, ", or balance it otherwise");
  const bool ulysses = strategy.ulysses_degree > 1;
  if (ulysses && (q_rows.size() > 1 || *q_rows.begin() == 0)) return unequal("query rows", q_rows, pad);
  if (kv_rows.size() > 1 || *kv_rows.begin() == 0) return unequal("key rows", kv_rows, pad);
  if (q_heads.size() > 1) {
    return unequal("query heads", q_heads,
                   str("use a ulysses_degree that divides q_heads=", problem.q_heads));
  }
  if (kv_heads.size() > 1) {
    return unequal("kv heads", kv_heads,
                   str("use a ulysses_degree that divides kv_heads=", problem.kv_heads));
  }
  // Ranks that share a kv head may have as many heads and still cut them elsewhere: of 3 query heads, the
  // first two of one kv head, or the last two.
  for (std::size_t piece = 0; strategy.pieces > 1 && piece < idx(strategy.pieces); ++piece) {
    std::set<std::int64_t> of_piece;
    for (int index = 0; index < cp; ++index) {
      const HeadPiece heads = sharding.pieces(index)[piece];
      of_piece.insert(heads.q_end - heads.q_begin);
    }
    if (of_piece.size() > 1) return unequal(str("query heads of piece ", piece), of_piece, "use pieces=1");
  }
  return "";
}

}  // namespace

std::string refuse_copy_engines(const AttentionProblem& problem, int cp, const Strategy& strategy,
                                const Target& target) {
  if (cp == 1) return "moves nothing on a single rank";
  const bool core_moves = strategy.ulysses_degree < cp;
  if (core_moves && (strategy.core == Core::need_only || strategy.core == Core::pass_q)) {
    return str("cannot serve ", name(strategy.core),
               ", whose parts are exchanged with several ranks in unequal sizes; use ring, all_gather or "
               "ulysses with them");
  }
  if (core_moves && strategy.balance.kind == Balance::Kind::head_tail_exchange)
    return "cannot serve head_tail_exchange, whose parts have unequal sizes; use head_tail with them";
  const std::set<std::string> operations = moved_by(problem, cp, strategy);
  for (const std::string& operation : operations) {
    if (!target.sm_only.contains(operation)) continue;
    std::string have;
    for (const std::string_view other : {"all_gather", "all_to_all", "exchange"}) {
      if (!target.sm_only.contains(std::string(other))) have += str(have.empty() ? "" : " and ", other);
    }
    return str("needs ", operation, " by copy engines, which the library of target ", target.name,
               " has not (a ring's exchanges are puts of NCCL 2.29, all_gather and all_to_all copies of NCCL "
               "2.28, header and library)",
               have.empty() ? "" : str("; it has ", have, ": use ulysses, or all_gather"));
  }
  if (operations == std::set<std::string>{"exchange"}) return "";
  return refuse_blocks(problem, cp, strategy);
}

}  // namespace cp::detail
