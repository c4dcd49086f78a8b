// Members that disagree about a collective: who is in the minority, and in what.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/fabric/fabric_plans.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Arguments {
  std::string operation = "all_reduce";
  DType dtype = DType::f32;
  ReduceOp reduction = ReduceOp::sum;
  std::int64_t count = 8;
  std::int32_t root = 0;
};

void add_collective(PlanBuilder& b, const Arguments& a) {
  const std::int64_t n = kWorldSize;
  const GroupId group = b.group("tp", ranks_up_to(kWorldSize));
  const StreamId stream = b.stream("s");
  const BufferId small = b.inout("small", a.dtype, a.count), large = b.inout("large", a.dtype, n * a.count);
  const BufferId other = b.inout("other", a.dtype, n * a.count);
  const View block = flat_view(small, 0, a.count), all = flat_view(large, 0, n * a.count);
  if (a.operation == "all_reduce") b.add(stream, AllReduce{group, a.reduction, block, block});
  if (a.operation == "reduce_scatter") b.add(stream, ReduceScatter{group, a.reduction, all, block});
  if (a.operation == "all_gather") b.add(stream, AllGather{group, block, all});
  if (a.operation == "all_to_all") b.add(stream, AllToAll{group, all, flat_view(other, 0, n * a.count)});
  if (a.operation == "broadcast") b.add(stream, Broadcast{group, a.root, block, block});
}

// The error of a run in which rank r passes arguments[r].
std::string mismatch_of(const std::vector<Arguments>& arguments, Schedule schedule) {
  Fabric fabric(kWorldSize, {.schedule = schedule});
  const auto plans = plans_of(kWorldSize, [&](PlanBuilder& b, Rank rank) {
    add_collective(
        // Nothing wrong yet when all agree.
        b, {.operation = arguments[static_cast<std::size_t>(rank)].operation});
    add_collective(b, arguments[static_cast<std::size_t>(rank)]);
  });
  const std::string message = message_of<CollectiveMismatch>([&] { execute_all(fabric, plans); });
  execute_all(fabric, good_plans(kWorldSize));
  return message;
}

class Mismatch : public ::testing::TestWithParam<Schedule> {};

TEST_P(Mismatch, EachArgumentNamesTheMinorityAndTheField) {
  struct Row {
    Arguments usual, odd;
    std::string minority, majority;
  };
  const Row table[] = {
      {{}, {.count = 9}, "rank 2 has count=9", "ranks 0,1,3 have count=8"},
      {{}, {.count = 0}, "rank 2 has count=0", "ranks 0,1,3 have count=8"},
      {{}, {.dtype = DType::i32}, "rank 2 has dtype=i32", "ranks 0,1,3 have dtype=f32"},
      {{}, {.reduction = ReduceOp::max}, "rank 2 has reduction=max", "ranks 0,1,3 have reduction=sum"},
      {{.operation = "reduce_scatter"},
       {.operation = "reduce_scatter", .reduction = ReduceOp::min},
       "rank 2 has reduction=min",
       "ranks 0,1,3 have reduction=sum"},
      {{.operation = "broadcast"},
       {.operation = "broadcast", .root = 3},
       "rank 2 has root=3",
       "ranks 0,1,3 have root=0"},
      {{.operation = "all_gather"},
       {.operation = "all_gather", .count = 7},
       "rank 2 has count=7",
       "ranks 0,1,3 have count=8"},
      {{.operation = "all_to_all"},
       {.operation = "all_to_all", .count = 7},
       "rank 2 has count=7",
       "ranks 0,1,3 have count=8"},
      {{},
       {.dtype = DType::f16, .count = 16},
       "rank 2 has dtype=f16, count=16",
       "ranks 0,1,3 have dtype=f32, count=8"},
  };
  for (const Row& row : table) {
    const std::string message = mismatch_of({row.usual, row.usual, row.odd, row.usual}, GetParam());
    EXPECT_THAT(message,
                AllOf(HasSubstr("collective #1 on tp[0,1,2,3]"), HasSubstr("minority: " + row.minority),
                      HasSubstr("the majority, " + row.majority), Not(HasSubstr("tie"))));
  }
}

