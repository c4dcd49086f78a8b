// Flows over links: at every moment each flow has its max-min fair share (fair_rates.h), and every flow ends
// when its bytes have passed.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "shared/base/units.h"
#include "sim/cost/network/flow_network.h"
#include "sim/fuzz/fair_rates.h"
#include "sim/fuzz/judge.h"

namespace cp::sim {
namespace {

// The largest case. Chosen: fair_rates() takes flows^2 x links.
constexpr int kMostLinks = 64, kMostFlows = 256;
// The network decides which links are full in parts of 2^-42 of their capacity, rounded for each flow. With
// 256 flows that is 256 * 2^-42 = 6e-11 of the capacity; this is above it.
constexpr double kFlowRounding = 1e-9;

struct Running {
  int number = 0;  // of the case
  double limit = kNever;
  double passed = 0;  // bytes
};

class FlowsJudge {
 public:
  FlowsJudge(const proto::Flows& job, Trial& trial)
      : job_(job),
        trial_(trial),
        capacities_(job.capacities().begin(), job.capacities().end()),
        network_(capacities_) {}

  void run() {
    std::vector<Event> events;
    for (int i = 0; i < job_.flows_size(); ++i) {
      events.push_back({job_.flows(i).begin_ns(), i, false});
      if (job_.flows(i).change_ns() > 0) events.push_back({job_.flows(i).change_ns(), i, true});
    }
    std::stable_sort(events.begin(), events.end(),
                     [](const Event& a, const Event& b) { return a.at_ns < b.at_ns; });
    for (const Event& event : events) {
      end_until(event.at_ns);
      pass(event.at_ns);
      if (event.changes) {
        change(event);
      } else {
        start(event);
      }
      check_rates();
    }
    end_until(kNever);
    check_carried();
  }

 private:
  struct Event {
    double at_ns;
    int flow;
    bool changes;
  };

  const proto::Flows::Flow& flow_of(const Running& running) const { return job_.flows(running.number); }

  void start(const Event& event) {
    const proto::Flows::Flow& flow = job_.flows(event.flow);
    const double limit = flow.limit() > 0 ? flow.limit() : kNever;
    const std::vector<LinkId> links(flow.links().begin(), flow.links().end());
    running_[network_.start(event.at_ns, links, flow.bytes(), limit)] = {event.flow, limit, 0};
  }

  void change(const Event& event) {
    for (auto& [id, running] : running_) {
      if (running.number != event.flow) continue;
      running.limit = job_.flows(event.flow).then_limit();
      network_.set_cap(event.at_ns, id, running.limit);
    }
  }

  void end_until(double at_ns) {
    while (!network_.idle() && network_.next_end_ns() <= at_ns) {
      pass(network_.next_end_ns());
      const FlowId id = network_.end_next();
      const Running ended = running_.at(id);
      running_.erase(id);
      const double bytes = flow_of(ended).bytes();
      trial_.require(std::abs(ended.passed - bytes) <= kFlowRounding * (bytes + most_rate() * now_ns_),
                     "flows", "flow ", ended.number, " ends at ", now_ns_, " ns, when ", ended.passed,
                     " of its ", bytes, " bytes have passed");
      check_rates();
    }
  }

  // Time goes on to there, with the rates of now.
  void pass(double at_ns) {
    for (auto& [id, running] : running_) running.passed += network_.rate(id) * (at_ns - now_ns_);
    now_ns_ = at_ns;
  }

  double most_rate() const {
    double most = 0;
    for (const double capacity : capacities_) most = std::max(most, capacity);
    for (const proto::Flows::Flow& flow : job_.flows())
      most = std::max({most, flow.limit(), flow.then_limit()});
    return most;
  }

