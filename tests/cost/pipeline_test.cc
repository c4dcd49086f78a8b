// Pipelines against schedules written out by hand, closed forms, and a list simulation.
#include "shared/transformer/pipeline.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/transformer/parallel_layout.h"
#include "tests/cost/timeline_cluster.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

using ::testing::HasSubstr;
using testing::kExact;

// "F0 F1 B0 ...", with the slice of the rank's stages where it has several: "F0.1".
std::string order_of(const PipelineTimes& times, int rank, int ranks, bool slices) {
  std::vector<std::string> words;
  for (const PipelineChunk& chunk : times.chunks[static_cast<std::size_t>(rank)]) {
    words.push_back(str(chunk.backward ? "B" : "F", chunk.micro_batch));
    if (slices) words.back() += str(".", chunk.stage / ranks);
  }
  return join(words, " ");
}

std::vector<double> begins_of(const PipelineTimes& times, int rank) {
  std::vector<double> begins;
  for (const PipelineChunk& chunk : times.chunks[static_cast<std::size_t>(rank)])
    begins.push_back(chunk.begin_ns);
  return begins;
}

std::vector<StageTimes> equal_stages(std::size_t stages, StageTimes stage) {
  return std::vector(stages, stage);
}

// Forward 1, backward 2.
//   rank 0   F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3
//   rank 1   .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .
TEST(Pipeline, OneForwardOneBackwardOnTwoRanksByHand) {
  const PipelineTimes times = run_pipeline(equal_stages(2, {1, 2, 0, 0}), 2, 4, true);
  EXPECT_EQ(order_of(times, 0, 2, false), "F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(order_of(times, 1, 2, false), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(begins_of(times, 1), (std::vector<double>{1, 2, 4, 5, 7, 8, 10, 11}));
  EXPECT_EQ(begins_of(times, 0), (std::vector<double>{0, 1, 4, 6, 7, 9, 10, 13}));
  EXPECT_EQ(times.time_ns, 15);
  EXPECT_EQ(times.idle_ns, (std::vector<double>{3, 3}));
  EXPECT_EQ(times.most_in_flight, (std::vector<std::int64_t>{2, 1}));
}

TEST(Pipeline, FourRanksWithEightMicroBatchesByHand) {
  const PipelineTimes times = run_pipeline(equal_stages(4, {1, 2, 0, 0}), 4, 8, true);
  EXPECT_EQ(order_of(times, 0, 4, false), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  EXPECT_EQ(order_of(times, 2, 4, false), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
  EXPECT_EQ(order_of(times, 3, 4, false), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
  EXPECT_EQ(begins_of(times, 3)[1], 4);
  EXPECT_EQ(times.time_ns, (8 + 3) * 3);
  EXPECT_EQ(times.most_in_flight, (std::vector<std::int64_t>{4, 3, 2, 1}));
}

// Forward 1, backward 1, four stages on two ranks.
//   rank 0   F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 ...
//   rank 1   .    F0.0 F1.0 F0.1 B0.1 F1.1 ...
TEST(Pipeline, InterleavedOnTwoRanksByHand) {
  const PipelineTimes times = run_pipeline(equal_stages(4, {1, 1, 0, 0}), 2, 4, true);
  EXPECT_EQ(order_of(times, 0, 2, true),
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
  EXPECT_EQ(order_of(times, 1, 2, true),
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
  EXPECT_EQ(begins_of(times, 1),
            (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}));
  EXPECT_EQ(begins_of(times, 0), (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 16, 17}));
  EXPECT_EQ(times.time_ns, 18);
  EXPECT_EQ(times.most_in_flight, (std::vector<std::int64_t>{5, 3}));
}

TEST(Pipeline, TransfersDelayWhoWaitsForThem) {
  // Micro-batch 0: F 10, send 3, F 10, B 20, send 5, B 20; behind it nothing waits.
  std::vector<StageTimes> stages = {{10, 20, 3, 100}, {10, 20, 100, 5}};
  EXPECT_EQ(run_pipeline(stages, 2, 1).time_ns, 10 + 3 + 10 + 20 + 5 + 20);
  EXPECT_EQ(pipeline_bound_ns(stages, 2, 1), 68);
  // Rank 1 begins at 13 and works without a pause: F1 arrives at 23, when B0 runs. B1 ends at 73, and rank 0
  // ends at 98.
  const PipelineTimes two = run_pipeline(stages, 2, 2);
  EXPECT_EQ(two.time_ns, 13 + 60 + 5 + 20);
  EXPECT_EQ(two.idle_ns, (std::vector<double>{38, 38}));
  EXPECT_EQ(pipeline_bound_ns(stages, 2, 2), 98);
  // Stages of one rank send nothing.
  EXPECT_EQ(run_pipeline(stages, 1, 2).time_ns, 2 * 60);
}

// (p - 1) / m of the work, and with v stages a rank a v-th of that.
TEST(Pipeline, BubblesOfEqualStages) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const std::int64_t micro_batches : {8, 16, 64}) {
      for (const int virtual_stages : {1, 2, 4}) {
        const auto stages = equal_stages(static_cast<std::size_t>(ranks * virtual_stages), {1, 2, 0, 0});
        const double work = 3.0 * static_cast<double>(micro_batches) * virtual_stages;
        const double bubble =
            static_cast<double>(ranks - 1) / static_cast<double>(virtual_stages * micro_batches);
        const PipelineTimes times = run_pipeline(stages, ranks, micro_batches);
        EXPECT_NEAR(times.time_ns, work * (1 + bubble), kExact * work)
            << ranks << " ranks, " << virtual_stages << " stages each, " << micro_batches;
        EXPECT_NEAR(pipeline_bound_ns(stages, ranks, micro_batches), times.time_ns, kExact * work);
        for (const double idle : times.idle_ns) EXPECT_NEAR(idle, work * bubble, kExact * work);
      }
    }
  }
}

TEST(Pipeline, RefusesWhatItCannotSchedule) {
  const auto run = [](std::size_t stages, int ranks, std::int64_t micro_batches) {
    return [=] { run_pipeline(equal_stages(stages, {1, 1, 0, 0}), ranks, micro_batches); };
  };
  const auto says = [](const std::string& words) {
    return ::testing::ThrowsMessage<InvalidInput>(HasSubstr(words));
  };
  EXPECT_THAT(run(4, 4, 0), says("0 micro-batches are out of range; use at least 1"));
  EXPECT_THAT(run(8, 4, 6),
              says("6 micro-batches on 4 ranks with several stages each do not go together: the interleaved "
                   "schedule needs a multiple of 4; use 4 or 8"));
  EXPECT_THAT(run(8, 4, 3), says("a multiple of 4; use 4"));
  EXPECT_THAT(run(6, 4, 4), says("6 stages on 4 ranks"));
  EXPECT_THAT([] { pipeline_bound_ns({}, 1, 1); }, says("0 stages on 1 ranks"));
}

// ---- any pipeline ----

struct AnyPipeline {
  int ranks = 1, virtual_stages = 1;
  std::int64_t micro_batches = 1;
  std::vector<StageTimes> stages;
};

void showValue(const AnyPipeline& any, std::ostream& out) {
  out << any.ranks << " ranks, " << any.virtual_stages << " stages each, " << any.micro_batches
      << " micro-batches";
  for (const StageTimes& stage : any.stages) {
    out << "\n  forward " << stage.forward_ns << ", backward " << stage.backward_ns;
  }
}

AnyPipeline any_pipeline() {
  return pick_case("pipeline", [] {
    const auto uniform = [](int begin, int end) {
      return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(begin, end));
    };
    AnyPipeline any;
    any.ranks = uniform(1, 7), any.virtual_stages = uniform(1, 4);
    any.micro_batches = any.virtual_stages == 1 ? uniform(1, 20) : any.ranks * uniform(1, 5);
    const bool transfers = uniform(0, 2) == 0;
    for (int s = 0; s < any.ranks * any.virtual_stages; ++s) {
      const auto ns = [&](int most) { return static_cast<double>(uniform(0, most)); };
      any.stages.push_back({ns(10), ns(20), transfers ? ns(8) : 0, transfers ? ns(8) : 0});
    }
    return any;
  });
}

