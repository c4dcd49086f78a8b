// Interleavings: the baton repeats itself exactly; whatever order ranks and streams run in, results are the
// same, and a broken plan is found, never hung on.
#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "tests/fabric/fabric_plans.h"

namespace cp::sim {
namespace {

constexpr int kBuffers = 4;               // buffers of a rank
constexpr std::int64_t kBufferNumel = 3;  // elements of a buffer

using Slot = std::vector<std::int64_t>;
using State = std::vector<std::vector<Slot>>;  // by rank, by slot

// One operation of a random program, which all ranks follow in one order.
struct Operation {
  enum Kind { reduce, broadcast, shift, add } kind = reduce;
  int group = 0;         // add: the rank
  int from = 0, to = 1;  // slots
  int root = 0;
};

struct Program {
  int world_size = 0;
  std::vector<std::vector<Rank>> groups;
  std::vector<Operation> operations;
};

Program random_program(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<std::uint64_t>(limit));
  };
  Program program{.world_size = 2 + below(4), .groups = {}, .operations = {}};
  for (int i = 0; i < 3; ++i) {
    std::vector<Rank> ranks = ranks_up_to(program.world_size);
    std::shuffle(ranks.begin(), ranks.end(), random);
    ranks.resize(static_cast<std::size_t>(1 + below(program.world_size)));
    program.groups.push_back(ranks);
  }
  for (int i = 0; i < 12; ++i) {
    Operation operation{.kind = static_cast<Operation::Kind>(below(4)),
                        .group = below(3),
                        .from = below(kBuffers),
                        .to = 0,
                        .root = 0};
    operation.to = (operation.from + 1 + below(kBuffers - 1)) % kBuffers;
    if (operation.kind == Operation::add)
      operation.group = below(program.world_size);
    else
      operation.root =
          below(static_cast<int>(program.groups[static_cast<std::size_t>(operation.group)].size()));
    program.operations.push_back(operation);
  }
  return program;
}

const std::vector<Rank>& ranks_of(const Program& program, const Operation& operation) {
  return program.groups[static_cast<std::size_t>(operation.group)];
}

bool takes_part(const Program& program, const Operation& operation, Rank rank) {
  if (operation.kind == Operation::add) return operation.group == rank;
  const auto& ranks = ranks_of(program, operation);
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// The reference: one operation after the other.
State run_in_order(const Program& program, State state) {
  const auto slot = [&](Rank rank, int at) -> Slot& {
    return state[static_cast<std::size_t>(rank)][static_cast<std::size_t>(at)];
  };
  const auto add_to = [](Slot& sum, const Slot& value) {
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum[i]) +
                                         static_cast<std::uint64_t>(value[i]));
    }
  };
  for (const Operation& operation : program.operations) {
    if (operation.kind == Operation::add) {
      add_to(slot(operation.group, operation.to), slot(operation.group, operation.from));
      continue;
    }
    const auto& ranks = ranks_of(program, operation);
    std::vector<Slot> sources;
    for (const Rank rank : ranks) sources.push_back(slot(rank, operation.from));
    Slot sum(static_cast<std::size_t>(kBufferNumel));
    for (const Slot& source : sources) add_to(sum, source);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      Slot& target = slot(ranks[i], operation.to);
      if (operation.kind == Operation::reduce) target = sum;
      if (operation.kind == Operation::broadcast) target = sources[static_cast<std::size_t>(operation.root)];
      if (operation.kind == Operation::shift && ranks.size() > 1)
        target = sources[(i + ranks.size() - 1) % ranks.size()];
    }
  }
  return state;
}

