// The order in which ranks run the parts of a step: the planner's passes, and transfers that no rank waits
// for in vain.
#include "shared/transformer/step_order.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/check_sequences.h"
#include "shared/transformer/memory_reading.h"
#include "shared/transformer/pipeline.h"
#include "shared/transformer/step_buffers.h"
#include "tests/support/any_case.h"
#include "tests/support/messages.h"
#include "tests/transformer/step_requests.h"

namespace cp::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

StepRequest pipeline_of(int ranks, int virtual_stages, std::int64_t micro_batches) {
  StepRequest request = small_request("tp=1");
  request.layout.pp = ranks, request.layout.virtual_stages = virtual_stages;
  request.workload.global_batch = micro_batches;
  request.model.layers = std::int64_t{ranks} * virtual_stages;
  set_layers(request.model, std::vector<LayerKind>(idx(request.model.layers)));
  return request;
}

bool is_pass(const PartRun& run) { return run.part == StepPart::forward || run.part == StepPart::backward; }

// "F0 >0" for the forward pass of micro-batch 0 and its output's way to the next stage; "<" receives.
std::string passes_of(const StepOrder& order) {
  static const std::map<StepPart, std::string> kWords = {
      {StepPart::forward, "F"},       {StepPart::backward, "B"},       {StepPart::send_forward, ">f"},
      {StepPart::recv_forward, "<f"}, {StepPart::send_backward, ">b"}, {StepPart::recv_backward, "<b"}};
  std::vector<std::string> words;
  for (const PartRun& run : order.passes) words.push_back(str(kWords.at(run.part), run.micro_batch));
  return join(words, " ");
}

// "F1 after <f1" for each run that waits for others, in the words of passes_of().
std::string waits_of(const StepOrder& order) {
  std::vector<std::string> lines;
  for (const PartRun& run : order.passes) {
    std::vector<PartRun> before;
    for (const std::size_t other : run.after) before.push_back(order.passes.at(other));
    if (!before.empty()) lines.push_back(str(passes_of({{run}, {}}), " after ", passes_of({before, {}})));
  }
  return join(lines, ", ");
}

// 1F1B of two stages. Rank 1 takes the rows of the next forward pass as soon as rank 0 has made them, into a
// slot beside that of the pass at work.
TEST(StepOrder, OfTwoStagesByHand) {
  const StepRequest request = pipeline_of(2, 1, 3);
  const StepOrder first = step_order(request, 0), second = step_order(request, 1);
  EXPECT_EQ(passes_of(first), "F0 >f0 F1 >f1 <b0 B0 F2 <b1 >f2 B1 <b2 B2");
  EXPECT_EQ(passes_of(second), "<f0 F0 <f1 B0 >b0 F1 B1 >b1 <f2 F2 B2 >b2");
  EXPECT_EQ(first.slots, 2);
  EXPECT_EQ(first.row_slots, 2);
  EXPECT_EQ(second.slots, 1);
  EXPECT_EQ(second.row_slots, 2);
  // Nothing computes behind what leaves: rank 1 makes gradients beside those that are on their way, and takes
  // the third rows into the place of the first ones, whose gradients must have left.
  EXPECT_EQ(waits_of(first),
            ">f0 after F0, >f1 after F1, <b0 after >f0, B0 after <b0, <b1 after >f1, "
            ">f2 after F2, B1 after <b1, <b2 after >f2, B2 after <b2");
  EXPECT_EQ(waits_of(second),
            "F0 after <f0, >b0 after B0, F1 after <f1, >b1 after B1, <f2 after >b0, "
            "F2 after <f2 >b0, >b2 after B2");
  EXPECT_EQ(first.updates, (std::vector<PartRun>{{StepPart::update, 0}}));
}

// Where a rank has several stages, all are reduced before the first one is updated.
TEST(StepOrder, UpdatesFollowAllReductions) {
  EXPECT_EQ(step_order(pipeline_of(2, 2, 2), 1).updates,
            (std::vector<PartRun>{
                {StepPart::reduce, 1}, {StepPart::reduce, 3}, {StepPart::update, 1}, {StepPart::update, 3}}));
}

StepRequest any_pipeline() {
  const int ranks = pick("ranks", rc::gen::inRange(2, 7)),
            virtual_stages = pick("virtual_stages", rc::gen::inRange(1, 4));
  const int micro_batches = virtual_stages == 1 ? pick("micro_batches", rc::gen::inRange(1, 14))
                                                : ranks * pick("rounds", rc::gen::inRange(1, 4));
  return pipeline_of(ranks, virtual_stages, micro_batches);
}

