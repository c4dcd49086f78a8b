#include <algorithm>
#include <array>
#include <map>
#include <queue>
#include <tuple>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/base/units.h"
#include "shared/plan/operations.h"
#include "sim/base/stop.h"
#include "sim/cost/cluster/transfer_rate.h"
#include "sim/cost/network/flow_network.h"
#include "sim/cost/network/topology.h"
#include "sim/cost/timeline/calls.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/cost/timeline/collective_flows.h"
#include "sim/cost/timeline/copy_engines.h"
#include "sim/cost/timeline/critical_path.h"
#include "sim/cost/timeline/fold.h"
#include "sim/cost/timeline/issue_time.h"
#include "sim/cost/timeline/kernel_cost.h"
#include "sim/cost/timeline/pair_rate.h"
#include "sim/cost/timeline/rank_clock.h"
#include "sim/cost/timeline/running_kernels.h"
#include "sim/cost/timeline/timeline.h"

namespace cp::sim {
namespace {

class Replay {
 public:
  Replay(std::span<const Plan> plans, const Fold& fold, const Cluster& cluster,
         const SoftwareProfile& software, const TimelineOptions& options)
      : cluster_(cluster),
        software_(software),
        options_(options),
        fold_(fold),
        kernels_(cluster, software),
        topology_(cluster, options.links),
        network_(topology_.block_capacities(fold.blocks())),
        programs_(plans.begin(), plans.end()),
        calls_(programs_, fold),
        path_(programs_),
        together_gbps_(together_gbps(cluster)),
        near_bytes_(programs_.size()),
        kernel_ns_(programs_.size()) {
    for (const Program& program : programs_) {
      const Plan& plan = program.plan();
      if (plan.self >= cluster.num_gpus()) {
        throw InvalidInput(str("rank ", plan.self, " has no GPU on ", cluster.name, ", which has ",
                               cluster.num_gpus(), "; use --nodes ", plan.self / cluster.node.gpus + 1));
      }
      require_copy_engine_reach(plan, cluster);
      ranks_.emplace_back(program,
                          options.gpu_slowdown.empty() ? 1 : options.gpu_slowdown.at(idx(plan.self)));
      ranks_.back().issued_ns = issued_ns(program);
    }
  }

  Timeline run() {
    for (std::size_t p = 0; p < programs_.size(); ++p) {
      for (NodeId node = 0; node < programs_[p].size(); ++node) {
        if (programs_[p].waits_for(node) == 0) ready({p, node});
      }
    }
    begin_ready();
    while (true) {
      look_at_stop();
      drop_stale();
      const double next_event = events_.empty() ? kNever : events_.top().at_ns;
      const double next_flow = network_.idle() ? kNever : network_.next_end_ns();
      if (next_event == kNever && next_flow == kNever) break;
      if (next_flow <= next_event) {
        now_ = next_flow;
        end_flow(network_.end_next());
      } else {
        const Event event = events_.top();
        events_.pop();
        now_ = event.at_ns;
        handle(event);
      }
      begin_ready();
    }
    return finish();
  }

 private:
  struct At {
    std::size_t position = 0;
    NodeId node = -1;
  };
  struct RankState {
    RankState(const Program& program, double slow) : left(idx(program.size())), slowdown(slow) {
      for (NodeId node = 0; node < program.size(); ++node) left[idx(node)] = program.waits_for(node);
    }
    std::vector<std::int32_t> left;  // by node: what it still waits for
    std::vector<double> issued_ns;   // the same: when the host has issued it; empty: it is always ahead
    double slowdown;
    int transfers = 0;          // under way, in or out
    std::vector<FlowId> flows;  // from or to it, where kernels slow transfers down
    RunningKernels kernels;
    RankClock clock;
    RankTimeline result;
  };
  enum class EventKind : std::uint8_t { issued, kernel_end, flow_start, step_end, call_end };
  struct Event {
    double at_ns;
    std::uint64_t number;  // events of one time in the order of their making
    EventKind kind;
    At at;
    std::uint32_t version;  // of the kernel; the transfer to start; the call that ends
    bool operator>(const Event& other) const {
      return std::tie(at_ns, number) > std::tie(other.at_ns, other.number);
    }
  };
  struct Transfer {
    CallId call = -1;
    std::int32_t from = -1, to = -1;  // positions, of an Exchange; -1: of another collective
    Rank source = 0, target = 0;
    double bytes = 0, cap = kNever;
    LinkId narrowest = -1;
    bool quiet = false;  // by copy engines: kernels and it keep their speeds beside each other
  };

