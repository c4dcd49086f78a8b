#include "shared/transformer/step_order.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
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

void wait_for(std::vector<PartRun>& passes, std::size_t run, std::size_t other) {
  CP_INVARIANT(other < run, "run ", run, " of a rank waits for run ", other);
  if (lane_of(passes[run].part) != lane_of(passes[other].part)) passes[run].after.push_back(other);
}

// Of the runs that have one, from the first of a stage's micro-batch to the one that ends it. The slot that
// is free for the longest time is taken, so that what it had has most time to leave. Whoever takes it waits
// for that.
template <class Has, class Ends>
void take_slots(std::vector<PartRun>& passes, std::int64_t slots, int PartRun::*slot, const Has& has,
                const Ends& ends) {
  struct Slot {
    int number = 0;
    std::optional<std::size_t> last;  // the run that ended its last use
  };
  std::deque<Slot> free;
  for (int number = 0; number < slots; ++number) free.push_back({number, {}});
  std::map<std::pair<int, std::int64_t>, int> taken;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    PartRun& run = passes[i];
    if (!has(run)) continue;
    const auto [place, is_new] = taken.try_emplace({run.stage, run.micro_batch}, 0);
    if (is_new) {
      CP_INVARIANT(!free.empty(), "no slot of ", slots, " is free for run ", i);
      place->second = free.front().number;
      if (free.front().last) wait_for(passes, i, *free.front().last);
      free.pop_front();
    }
    run.*slot = place->second;
    if (!ends(run)) continue;
    free.push_back({run.*slot, i});
    taken.erase(place);
  }
  CP_INVARIANT(taken.empty(), taken.size(), " slots are never free again");
}

// Of what the runs of a stage's micro-batch hand to one another.
void wait_for_inputs(std::vector<PartRun>& passes, int last_stage) {
  std::map<std::tuple<StepPart, int, std::int64_t>, std::size_t> at;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const StepPart part = passes[i].part;
    const int stage = passes[i].stage;
    const std::int64_t micro_batch = passes[i].micro_batch;
    const auto behind = [&](StepPart other, std::int64_t of) {
      const auto found = at.find({other, stage, of});
      if (found != at.end()) wait_for(passes, i, found->second);
    };
    if (part == StepPart::forward) behind(StepPart::recv_forward, micro_batch);
    if (part == StepPart::send_forward) behind(StepPart::forward, micro_batch);
    if (part == StepPart::recv_backward) behind(StepPart::send_forward, micro_batch);
    if (part == StepPart::backward) behind(StepPart::recv_backward, micro_batch);
    if (part == StepPart::send_backward) behind(StepPart::backward, micro_batch);
    // The forward part of the last stage makes gradients already.
    if (part == (stage == last_stage ? StepPart::forward : StepPart::backward))
      behind(StepPart::send_backward, micro_batch - kLeavingGradients);
    at[{part, stage, micro_batch}] = i;
  }
}

// When rows come to the forward passes of a rank, in the order of these: when they are made, and a slot is
// free.
class Arrivals {
 public:
  Arrivals(const std::vector<PipelineChunk>& chunks, std::int64_t slots) : slots_(idx(slots)) {
    for (const PipelineChunk& chunk : chunks) {
      if (chunk.backward) freed_.push_back(chunk.end_ns);
    }
  }

  // Of the next forward pass.
  double next(double made) {
    if (passes_ >= slots_) made = std::max(made, freed_[passes_ - slots_]);
    ++passes_;
    return latest_ = std::max(latest_, made);
  }

 private:
  const std::size_t slots_;
  std::vector<double> freed_;  // when
  std::size_t passes_ = 0;
  double latest_ = 0;
};

