#include "shared/transformer/step_order.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "shared/base/error.h"
#include "shared/plan/check_sequences.h"
#include "shared/transformer/pipeline.h"
#include "shared/transformer/rank_groups.h"

namespace cp {
namespace {

// On the clock a backward pass takes twice as long as a forward pass, since it has two products for each one
// of the forward pass. Any lengths above 0 make an order without waits for ever; these keep ranks from
// waiting for transfers that others come to late.
constexpr StageTimes kClock{1, 2, 0, 0};

// A pass, or a transfer of the side that the rank has, with its place in the order of everything.
struct Entry {
  // At equal times.
  enum Kind { gradients, rows, pass };
  std::tuple<double, Kind, int, std::int64_t> at;  // time, kind, the stage that receives or computes
  PartRun run;
};

void take_slots(StepOrder& order) {
  std::map<std::pair<int, std::int64_t>, int> taken;
  std::set<int> free;
  for (PartRun& run : order.passes) {
    const auto [place, is_new] = taken.try_emplace({run.stage, run.micro_batch}, order.slots);
    if (is_new && free.empty()) {
      ++order.slots;
    } else if (is_new) {
      place->second = *free.begin();
      free.erase(free.begin());
    }
    run.slot = place->second;
    // The first stage hands no gradients on.
    const bool is_over = run.part == (run.stage == 0 ? StepPart::backward : StepPart::send_backward);
    if (is_over) free.insert(run.slot), taken.erase(place);
  }
  CP_INVARIANT(taken.empty(), taken.size(), " slots are never free again");
}

std::vector<PartRun> passes_of_stages(const ParallelLayout& layout, std::int64_t micro_batches, int rank) {
  const int stages = layout.pp * layout.virtual_stages;
  const PipelineTimes times = run_pipeline(std::vector<StageTimes>(static_cast<std::size_t>(stages), kClock),
                                           layout.pp, micro_batches, /*keep_chunks=*/true);
  std::vector<Entry> entries;
  const auto add = [&](double at, Entry::Kind kind, int stage, const PartRun& run) {
    if (run.stage % layout.pp == rank) entries.push_back({{at, kind, stage, run.micro_batch}, run});
  };
  for (const std::vector<PipelineChunk>& chunks : times.chunks) {
    for (const PipelineChunk& chunk : chunks) {
      const auto [stage, micro_batch, backward, begin, end] = chunk;
      add(begin, Entry::pass, stage, {backward ? StepPart::backward : StepPart::forward, stage, micro_batch});
      if (stage == 0) continue;
      const double at = backward ? end : begin;
      const Entry::Kind kind = backward ? Entry::gradients : Entry::rows;
      const int to = backward ? stage - 1 : stage;
      add(at, kind, to, {backward ? StepPart::send_backward : StepPart::recv_forward, stage, micro_batch});
      add(at, kind, to,
          {backward ? StepPart::recv_backward : StepPart::send_forward, stage - 1, micro_batch});
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.at < b.at; });
  std::vector<PartRun> passes;
  passes.reserve(entries.size());
  for (const Entry& entry : entries) passes.push_back(entry.run);
  return passes;
}

}  // namespace

StepOrder step_order(const StepRequest& request, Rank self) {
  const ParallelLayout& layout = request.layout;
  const int rank = RankGroups(layout, self).pp(), stages = layout.pp * layout.virtual_stages;
  const std::int64_t micro_batches = accumulation(request.workload, layout);
  StepOrder order;
  if (layout.pp == 1) {
    for (std::int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch)
      order.passes.push_back({StepPart::micro_batch, 0, micro_batch});
    order.slots = 1;
  } else {
    order.passes = passes_of_stages(layout, micro_batches, rank);
    take_slots(order);
  }
  for (const StepPart part : {StepPart::reduce, StepPart::update}) {
    if (part == StepPart::reduce && layout.virtual_stages == 1) continue;
    for (int stage = rank; stage < stages; stage += layout.pp) order.updates.push_back({part, stage});
  }
  return order;
}

void check_step_order(const StepRequest& request, const PlanOfRank& plans) {
  std::vector<PlanSequence> sequences;
  for (Rank rank = 0; rank < request.layout.world(); ++rank) {
    const StepOrder order = step_order(request, rank);
    PlanSequence& sequence = sequences.emplace_back();
    for (const std::vector<PartRun>* runs : {&order.passes, &order.updates}) {
      for (const PartRun& run : *runs) sequence.push_back(&plans(run.part, run.stage, rank, run.micro_batch));
    }
  }
  check_sequences(sequences);
}

void check_step_order(const StepRequest& request) {
  MixerPlanCache cache;
  std::map<std::tuple<StepPart, int, Rank, std::int64_t>, Plan> made;
  const bool alike = request.workload.cu_seqlens_of_sequence.empty();
  check_step_order(request,
                   [&](StepPart part, int stage, Rank self, std::int64_t micro_batch) -> const Plan& {
                     const std::int64_t of = alike || !sees_documents(part) ? 0 : micro_batch;
                     const auto [plan, is_new] = made.try_emplace({part, stage, self, of});
                     if (is_new) plan->second = step_plan(request, part, stage, self, &cache, of);
                     return plan->second;
                   });
}

}  // namespace cp