  RankState& state(std::size_t position) { return ranks_[position]; }

  void push(double at_ns, EventKind kind, At at, std::uint32_t version = 0) {
    events_.push({at_ns, events_made_++, kind, at, version});
  }

  // ---- steps ----

  std::vector<double> issued_ns(const Program& program) const {
    std::vector<double> issued;
    double now = 0;
    const GroupedProducts grouped(program.plan());
    for (NodeId node = 0; node < program.size(); ++node) {
      const Step& step = program.step(node);
      now += kernels_.launches(program.step_id(node), step.work, grouped) * issue_ns(step, software_);
      issued.push_back(now);
    }
    if (now == 0) issued.clear();
    return issued;
  }

  // As soon as it is issued.
  void ready(At at) {
    const std::vector<double>& issued = state(at.position).issued_ns;
    if (issued.empty() || issued[idx(at.node)] <= now_) return ready_.push_back(at);
    push(issued[idx(at.node)], EventKind::issued, at);
  }

  void begin_ready() {
    while (!ready_.empty()) {
      const At at = ready_.back();
      ready_.pop_back();
      path_.ready(at.position, at.node, now_);
      const Step& step = programs_[at.position].step(at.node);
      if (const auto* kernel = std::get_if<Kernel>(&step.work)) {
        begin_kernel(at, *kernel);
      } else {
        begin_collective(at, std::get<Collective>(step.work));
      }
    }
  }

  void end_step(At at, std::string_view bound) {
    const Program& program = programs_[at.position];
    RankState& rank = state(at.position);
    rank.result.end_ns = now_;
    path_.ended(at.position, at.node, now_, bound);
    if (options_.keep_spans) {
      rank.result.spans.push_back(path_.span(at.position, at.node));
    }
    for (const NodeId next : program.followers(at.node)) {
      if (--rank.left[idx(next)] > 0) continue;
      path_.after(at.position, next, at.node);
      ready({at.position, next});
    }
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case EventKind::issued:
        return ready_.push_back(event.at);
      case EventKind::kernel_end:
        return end_kernel(event.at);
      case EventKind::flow_start:
        return start_flow(event.version);
      case EventKind::call_end:
        return end_call(static_cast<CallId>(event.version));
      case EventKind::step_end:
        state(event.at.position).clock.comm(now_, -1);
        return end_step(event.at, operation_name(programs_[event.at.position].step(event.at.node).work));
    }
  }

  // ---- kernels ----

  void begin_kernel(At at, const Kernel& kernel) {
    RankState& rank = state(at.position);
    const double slowest = std::holds_alternative<AttentionForward>(kernel)    ? software_.forward_progress
                           : std::holds_alternative<AttentionBackward>(kernel) ? software_.backward_progress
                                                                               : 1;
    const double ns = kernel_ns(at, kernel) * rank.slowdown;
    rank.clock.kernel(now_, 1);
    const bool first = rank.kernels.none();
    path_.began(at.position, at.node, now_);
    const bool merges =
        merges_beside(programs_[at.position].plan(), programs_[at.position].step(at.node).stream);
    expect(at.position, rank.kernels.begin(now_, at.node, ns, {slowest, merges}));
    if (first) adapt_flows(at.position);
  }