// Lists of what each rank does, as the papers describe them; then every begin is put off until nothing
// contradicts it.
class ListSimulation {
 public:
  explicit ListSimulation(const AnyPipeline& p) : p_(p) {
    for (int rank = 0; rank < p.ranks; ++rank) {
      // All forward passes in the order in which they come, and all backward passes; one of each in turn
      // behind the warm-up.
      std::vector<Item> forward, backward;
      for (std::int64_t first = 0; first < p.micro_batches; first += p.ranks) {
        for (int slice = 0; slice < p.virtual_stages; ++slice) {
          for (std::int64_t m = first; m < std::min(p.micro_batches, first + p.ranks); ++m) {
            forward.push_back({slice * p.ranks + rank, m, false, 0});
            backward.push_back({(p.virtual_stages - 1 - slice) * p.ranks + rank, m, true, 0});
          }
        }
      }
      const int behind = p.ranks - 1 - rank;
      const auto warm_up =
          std::min(forward.size(),
                   static_cast<std::size_t>(
                       p.virtual_stages == 1 ? behind : 2 * behind + (p.virtual_stages - 1) * p.ranks));
      std::vector<Item>& list =
          lists_.emplace_back(forward.begin(), forward.begin() + static_cast<std::ptrdiff_t>(warm_up));
      for (std::size_t i = 0; i < forward.size(); ++i) {
        if (warm_up + i < forward.size()) list.push_back(forward[warm_up + i]);
        list.push_back(backward[i]);
      }
    }
  }

