// Plans on real processes over Gloo, compared with the simulated fabric: bits of the outputs, and traces.
#ifdef CP_HAVE_GLOO
#include "runtime/gloo/gloo_device.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "runtime/gloo/gloo_reduction.h"
#endif

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/check.h"
#include "shared/plan/execute.h"
#include "tests/runtime/processes.h"
#include "tests/support/fabric_run.h"
#include "tests/support/hand_plans.h"
#include "tests/support/values.h"

namespace cp {
namespace {

#ifndef CP_HAVE_GLOO

TEST(GlooDevice, IsTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#else

using runtime::GlooDevice;
using testing::all_reduce_plan;
using testing::PlanCase;

const std::vector<std::string> kNothing2(2), kNothing3(3);

std::vector<std::string> run_cases(const std::vector<PlanCase>& cases) {
  const int ranks = static_cast<int>(cases.front().plans.size());
  const std::vector<testing::FabricRun> fabric_runs = testing::run_on_fabric(cases);
  const testing::TemporaryDirectory store;
  return testing::run_processes(ranks, [&](Rank rank) {
    GlooDevice device({.rank = rank, .store_directory = store.path()});
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (const std::string wrong = compare_with_fabric(cases[i], fabric_runs[i], device); !wrong.empty())
        return wrong;
    }
    return std::string();
  });
}

TEST(GlooDevice, RunsTheHandPlansOnTwoProcesses) { EXPECT_EQ(run_cases(testing::hand_plans(2)), kNothing2); }

std::vector<Rank> all_ranks(int ranks) {
  std::vector<Rank> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Digest digest_of(std::string_view text) { return Hasher().add(text).digest(); }

// Ranks that do not do the same: no number of one reaches the other, so that none computes with what was
// meant for something else. They agree on a first collective, and rank 1 differs in the second.
TEST(GlooDevice, RanksThatDifferExchangeNothing) {
  struct Second {
    ReduceOp reduction = ReduceOp::sum;
    std::int32_t root = 0;
    std::string_view made_from = "the same";
    bool broadcasts = false;
  };
  const auto plan_of = [](Rank self, const Second& second) {
    PlanBuilder b(self, host_target());
    const StreamId stream = b.stream("main");
    const GroupId group = b.group("all", {0, 1});
    const View x = flat_view(b.input("x", DType::f32, 8), 0, 8),
               y = flat_view(b.output("y", DType::f32, 8), 0, 8),
               z = flat_view(b.output("z", DType::f32, 8), 0, 8);
    b.add(stream, AllReduce{group, ReduceOp::sum, x, y});
    if (second.broadcasts) {
      b.add(stream, Broadcast{group, second.root, x, z});
    } else {
      b.add(stream, AllReduce{group, second.reduction, x, z});
    }
    return std::move(b).build(digest_of(second.made_from));
  };
  const std::pair<Second, Second> all[] = {
      {{}, {.reduction = ReduceOp::max}},
      {{}, {.made_from = "others"}},
      {{.broadcasts = true}, {.made_from = "others", .broadcasts = true}}};
  for (const auto& [right, wrong] : all) {
    const testing::TemporaryDirectory store;
    const auto said = testing::run_processes(2, [&](Rank rank) -> std::string {
      GlooDevice device(
          {.rank = rank, .store_directory = store.path(), .wait_timeout = std::chrono::milliseconds(500)});
      const Plan plan = plan_of(rank, rank == 1 ? wrong : right);
      std::vector<float> x(8, 1.0F + static_cast<float>(rank)), y(8, -1), z(8, -1);
      try {
        execute(plan, device, {{0, x.data(), 32}, {1, y.data(), 32}, {2, z.data(), 32}});
      } catch (const Error&) {  // by its own timeout, or since the other's has closed the connection
      }
      const float own = right.broadcasts && rank == 0 ? 1.0F : -1.0F;  // a root's copy of what is its own
      for (const float value : z) {
        if (value != -1.0F && value != own) return str("rank ", rank, " received ", value);
      }
      return "";
    });
    EXPECT_EQ(said, kNothing2);
  }
}

// Each collective once, on `count` elements, one after the other on one stream; integers, so that all sums
// are exact.
PlanCase every_collective(int ranks, DType dtype, ReduceOp op, std::int64_t count) {
  PlanCase result{str("every_collective_", name(dtype), "_", name(op), "_", count), {}, {}, {}, 0};
  for (Rank self = 0; self < ranks; ++self) {
    PlanBuilder b(self, host_target());
    const StreamId stream = b.stream("main");
    const GroupId group = b.group("all", all_ranks(ranks));
    const std::int64_t all = ranks * count;
    const BufferId x = b.input("x", dtype, all);
    const auto output = [&](const char* name, std::int64_t numel) {
      return flat_view(b.output(name, dtype, numel), 0, numel);
    };
    const View mine = flat_view(x, self * count, count), whole = flat_view(x, 0, all);
    b.add(stream, AllGather{group, mine, output("gathered", all)});
    b.add(stream, ReduceScatter{group, op, whole, output("scattered", count)});
    b.add(stream, AllReduce{group, op, whole, output("reduced", all)});
    b.add(stream, AllToAll{group, whole, output("transposed", all)});
    b.add(stream, Broadcast{group, ranks - 1, mine, output("broadcast", count)});
    // In place.
    const View in_place = output("in_place", all);
    const View block = flat_view(in_place.buffer, self * count, count);
    b.add(stream, Copy{whole, in_place});
    b.add(stream, AllReduce{group, op, in_place, in_place});
    b.add(stream, ReduceScatter{group, op, in_place, block});
    b.add(stream, AllGather{group, block, in_place});
    b.add(stream, Broadcast{group, 0, in_place, in_place});
    result.plans.push_back(std::move(b).build(digest_of(result.name)));
    result.inputs.push_back({{"x", testing::small_integers(all, static_cast<std::uint64_t>(self), 2)}});
    result.expected.push_back({});  // the fabric's word is taken
  }
  return result;
}

TEST(GlooDevice, RunsEveryCollectiveLikeTheFabric) {
  for (const int ranks : {1, 2, 3}) {
    std::vector<PlanCase> cases;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64}) {
      for (const std::int64_t count : {1, 7, 0})
        cases.push_back(every_collective(ranks, dtype, ReduceOp::sum, count));
    }
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      cases.push_back(every_collective(ranks, DType::i32, op, 5));
    }
    cases.push_back(every_collective(ranks, DType::f16, ReduceOp::avg, 5));
    cases.push_back(
        every_collective(ranks, DType::f32, ReduceOp::sum, 1'000'003));  // more than socket buffers hold
    EXPECT_EQ(run_cases(cases), std::vector<std::string>(static_cast<std::size_t>(ranks)))
        << ranks << " ranks";
  }
}