  void expect(std::size_t position, const std::vector<RunningKernels::End>& ends) {
    for (const RunningKernels::End& end : ends) {
      if (end.at_ns == kNever) continue;  // until a transfer has ended
      push(end.at_ns, EventKind::kernel_end, {position, end.node}, end.version);
    }
  }

  // Ranks do the same thing over and over: one cost for each step of a plan.
  double kernel_ns(At at, const Kernel& kernel) {
    auto& known = kernel_ns_[at.position];
    const Program& program = programs_[at.position];
    if (known.empty()) {
      known.assign(idx(program.num_steps()), -1);
      grouped_.try_emplace(at.position, program.plan());
    }
    const StepId step = program.step_id(at.node);
    double& ns = known[idx(step)];
    if (ns < 0) ns = kernels_.ns(step, kernel, program.plan(), grouped_.at(at.position));
    return ns;
  }

  void end_kernel(At at) {
    RankState& rank = state(at.position);
    const RunningKernels::Ended ended = rank.kernels.end(now_, at.node);
    expect(at.position, ended.others);
    rank.clock.kernel(now_, -1);
    if (rank.kernels.none()) adapt_flows(at.position);
    const Program& program = programs_[at.position];
    const Step& step = program.step(at.node);
    end_step(at,
             str(operation_name(step.work), ended.beside_transfers                       ? " beside transfers"
                                            : !ended.beside_kernels                      ? ""
                                            : merges_beside(program.plan(), step.stream) ? " beside attention"
                                                                                         : " beside merges"));
  }

  // An event of a kernel whose speed has changed since.
  void drop_stale() {
    while (!events_.empty() && events_.top().kind == EventKind::kernel_end) {
      const auto& [position, node] = events_.top().at;
      if (state(position).kernels.counts(node, events_.top().version)) return;
      events_.pop();
    }
  }

  void add_transfers(std::size_t position, int number) {
    RankState& rank = state(position);
    const bool was = rank.transfers > 0;
    rank.transfers += number;
    const bool is = rank.transfers > 0;
    if (was == is) return;
    expect(position, rank.kernels.set_disturbed(now_, is));
  }

  // ---- collectives ----

  void begin_collective(At at, const Collective& collective) {
    const Calls::Part part = calls_.part(at.position, at.node);
    TimedCall& call = calls_.call(part.call);
    TimedCall::Member& member = call.members[idx(part.member)];
    member.arrived = true, member.arrived_ns = now_;
    --call.missing;
    state(at.position).clock.comm(now_, 1);
    if (std::holds_alternative<Exchange>(collective)) {
      join_exchange(at, part, call);
    } else if (call.missing == 0) {
      run_together(part.call, collective, at);
    }
  }

  void run_together(CallId id, const Collective& collective, At last) {
    TimedCall& call = calls_.call(id);
    const Calls::World& world = calls_.world(call);
    for (std::size_t i = 0; i < call.members.size(); ++i) {
      const At at{idx(world.positions[i]), call.members[i].node};
      path_.began(at.position, at.node, now_);
      if (at.position != last.position) path_.met(at.position, at.node, last.position, last.node);
      const Plan& plan = programs_[at.position].plan();
      for (const std::int64_t bytes : volume(collective_of(at), plan).received) {
        state(at.position).result.bytes_received += bytes;
      }
    }
    const Plan& plan = programs_[last.position].plan();
    const double alone_ns =
        collective_ns(collective, plan, cluster_, settings_of(options_.collectives, software_));
    const auto first = static_cast<std::uint32_t>(transfers_.size());
    // Of the flows that a shift makes of one another, those of the first blocks that the group has.
    const int blocks = period(world.ranks, fold_);
    const Rank first_rank = *std::min_element(world.ranks.begin(), world.ranks.end());
    for (const CollectiveFlow& flow : collective_flows(collective, plan, cluster_, alone_ns)) {
      if (flow.bytes == 0) continue;
      if (fold_.folded() && flow.source / fold_.block - first_rank / fold_.block >= blocks) continue;
      const Rank source = fold_.representative(flow.source);
      transfers_.push_back({id, -1, -1, source, fold_.shifted(flow.target, flow.source, source), flow.bytes,
                            flow.bytes / alone_ns});
      transfers_.back().quiet = is_quiet(last);
    }
    call.open = static_cast<std::int32_t>(transfers_.size() - first);
    if (call.open == 0) return push(now_, EventKind::call_end, last, static_cast<std::uint32_t>(id));
    for (auto number = first; number < transfers_.size(); ++number)
      push(now_, EventKind::flow_start, last, number);
    if (is_quiet(last)) return;
    for (const std::int32_t position : world.positions) add_transfers(idx(position), 1);
  }