std::vector<PartRun> passes_of_stages(const ParallelLayout& layout, std::int64_t micro_batches, int rank) {
  const int stages = layout.pp * layout.virtual_stages;
  const PipelineTimes times = run_pipeline(std::vector<StageTimes>(static_cast<std::size_t>(stages), kClock),
                                           layout.pp, micro_batches, /*keep_chunks=*/true);
  std::vector<Entry> entries;
  const auto add = [&](double at, Entry::Kind kind, int stage, const PartRun& run) {
    if (run.stage % layout.pp == rank) entries.push_back({{at, kind, stage, run.micro_batch}, run});
  };
  std::map<std::pair<int, std::int64_t>, double> made;  // rows, by the stage that takes them
  for (const std::vector<PipelineChunk>& chunks : times.chunks) {
    for (const PipelineChunk& chunk : chunks) {
      if (!chunk.backward) made[{chunk.stage + 1, chunk.micro_batch}] = chunk.end_ns;
    }
  }
  for (int of = 0; of < layout.pp; ++of) {
    const std::vector<PipelineChunk>& chunks = times.chunks[idx(of)];
    Arrivals arrivals(chunks, slots_of_rows(of, layout.pp, layout.virtual_stages, micro_batches));
    for (const PipelineChunk& chunk : chunks) {
      const auto [stage, micro_batch, backward, begin, end] = chunk;
      add(begin, Entry::pass, stage, {backward ? StepPart::backward : StepPart::forward, stage, micro_batch});
      const double at = backward ? end : arrivals.next(made[{stage, micro_batch}]);
      if (stage == 0) continue;
      CP_INVARIANT(backward || at <= begin, "rows come at ", at, ", and are taken at ", begin);
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

LaneId lane_of(StepPart part) {
  switch (part) {
    case StepPart::recv_forward:
      return 1;
    case StepPart::send_forward:
      return 2;
    case StepPart::recv_backward:
      return 3;
    case StepPart::send_backward:
      return 4;
    default:
      return 0;
  }
}

std::int64_t slots_of_rows(int rank, int ranks, int virtual_stages, std::int64_t micro_batches) {
  const bool takes_rows = ranks > 1 && (rank > 0 || virtual_stages > 1);
  return std::min(in_flight(rank, ranks, virtual_stages, micro_batches) + (takes_rows ? 1 : 0),
                  micro_batches * virtual_stages);
}

bool holds_rows(std::string_view buffer) {
  // At the other home it is "activations/x, " and a balance.
  return buffer == "activations/x" || buffer.starts_with("activations/x,") ||
         buffer == "activations/between stages";
}

bool holds_leaving_gradients(std::string_view buffer) { return buffer.starts_with("working/dx"); }

StepOrder step_order(const StepRequest& request, Rank self) {
  const ParallelLayout& layout = request.layout;
  const int rank = RankGroups(layout, self).pp(), stages = layout.pp * layout.virtual_stages;
  const std::int64_t micro_batches = accumulation(request.workload, layout);
  StepOrder order;
  if (layout.pp == 1) {
    for (std::int64_t micro_batch = 0; micro_batch < micro_batches; ++micro_batch)
      order.passes.push_back({StepPart::micro_batch, 0, micro_batch});
    order.slots = order.row_slots = 1;
  } else {
    std::vector<PartRun>& passes = order.passes;
    passes = passes_of_stages(layout, micro_batches, rank);
    const std::int64_t kept = in_flight(rank, layout.pp, layout.virtual_stages, micro_batches),
                       rows = slots_of_rows(rank, layout.pp, layout.virtual_stages, micro_batches);
    take_slots(
        passes, kept, &PartRun::slot, [](const PartRun& run) { return !is_transfer(run.part); },
        [](const PartRun& run) { return run.part == StepPart::backward; });
    // The first stage hands no gradients on.
    take_slots(
        passes, rows, &PartRun::rows, [](const PartRun&) { return true; },
        [](const PartRun& run) {
          return run.part == (run.stage == 0 ? StepPart::backward : StepPart::send_backward);
        });
    wait_for_inputs(passes, stages - 1);
    order.slots = static_cast<int>(kept), order.row_slots = static_cast<int>(rows);
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