// Sums that are not exact have the fabric's bits too: all contributions of an element are added up in the
// order of the group, and rounded once. Lengths are about those at which another piece begins, and parts of
// all_reduce differ in length.
PlanCase inexact_sums(int ranks, DType dtype, ReduceOp op, std::int64_t count) {
  PlanCase result{str("inexact_", ranks, "_", name(dtype), "_", name(op), "_", count), {}, {}, {}, 0};
  for (Rank self = 0; self < ranks; ++self) {
    PlanBuilder b(self, host_target());
    const StreamId stream = b.stream("main");
    const GroupId group = b.group("all", all_ranks(ranks));
    const BufferId x = b.input("x", dtype, ranks * count);
    const auto output = [&](const char* name, std::int64_t numel) {
      return flat_view(b.output(name, dtype, numel), 0, numel);
    };
    const View whole = flat_view(x, 0, ranks * count), uneven = flat_view(x, 0, ranks * count - 1);
    b.add(stream, ReduceScatter{group, op, whole, output("scattered", count)});
    b.add(stream, AllReduce{group, op, uneven, output("reduced", ranks * count - 1)});
    const View in_place = output("in_place", ranks * count);
    b.add(stream, Copy{whole, in_place});
    b.add(stream, ReduceScatter{group, op, in_place, flat_view(in_place.buffer, self * count, count)});
    const View again = output("in_place_too", ranks * count - 1);
    b.add(stream, Copy{uneven, again});
    b.add(stream, AllReduce{group, op, again, again});
    result.plans.push_back(std::move(b).build(digest_of(result.name)));
    std::vector<double> values =
        testing::small_integers(ranks * count, static_cast<std::uint64_t>(10 + self), 1 << 20);
    for (double& value : values) value = value / 3 * (self % 2 == 0 ? 1 : 1e-3);
    if (dtype == DType::f16) {
      for (double& value : values) value /= 1 << 10;
    }
    result.inputs.push_back({{"x", std::move(values)}});
    result.expected.push_back({});  // the fabric's word is taken
  }
  return result;
}