  double time() {
    while (put_off()) {
    }
    double most = 0;
    for (const auto& list : lists_) most = std::max(most, end_of(list.back()));
    return most;
  }

 private:
  struct Item {
    int stage;
    std::int64_t micro_batch;
    bool backward;
    double begin;
  };
  double end_of(const Item& item) const {
    const StageTimes& stage = p_.stages[static_cast<std::size_t>(item.stage)];
    return item.begin + (item.backward ? stage.backward_ns : stage.forward_ns);
  }
  const Item& find(int stage, std::int64_t micro_batch, bool backward) const {
    const auto& list = lists_[static_cast<std::size_t>(stage % p_.ranks)];
    return *std::find_if(list.begin(), list.end(), [&](const Item& item) {
      return item.stage == stage && item.micro_batch == micro_batch && item.backward == backward;
    });
  }
  bool put_off() {
    bool changed = false;
    for (auto& list : lists_) {
      for (std::size_t i = 0; i < list.size(); ++i) {
        Item& item = list[i];
        double begin = i > 0 ? end_of(list[i - 1]) : 0;
        const int last = static_cast<int>(p_.stages.size()) - 1,
                  before = item.backward ? item.stage + 1 : item.stage - 1;
        if (item.backward) begin = std::max(begin, end_of(find(item.stage, item.micro_batch, false)));
        if (before >= 0 && before <= last) {
          const StageTimes& sender = p_.stages[static_cast<std::size_t>(before)];
          const double send = p_.ranks == 1   ? 0
                              : item.backward ? sender.send_backward_ns
                                              : sender.send_forward_ns;
          begin = std::max(begin, end_of(find(before, item.micro_batch, item.backward)) + send);
        }
        changed = changed || begin > item.begin;
        item.begin = std::max(item.begin, begin);
      }
    }
    return changed;
  }

  const AnyPipeline& p_;
  std::vector<std::vector<Item>> lists_;
};

RC_GTEST_PROP(PipelineProperty, TakesTheTimeOfAListSimulation, ()) {
  const AnyPipeline any = any_pipeline();
  const PipelineTimes times = run_pipeline(any.stages, any.ranks, any.micro_batches, true);
  RC_ASSERT(times.time_ns == ListSimulation(any).time());  // whole numbers
  for (std::size_t rank = 0; rank < times.idle_ns.size(); ++rank) {
    double busy = 0;
    for (const PipelineChunk& chunk : times.chunks[rank]) busy += chunk.end_ns - chunk.begin_ns;
    RC_ASSERT(times.idle_ns[rank] == times.time_ns - busy);
  }
  RC_ASSERT(run_pipeline(any.stages, any.ranks, any.micro_batches).chunks.empty());
}

RC_GTEST_PROP(PipelineProperty, TheBoundIsOne, ()) {
  const AnyPipeline any = any_pipeline();
  RC_ASSERT(pipeline_bound_ns(any.stages, any.ranks, any.micro_batches) <=
            run_pipeline(any.stages, any.ranks, any.micro_batches).time_ns);
}

RC_GTEST_PROP(PipelineProperty, TheTimeIsKnownExactlyUpToALimit, ()) {
  const AnyPipeline any = any_pipeline();
  const double time_ns = run_pipeline(any.stages, any.ranks, any.micro_batches).time_ns,
               bound_ns = pipeline_bound_ns(any.stages, any.ranks, any.micro_batches);
  // Around the time, and from the closed form on.
  const double part = pick("part", rc::gen::inRange(0, 12)) / 10.0,
               most_ns = bound_ns + part * (time_ns - bound_ns) - pick("below", rc::gen::inRange(0, 2));
  const double known_ns = pipeline_ns(any.stages, any.ranks, any.micro_batches, most_ns);
  RC_ASSERT(known_ns <= time_ns);
  RC_ASSERT(known_ns == time_ns || known_ns > most_ns);
  RC_ASSERT((known_ns > most_ns) == (time_ns > most_ns));
}

RC_GTEST_PROP(PipelineProperty, InFlightIsWhatTheScheduleHasAtMost, ()) {
  const AnyPipeline any = any_pipeline();
  const PipelineTimes times = run_pipeline(any.stages, any.ranks, any.micro_batches);
  for (int rank = 0; rank < any.ranks; ++rank) {
    RC_ASSERT(in_flight(rank, any.ranks, any.virtual_stages, any.micro_batches) ==
              times.most_in_flight[static_cast<std::size_t>(rank)]);
  }
}

}  // namespace
}  // namespace cp::sim
