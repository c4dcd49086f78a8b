#include "sim/cost/timeline/rank_replay.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/units.h"
#include "sim/base/stop.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/cost/timeline/merge_stream.h"
#include "sim/cost/timeline/port_loads.h"
#include "sim/cost/timeline/rank_chains.h"
#include "sim/cost/timeline/rank_tasks.h"

namespace cp::sim {
namespace {

constexpr double kRounding = 1e-12;       // what is left of a step when it should have ended, over its time
constexpr double kSame = 1e-11;           // between two iterations, over the time of one
constexpr std::size_t kLongestCycle = 4;  // of iterations that take turns

// A flow or its delay, or a kernel.
struct Running {
  double delay_ns = 0, left = 0;  // in ns, and in bytes (of a kernel: in ns alone)
  double speed = 0;               // of what is left now; the delay has 1
  bool active() const { return delay_ns > 0 || left > 0; }
  double end_ns() const {
    return delay_ns > 0 ? delay_ns : left > 0 ? (speed > 0 ? left / speed : kNever) : kNever;
  }
};

struct Stream {
  std::size_t number = 0;
  std::span<const RankTask> tasks;
  std::span<const RankTasks::Part> parts;
  std::size_t part = 0, at = 0;  // the next task, or the one that runs
  std::int64_t iteration = 0;
  bool runs = false;
  std::uint64_t begun = 0;  // in the order of all beginnings
  double begin_ns = 0;
  std::array<Running, 2> work;  // kernel: the first; collective: inside, network
  std::size_t longer = 0;       // of the two: what ended last

  bool ended() const { return part == parts.size(); }
  const RankTask& task() const { return tasks[at]; }
};

// A moment when all streams have ended an iteration.
struct Moment {
  double now_ns = 0;
  std::int64_t iterations = 0;
  std::vector<std::int64_t> places;  // where streams are, by iterations from here
  std::vector<double> left_ns;
  std::vector<double> sums;
  double host_lead_ns = 0;  // how much earlier than now the host begins with the next iteration
  RankChains::State chains;
};

class RankReplay {
 public:
  RankReplay(const Plan& plan, const Cluster& cluster, const SoftwareProfile& software,
             const RankReplayOptions& options)
      : plan_(plan),
        cluster_(cluster),
        keep_spans_(options.keep_spans),
        steps_(steps_of(plan)),
        tasks_(rank_tasks(plan, steps_, cluster, software, settings_of(options.collectives, software),
                          options.factors)),
        chains_(tasks_, steps_.size(),
                cluster.gpu.kernel_launch_us * kNsPerUs * options.factors[Rate::launch]),
        done_(steps_.size(), 0),
        sums_(RankTask::kFixedSums + tasks_.groups.size(), 0) {
    for (std::size_t s = 0; s < tasks_.streams.size(); ++s) {
      Stream& stream = streams_.emplace_back();
      stream.number = s, stream.tasks = tasks_.streams[s].tasks, stream.parts = tasks_.streams[s].parts;
    }
    repeat_ = next_repeat(0);
  }

  StepClock run() {
    begin_ready();
    while (set_speeds() || waits_for_host()) {
      look_at_stop();
      advance();
      begin_ready();
      skip_iterations();
    }
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      CP_INVARIANT(streams_[s].ended(), "stream ", plan_.streams[s], " of rank ", plan_.self, " never ended");
    }
    return finish();
  }

 private:
  // ---- the host ----

  double issued_ns(const Stream& stream) const {
    return tasks_.host.issued_ns(stream.task().step, stream.parts[stream.part].segment, stream.iteration);
  }
  // All else that it needs is there.
  bool waits_for_host(const Stream& stream) const {
    return !stream.runs && !stream.ended() && issued_ns(stream) > now_ && is_ready(stream);
  }
  bool waits_for_host() const {
    return std::any_of(streams_.begin(), streams_.end(),
                       [&](const Stream& stream) { return waits_for_host(stream); });
  }

  // ---- beginning and ending ----

