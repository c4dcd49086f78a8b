#include "sim/scenario/attention_request.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "shared/base/error.h"
#include "shared/context_parallel/strategy.h"
#include "sim/scenario/cp_ranks.h"
#include "sim/scenario/kernel_option_fields.h"
#include "sim/scenario/parallel_dims_fields.h"
#include "sim/scenario/read_values.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

// Reads one of two words; returns true for the second one, and `fallback` for an empty text.
bool parse_choice(std::string_view flag, std::string_view text, std::string_view first,
                  std::string_view second, bool fallback) {
  if (text.empty()) return fallback;
  if (text == first || text == second) return text == second;
  throw InvalidInput(str(flag, " ", text, " is unknown; use ", first, " or ", second));
}

AttentionProblem make_problem(const proto::Attention& job) {
  if (job.seq_len() == 0) throw InvalidInput("--seq-len is missing; add, for example, --seq-len 4096");
  AttentionProblem problem;
  problem.q_len = job.seq_len();
  problem.kv_len = job.has_kv_len() ? job.kv_len() : job.seq_len();
  if (job.has_batch()) problem.batch = job.batch();
  problem.q_heads = job.has_q_heads() ? job.q_heads() : 8;
  problem.kv_heads = job.has_kv_heads() ? job.kv_heads() : problem.q_heads;
  if (job.has_head_dim()) problem.head_dim = job.head_dim();
  problem.v_head_dim = job.has_v_head_dim() ? job.v_head_dim() : problem.head_dim;
  if (job.dtype() != 0) problem.dtype = from_proto(job.dtype(), {FieldPath("run"), "dtype"});
  if (!job.format().empty()) problem.format = parse_tensor_format(job.format());
  if (job.has_softmax_scale()) problem.softmax_scale = job.softmax_scale();
  problem.causal = job.causal();
  if (job.has_window()) problem.window = job.window();
  if (job.has_chunk()) problem.chunk = job.chunk();
  problem.softcap = job.softcap();
  problem.sinks = job.sinks();
  problem.dropout = {job.dropout(), job.dropout_layer()};
  problem.latent = {job.latent(), job.rope_dim()};
  if (job.has_query_offset()) problem.query_offset = job.query_offset();
  problem.options = kernel_options_of(job);
  if (!job.documents().empty()) {
    value_of("--documents", job.documents(), [&] { parse_documents(job.documents(), problem); });
  }
  validate_problem(problem);
  return problem;
}

// Sets what the flags say of every strategy.
Strategy with_options(Strategy strategy, const proto::Attention& job) {
  if (!job.balance().empty()) {
    strategy.balance = value_of("--balance", job.balance(), [&] { return parse_balance(job.balance()); });
  }
  strategy.ulysses_inner =
      !parse_choice("--axis-order", job.axis_order(), "ulysses_inner", "ring_inner", !strategy.ulysses_inner);
  const bool gathered = parse_choice("--rotation", job.rotation(), "exchange", "all_gather",
                                     strategy.rotation == Strategy::Rotation::all_gather);
  strategy.rotation = gathered ? Strategy::Rotation::all_gather : Strategy::Rotation::exchange;
  strategy.input_dtype_gradients = parse_choice("--dkv-dtype", job.dkv_dtype(), "f32", "input", false);
  strategy.input_dtype_merge = parse_choice("--merge-dtype", job.merge_dtype(), "f32", "input", false);
  strategy.send_empty = job.send_empty();
  if (job.has_slots()) strategy.slots = job.slots();
  if (job.has_pieces()) strategy.pieces = job.pieces();
  using Transfers = Strategy::Transfers;
  if (parse_choice("--transfers", job.transfers(), name(Transfers::sm), name(Transfers::copy_engine), false))
    strategy.transfers = Transfers::copy_engine;
  using Merges = Strategy::Merges;
  if (parse_choice("--merges", job.merges(), name(Merges::in_turn), name(Merges::beside), false))
    strategy.merges = Merges::beside;
  if (!job.keys().empty())
    strategy.keys = value_of("--keys", job.keys(), [&] { return parse_keys(job.keys()); });
  return strategy;
}