void add_operation(PlanBuilder& b, const Program& program, const Operation& operation, Rank rank) {
  const View from = flat_view(operation.from, 0, kBufferNumel), to = flat_view(operation.to, 0, kBufferNumel);
  if (operation.kind == Operation::add) {
    b.add(b.stream("compute"), Accumulate{ReduceOp::sum, from, to});
    return;
  }
  const auto& ranks = ranks_of(program, operation);
  const std::string name = str("g", operation.group);
  const GroupId group = b.group(name, ranks);
  const StreamId stream = b.stream(name);
  const auto n = static_cast<std::int32_t>(ranks.size());
  const auto index = static_cast<std::int32_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  switch (operation.kind) {
    case Operation::reduce:
      b.add(stream, AllReduce{group, ReduceOp::sum, from, to});
      break;
    case Operation::broadcast:
      b.add(stream, Broadcast{group, operation.root, from, to});
      break;
    case Operation::shift: {
      std::vector<Count> counts;
      for (std::int32_t i = 0; i < n && n > 1; ++i) counts.push_back({i, (i + 1) % n, kBufferNumel});
      Exchange exchange{group, {}, {}, counts_digest(counts)};
      if (n > 1) exchange.sends = {{(index + 1) % n, from}}, exchange.recvs = {{(index + n - 1) % n, to}};
      b.add(stream, exchange);
      break;
    }
    case Operation::add:
      break;
  }
}

// `dropped`: an operation that `dropped_on` leaves out.
std::vector<Plan> plans_for(const Program& program, std::size_t dropped = SIZE_MAX, Rank dropped_on = -1) {
  return plans_of(program.world_size, [&](PlanBuilder& b, Rank rank) {
    for (int i = 0; i < kBuffers; ++i) b.inout("slot", DType::i64, kBufferNumel);
    for (std::size_t i = 0; i < program.operations.size(); ++i) {
      if (i == dropped && rank == dropped_on) continue;
      if (takes_part(program, program.operations[i], rank))
        add_operation(b, program, program.operations[i], rank);
    }
  });
}

State initial_state(const Program& program) {
  State state(static_cast<std::size_t>(program.world_size),
              std::vector<Slot>(kBuffers, Slot(static_cast<std::size_t>(kBufferNumel))));
  std::int64_t next = 1;
  for (auto& rank : state) {
    for (Slot& slot : rank) {
      for (std::int64_t& element : slot) element = next++ * 7;
    }
  }
  return state;
}

State run_on(Fabric& fabric, const std::vector<Plan>& plans, State state) {
  fabric.run([&](Rank rank, Device& device) {
    Bindings bindings;
    for (int i = 0; i < kBuffers; ++i) {
      bindings.push_back({.buffer = i,
                          .data = state[static_cast<std::size_t>(rank)][static_cast<std::size_t>(i)].data(),
                          .size_bytes = kBufferNumel * 8});
    }
    execute(plans[static_cast<std::size_t>(rank)], device, bindings);
  });
  return state;
}

BatonOrder another_order(std::uint64_t seed, int world_size) {
  BatonOrder order{.kind = seed % 3 == 0 ? BatonOrder::Kind::round_robin : BatonOrder::Kind::pct,
                   .depth = 1 + static_cast<int>(seed % 3),
                   .expected_turns = 40};
  if (seed % 5 == 0) order.slow_ranks = {static_cast<Rank>(seed % static_cast<std::uint64_t>(world_size))};
  return order;
}

TEST(Interleaving, ThousandsOfProgramsGiveTheResultOfTheirOrder) {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    const Program program = random_program(seed);
    const auto plans = plans_for(program);
    const State expected = run_in_order(program, initial_state(program));
    Fabric parallel(program.world_size),
        baton(program.world_size, {.schedule = Schedule::baton, .seed = seed});
    for (int repetition = 0; repetition < 2; ++repetition) {
      ASSERT_EQ(run_on(parallel, plans, initial_state(program)), expected) << "parallel, seed " << seed;
      ASSERT_EQ(run_on(baton, plans, initial_state(program)), expected) << "baton, seed " << seed;
    }
    if (seed % 3 != 0) continue;
    Fabric ordered(
        program.world_size,
        {.schedule = Schedule::baton, .seed = seed, .order = another_order(seed / 3, program.world_size)});
    ASSERT_EQ(run_on(ordered, plans, initial_state(program)), expected) << "another order, seed " << seed;
  }
}

