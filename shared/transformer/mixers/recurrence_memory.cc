#include "shared/transformer/mixers/recurrence_memory.h"

#include <algorithm>

#include "shared/plan/recurrence_rules.h"

namespace cp {
namespace {

constexpr std::int64_t kStateBytes = 4;  // states, and what makes their decay, are f32

}  // namespace

RecurrenceMemory::RecurrenceMemory(const Transformer& model, const Workload& workload,
                                   const ParallelLayout& layout, const LocalSizes& sizes)
    : model_(model),
      workload_(workload),
      layout_(layout),
      sizes_(sizes),
      width_(size_bytes(workload.dtype)),
      training_(workload.phase == Phase::training),
      scan_(scan_of_a_rank()) {}

LayerKept RecurrenceMemory::kept() const {
  LayerKept kept;
  const Recurrence& r = sizes_.recurrence;
  const std::int64_t tokens = sizes_.tokens;
  // What the projection gave; q, k and v behind the convolution, or all rows of some heads of these, which
  // are as many; decay and beta; the output, before its norm and behind it.
  kept.rest =
      tokens * ((r.projected() + r.convolved() + r.value_width()) * width_ + 2 * r.value_heads * kStateBytes);
  kept.cheap = tokens * r.value_width() * width_;
  if (layout_.cp == 1) return kept;
  if (trades_heads()) {  // v at home, too, where it is added to the output
    if (r.rule == RecurrenceRule::decay) kept.rest += tokens * r.value_width() * width_;
    return kept;
  }
  const RecurrenceProblem problem = recurrence_problem(model_, workload_, layout_);
  kept.rest +=
      (scan_.incoming * problem.state_numel() + scan_.handed_on * problem.transition_numel()) * kStateBytes;
  return kept;
}

std::int64_t RecurrenceMemory::bytes_inside() const {
  const Recurrence& r = sizes_.recurrence;
  if (!training_) return sizes_.tokens * (r.projected() + r.convolved()) * width_;
  return sizes_.tokens * (r.projected() + r.convolved() + 2 * r.value_width()) * width_ +
         sizes_.tokens * 2 * r.value_heads * kStateBytes;
}

// All but the output behind its norm.
std::int64_t RecurrenceMemory::bytes_beside_kernel() const {
  if (!training_ || trades_heads()) return 0;
  return bytes_inside() - sizes_.tokens * sizes_.recurrence.value_width() * width_;
}

std::int64_t RecurrenceMemory::bytes_from_afar() const {
  if (scan_.from_afar == 0) return 0;
  return scan_.from_afar * recurrence_problem(model_, workload_, layout_).state_numel() * kStateBytes;
}

std::vector<MixerMemory::Moment> RecurrenceMemory::moments() const {
  std::vector<Moment> moments;
  const std::int64_t beside_kernel = bytes_beside_kernel(), states = bytes_from_afar(),
                     workspace = workspace_bytes();
  if (beside_kernel > 0) moments.push_back({beside_kernel + workspace, workspace, true});
  if (states > 0) moments.push_back({states, states, false});
  return moments;
}

std::int64_t RecurrenceMemory::workspace_bytes() const {
  if (!training_) return 0;
  const RecurrenceProblem problem = recurrence_problem(model_, workload_, layout_);
  const std::int64_t key_heads = problem.key_heads / (trades_heads() ? layout_.cp : 1),
                     rows =
                         trades_heads() ? workload_.seq_len : ceil_div(sizes_.rows, has_two_chunks() ? 2 : 1),
                     lanes = std::min<std::int64_t>(kRecurrenceLanes, problem.batch * key_heads);
  return lanes * kStateBytes *
         recurrence_workspace_numel(rows, problem.value_heads / problem.key_heads, problem.key_dim,
                                    problem.value_dim);
}

std::int64_t RecurrenceMemory::cached_bytes() const {
  if (layout_.cp > 1 && workload_.phase == Phase::prefill) return 0;
  const RecurrentCache cache = recurrent_cache(sizes_.recurrence, workload_.dtype);
  return layout_.micro_batch * (cache.state / (trades_heads() ? layout_.cp : 1) + cache.convolved);
}

RecurrenceMemory::ScanShare RecurrenceMemory::scan_of_a_rank() const {
  ScanShare share;
  if (!training_ || layout_.cp == 1 || layout_.scan == StateScan::heads) return share;
  const RecurrenceStrategy strategy = recurrence_strategy(layout_);
  const std::int64_t cp = layout_.cp, chunks = has_two_chunks() ? 2 * cp : cp;
  // Where the mask deals rows, or they do not divide, others may have most; documents cut the ways of
  // states.
  if (strategy.balance.kind == Balance::Kind::cost || layout_.strategy.balance.kind == Balance::Kind::cost ||
      workload_.seq_len % (2 * cp) != 0 || workload_.has_documents())
    return share;
  // In a group of Ulysses a rank has a part of two chunks, which may be the last one of all; the first rows
  // are rank 0's.
  const bool in_groups = layout_.strategy.ulysses_degree > 1;
  if (in_groups && chunks > cp) return {1, 0, 0};
  const auto own = [&](std::int64_t chunk) {
    return chunk == cp / 2 || (chunks > cp && chunk == chunks - 1 - cp / 2);
  };
  std::int64_t last = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    if (!own(chunk)) continue;
    last = chunk;
    share.incoming += chunk > 0 ? 1 : 0, share.handed_on += chunk > 0 && chunk + 1 < chunks ? 1 : 0;
  }
  // Groups may have the chunks in another order.
  if (layout_.scan != StateScan::all_gather || in_groups) return share;
  for (std::int64_t chunk = 0; chunk < last; ++chunk) share.from_afar += own(chunk) || own(chunk + 1) ? 0 : 1;
  return share;
}

bool RecurrenceMemory::has_two_chunks() const {
  return recurrence_strategy(layout_).balance.kind == Balance::Kind::head_tail && layout_.cp > 1;
}

}  // namespace cp
