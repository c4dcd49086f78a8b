// All orders of the baton that can matter, one after the other.
//
// A run is repeated, each time in another order, until every order has been taken or is known to give what
// one that was taken gives: two orders that differ by turns next to each other that touch nothing in common
// are one (dynamic partial-order reduction with sleep sets: Flanagan and Godefroid, "Dynamic Partial-Order
// Reduction for Model Checking Software", POPL 2005). Two turns depend on each other when they
//   - are of one stream, or one makes the other possible (events, the arrivals at a collective and its end);
//   - touch the same bytes, one of them writing; the last member to arrive at a collective touches what the collective moves;
//   - arrive at the same communicator, where OrderLimits::arrivals_matter says so. They need not: the
//     members' calls lie in slots of their own, and whoever comes last does the same with them.
// So plans whose steps are ordered by edges wherever they touch the same bytes have one order, and each edge
// that is missing makes more.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/fabric/baton_order.h"

namespace cp::sim {

struct OrderLimits {
  std::int64_t orders = 10'000;       // that are begun at most
  std::int64_t most_turns = 100'000;  // of one run
  bool arrivals_matter = false;
};

struct ExploredOrder {
  std::vector<Turn> turns;  // to be given again (BatonOrder::Kind::given)
  std::string result;
};

struct OrdersReport {
  std::int64_t orders = 0;     // that were taken to their end
  std::int64_t cut_short = 0;  // that were given up, as they could only repeat another one
  bool all = false;            // there is no other order that can matter
  std::optional<ExploredOrder> first,
      different;  // `different`: the first whose result is not that of `first`; then the search ends
};

// `run` makes one or several fabrics with Schedule::baton and the order that it is given, runs them and says
// what came of it: a digest of the results, or whatever has to be equal. What it throws is a result too, by
// type and message. It is to do the same each time: bodies share nothing but their devices, and look at
// neither clocks nor addresses; else InvalidInput says where two runs went apart. Meant for up to three ranks
// and tens of steps each: each dependent pair of turns may double the orders.
OrdersReport explore_orders(const std::function<std::string(const BatonOrder&)>& run,
                            const OrderLimits& limits = {});

std::string to_string(const OrdersReport& report);

}  // namespace cp::sim