TEST(GlooDevice, SumsThatRoundHaveTheBitsOfTheFabric) {
  for (const int ranks : {2, 3, 5}) {
    std::vector<PlanCase> cases;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
        for (const std::int64_t count : {1, 13}) cases.push_back(inexact_sums(ranks, dtype, op, count));
      }
    }
    const std::int64_t piece = runtime::reduced_piece_bytes(ranks) / size_bytes(DType::f32);
    cases.push_back(inexact_sums(ranks, DType::f32, ReduceOp::sum, piece));
    cases.push_back(inexact_sums(ranks, DType::f32, ReduceOp::sum, 2 * piece + 1));
    EXPECT_EQ(run_cases(cases), std::vector<std::string>(static_cast<std::size_t>(ranks)))
        << ranks << " ranks";
  }
}

// Several transfers with each peer, of different sizes and dtypes, match in order.
TEST(GlooDevice, MatchesTransfersOfOneExchangeInOrder) {
  PlanCase plan_case{"several_transfers", {}, {}, {}, 0};
  for (Rank self = 0; self < 2; ++self) {
    const std::int32_t peer = 1 - self;
    PlanBuilder b(self, host_target());
    const GroupId group = b.group("pair", {0, 1});
    const BufferId x = b.input("x", DType::f32, 6), y = b.output("y", DType::f32, 6);
    const BufferId small_x = b.input("small_x", DType::f16, 2), small_y = b.output("small_y", DType::f16, 2);
    b.add(b.stream("main"), Exchange{.group = group,
                                     .sends = {{peer, flat_view(x, 0, 1)},
                                               {peer, flat_view(x, 1, 5)},
                                               {peer, flat_view(small_x, 0, 2)}},
                                     .recvs = {{peer, flat_view(y, 5, 1)},
                                               {peer, flat_view(y, 0, 5)},
                                               {peer, flat_view(small_y, 0, 2)}},
                                     .counts = counts_digest({{0, 1, 8}, {1, 0, 8}})});
    plan_case.plans.push_back(std::move(b).build(digest_of(plan_case.name)));
    const double base = 10 * self, other = 10 * peer;
    plan_case.inputs.push_back(
        {{"x", {base, base + 1, base + 2, base + 3, base + 4, base + 5}}, {"small_x", {base + 6, base + 7}}});
    plan_case.expected.push_back({{"y", {other + 1, other + 2, other + 3, other + 4, other + 5, other}},
                                  {"small_y", {other + 6, other + 7}}});
  }
  check(plan_case.plans);
  EXPECT_EQ(run_cases({plan_case}), kNothing2);
}

// Ranks that share two groups list them in different orders.
TEST(GlooDevice, ConnectsGroupsInOneOrder) {
  PlanCase plan_case{"two_groups", {}, {}, {}, 0};
  for (Rank self = 0; self < 2; ++self) {
    PlanBuilder b(self, host_target());
    const GroupId first = b.group(self == 0 ? "a" : "b", {0, 1}),
                  second = b.group(self == 0 ? "b" : "a", {0, 1});
    const GroupId a = self == 0 ? first : second, other = self == 0 ? second : first;
    const BufferId x = b.input("x", DType::i32, 1), y = b.output("y", DType::i32, 1),
                   z = b.output("z", DType::i32, 1);
    b.add(b.stream("one"), AllReduce{a, ReduceOp::sum, flat_view(x, 0, 1), flat_view(y, 0, 1)});
    b.add(b.stream("two"), AllReduce{other, ReduceOp::max, flat_view(x, 0, 1), flat_view(z, 0, 1)});
    plan_case.plans.push_back(std::move(b).build(digest_of(plan_case.name)));
    plan_case.inputs.push_back({{"x", {self + 1.0}}});
    plan_case.expected.push_back({{"y", {3}}, {"z", {2}}});
  }
  EXPECT_EQ(run_cases({plan_case}), kNothing2);
}

