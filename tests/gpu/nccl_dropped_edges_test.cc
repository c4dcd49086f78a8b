// Plans without one of their edges: the device must not hide that it is missing. The step that the edge waits
// for is late, memory is poisoned, and some rank's results have to differ. Of an edge that others imply
// nothing shows, and the test says how many there are.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/nccl/nccl_device.h"
#include "runtime/nccl/nccl_order.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/placement/layout.h"
#include "shared/plan/builder.h"
#include "shared/plan/check.h"
#include "shared/plan/execute.h"
#include "shared/redistribute/lower.h"
#include "shared/redistribute/redistribution.h"
#include "tests/gpu/edge_graph.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/gpu/slow_steps.h"
#include "tests/support/hand_plans.h"
#include "tests/support/values.h"

namespace cp {
namespace {

using runtime::NcclDevice;
using std::chrono::milliseconds;
using testing::BufferValues;
using testing::EdgeGraph;
using testing::EdgePlace;
using testing::PlanCase;

#ifdef CP_GPU_EMULATED
constexpr std::size_t kEveryEdge = 1;
#else
constexpr std::size_t kEveryEdge = 7;  // ranks may share a GPU, in turns
#endif

// Inputs are small fractions, whatever they mean. What is expected is what the plans as they are give.
PlanCase with_inputs(std::string name, std::vector<Plan> plans) {
  PlanCase made{std::move(name), std::move(plans), {}, {}, 0};
  for (const Plan& plan : made.plans) {
    BufferValues& inputs = made.inputs.emplace_back();
    std::uint64_t seed = static_cast<std::uint64_t>(plan.self) + 1;
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.kind == BufferKind::input || buffer.kind == BufferKind::inout)
        inputs[buffer.name] = testing::small_fractions(buffer.numel, seed += 100);
    }
  }
  made.expected.resize(made.plans.size());
  return made;
}

const Balance kHeadTail{.kind = Balance::Kind::head_tail};

PlanCase attention_case(const char* name, int ranks, AttentionPass pass, const Strategy& strategy,
                        std::int64_t kv_heads = 1) {
  AttentionRequest request;
  AttentionProblem& problem = request.problem;
  problem.q_len = problem.kv_len = std::int64_t{4} * ranks;
  problem.q_heads = 2 * kv_heads, problem.kv_heads = kv_heads;
  problem.head_dim = problem.v_head_dim = 4;
  problem.causal = true;
  for (Rank rank = 0; rank < ranks; ++rank) request.ranks.push_back(rank);
  request.strategy = strategy;
  return with_inputs(str(name, pass == AttentionPass::forward ? " forward" : " backward"),
                     attention_plans(request, pass));
}

// A run of the case: with one edge less, or as it is.
struct Trial {
  EdgePlace place;
  bool is_whole = false;
  milliseconds delay{0};  // of the step that the edge waits for
};

// Fills the memory that the plan's temporaries will have with NaN: the arena is the one of the next plan.
void poison(const Plan& plan, NcclDevice& device) {
  if (plan.arena_bytes == 0) return;
  PlanBuilder b(plan.self, host_target());
  const std::int64_t numel = (plan.arena_bytes + 3) / 4;
  b.add(b.stream("main"), Fill{flat_view(b.temporary("poison", DType::f32, numel), 0, numel),
                               std::numeric_limits<double>::quiet_NaN()});
  execute(std::move(b).build({}), device);
}

// Equal bit for bit; NaN equals NaN.
bool same(const BufferValues& a, const BufferValues& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && std::ranges::equal(x.second, y.second, [](double p, double q) {
             return p == q || (std::isnan(p) && std::isnan(q));
           });
  });
}

// Those of the trials in which some rank's results are others than without delays, and with all edges.
std::set<std::size_t> differing(const PlanCase& plan_case, const std::vector<Trial>& trials) {
  const int ranks = static_cast<int>(plan_case.plans.size());
  const testing::GpuJob job(ranks);
  const auto run = [&](Rank rank) {
    const auto own = static_cast<std::size_t>(rank);
    const Step* late = nullptr;
    milliseconds time{0};
    runtime::NcclOptions options = job.options(rank);
    options.traces = false;
    options.before_step = [&](const Step& step, CallerStream stream) {
      if (&step == late) testing::delay(stream, time);
    };
    NcclDevice device(options);
    const auto results = [&](const PlanCase& one) {
      poison(one.plans[own], device);
      return run_plan_case(one, rank, device);
    };
    const BufferValues expected = results(plan_case);
    std::vector<std::size_t> others;
    for (std::size_t i = 0; i < trials.size(); ++i) {
      const Trial& trial = trials[i];
      PlanCase changed = plan_case;
      Plan& plan = changed.plans[own];
      if (trial.place.rank == rank) {
        const StepId awaited = edge_at(plan, trial.place).step;
        if (!trial.is_whole) plan = without(std::move(plan), trial.place);
        late = steps_of(plan)[static_cast<std::size_t>(awaited)].step;
        time = trial.delay;
      }
      if (!same(results(changed), expected)) others.push_back(i);
      late = nullptr;
    }
    return join(others, " ");
  };
  std::set<std::size_t> all;
  for (const std::string& said : testing::run_gpu_ranks(ranks, run)) {
    if (said.find_first_not_of("0123456789 ") != std::string::npos) {
      ADD_FAILURE() << plan_case.name << ": " << said;
      continue;
    }
    for (const std::string_view number : split(said, ' ')) {
      if (!number.empty()) all.insert(static_cast<std::size_t>(std::stoul(std::string(number))));
    }
  }
  return all;
}

