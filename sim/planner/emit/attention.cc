// Writes a scenario of the attention alone: one micro-batch, the heads of one tensor-parallel rank, all
// context-parallel ranks.
#include <algorithm>

#include "shared/base/text.h"
#include "shared/context_parallel/cores.h"
#include "shared/context_parallel/problem.h"
#include "shared/transformer/flops.h"
#include "sim/planner/emit/emitters.h"
#include "traces/scenario.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

void set_problem(const AttentionProblem& problem, proto::Attention& run) {
  run.set_seq_len(problem.q_len);
  if (problem.kv_len != problem.q_len) run.set_kv_len(problem.kv_len);
  if (problem.batch != 1) run.set_batch(problem.batch);
  run.set_q_heads(problem.q_heads);
  run.set_kv_heads(problem.kv_heads);
  run.set_head_dim(problem.head_dim);
  if (problem.v_head_dim != problem.head_dim) run.set_v_head_dim(problem.v_head_dim);
  run.set_dtype(to_proto(problem.dtype));
  run.set_causal(problem.causal);
  if (problem.sinks) run.set_sinks(true);
  if (problem.softcap != 0) run.set_softcap(problem.softcap);
  if (problem.softmax_scale) run.set_softmax_scale(*problem.softmax_scale);
  if (problem.has_latent()) run.set_latent(problem.latent.rank), run.set_rope_dim(problem.latent.rope_dim);
  if (problem.window) run.set_window(*problem.window);
  if (problem.chunk) run.set_chunk(*problem.chunk);
  if (problem.has_documents()) run.set_documents(documents_text(problem));
}

std::string_view core_name(const Strategy& strategy) {
  const CoreFacts& core = facts(strategy.core);
  const bool rings = strategy.inner_ring > 1 && !core.name_of_inner_rings.empty();
  return rings ? core.name_of_inner_rings : core.name;
}

void set_strategy(const Strategy& strategy, int cp, proto::Attention& run) {
  const bool ulysses = strategy.ulysses_degree == cp && strategy.core == whole_ulysses(cp).core;
  run.set_strategy(std::string(ulysses ? "ulysses" : core_name(strategy)));
  if (!ulysses && strategy.ulysses_degree > 1) run.set_ulysses_degree(strategy.ulysses_degree);
  if (strategy.inner_ring > 1) run.set_inner_ring(strategy.inner_ring);
  if (!strategy.ulysses_inner) run.set_axis_order("ring_inner");
  if (strategy.rotation == Strategy::Rotation::all_gather) run.set_rotation("all_gather");
  run.set_balance(to_string(strategy.balance));
  if (strategy.input_dtype_gradients) run.set_dkv_dtype("input");
  if (strategy.input_dtype_merge) run.set_merge_dtype("input");
  run.set_send_empty(strategy.send_empty);
  if (strategy.slots > kLeastSlots) run.set_slots(strategy.slots);
  if (strategy.pieces > 1) run.set_pieces(strategy.pieces);
  if (strategy.transfers != Strategy::Transfers::sm) run.set_transfers(std::string(name(strategy.transfers)));
  if (strategy.merges != Strategy::Merges::in_turn) run.set_merges(std::string(name(strategy.merges)));
  // As in the plans of a step: if attention is computed elsewhere than at the rank that owns a row, nobody
  // needs the log-sum-exp there.
  if (strategy.ulysses_degree > 1 || strategy.balance.kind == Balance::Kind::head_tail_exchange)
    run.set_lse("computed");
}

}  // namespace

EmittedBody emit_attention(const EmitRequest& request) {
  const ParallelLayout& layout = request.layout;
  EmittedBody out;
  const auto note = [&](std::string what) { out.notes.push_back(std::move(what)); };
  note("everything around attention is left out: matmuls, norms, MLP, embedding, loss and optimizer");
  if (layout.tp > 1) note(str("tp=", layout.tp, ": one rank's heads are run, the others do the same"));
  if (layout.dp() > 1) note(str("the ", layout.dp(), " replicas: one is run, the others do the same"));
  if (layout.pp > 1) note(str("pp=", layout.pp, ": stages are planned, not run"));
  if (layout.ep > 1) note(str("ep=", layout.ep, ": experts are planned, not run"));
  if (layout.recompute.kind == Recompute::Kind::full || layout.recompute.kind == Recompute::Kind::every) {
    note(str("recompute=", to_string(layout.recompute), ": the forward pass runs once"));
  }

  proto::Scenario scenario;
  proto::Attention& run = *scenario.mutable_run();
  run.set_mesh(str("cp=", layout.cp));
  const std::vector<LayerKind>& kinds = request.model.kinds;
  const auto longest = std::max_element(kinds.begin(), kinds.end(), [&](const auto& a, const auto& b) {
    return allowed_pairs(request.model, request.workload, a) <
           allowed_pairs(request.model, request.workload, b);
  });
  if (request.model.recurrence)
    note("layers with a recurrence: cpsim run --recurrence runs them (docs/recurrence.md)");
  if (request.model.convolution)
    note("layers with a convolution: cpsim prove runs them in a whole step (docs/proving.md)");
  if (kinds.size() > 1)
    note(str("layers of ", kinds.size(), " kinds: one of those that attend to most is run"));
  AttentionProblem problem = attention_problem(request.model, request.workload, layout, *longest);
  if (problem.latent.absorbed) {
    note(str("queries are absorbed: keys of ", problem.head_dim, " and values of ", problem.v_head_dim,
             " elements are run, which a step has in one latent row"));
    problem.latent = {};
  }
  set_problem(problem, run);
  if (layout.cp > 1 && (layout.window_balance || layout.scan_balance))
    note("rows that go between layers of two balances: they are planned, not run");
  if (layout.cp > 1) set_strategy(strategy_of(layout, problem), layout.cp, run);
  if (problem.has_latent() && layout.cp > 1) run.set_keys(std::string(name(layout.keys)));
  run.set_backward(request.workload.phase == Phase::training);
  if (request.context.max_ctas > 0) scenario.mutable_nccl()->set_max_ctas(request.context.max_ctas);
  out.text = write_scenario_text(scenario);
  return out;
}

}  // namespace cp::sim