// Rounds end while members are about to sleep, are preempted, or have gone on: none of it may look like a
// deadlock.
TEST(Interleaving, ManyRoundsInAHurryAreNoDeadlock) {
  Fabric fabric(6, {.record_traces = false});
  const auto plans = plans_of(6, [](PlanBuilder& b, Rank rank) {
    const View data = flat_view(b.inout("data", DType::i64, 1), 0, 1),
               more = flat_view(b.inout("more", DType::i64, 1), 0, 1);
    const Rank partner = rank % 2 == 0 ? rank + 1 : rank - 1;
    b.begin_repeat(5000);
    b.add(b.stream("pair"), AllReduce{b.group("pair", {std::min(rank, partner), std::max(rank, partner)}),
                                      ReduceOp::max, data, data});
    b.add(b.stream("all"), AllReduce{b.group("all", ranks_up_to(6)), ReduceOp::max, data, data});
    if (rank > 1)
      b.add(b.stream("some"), AllReduce{b.group("some", {2, 3, 4, 5}), ReduceOp::max, more, more});
    b.end_repeat();
  });
  for (int repetition = 0; repetition < 4; ++repetition) EXPECT_NO_THROW(execute_all(fabric, plans));
}

TEST(Interleaving, OneFabricRunsManyProgramsInARow) {
  Fabric fabric(5);
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Program program = random_program(seed);
    program.world_size = 5;
    ASSERT_EQ(run_on(fabric, plans_for(program), initial_state(program)),
              run_in_order(program, initial_state(program)))
        << "seed " << seed;
  }
}

TEST(Interleaving, EqualSeedsGiveEqualTurnsAndOtherSeedsOthers) {
  const Program program = random_program(11);
  const auto plans = plans_for(program);
  const auto turns_of = [&](std::uint64_t seed) {
    Fabric fabric(program.world_size, {.schedule = Schedule::baton, .seed = seed});
    run_on(fabric, plans, initial_state(program));
    run_on(fabric, plans, initial_state(program));
    return fabric.turns();
  };
  std::vector<std::vector<Turn>> seen;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<Turn> turns = turns_of(seed);
    EXPECT_FALSE(turns.empty());
    EXPECT_EQ(turns, turns_of(seed)) << "seed " << seed;
    if (std::find(seen.begin(), seen.end(), turns) == seen.end()) seen.push_back(turns);
  }
  EXPECT_GE(seen.size(), 49u);
}

TEST(Interleaving, TheBatonPicksAmongTheReadyStreamsOfARank) {
  const auto plans = plans_of(1, [](PlanBuilder& b, Rank) {
    for (const char* stream : {"a", "b", "c"}) {
      const View view = flat_view(b.output(stream, DType::f32, 1), 0, 1);
      b.add(b.stream(stream), Fill{view, 1});
    }
  });
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Fabric fabric(1, {.schedule = Schedule::baton, .seed = seed});
    execute_all(fabric, plans);
    std::string order;
    for (const Turn& turn : fabric.turns()) order += str(turn.stream);
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 6u);  // all permutations of three streams
}

// A rank that leaves out a collective is always found, and always as the same kind of error for the same
// seed.
TEST(Interleaving, ADroppedCollectiveIsFoundInEveryInterleaving) {
  int found = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const Program program = random_program(seed);
    std::mt19937_64 random(seed);
    const std::size_t dropped = random() % program.operations.size();
    const Operation& operation = program.operations[dropped];
    if (operation.kind == Operation::add || ranks_of(program, operation).size() < 2) continue;
    const auto plans = plans_for(program, dropped, ranks_of(program, operation).front());
    for (const FabricOptions& options :
         {FabricOptions{}, FabricOptions{.schedule = Schedule::baton, .seed = seed},
          FabricOptions{
              .schedule = Schedule::baton, .seed = seed, .order = another_order(seed, program.world_size)}}) {
      Fabric fabric(program.world_size, options);
      try {
        run_on(fabric, plans, initial_state(program));
        ADD_FAILURE() << "seed " << seed << ": dropped operation " << dropped << " was not found";
      } catch (const Deadlock&) {
        ++found;
      } catch (const CollectiveMismatch&) {
        ++found;
      }
      const Program good = random_program(seed);  // the fabric works again
      ASSERT_EQ(run_on(fabric, plans_for(good), initial_state(good)), run_in_order(good, initial_state(good)))
          << "seed " << seed;
    }
  }
  EXPECT_GT(found, 300);
}

}  // namespace
}  // namespace cp::sim
