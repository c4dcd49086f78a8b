// What a case says of how its plans run, made into what the fabric takes: the order of ranks, faults, a
// planted bug.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/fabric/fabric.h"
#include "sim/fuzz/judge.h"

namespace cp::sim {

struct RunOrder {
  Schedule schedule = Schedule::parallel;
  std::uint64_t seed = 0;
  BatonOrder order;
};
// Exhaustive orders are explored elsewhere (explore_all_orders); here they are random ones.
RunOrder run_order(const proto::Order& order, std::span<const Plan> plans);

// All orders that can matter of few ranks, as far as a stated number of them goes; `run` makes one run in an
// order and says what came of it. Whether the case asks for them, and its plans are few enough.
bool wants_all_orders(const proto::Order& order, std::span<const Plan> plans);
// Most cases have one order that matters, and an edge that is missing shows within a few.
constexpr std::int64_t kMostOrders = 100;
void explore_all_orders(const std::function<std::string(const BatonOrder&)>& run, const Trial& trial,
                        std::int64_t most_orders = kMostOrders);

std::vector<InjectedFault> faults_of(const proto::FuzzCase& fuzz_case);

// Plants the bug that the case asks for, where it is of this pass; says where. Throws InvalidInput where the
// plans have no place for it.
void plant(const proto::FuzzCase& fuzz_case, bool backward, std::vector<Plan>& plans);

// The plans end in every order by the rules of every library that the model of progress knows.
void check_progress_rules(std::span<const Plan> plans, const Trial& trial);

}  // namespace cp::sim