TEST_P(Mismatch, AnotherOperationIsNamedOnBothSides) {
  Fabric fabric(kWorldSize, {.schedule = GetParam()});
  const auto plans = plans_of(kWorldSize, [&](PlanBuilder& b, Rank rank) {
    add_collective(b, {.operation = rank == 1 ? "all_gather" : "all_reduce"});
  });
  EXPECT_THAT(message_of<CollectiveMismatch>([&] { execute_all(fabric, plans); }),
              AllOf(HasSubstr("#0"), HasSubstr("minority: rank 1 has operation=all_gather"),
                    HasSubstr("the majority, ranks 0,2,3 have operation=all_reduce, reduction=sum")));
}

TEST_P(Mismatch, WithoutAMajorityItIsATie) {
  const Arguments usual, odd{.count = 9}, other{.count = 10};
  EXPECT_THAT(mismatch_of({usual, odd, odd, usual}, GetParam()),
              AllOf(HasSubstr("tie: "), HasSubstr("ranks 0,3 have count=8"),
                    HasSubstr("ranks 1,2 have count=9"), Not(HasSubstr("minority"))));
  EXPECT_THAT(mismatch_of({usual, odd, other, {.count = 11}}, GetParam()),
              AllOf(HasSubstr("tie: "), HasSubstr("rank 2 has count=10"), HasSubstr("rank 3 has count=11")));
}

TEST_P(Mismatch, SeveralMinoritiesAreAllNamed) {
  EXPECT_THAT(mismatch_of({{.count = 9}, {}, {}, {.dtype = DType::i32}}, GetParam()),
              AllOf(HasSubstr("minority: rank 0 has count=9"), HasSubstr("minority: rank 3 has dtype=i32"),
                    HasSubstr("the majority, ranks 1,2 have ")));
}

// ---- exchanges ------------------------------------------------------------------------------------------------------

struct Block {
  std::int32_t peer;
  std::int64_t count;
  DType dtype = DType::f32;
};

struct Splits {
  std::vector<Block> sends, recvs;
  std::vector<Count> counts;
};

// Everybody sends 2 and then 3 elements to the next, and 1 to the one after.
Splits usual_splits(Rank rank) {
  const auto member = [&](int offset) {
    return static_cast<std::int32_t>((rank + offset + kWorldSize) % kWorldSize);
  };
  Splits splits{.sends = {{member(1), 2}, {member(2), 1}, {member(1), 3}},
                .recvs = {{member(-1), 2}, {member(-1), 3}, {member(-2), 1}},
                .counts = {}};
  for (std::int32_t from = 0; from < kWorldSize; ++from) {
    splits.counts.push_back({from, (from + 1) % kWorldSize, 5});
    splits.counts.push_back({from, (from + 2) % kWorldSize, 1});
  }
  return splits;
}

std::string mismatch_of_splits(const std::function<void(Rank, Splits&)>& change, Schedule schedule) {
  const auto plans = plans_of(kWorldSize, [&](PlanBuilder& b, Rank rank) {
    Splits splits = usual_splits(rank);
    change(rank, splits);
    const auto transfers = [&](const std::vector<Block>& blocks) {
      std::vector<Transfer> result;
      for (const Block& block : blocks) {
        const BufferId buffer = b.inout("data", block.dtype, block.count);
        result.push_back({block.peer, flat_view(buffer, 0, block.count)});
      }
      return result;
    };
    b.add(b.stream("s"), Exchange{b.group("cp", ranks_up_to(kWorldSize)), transfers(splits.sends),
                                  transfers(splits.recvs), counts_digest(splits.counts)});
  });
  Fabric fabric(kWorldSize, {.schedule = schedule});
  const std::string message = message_of<CollectiveMismatch>([&] { execute_all(fabric, plans); });
  execute_all(fabric, good_plans(kWorldSize));
  return message;
}

