// What goes wrong on purpose is either without effect, or found and blamed on whoever did it.
#include "sim/fabric/faults.h"

#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/transfer_check.h"
#include "tests/fabric/fabric_plans.h"

namespace cp::sim {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kBlock = 5;  // elements of a rank

const std::vector<std::string> kOperations = {
    "all_gather", "reduce_scatter", "all_reduce", "all_reduce in place",
    "all_to_all", "broadcast",      "exchange"};

// The collective twice, from `in` to `first` and to `second`: what an early fault does to a later transfer
// shows.
std::vector<Plan> plans_with(const std::string& operation) {
  const std::int64_t n = kWorldSize, all = n * kBlock;
  return plans_of(kWorldSize, [&](PlanBuilder& b, Rank rank) {
    const GroupId group = b.group("g", ranks_up_to(kWorldSize));
    const StreamId stream = b.stream("s");
    const BufferId in = b.input("in", DType::f32, all);
    for (const char* name : {"first", "second"}) {
      const bool in_place = operation == "all_reduce in place";
      const BufferId out = b.inout(name, DType::f32, all);
      const View whole_in = flat_view(in, 0, all), whole_out = flat_view(out, 0, all);
      const View block_in = flat_view(in, 0, kBlock), block_out = flat_view(out, 0, kBlock);
      if (operation == "all_gather") b.add(stream, AllGather{group, block_in, whole_out});
      if (operation == "reduce_scatter")
        b.add(stream, ReduceScatter{group, ReduceOp::sum, whole_in, block_out});
      if (operation == "all_reduce") b.add(stream, AllReduce{group, ReduceOp::sum, whole_in, whole_out});
      if (in_place) b.add(stream, AllReduce{group, ReduceOp::sum, whole_out, whole_out});
      if (operation == "all_to_all") b.add(stream, AllToAll{group, whole_in, whole_out});
      if (operation == "broadcast") b.add(stream, Broadcast{group, 1, whole_in, whole_out});
      if (operation != "exchange") continue;
      Exchange exchange{.group = group, .sends = {}, .recvs = {}, .counts = {}};
      std::vector<Count> counts;
      for (std::int32_t from = 0; from < n; ++from) {
        for (std::int32_t to = 0; to < n; ++to) {
          if (from == to) continue;
          counts.push_back({from, to, kBlock});
          // In two transfers, so that one of them can be hit.
          const auto add = [&](std::vector<Transfer>& side, std::int32_t peer, BufferId buffer) {
            side.push_back({peer, flat_view(buffer, peer * kBlock, 2)});
            side.push_back({peer, flat_view(buffer, peer * kBlock + 2, kBlock - 2)});
          };
          if (from == rank) add(exchange.sends, to, in);
          if (to == rank) add(exchange.recvs, from, out);
        }
      }
      exchange.counts = counts_digest(counts);
      b.add(stream, exchange);
    }
  });
}

struct Outcome {
  std::vector<std::vector<float>> outputs;  // of each rank: first and second
  std::vector<RankTrace> traces;
  std::vector<bool> injected;
  std::string error;
  std::optional<ErrorKind> kind;  // of the error
  ErrorFacts facts;
};

Outcome run_with(const std::vector<Plan>& plans, FabricOptions options) {
  Fabric fabric(static_cast<int>(plans.size()), std::move(options));
  Outcome outcome;
  outcome.outputs.resize(plans.size());
  try {
    fabric.run([&](Rank rank, Device& device) {
      const auto index = static_cast<std::size_t>(rank);
      const Plan& plan = plans[index];
      std::vector<std::vector<float>> buffers;
      for (const Buffer& buffer : plan.buffers) {
        const std::size_t number = buffers.size();
        auto& values = buffers.emplace_back(static_cast<std::size_t>(buffer.numel));
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] =
              static_cast<float>(100 * rank + 1000 * static_cast<int>(number)) + static_cast<float>(i);
      }
      Bindings bindings;
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        bindings.push_back({static_cast<BufferId>(i), buffers[i].data(),
                            static_cast<std::int64_t>(buffers[i].size() * sizeof(float))});
      }
      execute(plan, device, bindings, &fabric.traces()[index]);
      for (std::size_t i = 1; i < buffers.size(); ++i)
        outcome.outputs[index].insert(outcome.outputs[index].end(), buffers[i].begin(), buffers[i].end());
    });
  } catch (const Error& error) {
    outcome.error = error.what(), outcome.kind = error.kind(), outcome.facts = error.facts();
  }
  outcome.traces = fabric.traces();
  outcome.injected = fabric.injected();
  return outcome;
}

struct Setting {
  std::string operation;
  Schedule schedule = Schedule::parallel;
};

