#include "sim/fuzz/conditions.h"

#include "sim/fabric/explore_orders.h"
#include "sim/fuzz/mutate/trials.h"
#include "sim/proof/progress/progress.h"

namespace cp::sim {
namespace {

// Of more ranks, all orders are not explored. Chosen: the number of orders grows with the product of the
// ranks' steps, and kMostOrders would be a small part of them.
constexpr int kMostExploredRanks = 3;
// A run that takes more turns is taken to never end. Chosen: a hundred times what 79 ranks need for a hundred
// steps of about ten turns each.
constexpr std::int64_t kMostTurns = 10'000'000;

}  // namespace

RunOrder run_order(const proto::Order& order, std::span<const Plan> plans) {
  RunOrder result;
  result.seed = order.seed();
  result.order.most_turns = kMostTurns;
  switch (order.kind()) {
    case proto::Order::round_robin:
      result.order.kind = BatonOrder::Kind::round_robin;
      break;
    case proto::Order::pct:
      result.order.kind = BatonOrder::Kind::pct;
      result.order.depth = std::max(1, order.depth());
      result.order.expected_turns = std::max<std::int64_t>(1, expected_turns(plans));
      break;
    case proto::Order::random:
    case proto::Order::exhaustive:
      result.order.kind = BatonOrder::Kind::random;
      break;
    default:
      return {};
  }
  result.schedule = Schedule::baton;
  return result;
}

bool wants_all_orders(const proto::Order& order, std::span<const Plan> plans) {
  return order.kind() == proto::Order::exhaustive && static_cast<int>(plans.size()) <= kMostExploredRanks;
}

void explore_all_orders(const std::function<std::string(const BatonOrder&)>& run, const Trial& trial,
                        std::int64_t most_orders) {
  const OrdersReport report =
      trial.property("orders", [&] { return explore_orders(run, {.orders = most_orders}); });
  trial.require(!report.different, "orders", to_string(report));
}

std::vector<InjectedFault> faults_of(const proto::FuzzCase& fuzz_case) {
  std::vector<InjectedFault> faults;
  for (const proto::Fault& fault : fuzz_case.faults()) {
    if (fault.kind() < 0 || fault.kind() >= kNumFaultKinds)
      throw InvalidInput(str("fault ", fault.kind(), " is unknown; use one of traces/fuzz_case.proto, 0 to ",
                             kNumFaultKinds - 1));
    faults.push_back({static_cast<FaultKind>(fault.kind()), fault.rank(), fault.peer(), fault.collective(),
                      fault.amount()});
  }
  return faults;
}

void plant(const proto::FuzzCase& fuzz_case, bool backward, std::vector<Plan>& plans) {
  if (!fuzz_case.has_mutation() || fuzz_case.mutation().backward() != backward) return;
  apply_mutation(plans, fuzz_case.mutation());
}

void check_progress_rules(std::span<const Plan> plans, const Trial& trial) {
  for (const ProgressRules& rules : all_rules()) {
    const ProgressReport report = trial.property("progress", [&] { return explore_progress(plans, rules); });
    trial.require(report.ends == Ends::in_all_orders || report.ends == Ends::unknown, "progress",
                  to_string(report));
  }
}

}  // namespace cp::sim