  void end_call(CallId id) {
    const TimedCall& call = calls_.call(id);
    const Calls::World& world = calls_.world(call);
    for (std::size_t i = 0; i < call.members.size(); ++i) {
      const At at{idx(world.positions[i]), call.members[i].node};
      state(at.position).clock.comm(now_, -1);
      end_step(at, operation_name(programs_[at.position].step(at.node).work));
    }
  }

  bool is_quiet(At at) const {
    return programs_[at.position].plan().groups[idx(group_of(collective_of(at)))].copy_engine;
  }

  const Collective& collective_of(At at) const {
    return std::get<Collective>(programs_[at.position].step(at.node).work);
  }

  // Its transfers with whoever is there begin; the others begin when these arrive.
  void join_exchange(At at, Calls::Part part, TimedCall& call) {
    const Calls::Traffic& traffic = calls_.traffic(at.position, programs_[at.position].step_id(at.node));
    const Rank self = programs_[at.position].plan().self;
    TimedCall::Member& member = call.members[idx(part.member)];
    member.open = static_cast<std::int32_t>(traffic.sends.size() + traffic.recvs.size());
    if (member.open == 0) {
      push(now_, EventKind::step_end, at);
      return;
    }
    for (const PeerBytes& recv : traffic.recvs) state(at.position).result.bytes_received += recv.bytes;
    for (const PeerBytes& send : traffic.sends) meet(part.call, at, send.peer, self, send.peer, send.bytes);
    for (const PeerBytes& recv : traffic.recvs) {
      // In a folded world a rank may receive from one that it stands for itself: that was sent just now.
      const Rank source = fold_.representative(recv.peer);
      if (source == self && fold_.folded()) continue;
      meet(part.call, at, recv.peer, source, fold_.shifted(self, recv.peer, source), recv.bytes);
    }
  }

  // `late` has just arrived; its transfer with `peer` begins if that is there, from `source` to `target` as
  // seen from the rank that stands for the source.
  void meet(CallId id, At late, Rank peer, Rank source, Rank target, std::int64_t bytes) {
    const TimedCall& call = calls_.call(id);
    const Calls::World& world = calls_.world(call);
    const std::size_t position = calls_.position(peer);
    const TimedCall::Member& other = call.members[idx(world.member_of[position])];
    if (!other.arrived) return;
    if (position != late.position) path_.met(position, other.node, late.position, late.node);
    path_.began(late.position, late.node, now_);
    path_.began(position, other.node, now_);
    const auto number = static_cast<std::uint32_t>(transfers_.size());
    const Curve& measured = curve(source, target);
    const auto size = static_cast<double>(bytes);
    const double latency_ns = topology_.latency_ns(source, target);
    const std::array ends = {calls_.position(source), calls_.position(target)};
    double cap = kNever;
    if (!measured.empty()) cap = transfer_gbps(measured, latency_ns / kNsPerUs, size);
    if (!measured.empty() && topology_.inside(source, target)) {
      for (const std::size_t way : {0U, 1U}) {
        const double all = near_bytes({ends[way], call.members[idx(world.member_of[ends[way]])].node})[way];
        if (all > size) cap = std::min(cap, together_gbps_ * size / all);
      }
    }
    transfers_.push_back({id, static_cast<std::int32_t>(ends[0]), static_cast<std::int32_t>(ends[1]), source,
                          target, size, cap});
    transfers_.back().quiet = is_quiet(late);
    // What was measured has the latency in it.
    const double latency = measured.empty() ? latency_ns : 0;
    push(now_ + latency, EventKind::flow_start, late, number);
  }