RC_GTEST_PROP(StepOrder, HasThePassesOfThePlanner, ()) {
  const StepRequest request = any_pipeline();
  const ParallelLayout& layout = request.layout;
  // Whatever passes take, ranks make them in one order.
  std::vector<StageTimes> stages;
  stages.reserve(idx(layout.pp) * idx(layout.virtual_stages));
  for (int stage = 0; stage < layout.pp * layout.virtual_stages; ++stage)
    stages.push_back({static_cast<double>(pick("forward", rc::gen::inRange(1, 9))),
                      static_cast<double>(pick("backward", rc::gen::inRange(1, 9))), 1, 1});
  const PipelineTimes times = run_pipeline(stages, layout.pp, request.workload.global_batch, true);
  for (int rank = 0; rank < layout.pp; ++rank) {
    const StepOrder order = step_order(request, rank);
    std::vector<std::tuple<int, std::int64_t, bool>> planned, run;
    for (const PipelineChunk& chunk : times.chunks[idx(rank)])
      planned.emplace_back(chunk.stage, chunk.micro_batch, chunk.backward);
    for (const PartRun& pass : order.passes) {
      if (is_pass(pass)) run.emplace_back(pass.stage, pass.micro_batch, pass.part == StepPart::backward);
    }
    RC_ASSERT(run == planned);
    RC_ASSERT(order.slots == times.most_in_flight[idx(rank)]);
    // Beside them one for rows that come, or for gradients that leave.
    const bool takes_rows = rank > 0 || layout.virtual_stages > 1;
    const std::int64_t all = request.workload.global_batch * layout.virtual_stages;
    RC_ASSERT(order.row_slots == std::min<std::int64_t>(all, order.slots + (takes_rows ? 1 : 0)));
  }
}

// ---- in lanes ----

// By the run's number those that have ended when it begins, whatever takes how long: the ones before it in
// its lane, those that it waits for, and what these have waited for.
std::vector<std::vector<bool>> ended_before(const std::vector<PartRun>& passes) {
  std::vector<std::vector<bool>> before;
  std::map<LaneId, std::size_t> last;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    std::vector<bool>& own = before.emplace_back(passes.size(), false);
    const auto add = [&](std::size_t other) {
      own[other] = true;
      for (std::size_t j = 0; j < passes.size(); ++j) own[j] = own[j] || before[other][j];
    };
    const LaneId lane = lane_of(passes[i].part);
    if (const auto found = last.find(lane); found != last.end()) add(found->second);
    for (const std::size_t other : passes[i].after) add(other);
    last[lane] = i;
  }
  return before;
}

// The places that a run reads or writes: slots of passes, slots of rows, and what gradients leave from.
std::set<std::tuple<char, int, std::int64_t>> places_of(const PartRun& run, int last_stage) {
  std::set<std::tuple<char, int, std::int64_t>> places{{'r', run.rows, 0}};
  if (is_pass(run)) places.insert({'s', run.slot, 0});
  const bool leaves = run.part == StepPart::backward || run.part == StepPart::send_backward ||
                      (run.part == StepPart::forward && run.stage == last_stage);
  if (leaves) places.insert({'g', run.stage, run.micro_batch % kLeavingGradients});
  return places;
}

RC_GTEST_PROP(StepOrder, NoTwoRunsHaveAPlaceAtOnce, ()) {
  const StepRequest request = any_pipeline();
  const int last_stage = request.layout.pp * request.layout.virtual_stages - 1;
  for (int rank = 0; rank < request.layout.pp; ++rank) {
    const std::vector<PartRun> passes = step_order(request, rank).passes;
    const std::vector<std::vector<bool>> before = ended_before(passes);
    std::map<std::tuple<char, int, std::int64_t>, std::size_t> last;
    for (std::size_t i = 0; i < passes.size(); ++i) {
      for (const auto& place : places_of(passes[i], last_stage)) {
        if (const auto found = last.find(place); found != last.end()) RC_ASSERT(before[i][found->second]);
        last[place] = i;
      }
    }
  }
}

