// Every argument of every collective, changed on one rank of three: what whoever compares the ranks'
// collectives has to notice.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/text.h"
#include "tests/plan/plan_writer.h"

namespace cp::testing {

inline constexpr std::int32_t kMembers = 3;

// What one rank passes. `numel`: of what one member contributes to another, or gets from it; of an all_to_all
// all that it gets, a multiple of kMembers.
struct CollectiveCall {
  std::string_view operation;
  DType dtype = DType::f32;
  ReduceOp reduction = ReduceOp::sum;
  std::int64_t numel = 6;
  std::int32_t root = 1;
};

inline constexpr std::string_view kAlikeOperations[] = {"all_gather", "reduce_scatter", "all_reduce",
                                                        "all_to_all", "broadcast"};  // all but exchange

inline bool reduces(std::string_view operation) {
  return operation == "reduce_scatter" || operation == "all_reduce";
}

inline void add_call(PlanWriter& plan, GroupId group, const CollectiveCall& call) {
  const std::int64_t numel = call.numel;
  const View block = flat_view(plan.inout("block", numel, call.dtype), 0, numel);
  const View other = flat_view(plan.inout("other", numel, call.dtype), 0, numel);
  const View blocks = flat_view(plan.inout("blocks", kMembers * numel, call.dtype), 0, kMembers * numel);
  Collective collective = AllReduce{group, call.reduction, block, block};
  if (call.operation == "all_gather") collective = AllGather{group, block, blocks};
  if (call.operation == "reduce_scatter") collective = ReduceScatter{group, call.reduction, blocks, block};
  if (call.operation == "all_to_all") collective = AllToAll{group, block, other};
  if (call.operation == "broadcast") collective = Broadcast{group, call.root, block, other};
  plan.add(0, collective, {}, "call");
}

// The plans of all members, of which rank r passes call_of(r), in the second collective of three.
inline std::vector<Plan> plans_that_call(const std::function<CollectiveCall(Rank)>& call_of) {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < kMembers; ++rank) {
    PlanWriter plan(rank);
    const GroupId group = plan.group("tp", {0, 1, 2});
    add_call(plan, group, {.operation = "all_reduce"});
    add_call(plan, group, call_of(rank));
    add_call(plan, group, {.operation = "all_reduce"});
    plans.push_back(std::move(plan).finish());
  }
  return plans;
}

struct Disagreement {
  std::string what;
  Rank odd = 0;             // who differs from the two others
  std::vector<Plan> right;  // what the others do, on all ranks
  std::vector<Plan> wrong;
};

// Of the collectives with equal counts: operation, reduction, root, dtype and count, each alone.
inline std::vector<Disagreement> disagreements_of_calls() {
  std::vector<Disagreement> all;
  const auto add = [&](std::string_view field, const CollectiveCall& usual, const CollectiveCall& odd) {
    for (Rank who = 0; who < kMembers; ++who) {
      all.push_back({str("rank ", who, " passes another ", field, " to ", usual.operation, " ",
                         reduces(usual.operation) ? name(usual.reduction) : ""),
                     who, plans_that_call([&](Rank) { return usual; }),
                     plans_that_call([&](Rank rank) { return rank == who ? odd : usual; })});
    }
  };
  for (const std::string_view operation : kAlikeOperations) {
    const CollectiveCall usual{.operation = operation};
    CollectiveCall odd = usual;
    for (const std::string_view other : kAlikeOperations) {
      odd.operation = other;
      if (other != operation) add(str("operation, ", other, ","), usual, odd);
    }
    odd = usual;
    for (const DType dtype : {DType::i32, DType::i64, DType::f16, DType::bf16}) {
      odd.dtype = dtype;
      add(str("dtype, ", name(dtype), ","), usual, odd);
    }
    odd = usual;
    for (const std::int64_t numel : {3, 9, 12}) {
      odd.numel = numel;
      add(str("count, ", numel, ","), usual, odd);
    }
  }
  for (const std::string_view operation : {"reduce_scatter", "all_reduce"}) {
    constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max,
                                 ReduceOp::product};
    for (const ReduceOp usual : kOps) {
      for (const ReduceOp odd : kOps) {
        if (usual == odd) continue;
        add(str("reduction, ", name(odd), ","), {.operation = operation, .reduction = usual},
            {.operation = operation, .reduction = odd});
      }
    }
  }
  for (std::int32_t usual = 0; usual < kMembers; ++usual) {
    for (std::int32_t odd = 0; odd < kMembers; ++odd) {
      if (usual == odd) continue;
      add(str("root, ", odd, ","), {.operation = "broadcast", .root = usual},
          {.operation = "broadcast", .root = odd});
    }
  }
  return all;
}

// Two elements and then one to the next rank, four to the previous one; each transfer has a buffer of its
// own.
inline std::vector<Plan> plans_that_exchange() {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < kMembers; ++rank) {
    PlanWriter plan(rank);
    Exchange exchange{plan.group("cp", {0, 1, 2}), {}, {}, {}};
    const std::int32_t next = (rank + 1) % kMembers, previous = (rank + 2) % kMembers;
    const auto transfer = [&](std::int32_t peer, std::int64_t numel) {
      // Longer than what travels, so that one more element fits.
      return Transfer{peer, flat_view(plan.inout("part", numel + 1), 0, numel)};
    };
    exchange.sends = {transfer(next, 2), transfer(next, 1), transfer(previous, 4)};
    exchange.recvs = {transfer(previous, 2), transfer(previous, 1), transfer(next, 4)};
    plan.inout("further part", 2);
    plan.add(0, exchange, {}, "call");
    plans.push_back(std::move(plan).finish());
  }
  fill_counts(plans, 0);
  return plans;
}