  bool is_ready(const Stream& stream) const {
    const RankTask& task = stream.task();
    for (std::size_t n = task.first_need; n < task.first_need + task.num_needs; ++n) {
      const RankNeed& need = tasks_.needs[n];
      if (done_[idx(need.step)] < need.ends + (need.inside ? stream.iteration : 0)) return false;
    }
    return true;
  }

  void begin_ready() {
    for (bool more = true; more;) {
      more = false;
      for (Stream& stream : streams_) {
        while (!stream.runs && !stream.ended() && issued_ns(stream) <= now_ && is_ready(stream)) {
          begin(stream);
          if (std::any_of(stream.work.begin(), stream.work.end(),
                          [](const Running& r) { return r.active(); }))
            break;
          end(stream);
          more = true;
        }
      }
    }
  }

  void begin(Stream& stream) {
    const RankTask& task = stream.task();
    stream.runs = true;
    stream.begun = begun_++;
    stream.begin_ns = now_;
    chains_.begin(stream.number, task, issued_ns(stream));
    stream.work = {}, stream.longer = 0;
    if (!task.collective) {
      stream.work[0].left = task.ns;
      if (!task.of_host) ++kernels_[task.sum];
      return;
    }
    ++collectives_;
    stream.work[0] = {task.load.inside.delay_ns, task.load.inside.bytes, 0};
    stream.work[1] = {task.load.network.delay_ns, task.load.network.bytes, 0};
    sums_[RankTask::kInside] += task.load.sent_inside;
    sums_[RankTask::kNetwork] += task.load.sent_network;
  }

  void end(Stream& stream) {
    const RankTask& task = stream.task();
    stream.runs = false;
    if (task.collective) {
      --collectives_;
    } else if (!task.of_host) {
      --kernels_[task.sum];
    }
    if (keep_spans_) spans_.push_back({task.step, stream.iteration, stream.begin_ns, stream.begin_ns, now_});
    chains_.end(stream.number, task, now_ - stream.begin_ns, now_, stream.longer != 0);
    ++done_[idx(task.step)];
    const RankTasks::Part& part = stream.parts[stream.part];
    if (++stream.at < part.end) return;
    stream.at = part.begin;
    if (++stream.iteration < part.count) return;
    stream.iteration = 0;
    if (++stream.part < stream.parts.size()) stream.at = stream.parts[stream.part].begin;
  }

  // ---- speeds ----

  bool computes() const {
    return kernels_[RankTask::kAttention] + kernels_[RankTask::kProduct] + kernels_[RankTask::kOther] > 0;
  }

  static bool transfers(const Stream& stream) {
    const auto moves = [](const Running& flow) { return flow.left > 0 && flow.delay_ns <= 0; };
    const auto will = [](const Running& flow) { return flow.left > 0; };
    return stream.task().load.transfers_at_once ? std::any_of(stream.work.begin(), stream.work.end(), will)
                                                : std::any_of(stream.work.begin(), stream.work.end(), moves);
  }

  // Whether anything runs.
  bool set_speeds() {
    bool disturbed = false, moves = false, any = false;
    int merges = 0, others = 0;
    for (const Stream& stream : streams_) {
      any = any || stream.runs;
      if (stream.runs && !stream.task().collective && !stream.task().of_host)
        ++(stream.task().merges ? merges : others);
      if (!stream.runs || !stream.task().collective || !transfers(stream)) continue;
      moves = true;
      disturbed = disturbed || !stream.task().quiet;
    }
    if (!any) return false;
    const GpuShares shares(merges, others);
    for (Stream& stream : streams_) {
      if (!stream.runs || stream.task().collective) continue;
      const RankTask& task = stream.task();
      stream.work[0].speed =
          (disturbed ? task.beside_transfers : 1) * (task.of_host ? 1 : shares.of(task.merges));
    }
    if (moves) {
      share_port(0, tasks_.inside_gbps, &PortLoad::inside);
      share_port(1, tasks_.network_gbps, &PortLoad::network);
    }
    return true;
  }