TEST(GlooDevice, AMissingPeerIsATimeoutThatNamesTheOperation) {
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(2, [&](Rank rank) -> std::string {
    GlooDevice device(
        {.rank = rank, .store_directory = store.path(), .timeout = std::chrono::milliseconds(300)});
    const Plan plan = all_reduce_plan(rank, {0, 1});
    device.prepare(plan, {});
    if (rank == 1) {  // connected, and silent while its peer waits
      std::this_thread::sleep_for(std::chrono::seconds(1));
      return "";
    }
    enqueue_steps(plan, device);  // returns at once
    try {
      device.synchronize();
    } catch (const runtime::Timeout& error) {
      const std::string message = error.what();
      if (message.find("rank 0: all_reduce #0 on all[0,1]") == std::string::npos) return message;
      const ErrorFacts& facts = error.facts();
      const bool right = facts.rank == 0 && facts.operation == "all_reduce" && facts.group == "all[0,1]" &&
                         facts.sequence == 0 && facts.step == 0;
      return right ? "" : "other facts";
    }
    return "no error";
  });
  EXPECT_EQ(said, kNothing2);
}

// The peer stays connected and says nothing, as one that is cut off.
TEST(GlooDevice, AbortEndsAWaitForASilentPeer) {
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(2, [&](Rank rank) -> std::string {
    GlooDevice device({.rank = rank, .store_directory = store.path()});
    const Plan plan = all_reduce_plan(rank, {0, 1});
    device.prepare(plan, {});
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      return "";
    }
    const auto begin = std::chrono::steady_clock::now();
    enqueue_steps(plan, device);
    std::jthread aborter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      device.abort();
    });
    try {
      device.synchronize();
    } catch (const runtime::PeerLost& error) {
      const bool before_the_peer_ends = std::chrono::steady_clock::now() - begin < std::chrono::seconds(2);
      return before_the_peer_ends ? "" : "late";
    }
    return "no error";
  });
  EXPECT_EQ(said, kNothing2);
}

TEST(GlooDevice, APeerThatNeverComesIsATimeoutOfPrepare) {
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(1, [&](Rank rank) -> std::string {
    GlooDevice device(
        {.rank = rank, .store_directory = store.path(), .timeout = std::chrono::milliseconds(300)});
    try {
      device.prepare(all_reduce_plan(rank, {0, 1}), {});
    } catch (const runtime::Timeout& error) {
      const std::string message = error.what();
      return message.find("rank 0 cannot connect group all[0,1]") == std::string::npos ? message : "";
    }
    return "no error";
  });
  EXPECT_EQ(said, std::vector<std::string>{""});
}

// Where a peer takes the connection and says nothing, and where it has told nobody its address.
TEST(GlooDevice, AbortEndsConnecting) {
  for (const Rank rank : {0, 1}) {
    const testing::TemporaryDirectory store;
    const auto said = testing::run_processes(1, [&](Rank) -> std::string {
      GlooDevice device({.rank = rank, .store_directory = store.path(), .timeout = std::chrono::hours(1)});
      std::jthread aborter([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        device.abort();
      });
      try {
        device.prepare(all_reduce_plan(rank, {0, 1}), {});
      } catch (const runtime::PeerLost&) {
        return "";
      }
      return "no error";
    });
    EXPECT_EQ(said, std::vector<std::string>{""});
  }
}