  // What a step of a rank sends, and what it receives, inside of its node.
  const std::array<double, 2>& near_bytes(At at) {
    const StepId step = programs_[at.position].step_id(at.node);
    const auto [known, added] = near_bytes_[at.position].try_emplace(step);
    if (added) {
      const Rank self = programs_[at.position].plan().self;
      const Calls::Traffic& traffic = calls_.traffic(at.position, step);
      for (const PeerBytes& send : traffic.sends)
        known->second[0] += topology_.inside(self, send.peer) ? static_cast<double>(send.bytes) : 0;
      for (const PeerBytes& recv : traffic.recvs)
        known->second[1] += topology_.inside(self, recv.peer) ? static_cast<double>(recv.bytes) : 0;
    }
    return known->second;
  }

  const Curve& curve(Rank source, Rank target) const {
    return topology_.inside(source, target) ? cluster_.transfer.intra_node : cluster_.transfer.inter_node;
  }

  void start_flow(std::uint32_t number) {
    Transfer& transfer = transfers_[number];
    const Route route = folded(topology_.route(transfer.source, transfer.target));
    for (const LinkId link : route.links()) {
      if (transfer.narrowest < 0 ||
          topology_.capacities()[idx(link)] < topology_.capacities()[idx(transfer.narrowest)])
        transfer.narrowest = link;
    }
    const FlowId flow = network_.start(now_, route.links(), transfer.bytes, cap_of(transfer));
    if (of_flow_.size() <= idx(flow)) of_flow_.resize(idx(flow) + 1);
    of_flow_[idx(flow)] = number;
    if (slows_transfers()) {
      for (const std::size_t position : ends_of(transfer)) state(position).flows.push_back(flow);
    }
    if (transfer.from < 0 || transfer.quiet) return;
    add_transfers(idx(transfer.from), 1);
    add_transfers(idx(transfer.to), 1);
  }

  // ---- what kernels do to transfers ----

  bool slows_transfers() const { return cluster_.transfer.beside_kernels < 1; }

  std::array<std::size_t, 2> ends_of(const Transfer& transfer) const {
    return {calls_.position(transfer.source), calls_.position(transfer.target)};
  }

  double cap_of(const Transfer& transfer) {
    const auto computes = [&](std::size_t position) { return !state(position).kernels.none(); };
    const auto ends = ends_of(transfer);
    if (!slows_transfers() || transfer.quiet || std::none_of(ends.begin(), ends.end(), computes))
      return transfer.cap;
    const double alone = transfer.narrowest < 0
                             ? transfer.cap
                             : std::min(transfer.cap, topology_.capacities()[idx(transfer.narrowest)]);
    return cluster_.transfer.beside_kernels * alone;
  }

  // Kernels have begun where none ran, or ended.
  void adapt_flows(std::size_t position) {
    for (const FlowId flow : state(position).flows) {
      network_.set_cap(now_, flow, cap_of(transfers_[of_flow_[idx(flow)]]));
    }
  }

  void forget(FlowId flow, const Transfer& transfer) {
    for (const std::size_t position : ends_of(transfer)) std::erase(state(position).flows, flow);
  }

  // A link of another block is used by what the ranks there do, as the first block's is by its own.
  Route folded(const Route& route) const {
    if (!fold_.folded()) return route;
    Route links;
    for (const LinkId link : route.links()) links.add(topology_.in_first_block(link, fold_.blocks()));
    return links;
  }