// Of one rank's exchange: peer, count and dtype of each transfer, each transfer left out, one more, two in
// another order, and the digest of the matrix.
inline std::vector<Disagreement> disagreements_of_exchanges() {
  std::vector<Disagreement> all;
  const auto add = [&](const std::string& what, Rank who,
                       const std::function<void(Plan&, Exchange&)>& change) {
    Disagreement made{str("rank ", who, ": ", what), who, plans_that_exchange(), plans_that_exchange()};
    Plan& plan = made.wrong[static_cast<std::size_t>(who)];
    change(plan, collective_at<Exchange>(plan, 0));
    all.push_back(std::move(made));
  };
  for (Rank who = 0; who < kMembers; ++who) {
    for (const auto side : {&Exchange::sends, &Exchange::recvs}) {
      const std::string words = side == &Exchange::sends ? "send" : "receive";
      for (std::size_t i = 0; i < 3; ++i) {
        add(str(words, " ", i, " with another peer"), who, [=](Plan&, Exchange& exchange) {
          std::int32_t& peer = (exchange.*side)[i].peer;
          peer = kMembers - who - peer;  // the third one
        });
        for (const std::int64_t by : {-1, 1}) {
          if (i == 1 && by < 0) continue;  // an empty transfer is no valid step
          add(str(words, " ", i, " of another count, by ", by), who,
              [=](Plan&, Exchange& exchange) { (exchange.*side)[i].view.shape[0] += by; });
        }
        for (const DType dtype : {DType::i32, DType::i64, DType::f16, DType::bf16}) {
          add(str(words, " ", i, " of ", name(dtype)), who, [=](Plan& plan, Exchange& exchange) {
            plan.buffers[static_cast<std::size_t>((exchange.*side)[i].view.buffer)].dtype = dtype;
          });
        }
        add(str(words, " ", i, " left out"), who, [=](Plan&, Exchange& exchange) {
          (exchange.*side).erase((exchange.*side).begin() + static_cast<std::ptrdiff_t>(i));
        });
      }
      add(str("one more ", words), who, [=](Plan& plan, Exchange& exchange) {
        const auto further = static_cast<BufferId>(plan.buffers.size() - 1);
        (exchange.*side).push_back({(who + 1) % kMembers, flat_view(further, 0, 2)});
      });
      add(str(words, "s 0 and 1 in another order"), who,
          [=](Plan&, Exchange& exchange) { std::swap((exchange.*side)[0], (exchange.*side)[1]); });
    }
    add("another digest of the counts, below", who,
        [](Plan&, Exchange& exchange) { exchange.counts.low ^= 1; });
    add("another digest of the counts, above", who,
        [](Plan&, Exchange& exchange) { exchange.counts.high ^= 1; });
  }
  return all;
}

// Of what a rank issues on the group, not of one collective: one fewer, one more, in another order, on
// another group, in a Repeat of another count or in none.
inline std::vector<Disagreement> disagreements_of_sequences() {
  std::vector<Disagreement> all;
  constexpr std::string_view kUsual = "(gs)r";
  for (Rank who = 0; who < kMembers; ++who) {
    const auto plans = [&](std::string_view odd, std::int64_t iterations) {
      std::vector<Plan> made;
      for (Rank rank = 0; rank < kMembers; ++rank) {
        PlanWriter plan(rank);
        const GroupId group = plan.group("tp", {0, 1, 2}), twin = plan.group("dp", {0, 1, 2});
        for (const char issued : rank == who ? odd : kUsual) {
          if (issued == '(') plan.begin_repeat(rank == who ? iterations : 2);
          if (issued == ')') plan.end_repeat();
          if (issued == 'g') add_call(plan, group, {.operation = "all_gather"});
          if (issued == 's') add_call(plan, group, {.operation = "reduce_scatter"});
          if (issued == 'r') add_call(plan, group, {.operation = "all_reduce"});
          if (issued == 'R') add_call(plan, twin, {.operation = "all_reduce"});
        }
        made.push_back(std::move(plan).finish());
      }
      return made;
    };
    const auto add = [&](std::string_view odd, std::int64_t iterations = 2) {
      all.push_back({str("rank ", who, " issues ", odd, " with ", iterations, " iterations, the others ",
                         kUsual, " with 2"),
                     who, plans(kUsual, 2), plans(odd, iterations)});
    };
    add(kUsual, 1), add(kUsual, 3);
    for (const std::string_view odd :
         {"(sg)r", "(gs)", "(gs)rr", "(gs)R", "(g)r", "(gsr)", "gsgsr", "(gs)(r)", "r(gs)", "(g)(s)r"}) {
      add(odd);
    }
  }
  return all;
}

}  // namespace cp::testing