// Begins of the passes of all ranks, by stage, micro-batch and direction, where each lane does one thing
// after the other, and a transfer begins when both sides have come to it.
using Pass = std::tuple<int, std::int64_t, bool>;
std::map<Pass, double> begins_in_lanes(const StepRequest& request, const std::vector<StageTimes>& times) {
  const int ranks = request.layout.pp;
  struct Rank {
    std::vector<PartRun> passes;
    std::vector<double> ends;  // of those that have ended; else below 0
  };
  std::vector<Rank> all;
  for (int rank = 0; rank < ranks; ++rank) {
    Rank& own = all.emplace_back();
    own.passes = step_order(request, rank).passes;
    own.ends.assign(own.passes.size(), -1);
  }
  // When all that a run waits for has ended; below 0 if nobody knows.
  const auto ready = [&](int rank, std::size_t i) {
    const Rank& own = all[idx(rank)];
    std::vector<std::size_t> before = own.passes[i].after;
    for (std::size_t j = i; j-- > 0;) {
      if (lane_of(own.passes[j].part) != lane_of(own.passes[i].part)) continue;
      before.push_back(j);
      break;
    }
    double at = 0;
    for (const std::size_t other : before) {
      if (own.ends[other] < 0) return -1.0;
      at = std::max(at, own.ends[other]);
    }
    return at;
  };
  const auto run_of = [&](int rank, StepPart part, int stage, std::int64_t micro_batch) {
    const std::vector<PartRun>& passes = all[idx(rank)].passes;
    const auto is_it = [&](const PartRun& run) {
      return run.part == part && run.stage == stage && run.micro_batch == micro_batch;
    };
    return idx(std::find_if(passes.begin(), passes.end(), is_it) - passes.begin());
  };
  std::map<Pass, double> begins;
  for (bool moves = true; moves;) {
    moves = false;
    for (int rank = 0; rank < ranks; ++rank) {
      Rank& own = all[idx(rank)];
      for (std::size_t i = 0; i < own.passes.size(); ++i) {
        const PartRun& run = own.passes[i];
        const double at = own.ends[i] < 0 ? ready(rank, i) : -1;
        if (at < 0) continue;
        if (is_pass(run)) {
          const bool backward = run.part == StepPart::backward;
          begins[{run.stage, run.micro_batch, backward}] = at;
          own.ends[i] =
              at + (backward ? times[idx(run.stage)].backward_ns : times[idx(run.stage)].forward_ns);
          moves = true;
          continue;
        }
        const bool forward = run.part == StepPart::recv_forward;
        if (!forward && run.part != StepPart::recv_backward) continue;
        const int from = run.stage + (forward ? -1 : 1), sender = from % ranks;
        const std::size_t sends =
            run_of(sender, forward ? StepPart::send_forward : StepPart::send_backward, from, run.micro_batch);
        const double other = ready(sender, sends);
        if (other < 0) continue;
        own.ends[i] = all[idx(sender)].ends[sends] =
            std::max(at, other) +
            (forward ? times[idx(from)].send_forward_ns : times[idx(from)].send_backward_ns);
        moves = true;
      }
    }
  }
  return begins;
}

// What the planner counts as hidden is hidden: with transfers that take as long as the shortest pass, passes
// begin when it says. Whole numbers, so that sums are exact.
RC_GTEST_PROP(StepOrder, PassesBeginWhenThePlannerSays, ()) {
  const StepRequest request = any_pipeline();
  const ParallelLayout& layout = request.layout;
  std::vector<StageTimes> stages;
  double shortest = 9;
  for (int stage = 0; stage < layout.pp * layout.virtual_stages; ++stage) {
    stages.push_back({static_cast<double>(pick("forward", rc::gen::inRange(4, 9))),
                      static_cast<double>(pick("backward", rc::gen::inRange(8, 18)))});
    shortest = std::min(shortest, stages.back().forward_ns);
  }
  for (StageTimes& stage : stages) {
    const auto most = static_cast<int>(shortest);
    stage.send_forward_ns = pick("send_forward", rc::gen::inRange(0, most + 1));
    stage.send_backward_ns = pick("send_backward", rc::gen::inRange(0, most + 1));
  }
  const PipelineTimes times = run_pipeline(stages, layout.pp, request.workload.global_batch, true);
  const std::map<Pass, double> begins = begins_in_lanes(request, stages);
  for (const std::vector<PipelineChunk>& chunks : times.chunks) {
    for (const PipelineChunk& chunk : chunks)
      RC_ASSERT(begins.at({chunk.stage, chunk.micro_batch, chunk.backward}) == chunk.begin_ns);
  }
}