// Says what ran instead of a hybrid of which only one part is left, because its degree follows from the ranks
// and the heads. Returns the empty text if a strategy is what its name says.
std::string what_ran_instead(const StrategyRequest& request, const Strategy& strategy,
                             const AttentionProblem& problem, int cp) {
  if (cp == 1) return "";
  const std::string ran = to_string(strategy, cp);
  if (is_hybrid(request.name) && !request.ulysses_degree &&
      (strategy.ulysses_degree == cp || strategy.ulysses_degree == 1)) {
    return str(request.name, ": no degree between 1 and ", cp, " divides the ", cp, " ranks",
               strategy.ulysses_degree == 1 ? str(" and is at most q_heads=", problem.q_heads) : "", ", so ",
               ran, " ran instead");
  }
  if (has_inner_rings(request.name) && !request.inner_ring && strategy.inner_ring == 1)
    return str(request.name, ": no number between 1 and ", cp, " divides the ", cp, " ranks, so ", ran,
               " ran instead");
  return "";
}

bool is_among(const Strategy& strategy, const std::vector<Strategy>& strategies, int cp) {
  return std::any_of(strategies.begin(), strategies.end(), [&](const Strategy& other) {
    return strategy == other || to_string(strategy, cp) == to_string(other, cp);
  });
}

std::vector<Strategy> make_strategies(const proto::Attention& job, const Mesh& mesh,
                                      const AttentionProblem& problem, int cp,
                                      std::vector<std::string>& notes) {
  if (!job.strategy().empty() && !job.strategies().empty()) {
    throw InvalidInput(str("--strategy ", job.strategy(), " and --strategies ", job.strategies(),
                           " say two things; give one of them"));
  }
  std::vector<Strategy> strategies;
  if (job.strategies() == "all") {
    for (const Strategy& strategy : standard_strategies(problem, cp)) {
      const Strategy chosen = with_options(strategy, job);
      if (!is_among(chosen, strategies, cp)) strategies.push_back(chosen);
    }
    return strategies;
  }
  const std::string names =
      job.strategies().empty() ? job.strategy().empty() ? "ring" : job.strategy() : job.strategies();
  for (const std::string_view name : split(names, ',')) {
    StrategyRequest request{std::string(trim(name)), {}, {}};
    if (job.has_ulysses_degree()) request.ulysses_degree = job.ulysses_degree();
    if (job.has_inner_ring()) request.inner_ring = job.inner_ring();
    // The second axis of a 2-D mesh is the hybrids' Ulysses axis (HyperParallel's co x ds).
    if (!request.ulysses_degree && is_hybrid(request.name) && mesh.num_axes() == 2 && mesh.size() == cp) {
      request.ulysses_degree = mesh.axis_size(1);
    }
    strategies.push_back(with_options(named_strategy(request, problem, cp), job));
    if (std::string note = what_ran_instead(request, strategies.back(), problem, cp); !note.empty())
      notes.push_back(std::move(note));
  }
  return strategies;
}

AttentionOptions make_options(const proto::Attention& job) {
  AttentionOptions options;
  if (!job.gradients().empty()) {
    options.gradients =
        value_of("--gradients", job.gradients(), [&] { return parse_gradients(job.gradients()); });
  }
  if (parse_choice("--lse", job.lse(), name(LsePlace::home), name(LsePlace::computed), false))
    options.lse = LsePlace::computed;
  return options;
}

}  // namespace

AttentionJob make_attention_job(const proto::Attention& given, const Target& device) {
  const proto::Attention job = with_mesh(given);
  const Mesh mesh = parse_mesh_flag(job.mesh());
  AttentionJob result;
  result.problem = make_problem(job);
  CpRanks cp = cp_ranks_of(mesh);
  result.ranks = std::move(cp.ranks), result.where = std::move(cp.where);
  result.strategies =
      make_strategies(job, mesh, result.problem, static_cast<int>(result.ranks.size()), result.notes);
  result.backward = job.backward();
  result.options = make_options(job);
  if (job.schedule() == proto::Redistribute::baton) result.schedule = Schedule::baton;
  result.seed = job.seed();
  result.target = target_of(job.target(), device);
  return result;
}

void require_backward(const proto::Attention& job) {
  if (job.gradients().empty() || job.backward()) return;
  throw InvalidInput(str("--gradients ", job.gradients(),
                         " needs the backward pass, which is not run; add --backward, or leave it out"));
}

}  // namespace cp::sim
