// Turns what a case says about how its plans run into what the fabric takes: the order of the ranks, the
// faults, and the bug to plant.
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
// The order in which the ranks run. A case that asks for all orders gets a random one here;
// explore_all_orders() is what tries all of them.
RunOrder run_order(const proto::Order& order, std::span<const Plan> plans);

// Whether the case asks for all orders, and has few enough plans for that (at most 3).
bool wants_all_orders(const proto::Order& order, std::span<const Plan> plans);
// How many orders are tried at most. Chosen: most cases have one order that matters, and an edge that is
// missing shows within a few.
constexpr std::int64_t kMostOrders = 100;
// Tries the orders that can matter, up to `most_orders` of them. `run` makes one run in the given order and
// returns what came of it, as a text. Throws PropertyFailure ("orders") if two orders give different texts,
// or if `run` throws.
void explore_all_orders(const std::function<std::string(const BatonOrder&)>& run, const Trial& trial,
                        std::int64_t most_orders = kMostOrders);

// The faults that the case injects into the fabric. Throws InvalidInput for a kind of fault that does not
// exist.
std::vector<InjectedFault> faults_of(const proto::FuzzCase& fuzz_case);

// Plants the bug that the case asks for, if it asks for one in this pass. Throws InvalidInput if the plans
// have no place for it.
void plant(const proto::FuzzCase& fuzz_case, bool backward, std::vector<Plan>& plans);

// Checks that the plans end in every order, by the rules of every library that the model of progress knows
// (sim/proof/progress/progress.h). Throws PropertyFailure ("progress") if they do not. A search that gives up
// without an answer is no failure.
void check_progress_rules(std::span<const Plan> plans, const Trial& trial);

}  // namespace cp::sim