TEST_P(Mismatch, ExchangesThatAgreeRun) {
  EXPECT_EQ(mismatch_of_splits([](Rank, Splits&) {}, GetParam()), "nothing was thrown");
}

TEST_P(Mismatch, ASplitThatItsReceiverDoesNotExpect) {
  const std::string message = mismatch_of_splits(
      [](Rank rank, Splits& s) {
        if (rank == 1) s.sends[0].count = 4;
      },
      GetParam());
  EXPECT_THAT(message, AllOf(HasSubstr("minority: rank 1 has other splits"),
                             HasSubstr("rank 1 sends 4 f32 + 3 f32 to rank 2"),
                             HasSubstr("which expects 2 f32 + 3 f32")));
}

TEST_P(Mismatch, AReceiveThatNobodySends) {
  const std::string message = mismatch_of_splits(
      [](Rank rank, Splits& s) {
        if (rank == 3) s.recvs.push_back({0, 6});
      },
      GetParam());
  EXPECT_THAT(message, AllOf(HasSubstr("minority: rank 3"),
                             HasSubstr("rank 0 sends nothing to rank 3, which expects 6 f32")));
}

TEST_P(Mismatch, ASendThatNobodyReceives) {
  const std::string message = mismatch_of_splits(
      [](Rank rank, Splits& s) {
        if (rank == 0) s.recvs.pop_back();
      },
      GetParam());
  EXPECT_THAT(message, AllOf(HasSubstr("minority: rank 0"),
                             HasSubstr("rank 2 sends 1 f32 to rank 0, which expects nothing")));
}

TEST_P(Mismatch, TransfersInAnotherOrder) {
  const std::string message = mismatch_of_splits(
      [](Rank rank, Splits& s) {
        if (rank == 2) std::swap(s.recvs[0], s.recvs[1]);
      },
      GetParam());
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1 sends 2 f32 + 3 f32 to rank 2, which expects 3 f32 + 2 f32")));
}

TEST_P(Mismatch, ATransferOfAnotherDtype) {
  const std::string message = mismatch_of_splits(
      [](Rank rank, Splits& s) {
        if (rank == 2) s.sends[1].dtype = DType::i32;
      },
      GetParam());
  EXPECT_THAT(message, HasSubstr("rank 2 sends 1 i32 to rank 0, which expects 1 f32"));
}

TEST_P(Mismatch, APeerSwappedForAnother) {
  const std::string message = mismatch_of_splits(
      [](Rank rank, Splits& s) {
        if (rank == 0) s.sends[1].peer = 3;
      },
      GetParam());
  EXPECT_THAT(message, AllOf(HasSubstr("minority: rank 0"),
                             HasSubstr("rank 0 sends nothing to rank 2, which expects 1 f32"),
                             HasSubstr("rank 0 sends 1 f32 to rank 3, which expects nothing")));
}

TEST_P(Mismatch, AnotherCountMatrixIsNamedEvenWhenTheTransfersFit) {
  const std::string message = mismatch_of_splits(
      [](Rank rank, Splits& s) {
        if (rank == 3) s.counts.pop_back();
      },
      GetParam());
  EXPECT_THAT(message, AllOf(HasSubstr("minority: rank 3 has counts="),
                             HasSubstr("the majority, ranks 0,1,2 have counts=")));
}

TEST_P(Mismatch, ASenderAndAReceiverAreATieWhenNothingTellsWhoIsWrong) {
  // The declared matrix fits neither.
  const std::string message = mismatch_of_splits(
      [](Rank rank, Splits& s) {
        s.counts.clear();
        if (rank == 1) s.sends[0].count = 4;
      },
      GetParam());
  EXPECT_THAT(message,
              AllOf(HasSubstr("tie: rank 1 sends 4 f32 + 3 f32 to rank 2"), Not(HasSubstr("minority"))));
}

INSTANTIATE_TEST_SUITE_P(Schedules, Mismatch, ::testing::Values(Schedule::parallel, Schedule::baton),
                         schedule_name);

}  // namespace
}  // namespace cp::sim