  // Max-min fair among the flows of the port, each up to what it could alone.
  void share_port(std::size_t port, double gbps, PortFlow PortLoad::*member) {
    const double keeps = computes() ? cluster_.transfer.beside_kernels : 1;
    double wanted = 0, weight = 0;
    sharing_.clear();
    for (Stream& stream : streams_) {
      if (!stream.runs || !stream.task().collective) continue;
      Running& flow = stream.work[port];
      if (flow.left <= 0 || flow.delay_ns > 0) continue;
      const PortFlow& load = stream.task().load.*member;
      flow.speed = load.gbps * (stream.task().quiet ? 1 : keeps);
      wanted += flow.speed * load.load, weight += load.flows * load.load;
      sharing_.push_back({&flow, &load});
    }
    if (wanted <= gbps * (1 + kRounding)) return;
    // Whoever wants less than its share leaves the rest to the others.
    for (bool again = true; again && !sharing_.empty();) {
      again = false;
      const double level = gbps / weight;
      for (std::size_t i = sharing_.size(); i-- > 0;) {
        const auto [flow, load] = sharing_[i];
        if (flow->speed > level * load->flows) continue;
        gbps -= flow->speed * load->load, weight -= load->flows * load->load;
        sharing_.erase(sharing_.begin() + static_cast<std::ptrdiff_t>(i));
        again = true;
      }
    }
    for (const auto& [flow, load] : sharing_) flow->speed = gbps / weight * load->flows;
  }

  // ---- time ----

  void advance() {
    double step = kNever;
    for (const Stream& stream : streams_) {
      if (!stream.runs) continue;
      for (const Running& work : stream.work) step = std::min(step, work.end_ns());
    }
    double issue = kNever;
    for (const Stream& stream : streams_) {
      if (waits_for_host(stream)) issue = std::min(issue, issued_ns(stream));
    }
    const bool is_issued = issue - now_ <= step;
    if (is_issued) step = issue - now_;
    CP_INVARIANT(step < kNever, "a kernel of rank ", plan_.self, " stands still for ever");
    count_time(step);
    now_ = is_issued ? issue : now_ + step;
    for (Stream& stream : streams_) {
      if (!stream.runs) continue;
      // Of the step where time is too long for it to show: what ends now ends, however far the clock has
      // come.
      const double rounding = kRounding * std::max(now_ - stream.begin_ns, step);
      bool active = false;
      for (std::size_t which = 0; which < stream.work.size(); ++which) {
        Running& work = stream.work[which];
        if (work.active()) stream.longer = which;
        if (work.delay_ns > 0) {
          work.delay_ns = work.delay_ns - step <= rounding ? 0 : work.delay_ns - step;
        } else if (work.left > 0) {
          const double left = work.left - step * work.speed;
          work.left = left <= rounding * work.speed ? 0 : left;
        }
        active = active || work.active();
      }
      if (!active) end(stream);
    }
  }

  void count_time(double step) {
    const auto running =
        std::find_if(kernels_.begin(), kernels_.end(), [](int number) { return number > 0; });
    if (running != kernels_.end()) {
      sums_[idx(running - kernels_.begin())] += step;
      if (collectives_ > 0) sums_[RankTask::kHidden] += step;
      return;
    }
    const Stream* first = nullptr;
    for (const Stream& stream : streams_) {
      if (stream.runs && (first == nullptr || stream.begun < first->begun)) first = &stream;
    }
    sums_[first == nullptr ? RankTask::kHost : first->task().sum] += step;
  }

  // ---- iterations that are like those before ----

  // The first Repeat from that segment on.
  std::int32_t next_repeat(std::int32_t segment) {
    moments_.clear();
    ended_ = 0;
    const auto size = static_cast<std::int32_t>(plan_.segments.size());
    while (segment < size && !std::holds_alternative<Repeat>(plan_.segments[idx(segment)])) ++segment;
    if (segment == size) return size;
    farthest_back_ = 0;
    for (const Step& step : std::get<Repeat>(plan_.segments[idx(segment)]).steps) {
      for (const Edge& edge : step.after)
        farthest_back_ = std::max<std::int64_t>(farthest_back_, edge.iterations_back);
    }
    return segment;
  }