// The strictest machine: a rank does one thing after the other, and a transfer is done when both sides have
// come to it. Passes find what they need, and no slot is taken while another micro-batch has it.
RC_GTEST_PROP(StepOrder, EndsOnTheStrictestMachine, ()) {
  const StepRequest request = any_pipeline();
  const int ranks = request.layout.pp, last = ranks * request.layout.virtual_stages - 1;
  std::vector<std::vector<PartRun>> lists;
  lists.reserve(idx(ranks));
  for (int rank = 0; rank < ranks; ++rank) lists.push_back(step_order(request, rank).passes);
  std::vector<std::size_t> at(idx(ranks), 0);
  using Of = std::pair<int, std::int64_t>;                 // a stage's micro-batch
  std::set<Of> rows, handed_on, gradients, has_gradients;  // come, made, come, made
  std::map<std::pair<int, int>, Of> slots, row_slots;      // by rank and slot
  const auto use = [&](int rank, const PartRun& run) {
    const Of of{run.stage, run.micro_batch};
    RC_ASSERT(row_slots.try_emplace({rank, run.rows}, of).first->second == of);
    const bool leaves = run.part == (run.stage == 0 ? StepPart::backward : StepPart::send_backward);
    if (leaves) row_slots.erase({rank, run.rows});
    if (!is_pass(run)) return;
    RC_ASSERT(slots.try_emplace({rank, run.slot}, of).first->second == of);
    if (run.part == StepPart::backward) slots.erase({rank, run.slot});
  };
  const auto waits_at = [&](int rank) -> const PartRun* {
    return at[idx(rank)] < lists[idx(rank)].size() ? &lists[idx(rank)][at[idx(rank)]] : nullptr;
  };
  for (bool moves = true; moves;) {
    moves = false;
    for (int rank = 0; rank < ranks; ++rank) {
      const PartRun* const run = waits_at(rank);
      if (run == nullptr) continue;
      const Of of{run->stage, run->micro_batch};
      if (is_pass(*run)) {
        const bool forward = run->part == StepPart::forward;
        const bool has_input = forward ? run->stage == 0 || rows.contains(of)
                                       : (run->stage == last ? handed_on : gradients).contains(of);
        RC_ASSERT(has_input);
        (forward ? handed_on : has_gradients).insert(of);
        use(rank, *run), ++at[idx(rank)], moves = true;
        continue;
      }
      // Of both sides the one that receives looks whether the other one has come, too.
      const bool forward = run->part == StepPart::recv_forward;
      if (!forward && run->part != StepPart::recv_backward) continue;
      const int from = run->stage + (forward ? -1 : 1), sender = from % ranks;
      const PartRun* const other = waits_at(sender);
      const StepPart sends = forward ? StepPart::send_forward : StepPart::send_backward;
      if (other == nullptr || other->part != sends || other->stage != from ||
          other->micro_batch != run->micro_batch)
        continue;
      const Of made{from, run->micro_batch};
      const bool is_made = (forward ? handed_on : has_gradients).contains(made);
      RC_ASSERT(is_made);
      // The gradient comes into the place of rows that have left.
      if (!forward) RC_ASSERT(rows.contains({from, run->micro_batch}));
      (forward ? rows : gradients).insert(of);
      use(sender, *other), use(rank, *run);
      ++at[idx(rank)], ++at[idx(sender)], moves = true;
    }
  }
  for (int rank = 0; rank < ranks; ++rank) RC_ASSERT(waits_at(rank) == nullptr);
}

// The plans themselves, with the collectives of layers and of the update, in every relation of micro-batches
// to stages.
TEST(StepOrder, IsProvedByTheChecker) {
  for (const char* layout : {"pp=2", "pp=4", "pp=3,tp=2", "pp=2,virtual_stages=2", "pp=2,dp_shard=2,zero=1",
                             "pp=2,virtual_stages=2,cp=2,strategy=ring", "pp=4,virtual_stages=2"}) {
    for (const std::int64_t micro_batches : {1, 2, 4, 8}) {
      StepRequest request = small_request(layout);
      request.model.layers = 8;
      set_layers(request.model, std::vector<LayerKind>(8));
      request.workload.global_batch *= micro_batches;
      if (refuse(request.model, request.workload, request.layout)) continue;
      EXPECT_EQ(message_of<Error>([&] { check_step_order(request); }), "no error")
          << layout << " with " << micro_batches << " micro-batches";
    }
  }
}