  void end_flow(FlowId flow) {
    const Transfer& transfer = transfers_[of_flow_[idx(flow)]];
    if (slows_transfers()) forget(flow, transfer);
    TimedCall& call = calls_.call(transfer.call);
    const Calls::World& world = calls_.world(call);
    if (transfer.from < 0) {
      if (--call.open > 0) return;
      if (!transfer.quiet) {
        for (const std::int32_t position : world.positions) add_transfers(idx(position), -1);
      }
      return end_call(transfer.call);
    }
    for (const std::int32_t end : {transfer.from, transfer.to}) {
      const std::size_t position = idx(end);
      TimedCall::Member& member = call.members[idx(world.member_of[position])];
      if (!transfer.quiet) add_transfers(position, -1);
      if (--member.open > 0) continue;
      state(position).clock.comm(now_, -1);
      end_step({position, member.node}, transfer.narrowest < 0 ? "" : topology_.name(transfer.narrowest));
    }
  }

  // ---- results ----

  Timeline finish() {
    Timeline timeline;
    for (std::size_t p = 0; p < programs_.size(); ++p) {
      RankState& rank = ranks_[p];
      const std::int64_t stuck =
          std::count_if(rank.left.begin(), rank.left.end(), [](auto left) { return left > 0; });
      CP_INVARIANT(stuck == 0, stuck, " steps of rank ", programs_[p].plan().self, " never began");
      rank.clock.settle(rank.result);
      rank.result.rank = programs_[p].plan().self;
      rank.result.peak_bytes = peak_bytes(programs_[p].plan());
      timeline.time_ns = std::max(timeline.time_ns, rank.result.end_ns);
      timeline.ranks.push_back(std::move(rank.result));
    }
    for (std::size_t link = 0; link < topology_.capacities().size(); ++link) {
      const double bytes = network_.carried(static_cast<LinkId>(link));
      if (bytes == 0) continue;
      timeline.links.push_back({topology_.name(static_cast<LinkId>(link)), bytes,
                                bytes / (network_.capacity(static_cast<LinkId>(link)) * timeline.time_ns)});
    }
    std::stable_sort(timeline.links.begin(), timeline.links.end(),
                     [](const LinkUse& a, const LinkUse& b) { return a.utilisation > b.utilisation; });
    timeline.critical_path = path_.longest();
    timeline.stands_for = fold_.blocks();
    return timeline;
  }

  const Cluster& cluster_;
  const SoftwareProfile& software_;
  const TimelineOptions& options_;
  const Fold fold_;
  const KernelCost kernels_;
  const Topology topology_;
  FlowNetwork network_;
  const std::vector<Program> programs_;
  Calls calls_;
  CriticalPath path_;
  std::vector<RankState> ranks_;
  const double together_gbps_;  // of a GPU's transfers inside of its node
  std::vector<std::map<StepId, std::array<double, 2>>> near_bytes_;  // by position; only of exchanges
  std::map<std::size_t, GroupedProducts> grouped_;                   // by position
  std::vector<std::vector<double>> kernel_ns_;                       // by position, step; -1: not known yet

  double now_ = 0;
  std::vector<At> ready_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t events_made_ = 0;
  std::vector<Transfer> transfers_;
  std::vector<std::uint32_t> of_flow_;  // transfers_ by flow
};

}  // namespace

Timeline replay(std::span<const Plan> plans, const Cluster& cluster, const SoftwareProfile& software,
                const TimelineOptions& options) {
  const bool alike = options.gpu_slowdown.empty() && options.links.spread == 0 &&
                     options.links.links.empty() && !options.keep_spans && options.links.gpus.empty();
  if (options.fidelity == Fidelity::simulated || !alike)
    return Replay(plans, {}, cluster, software, options).run();
  const Fold fold = find_fold(plans, cluster);
  const std::size_t kept = fold.folded() ? static_cast<std::size_t>(fold.block) : plans.size();
  return Replay(plans.first(kept), fold, cluster, software, options).run();
}

}  // namespace cp::sim