  // Iterations of the Repeat that the stream has ended; all of them, when it has none there.
  std::int64_t ended_by(const Stream& stream) const {
    if (stream.ended() || stream.parts[stream.part].segment > repeat_) return all_iterations();
    if (stream.parts[stream.part].segment == repeat_) return stream.iteration;
    const bool comes = std::any_of(stream.parts.begin(), stream.parts.end(),
                                   [&](const RankTasks::Part& part) { return part.segment == repeat_; });
    return comes ? 0 : all_iterations();
  }
  std::int64_t all_iterations() const { return std::get<Repeat>(plan_.segments[idx(repeat_)]).count; }
  bool is_in_repeat(const Stream& stream) const {
    return !stream.ended() && stream.parts[stream.part].segment == repeat_;
  }

  // Layers repeat, and so does their timing once the streams have settled. We compare the moments at which
  // whole iterations have ended on every stream: if two of them look alike, what happened between them will
  // happen again, and is skipped by adding its times as often as it would.
  void skip_iterations() {
    // Finds the Repeat that still runs on some stream, and returns unless another iteration of it has ended
    // on all.
    while (repeat_ < static_cast<std::int32_t>(plan_.segments.size())) {
      std::int64_t ended = all_iterations();
      for (const Stream& stream : streams_) ended = std::min(ended, ended_by(stream));
      if (ended < all_iterations()) {
        if (ended <= ended_) return;
        ended_ = ended;
        break;
      }
      repeat_ = next_repeat(repeat_ + 1);
    }
    if (keep_spans_ || repeat_ == static_cast<std::int32_t>(plan_.segments.size())) return;
    Moment moment = this_moment();
    for (auto before = moments_.rbegin(); before != moments_.rend(); ++before) {
      // Edges to iterations that there never were bind nobody; later they do.
      if (before->iterations < farthest_back_ || !alike(*before, moment)) continue;
      skip_after(*before, moment);
      break;
    }
    // Slots take turns, so iterations may be alike only two, three or four apart: as many moments are kept.
    if (moments_.size() == kLongestCycle) moments_.erase(moments_.begin());
    moments_.push_back(std::move(moment));
  }

  Moment this_moment() const {
    Moment moment{now_,           ended_, {}, {}, sums_, now_ - tasks_.host.begins_ns(repeat_, ended_),
                  chains_.state()};
    for (const Stream& stream : streams_) {
      const std::int64_t from = is_in_repeat(stream) ? ended_ : 0;
      moment.places.insert(moment.places.end(),
                           {static_cast<std::int64_t>(stream.part), static_cast<std::int64_t>(stream.at),
                            stream.iteration - from, stream.runs ? 1 : 0});
      if (!stream.runs) continue;
      moment.left_ns.push_back(now_ - stream.begin_ns);
      if (!stream.task().collective) {
        moment.left_ns.push_back(stream.work[0].left);
        continue;
      }
      for (const auto& [work, flow] : {std::pair(&stream.work[0], &stream.task().load.inside),
                                       std::pair(&stream.work[1], &stream.task().load.network)}) {
        moment.left_ns.push_back(work->delay_ns);
        moment.left_ns.push_back(work->left > 0 ? work->left / flow->gbps : 0);
      }
    }
    return moment;
  }

  // A host that comes ever further ahead, and that nobody has waited for meanwhile, is not waited for later.
  static bool alike(const Moment& a, const Moment& b) {
    if (a.places != b.places) return false;
    const double most = kSame * (b.now_ns - a.now_ns);
    const bool host_is_ahead = b.host_lead_ns >= a.host_lead_ns && b.chains.host_waits == a.chains.host_waits;
    if (!host_is_ahead && std::abs(b.host_lead_ns - a.host_lead_ns) > most) return false;
    return std::equal(a.left_ns.begin(), a.left_ns.end(), b.left_ns.begin(), b.left_ns.end(),
                      [&](double x, double y) { return std::abs(x - y) <= most; });
  }