bool is_refused(std::vector<Plan> plans, const EdgePlace& place) {
  Plan& plan = *std::ranges::find(plans, place.rank, &Plan::self);
  plan = without(std::move(plan), place);
  try {
    check(plans);
  } catch (const Error&) {
    return true;
  }
  return false;
}

// Longer delays where no difference was found: a busy machine may be late itself.
void expect_all_found(const PlanCase& plan_case) {
  const bool takes_turns = !runtime::nccl_keeps_launch_order();
  const EdgeGraph graph(plan_case.plans, takes_turns);
  int edges = 0, implied = 0, by_peers = 0, found = 0, refused = 0;
  std::vector<EdgePlace> needed;
  for (const EdgePlace& place : testing::edges_of(plan_case.plans)) {
    if (edges++ % static_cast<int>(kEveryEdge) != 0) continue;
    if (graph.is_implied(place)) {
      ++implied;
    } else if (graph.is_implied_by_peers(place)) {
      ++by_peers;
    } else {
      needed.push_back(place);
      refused += is_refused(plan_case.plans, place) ? 1 : 0;
    }
  }
  std::vector<EdgePlace> left = needed;
  std::vector<Trial> whole;
  whole.reserve(needed.size());
  for (const EdgePlace& place : needed) whole.push_back({place, true, milliseconds(3)});
  EXPECT_EQ(differing(plan_case, whole).size(), 0U) << plan_case.name << " with delays alone";
  for (const milliseconds time : {milliseconds(10), milliseconds(100), milliseconds(1'000)}) {
    if (left.empty()) break;
    std::vector<Trial> trials;
    trials.reserve(left.size());
    for (const EdgePlace& place : left) trials.push_back({place, false, time});
    const std::set<std::size_t> others = differing(plan_case, trials);
    found += static_cast<int>(others.size());
    std::vector<EdgePlace> next;
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (!others.contains(i)) next.push_back(left[i]);
    }
    left = std::move(next);
  }
  std::printf(
      "%-28s %3d edges: %3d implied, %3d implied by way of peers, %3zu needed, of which %3d found, %3d "
      "refused by check()\n",
      plan_case.name.c_str(), edges, implied, by_peers, needed.size(), found, refused);
  EXPECT_EQ(refused, static_cast<int>(needed.size())) << plan_case.name << ": check() and the order of steps";
  for (const EdgePlace& place : left)
    ADD_FAILURE() << plan_case.name << ": nothing shows without " << to_text(plan_case.plans, place);
}

TEST(NcclDroppedEdges, OfRingsAreFound) {
  CP_REQUIRE_GPU();
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    expect_all_found(attention_case("ring", 4, pass, {.balance = kHeadTail}));
    expect_all_found(attention_case("double ring", 4, pass, {.inner_ring = 2, .balance = kHeadTail}));
    expect_all_found(attention_case("pass_q", 4, pass, {.core = Core::pass_q, .balance = kHeadTail}));
  }
}

// A block that arrives a step earlier may overwrite one that is still read.
TEST(NcclDroppedEdges, OfRingsWithThreeSlotsAreFound) {
  CP_REQUIRE_GPU();
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    expect_all_found(attention_case("ring, 3 slots", 4, pass, {.balance = kHeadTail, .slots = 3}));
    expect_all_found(
        attention_case("pass_q, 3 slots", 4, pass, {.core = Core::pass_q, .balance = kHeadTail, .slots = 3}));
  }
}

// A part is written while those before it are merged.
TEST(NcclDroppedEdges, OfMergesBesideAttentionAreFound) {
  CP_REQUIRE_GPU();
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    expect_all_found(attention_case("ring, merges beside", 4, pass,
                                    {.balance = kHeadTail, .merges = Strategy::Merges::beside}));
    expect_all_found(
        attention_case("pass_q, merges beside", 4, pass,
                       {.core = Core::pass_q, .balance = kHeadTail, .merges = Strategy::Merges::beside}));
  }
}

// Each piece comes, is computed on and goes home beside the others.
TEST(NcclDroppedEdges, OfPiecesAreFound) {
  CP_REQUIRE_GPU();
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    expect_all_found(attention_case("ulysses, 2 pieces", 2, pass,
                                    {.ulysses_degree = 2, .balance = kHeadTail, .pieces = 2}, 4));
    for (const Core core : {Core::all_gather, Core::need_only}) {
      const std::string name = str(cp::name(core), ", 3 pieces");
      expect_all_found(
          attention_case(name.c_str(), 2, pass, {.core = core, .balance = kHeadTail, .pieces = 3}, 3));
    }
  }
}

// It has one stream, and so nothing to drop.
TEST(NcclDroppedEdges, ARedistributionHasNone) {
  const Mesh mesh = Mesh::parse("a=4");
  const Layout from = parse_layout("P(sum)", mesh, {7, 6}, DType::f32),
               to = parse_layout("S(1)", mesh, {7, 6}, DType::f32);
  EXPECT_TRUE(testing::edges_of(lower_all(plan_redistribution(from, to))).empty());
}

TEST(NcclDroppedEdges, OfHandPlansAreFound) {
  CP_REQUIRE_GPU();
  expect_all_found(testing::ring_backward(4, DType::f32));
  expect_all_found(testing::prefetched_blocks(2, 3));
}

}  // namespace
}  // namespace cp