// Passes that begin with their receives and end with their sends, in the order of 1F1B: rank 0 sends the rows
// of its second forward pass while rank 1 sends it the gradients of its first backward pass.
TEST(CheckSequences, FindsThatPassesWithTheirTransfersWaitForEver) {
  const StepRequest request = pipeline_of(2, 1, 2);
  const auto plan = [&](StepPart part, int rank) { return step_plan(request, part, rank, rank); };
  const Plan sends_rows = plan(StepPart::send_forward, 0), takes_gradients = plan(StepPart::recv_backward, 0),
             takes_rows = plan(StepPart::recv_forward, 1), sends_gradients = plan(StepPart::send_backward, 1);
  const auto error = [](const PlanSequence& first, const PlanSequence& second) {
    return message_of<Error>([&] { check_sequences(std::vector<PlanSequence>{first, second}); });
  };
  EXPECT_EQ(error({&sends_rows, &takes_gradients}, {&takes_rows, &sends_gradients}), "no error");
  EXPECT_THAT(
      error({&sends_rows, &sends_rows, &takes_gradients}, {&takes_rows, &sends_gradients}),
      AllOf(HasSubstr("rank 0 waits in plan 2 of 3"), HasSubstr("on pp[0,1] for rank 1; rank 1 waits in"),
            HasSubstr("plan 2 of 2"), HasSubstr("on pp_gradients[0,1] for rank 0")));
  // In one group both are at a collective: they are not the same.
  StepRequest longer = request;
  longer.workload.seq_len *= 2;
  const Plan takes_more = step_plan(longer, StepPart::recv_forward, 1, 1);
  EXPECT_THAT(error({&sends_rows, &sends_rows}, {&takes_rows, &takes_more}),
              AllOf(HasSubstr("rank 0 is at plan 2 of 2"), HasSubstr("and rank 1 at plan 2 of 2"),
                    HasSubstr("in the same order")));
  EXPECT_THAT(error({&sends_rows, &takes_gradients}, {&takes_rows}),
              AllOf(HasSubstr("rank 0 waits in plan 2 of 2"),
                    HasSubstr("on pp_gradients[0,1] for rank 1, which has nothing more to do")));
}

TEST(CheckSequences, NamesTheCycle) {
  const StepRequest request = pipeline_of(2, 1, 1);
  const auto plan = [&](StepPart part, int rank) { return step_plan(request, part, rank, rank); };
  const Plan sends = plan(StepPart::send_forward, 0), update = plan(StepPart::update, 0),
             takes = plan(StepPart::recv_forward, 1), other_update = plan(StepPart::update, 1);
  const std::string error = message_of<Error>([&] {
    check_sequences(std::vector<PlanSequence>{{&sends, &update}, {&other_update, &takes}});
  });
  EXPECT_THAT(error,
              AllOf(HasSubstr("rank 0 waits in plan 1 of 2"), HasSubstr("on pp[0,1] for rank 1; rank 1"),
                    HasSubstr("waits in plan 1 of 2"), HasSubstr("for rank 0; ranks that share groups")));
}

// ---- slots ----

// Of the rank that has most in flight, what all slots need, bound as a step binds them, is what the planner
// counts for activations: those of stages that differ in size, too.
TEST(StepOrder, SlotsNeedWhatThePlannerCounts) {
  for (const char* layout : {"pp=2", "pp=4", "pp=2,virtual_stages=2", "pp=2,recompute=full",
                             "pp=2,virtual_stages=2,recompute=selective,tp=2", "pp=2,cp=2,strategy=ring"}) {
    for (const std::int64_t micro_batches : {2, 4, 8}) {
      StepRequest request = small_request(layout);
      request.model.layers = 7;  // of two stages the first one has one more
      set_layers(request.model, std::vector<LayerKind>(7));
      request.workload.global_batch *= micro_batches;
      StepBuffers buffers(request, 0, [](int, const TensorRun&, std::span<double> values) {
        std::fill(values.begin(), values.end(), 0.0);
      });
      StepBatch batch;
      batch.tokens.resize(idx(request.workload.tokens())), batch.labels = batch.tokens;
      buffers.begin_step(batch);
      std::map<std::pair<StepPart, int>, Plan> plans;
      std::int64_t positions = 0;
      for (const PartRun& run : buffers.order().passes) {
        const auto [plan, is_new] = plans.try_emplace({run.part, run.stage});
        if (is_new) plan->second = step_plan(request, run.part, run.stage, 0);
        buffers.make_room(plan->second);
        for (const Buffer& buffer : plan->second.buffers)
          positions = buffer.name == "activations/positions" ? buffer.bytes() : positions;
      }
      for (const PartRun& run : buffers.order().passes) buffers.bind(plans.at({run.part, run.stage}), run);
      EXPECT_EQ(memory_of(request, MemoryRules{}).activations, positions + buffers.slot_bytes())
          << layout << " with " << micro_batches << " micro-batches";
    }
  }
}

}  // namespace
}  // namespace cp::testing