class Faults : public ::testing::TestWithParam<Setting> {
 protected:
  FabricOptions options(std::vector<InjectedFault> faults, Checksums checksums) const {
    return {.schedule = GetParam().schedule, .seed = 7, .faults = std::move(faults), .checksums = checksums};
  }
  Outcome run(std::vector<InjectedFault> faults, Checksums checksums = Checksums::off) const {
    return run_with(plans_with(GetParam().operation), options(std::move(faults), checksums));
  }
  // Of a transfer that every operation has.
  static InjectedFault fault(FaultKind kind, std::int64_t collective = 0, std::int64_t amount = 3) {
    return {.kind = kind, .rank = 1, .peer = 2, .collective = collective, .amount = amount};
  }
  // What is wrong in the first collective, by the traces: from rank 1 to rank 2.
  static void expect_link(const ErrorFacts& facts, std::int64_t sequence) {
    EXPECT_EQ(facts.sender, 1);
    EXPECT_EQ(facts.receiver, 2);
    EXPECT_THAT(facts.culprits, ElementsAre(1, 2));
    EXPECT_EQ(facts.group, "g[0,1,2,3]");
    EXPECT_EQ(facts.sequence, sequence);
    EXPECT_EQ(facts.operation, GetParam().operation.substr(0, GetParam().operation.find(' ')));
  }
};

TEST_P(Faults, TransferByTransferIsTheSameAsAllAtOnce) {
  const Outcome plain = run({}), tracked = run({}, Checksums::each);
  EXPECT_EQ(plain.error, "");
  EXPECT_EQ(tracked.error, "");
  EXPECT_EQ(plain.outputs, tracked.outputs);
  EXPECT_EQ(plain.traces, tracked.traces);
  EXPECT_EQ(first_difference(tracked.traces, tracked.traces), std::nullopt);
  EXPECT_FALSE(find_transfer_fault(tracked.traces));
  for (const RankTrace& trace : tracked.traces) {
    for (const OpRecord& record : trace.observed) EXPECT_TRUE(record.checksums.has_value());
  }
}

TEST_P(Faults, WhatIsLateOrInAnotherOrderChangesNothing) {
  const Outcome right = run({});
  for (const FaultKind kind : {FaultKind::delay, FaultKind::reorder, FaultKind::slow_rank}) {
    const bool reduces = GetParam().operation.find("reduce") != std::string::npos;
    const Outcome outcome = run({fault(kind), fault(kind, 1, 40)}, Checksums::each);
    EXPECT_EQ(outcome.error, "") << name(kind);
    EXPECT_EQ(outcome.outputs, right.outputs) << name(kind);
    EXPECT_EQ(outcome.traces, right.traces) << name(kind);
    EXPECT_FALSE(find_transfer_fault(outcome.traces)) << name(kind);
    const bool applies = kind != FaultKind::reorder || !reduces;
    EXPECT_THAT(outcome.injected, ElementsAre(applies, applies)) << name(kind);
  }
}

TEST_P(Faults, BytesThatAreLostCutOrRepeatedShowInTheTraces) {
  for (const FaultKind kind : {FaultKind::drop, FaultKind::truncate, FaultKind::duplicate}) {
    for (const std::int64_t collective : {0, 1}) {
      const Outcome outcome = run({fault(kind, collective)});
      EXPECT_EQ(outcome.error, "") << name(kind);
      EXPECT_THAT(outcome.injected, ElementsAre(true)) << name(kind);
      const auto found = find_transfer_fault(outcome.traces);
      ASSERT_TRUE(found) << name(kind);
      expect_link(found->facts(), collective);
      EXPECT_THAT(found->what(), AllOf(HasSubstr("from rank 1 to rank 2"), HasSubstr("bytes arrived")));
      EXPECT_TRUE(first_difference(outcome.traces, outcome.traces)) << name(kind);
    }
  }
}

TEST_P(Faults, AFlippedBitShowsInTheChecksumsAlone) {
  for (const std::int64_t amount : {0, 3, 7, 11, 30}) {
    const InjectedFault flipped = fault(FaultKind::corrupt, 1, amount);
    const Outcome silent = run({flipped});
    EXPECT_THAT(silent.injected, ElementsAre(true));
    EXPECT_FALSE(find_transfer_fault(silent.traces));  // lengths are right: nothing to see without checksums
    EXPECT_EQ(first_difference(silent.traces, silent.traces), std::nullopt);

    const Outcome outcome = run({flipped}, Checksums::end);
    EXPECT_EQ(outcome.error, "");
    const auto found = find_transfer_fault(outcome.traces);
    ASSERT_TRUE(found);
    expect_link(found->facts(), 1);
    EXPECT_THAT(found->what(), HasSubstr("checksum 0x"));
  }
}

TEST_P(Faults, AtOnceTheReceiverThrows) {
  for (const FaultKind kind :
       {FaultKind::drop, FaultKind::truncate, FaultKind::duplicate, FaultKind::corrupt}) {
    const Outcome outcome = run({fault(kind)}, Checksums::each);
    EXPECT_EQ(outcome.kind, ErrorKind::check_failed) << name(kind);
    expect_link(outcome.facts, 0);
  }
}