// Rank 0 sends `sent` elements where rank 1 receives `received`: as when one of them runs another plan.
std::string exchange_of_two_sizes(Rank rank, std::int64_t sent, std::int64_t received,
                                  const std::string& store) {
  PlanBuilder b(rank, host_target());
  const GroupId group = b.group("pair", {0, 1});
  Exchange exchange{group, {}, {}, digest_of("any")};
  const std::int64_t count = rank == 0 ? sent : received;
  const BufferId x = rank == 0 ? b.input("x", DType::f32, count) : b.output("x", DType::f32, count);
  (rank == 0 ? exchange.sends : exchange.recvs).push_back({1 - rank, flat_view(x, 0, count)});
  b.add(b.stream("main"), exchange);
  const Plan plan = std::move(b).build(digest_of("two sizes"));
  GlooDevice device({.rank = rank, .store_directory = store});
  device.prepare(plan, {});
  enqueue_steps(plan, device);
  try {
    device.synchronize();
  } catch (const CollectiveMismatch& error) {
    const ErrorFacts facts = error.facts();
    const bool right = facts.sender == 0 && facts.receiver == 1 && facts.is_tie &&
                       facts.culprits == std::vector<Rank>{0, 1} && facts.group == "pair[0,1]" &&
                       facts.sequence == 0 && facts.operation == "exchange";
    return right ? error.what() : "other facts";
  } catch (const runtime::PeerLost&) {
    return "";  // rank 0: the other has closed the connection
  }
  return rank == 0 ? "" : "no error";
}

TEST(GlooDevice, AMessageOfAnotherSizeIsAMismatchThatNamesBothRanks) {
  for (const auto& [sent, received] : {std::pair(12, 8), std::pair(8, 12), std::pair(1'000'000, 8)}) {
    const testing::TemporaryDirectory store;
    const auto said = testing::run_processes(
        2, [&](Rank rank) { return exchange_of_two_sizes(rank, sent, received, store.path()); });
    constexpr int kPiece = 1 << 20;  // in which transfers go
    const std::string expected =
        str("rank 1: exchange #0 on pair[0,1]: rank 0 sent a message of ", std::min(4 * sent, kPiece),
            " bytes, but rank 1 expected ", 4 * received,
            "; the two run different plans, or the same operations in different orders");
    EXPECT_EQ(said, (std::vector<std::string>{"", expected}));
  }
}

TEST(GlooDevice, ALostPeerIsAnErrorThatNamesTheOperation) {
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(2, [&](Rank rank) -> std::string {
    auto device =
        std::make_unique<GlooDevice>(runtime::GlooOptions{.rank = rank, .store_directory = store.path()});
    const Plan plan = all_reduce_plan(rank, {0, 1});
    device->prepare(plan, {});
    const std::string prepared = str(store.path(), "/rank 0 is prepared");
    if (rank == 0) std::ofstream(prepared).put('x');
    if (rank == 1) {  // a peer that is lost before is one that cannot be connected
      while (!std::filesystem::exists(prepared)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      device.reset();
      return "";
    }
    enqueue_steps(plan, *device);
    try {
      device->synchronize();
    } catch (const runtime::PeerLost& error) {
      const std::string message = error.what();
      if (message.find("rank 0: all_reduce #0 on all[0,1]") == std::string::npos) return message;
      const ErrorFacts& facts = error.facts();
      const bool right = facts.rank == 0 && facts.operation == "all_reduce" && facts.group == "all[0,1]" &&
                         facts.sequence == 0 && facts.step == 0;
      return right ? "" : "other facts";
    }
    return "no error";
  });
  EXPECT_EQ(said, kNothing2);
}

TEST(GlooDevice, RefusesPlansAndDataThatAreNotItsOwn) {
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(1, [&](Rank) -> std::string {
    GlooDevice device({.rank = 0, .store_directory = store.path()});
    try {
      device.prepare(all_reduce_plan(1, {1}), {});
      return "prepared another rank's plan";
    } catch (const InvalidInput&) {
    }
    const Plan plan = all_reduce_plan(0, {0});
    device.prepare(plan, {});
    try {
      device.upload(0, std::vector<std::byte>(15));
      return "took 15 bytes for 16";
    } catch (const InvalidInput&) {
    }
    return "";
  });
  EXPECT_EQ(said, std::vector<std::string>{""});
}

#endif

}  // namespace
}  // namespace cp
