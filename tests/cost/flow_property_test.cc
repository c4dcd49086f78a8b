// Random flows over random links against progressive filling done from scratch at each event.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "sim/cost/network/flow_network.h"
#include "tests/cost/flow_caps.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

using testing::kNoCap;

struct Wish {
  double at = 0, bytes = 0, cap = 0;
  double recap = 0;  // another cap for the running flow of least number, when this one begins; 0: none
  std::vector<LinkId> path;
};

struct FlowCase {
  std::vector<double> capacities;
  std::vector<Wish> wishes;  // by time
};

void showValue(const FlowCase& made, std::ostream& out) {
  out << "links of " << join(made.capacities);
  for (const Wish& wish : made.wishes) {
    out << "\n  at " << wish.at << ": " << wish.bytes << " bytes over " << join(wish.path) << ", cap "
        << wish.cap << ", recap " << wish.recap;
  }
}

// Coarse times, sizes and capacities, so that many things happen at once; or fine ones.
FlowCase random_case() {
  return pick_case("case", [] {
    const bool coarse = *rc::gen::arbitrary<bool>();
    const auto number = [&](int least, int most) {
      return coarse ? *rc::gen::inRange(least, most + 1)
                    : *rc::gen::inRange(least * 1000, most * 1000 + 1) / 1000.0;
    };
    FlowCase made;
    const int links = *rc::gen::inRange(1, 8);
    for (int i = 0; i < links; ++i) made.capacities.push_back(number(1, 6));
    const int flows = *rc::gen::inRange(1, 40);
    for (int i = 0; i < flows; ++i) {
      Wish wish{number(0, 8),
                number(1, 10),
                *rc::gen::arbitrary<bool>() ? number(1, 4) : kNoCap,
                *rc::gen::inRange(0, 3) == 0 ? number(1, 7) : 0,
                {}};
      const int mask = *rc::gen::inRange(0, 1 << links) & *rc::gen::inRange(0, 1 << links);
      for (LinkId link = 0; link < links; ++link) {
        if ((mask >> link) % 2 == 1) wish.path.push_back(link);
      }
      if (wish.path.empty() && wish.cap == kNoCap) wish.path.push_back(0);
      made.wishes.push_back(wish);
    }
    std::stable_sort(made.wishes.begin(), made.wishes.end(), [](auto& a, auto& b) { return a.at < b.at; });
    return made;
  });
}

// The definition: raise all rates together, stop those at their cap or on a full link, go on with the rest.
std::vector<double> filled(const std::vector<double>& capacities, const std::vector<const Wish*>& flows) {
  std::vector<double> rates(flows.size(), 0);
  std::vector<bool> stopped(flows.size(), false);
  while (std::count(stopped.begin(), stopped.end(), false) > 0) {
    std::vector<double> left = capacities;
    std::vector<int> rising(capacities.size(), 0);
    double step = kNoCap;
    for (std::size_t f = 0; f < flows.size(); ++f) {
      for (const LinkId link : flows[f]->path) {
        left[static_cast<std::size_t>(link)] -= rates[f];
        rising[static_cast<std::size_t>(link)] += stopped[f] ? 0 : 1;
      }
      if (!stopped[f]) step = std::min(step, flows[f]->cap - rates[f]);
    }
    for (std::size_t l = 0; l < left.size(); ++l) {
      if (rising[l] > 0) step = std::min(step, std::max(0.0, left[l]) / rising[l]);
    }
    for (std::size_t f = 0; f < flows.size(); ++f) {
      if (stopped[f]) continue;
      rates[f] += step;
      stopped[f] = rates[f] >= flows[f]->cap * (1 - 1e-13);
      for (const LinkId link : flows[f]->path) {
        const auto l = static_cast<std::size_t>(link);
        if (left[l] - step * rising[l] <= 1e-13 * capacities[l]) stopped[f] = true;
      }
    }
  }
  return rates;
}

// A flow's end is off by the roundings of tens of changes of its rate, each relative to times of at most a
// few hundred.
constexpr double kSumsClose = 1e-10;

struct Ending {
  std::size_t wish;
  double at;
};

using AtEvent = std::function<void(FlowNetwork&, const std::vector<std::size_t>& wish_of_flow)>;

// The caps of `made` become those that flows were given last.
std::vector<Ending> run(FlowCase& made, const AtEvent& at_event) {
  constexpr std::size_t kNone = ~std::size_t{0};
  FlowNetwork net(made.capacities);
  std::vector<std::size_t> wish_of_flow;
  std::vector<Ending> endings;
  std::size_t next = 0;
  while (next < made.wishes.size() || !net.idle()) {
    if (next < made.wishes.size() && (net.idle() || made.wishes[next].at <= net.next_end_ns())) {
      const Wish& wish = made.wishes[next];
      const auto flow = static_cast<std::size_t>(
          net.start(std::max(wish.at, net.now_ns()), wish.path, wish.bytes, wish.cap));
      if (flow >= wish_of_flow.size()) wish_of_flow.resize(flow + 1, kNone);
      RC_ASSERT(wish_of_flow[flow] == kNone);
      wish_of_flow[flow] = next++;
      const auto running =
          std::find_if(wish_of_flow.begin(), wish_of_flow.end(), [&](auto w) { return w != kNone; });
      if (wish.recap > 0) {
        net.set_cap(net.now_ns(), static_cast<FlowId>(running - wish_of_flow.begin()), wish.recap);
        made.wishes[*running].cap = wish.recap;
      }
    } else {
      const auto flow = static_cast<std::size_t>(net.end_next());
      endings.push_back({wish_of_flow[flow], net.now_ns()});
      wish_of_flow[flow] = kNone;
    }
    at_event(net, wish_of_flow);
  }
  return endings;
}