TEST_P(Faults, TheCopyOfADuplicateComesBeforeTheNextPayload) {
  // Other values in the second collective's place: its receiver has those of the first.
  const Outcome outcome = run({fault(FaultKind::duplicate)}, Checksums::end);
  std::vector<RankTrace> later = outcome.traces;
  for (RankTrace& trace : later)
    std::erase_if(trace.issued, [](const OpRecord& op) { return op.sequence == 0; });
  for (RankTrace& trace : later)
    std::erase_if(trace.observed, [](const OpRecord& op) { return op.sequence == 0; });
  const bool sends_the_same_twice =
      GetParam().operation != "all_reduce in place" && GetParam().operation != "exchange";
  EXPECT_EQ(find_transfer_fault(later).has_value(), !sends_the_same_twice);
}

TEST_P(Faults, ADeadRankIsNamedByThoseWhoWait) {
  for (const std::int64_t collective : {0, 1}) {
    const Outcome outcome = run({{.kind = FaultKind::dead_rank, .rank = 2, .collective = collective}});
    EXPECT_EQ(outcome.kind, ErrorKind::peer_lost);
    EXPECT_THAT(outcome.facts.culprits, ElementsAre(2));
    EXPECT_FALSE(outcome.facts.is_tie);
    EXPECT_EQ(outcome.facts.sequence, collective);
    EXPECT_THAT(outcome.error, AllOf(HasSubstr("rank 2 died before"),
                                     HasSubstr(str("its collective ", collective)), HasSubstr("for it")));
    EXPECT_THAT(outcome.injected, ElementsAre(true));
  }
}

TEST_P(Faults, APlaceThatIsNotThereHasNone) {
  InjectedFault to_itself = fault(FaultKind::drop);
  to_itself.peer = 1;
  for (const InjectedFault& nowhere :
       {fault(FaultKind::drop, 2), to_itself, fault(FaultKind::none),
        InjectedFault{.kind = FaultKind::drop, .rank = 1, .peer = 9},
        InjectedFault{.kind = FaultKind::dead_rank, .rank = 2, .collective = 2}}) {
    const Outcome outcome = run({nowhere}, Checksums::each);
    EXPECT_EQ(outcome.error, "");
    EXPECT_THAT(outcome.injected, ElementsAre(false)) << to_string(nowhere);
  }
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const std::string& operation : kOperations) {
    for (const Schedule schedule : {Schedule::parallel, Schedule::baton})
      all.push_back({operation, schedule});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Operations, Faults, ::testing::ValuesIn(settings()), [](const auto& setting) {
  std::string text = setting.param.operation + (setting.param.schedule == Schedule::baton ? "_baton" : "");
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
});

TEST(FaultOptions, FaultsOfProgramsAreRefused) {
  const auto make = [] { Fabric fabric(2, {.faults = {{.kind = FaultKind::skip_collective}}}); };
  EXPECT_THAT(message_of<InvalidInput>(make), HasSubstr("skip_collective"));
}

TEST(FaultOptions, TheFabricWorksAfterADeath) {
  Fabric fabric(3, {.faults = {{.kind = FaultKind::dead_rank, .rank = 1, .collective = 0}}});
  const std::vector<Plan> plans = good_plans(3);
  EXPECT_THAT(message_of<PeerLost>([&] { execute_all(fabric, plans); }), HasSubstr("rank 1 died"));
  execute_all(fabric, plans);
}

TEST(FaultOptions, ADeathThatNobodyWaitsForIsReported) {
  Fabric fabric(2, {.faults = {{.kind = FaultKind::dead_rank, .rank = 1, .collective = 0}}});
  const auto plans = plans_of(2, [](PlanBuilder& b, Rank rank) { add_all_reduce(b, "own", {rank}); });
  EXPECT_THAT(message_of<PeerLost>([&] { execute_all(fabric, plans); }), HasSubstr("rank 1 died"));
}

// A rank dies on one stream while it waits on another: what it has arrived at is taken back.
TEST(FaultOptions, ARankDiesWithACollectiveInFlight) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Fabric fabric(2, {.schedule = seed == 0 ? Schedule::parallel : Schedule::baton,
                      .seed = seed,
                      .faults = {{.kind = FaultKind::dead_rank, .rank = 1, .collective = 1}}});
    const auto plans = plans_of(2, [](PlanBuilder& b, Rank) {
      add_all_reduce(b, "a", {0, 1}, 4, "for a");
      add_all_reduce(b, "b", {0, 1}, 4, "for b");
    });
    EXPECT_THAT(message_of<PeerLost>([&] { execute_all(fabric, plans); }), HasSubstr("rank 1 died"));
  }
}

}  // namespace
}  // namespace cp::sim