  void check_rates() {
    std::vector<SharingFlow> flows;
    for (const auto& [id, running] : running_) {
      const auto& links = flow_of(running).links();
      flows.push_back({{links.begin(), links.end()}, running.limit});
    }
    const std::vector<double> fair = fair_rates(capacities_, flows);
    std::size_t i = 0;
    for (const auto& [id, running] : running_) {
      const double rate = network_.rate(id);
      trial_.require(rate <= running.limit * (1 + kFlowRounding), "flows", "at ", now_ns_, " ns flow ",
                     running.number, " has ", rate, " GB/s, above its own limit of ", running.limit);
      double widest = fair[i];
      for (const std::int32_t link : flow_of(running).links())
        widest = std::max(widest, capacities_[static_cast<std::size_t>(link)]);
      trial_.require(std::abs(rate - fair[i]) <= kFlowRounding * widest, "flows", "at ", now_ns_, " ns flow ",
                     running.number, " has ", rate, " GB/s, where its fair share is ", fair[i]);
      ++i;
    }
  }

  void check_carried() const {
    for (std::size_t link = 0; link < capacities_.size(); ++link) {
      double bytes = 0;
      for (const proto::Flows::Flow& flow : job_.flows()) {
        if (std::find(flow.links().begin(), flow.links().end(), static_cast<std::int32_t>(link)) !=
            flow.links().end())
          bytes += flow.bytes();
      }
      const double carried = network_.carried(static_cast<LinkId>(link));
      trial_.require(std::abs(carried - bytes) <= kFlowRounding * bytes, "flows", "link ", link, " carried ",
                     carried, " bytes of flows that have ", bytes);
    }
  }

  const proto::Flows& job_;
  Trial& trial_;
  const std::vector<double> capacities_;
  FlowNetwork network_;
  std::map<FlowId, Running> running_;
  double now_ns_ = 0;
};

bool is_positive(double number) { return std::isfinite(number) && number > 0; }
bool is_time(double ns) { return std::isfinite(ns) && ns >= 0; }

void require_case(const proto::Flows& job) {
  if (job.capacities_size() > kMostLinks || job.flows_size() > kMostFlows) {
    throw InvalidInput(str("the case has ", job.flows_size(), " flows over ", job.capacities_size(),
                           " links; use at most ", kMostFlows, " over ", kMostLinks));
  }
  for (int i = 0; i < job.flows_size(); ++i) {
    const proto::Flows::Flow& flow = job.flows(i);
    std::vector<std::int32_t> links(flow.links().begin(), flow.links().end());
    std::sort(links.begin(), links.end());
    if (links.size() > FlowNetwork::kMaxPath ||
        std::adjacent_find(links.begin(), links.end()) != links.end() ||
        (!links.empty() && (links.front() < 0 || links.back() >= job.capacities_size()))) {
      throw InvalidInput(str("flow ", i, " crosses links ", join(links, ", "), " of ", job.capacities_size(),
                             "; name at most ", FlowNetwork::kMaxPath, ", each once"));
    }
    if (!is_positive(flow.bytes()) || (flow.limit() != 0 && !is_positive(flow.limit())) ||
        (links.empty() && flow.limit() == 0)) {
      throw InvalidInput(
          str("flow ", i, " has ", flow.bytes(), " bytes and a limit of ", flow.limit(),
              " GB/s; use bytes above 0, and a limit above 0, or 0 for none where it crosses a link"));
    }
    if (!is_time(flow.begin_ns()) || !is_time(flow.change_ns()) ||
        (flow.change_ns() > 0 && (flow.change_ns() < flow.begin_ns() || !is_positive(flow.then_limit())))) {
      throw InvalidInput(str("flow ", i, " begins at ", flow.begin_ns(), " ns and has a limit of ",
                             flow.then_limit(), " GB/s from ", flow.change_ns(),
                             " ns on; use a time behind its begin with a limit above 0, or 0 for no change"));
    }
  }
}

}  // namespace

void judge_flows(const proto::Flows& job, Trial& trial) {
  require_case(job);
  trial.hasher().add(job.flows_size());
  trial.property("flows", [&] { FlowsJudge(job, trial).run(); });
}

}  // namespace cp::sim