RC_GTEST_PROP(FlowPropertyTest, RatesAreThoseOfProgressiveFillingAndBytesAreKept, ()) {
  const FlowCase original = random_case();
  FlowCase made = original;
  std::vector<double> sent(made.wishes.size(), 0), rates(made.wishes.size(), 0);
  std::vector<double> carried(made.capacities.size(), 0);
  double before = 0;
  const std::vector<Ending> endings = run(made, [&](FlowNetwork& net,
                                                    const std::vector<std::size_t>& wish_of_flow) {
    for (std::size_t w = 0; w < sent.size(); ++w) {
      sent[w] += rates[w] * (net.now_ns() - before);
      for (const LinkId link : made.wishes[w].path) {
        carried[static_cast<std::size_t>(link)] += rates[w] * (net.now_ns() - before);
      }
      rates[w] = 0;
    }
    before = net.now_ns();
    std::vector<const Wish*> running;
    std::vector<FlowId> ids;
    for (std::size_t flow = 0; flow < wish_of_flow.size(); ++flow) {
      if (wish_of_flow[flow] >= made.wishes.size()) continue;
      running.push_back(&made.wishes[wish_of_flow[flow]]);
      ids.push_back(static_cast<FlowId>(flow));
    }
    const std::vector<double> expected = filled(made.capacities, running);
    std::vector<double> load(made.capacities.size(), 0);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const double rate = net.rate(ids[i]);
      RC_ASSERT(std::abs(rate - expected[i]) <= kSumsClose * expected[i]);
      rates[wish_of_flow[static_cast<std::size_t>(ids[i])]] = rate;
      for (const LinkId link : running[i]->path) load[static_cast<std::size_t>(link)] += rate;
    }
    for (std::size_t l = 0; l < load.size(); ++l) {
      RC_ASSERT(load[l] <= made.capacities[l] * (1 + 1e-12));
      RC_ASSERT(std::abs(net.carried(static_cast<LinkId>(l)) - carried[l]) <= kSumsClose * (1 + carried[l]));
    }
  });
  RC_ASSERT(endings.size() == made.wishes.size());
  for (const Ending& end : endings) {
    RC_ASSERT(std::abs(sent[end.wish] - made.wishes[end.wish].bytes) <=
              kSumsClose * made.wishes[end.wish].bytes);
  }

  // Nobody asks for rates: what happens at one time is settled at once. The same ends. But where a flow that
  // changes another one's cap begins as a flow ends, roundings say which comes first, and so whose cap it is:
  // then without such changes.
  FlowCase compared = original;
  const bool tied = std::any_of(endings.begin(), endings.end(), [&](const Ending& end) {
    return std::any_of(original.wishes.begin(), original.wishes.end(), [&](const Wish& wish) {
      return wish.recap > 0 && std::abs(wish.at - end.at) <= kSumsClose * end.at;
    });
  });
  for (Wish& wish : compared.wishes) wish.recap = tied ? 0 : wish.recap;
  FlowCase asked = compared;
  const std::vector<Ending> ends_asked =
      run(asked, [](FlowNetwork& net, const std::vector<std::size_t>& wishes) {
        for (std::size_t flow = 0; flow < wishes.size(); ++flow) {
          if (wishes[flow] < ~std::size_t{0}) static_cast<void>(net.rate(static_cast<FlowId>(flow)));
        }
      });
  const std::vector<Ending> unasked = run(compared, [](FlowNetwork&, const std::vector<std::size_t>&) {});
  std::vector<double> at(original.wishes.size(), 0);
  for (const Ending& end : unasked) at[end.wish] = end.at;
  for (const Ending& end : ends_asked) RC_ASSERT(std::abs(at[end.wish] - end.at) <= kSumsClose * end.at);
}

RC_GTEST_PROP(FlowPropertyTest, DoublingEveryRateHalvesTheTime, ()) {
  FlowCase made = random_case();
  for (Wish& wish : made.wishes) wish.at = 0;
  const auto nothing = [](FlowNetwork&, const std::vector<std::size_t>&) {};
  FlowCase doubled = made;
  const std::vector<Ending> slow = run(made, nothing);
  for (double& capacity : doubled.capacities) capacity *= 2;
  for (Wish& wish : doubled.wishes) wish.cap *= 2, wish.recap *= 2;
  const std::vector<Ending> fast = run(doubled, nothing);
  RC_ASSERT(slow.size() == fast.size());
  for (std::size_t i = 0; i < slow.size(); ++i) {
    RC_ASSERT(slow[i].wish == fast[i].wish);
    RC_ASSERT(slow[i].at == 2 * fast[i].at);
  }
}

}  // namespace
}  // namespace cp::sim