  // As often as no stream comes near the end: whoever waits for the last iteration still waits.
  void skip_after(const Moment& before, const Moment& now) {
    const std::int64_t cycle = now.iterations - before.iterations;
    std::int64_t most = all_iterations();
    for (const Stream& stream : streams_)
      most = std::min(most, all_iterations() - 2 - ended_by_or_none(stream));
    std::int64_t times = most / cycle;
    // What comes behind the Repeat on another stream begins as soon as the host has issued it, wherever the
    // Repeat is then.
    for (const Stream& stream : streams_) {
      if (is_in_repeat(stream) || !waits_for_host(stream)) continue;
      const double until = (issued_ns(stream) - now_) / (now.now_ns - before.now_ns);
      times = std::min(times, static_cast<std::int64_t>(std::min(until, 1e15)));
    }
    if (times <= 0) return;
    const auto factor = static_cast<double>(times);
    const double passed = factor * (now.now_ns - before.now_ns);
    now_ += passed;
    for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += factor * (now.sums[i] - before.sums[i]);
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      Stream& stream = streams_[s];
      if (stream.runs) {
        stream.begin_ns += passed;
        chains_.extend_running(s, before.chains, factor);
      }
      if (!is_in_repeat(stream)) continue;
      stream.iteration += times * cycle;
      chains_.extend_last(s, before.chains, factor, passed);
    }
    for (const StepRef& ref : steps_) {
      if (ref.segment != repeat_) continue;
      done_[idx(ref.id)] += times * cycle;
      chains_.extend_step(ref.id, before.chains, factor, passed);
    }
    ended_ += times * cycle;
    moments_.clear();
  }
  // For the limit: a stream that has nothing in this Repeat sets none.
  std::int64_t ended_by_or_none(const Stream& stream) const {
    const bool has = std::any_of(stream.parts.begin(), stream.parts.end(),
                                 [&](const RankTasks::Part& part) { return part.segment == repeat_; });
    return has ? ended_by(stream) : 0;
  }

  // ---- results ----

  StepClock finish() {
    StepClock clock;
    clock.time_ns = now_;
    clock.attention_ns = sums_[RankTask::kAttention], clock.product_ns = sums_[RankTask::kProduct];
    clock.other_kernel_ns = sums_[RankTask::kOther], clock.hidden_ns = sums_[RankTask::kHidden];
    clock.host_ns = sums_[RankTask::kHost], clock.offload_ns = sums_[RankTask::kOffload];
    clock.nvlink_bytes = sums_[RankTask::kInside], clock.nic_bytes = sums_[RankTask::kNetwork];
    for (std::size_t g = 0; g < tasks_.groups.size(); ++g)
      clock.exposed.push_back({tasks_.groups[g], sums_[RankTask::kFixedSums + g]});
    const RankChains::Ended* longest = nullptr;
    for (const Stream& stream : streams_) {
      const RankChains::Ended& last = chains_.last(stream.number);
      if (longest == nullptr || last.ns > longest->ns) longest = &last;
    }
    if (longest != nullptr) clock.path = longest->path;
    clock.spans = std::move(spans_);
    return clock;
  }

  const Plan& plan_;
  const Cluster& cluster_;
  const bool keep_spans_;
  const std::vector<StepRef> steps_;
  const RankTasks tasks_;
  RankChains chains_;
  std::vector<std::int64_t> done_;  // ends of each step
  std::vector<Stream> streams_;

  double now_ = 0;
  std::uint64_t begun_ = 0;
  std::array<int, 3> kernels_{};  // that run, by their sum
  int collectives_ = 0;           // under way
  std::vector<double> sums_;
  std::vector<std::pair<Running*, const PortFlow*>> sharing_;
  std::vector<Span> spans_;

  std::int32_t repeat_ = 0;         // the first segment, a Repeat, that not all streams have ended
  std::int64_t ended_ = 0;          // of its iterations, by all streams
  std::int64_t farthest_back_ = 0;  // of the edges in it
  std::vector<Moment> moments_;     // in it, oldest first
};

}  // namespace

double StepClock::exposed_ns() const {
  double sum = 0;
  for (const Exposed& part : exposed) sum += part.ns;
  return sum;
}

StepClock replay_rank(const Plan& plan, const Cluster& cluster, const SoftwareProfile& software,
                      const RankReplayOptions& options) {
  return RankReplay(plan, cluster, software, options).run();
}

}  // namespace cp::sim
