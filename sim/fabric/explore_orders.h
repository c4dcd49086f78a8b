// explore_orders() runs a program in every order of turns that can make a difference.
//
// It repeats the run, each time in another order, until every order has been taken or is known to give the
// same result as one that was taken. If two orders differ only in that two neighbouring turns are swapped,
// and these turns touch nothing in common, then the orders give the same result, and one of them is enough.
// (This is dynamic partial-order reduction with sleep sets: Flanagan and Godefroid, "Dynamic Partial-Order
// Reduction for Model Checking Software", POPL 2005.) Two turns depend on each other if
//   - they are of one stream, or one makes the other possible (events; the arrivals at a collective and its
//     end);
//   - they touch the same bytes, and one of them writes. The last member to arrive at a collective touches
//     everything that the collective moves;
//   - they arrive at the same communicator, if OrderLimits::arrivals_matter. By default this does not count:
//     each member's call lies in a slot of its own, and the last member does the same with the calls
//     whichever member it is.
// So a plan that has an edge between any two steps that touch the same bytes has exactly one order. Each
// missing edge makes more.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/fabric/baton_order.h"

namespace cp::sim {

struct OrderLimits {
  std::int64_t orders = 10'000;       // how many orders are begun at most
  std::int64_t most_turns = 100'000;  // of one run
  bool arrivals_matter = false;
};

struct ExploredOrder {
  std::vector<Turn> turns;  // BatonOrder::Kind::given repeats them
  std::string result;
};

struct OrdersReport {
  std::int64_t orders = 0;     // how many were run to their end
  std::int64_t cut_short = 0;  // how many were given up, because they could only repeat another one
  bool all = false;            // true if no order is left that can make a difference
  // `different` is the first order whose result is not that of `first`. The search ends when it finds one.
  std::optional<ExploredOrder> first, different;
};

// `run` makes one or several fabrics with Schedule::baton and the order that it is given, runs them, and
// returns a digest of the results, or of whatever must be equal in all orders. If it throws, the type and the
// message of the exception are the result.
//
// `run` must do the same each time: its bodies share nothing but their devices, and depend on neither clocks
// nor addresses. If two runs differ that should not, explore_orders() throws InvalidInput that says where.
// Each pair of turns that depend on each other may double the number of orders, so use it with up to three
// ranks and some tens of steps on each.
OrdersReport explore_orders(const std::function<std::string(const BatonOrder&)>& run,
                            const OrderLimits& limits = {});

std::string to_string(const OrdersReport& report);

}  // namespace cp::sim
