#include "sim/cost/timeline/rank_replay.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/base/units.h"
#include "shared/plan/operations.h"
#include "sim/base/stop.h"
#include "sim/cost/timeline/collective_cost.h"
#include "sim/cost/timeline/issue_time.h"
#include "sim/cost/timeline/kernel_cost.h"
#include "sim/cost/timeline/port_loads.h"

namespace cp::sim {
namespace {

constexpr double kRounding = 1e-12;       // what is left of a step when it should have ended, over its time
constexpr double kSame = 1e-11;           // between two iterations, over the time of one
constexpr std::size_t kLongestCycle = 4;  // of iterations that take turns

// Where the time of a rank goes, and what it sends: places in a list of sums. The groups follow.
enum Sum : std::size_t {
  kAttention,
  kProduct,
  kOther,
  kHidden,
  kHost,
  kOffload,
  kInside,
  kNetwork,
  kFixedSums
};

struct Need {  // what a step waits for
  StepId step = -1;
  std::int64_t ends = 0;  // of it; inside a Repeat: in iteration i, i + ends of them
  bool inside = false;
};

struct Task {
  StepId step = -1;
  bool collective = false;
  bool of_host = false;      // copies from and to its memory, and its own kernels: none of the GPU's
  std::size_t sum = kOther;  // where its time goes when it is a kernel; of a collective: its group's
  Rate rate = Rate::memory;  // of a kernel
  double ns = 0, beside_transfers = 1;  // of a kernel: alone; share of its speed beside transfers
  PortLoad load;                        // of a collective
  double issued_ns = 0;                 // after the segment's, or the iteration's, first step is begun with
  std::size_t first_need = 0, num_needs = 0;  // in the list of all
};

// Something that ended, and the chain of operations that led there: its times add up to the end.
struct Ended {
  double ns = 0;
  RateTimes path;
};

// The steps of a segment on one stream.
struct Part {
  std::int32_t segment = 0;
  std::int64_t count = 1;
  std::size_t begin = 0, end = 0;  // among the stream's tasks
};

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
  std::vector<Task> tasks;
  std::vector<Part> parts;
  std::size_t part = 0, at = 0;  // the next task, or the one that runs
  std::int64_t iteration = 0;
  bool runs = false;
  std::uint64_t begun = 0;  // in the order of all beginnings
  double ready_ns = -1, begin_ns = 0;
  std::array<Running, 2> work;  // kernel: the first; collective: inside, network
  std::size_t longer = 0;       // of the two: what ended last
  RateTimes before;             // of what runs: the chain up to its beginning
  Ended last;                   // task

  bool ended() const { return part == parts.size(); }
  const Task& task() const { return tasks[at]; }
};

// A moment when all streams have ended an iteration.
struct Moment {
  double now_ns = 0;
  std::int64_t iterations = 0;
  std::vector<std::int64_t> places;  // where streams are, by iterations from here
  std::vector<double> left_ns;
  std::vector<double> sums;
  double host_lead_ns = 0;              // how much earlier than now the host begins with the next iteration
  std::int64_t host_waits = 0;          // so far
  std::vector<RateTimes> before, last;  // by stream
  std::vector<Ended> ended;             // by step
};

class RankReplay {
 public:
  RankReplay(const Plan& plan, const Cluster& cluster, const SoftwareProfile& software,
             const RankReplayOptions& options)
      : plan_(plan),
        cluster_(cluster),
        software_(software),
        keep_spans_(options.keep_spans),
        factors_(options.factors),
        launch_ns_(cluster.gpu.kernel_launch_us * kNsPerUs),
        settings_(settings_of(options.collectives, software)),
        loads_(plan, cluster, settings_),
        steps_(steps_of(plan)),
        done_(steps_.size(), 0),
        last_ends_(steps_.size()),
        streams_(plan.streams.size()) {
    if (plan.self >= cluster.num_gpus()) {
      throw InvalidInput(str("rank ", plan.self, " has no GPU on ", cluster.name, ", which has ",
                             cluster.num_gpus(), "; use --nodes ", plan.self / cluster.node.gpus + 1));
    }
    add_tasks();
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
  // ---- what there is to do ----

  void add_tasks() {
    const KernelCost kernels(cluster_, software_);
    const GroupedProducts grouped(plan_);
    sums_.assign(kFixedSums, 0);
    for (const StepRef& ref : steps_) {
      Host& host = host_of(ref.segment);
      look_at_stop();
      Stream& stream = streams_[idx(ref.step->stream)];
      if (stream.parts.empty() || stream.parts.back().segment != ref.segment) {
        stream.parts.push_back({ref.segment, ref.count, stream.tasks.size(), stream.tasks.size()});
      }
      ++stream.parts.back().end;
      Task& task = stream.tasks.emplace_back();
      task.step = ref.id;
      if (!kernels.is_launched_before(ref.id, grouped))
        host.iteration_ns += issue_ns(*ref.step, software_) * factors_[Rate::host];
      task.issued_ns = host.iteration_ns;
      if (const auto* kernel = std::get_if<Kernel>(&ref.step->work)) {
        task.ns = kernels.ns(ref.id, *kernel, plan_, grouped);
        task.of_host = place_of(*kernel, plan_) != KernelPlace::gpu;
        if (std::holds_alternative<AttentionForward>(*kernel)) {
          task.sum = kAttention, task.beside_transfers = software_.forward_progress;
          task.rate = Rate::attention_forward;
        } else if (std::holds_alternative<AttentionBackward>(*kernel)) {
          task.sum = kAttention, task.beside_transfers = software_.backward_progress;
          task.rate = Rate::attention_backward;
        } else if (std::holds_alternative<MatMul>(*kernel)) {
          task.sum = kProduct, task.rate = Rate::products;
        } else if (task.of_host) {
          task.sum = kOffload, task.rate = Rate::offload;
        }
        const double launch_ns = std::min(launch_ns_, task.ns);
        task.ns = launch_ns * factors_[Rate::launch] + (task.ns - launch_ns) * factors_[task.rate];
      } else {
        const Collective& collective = std::get<Collective>(ref.step->work);
        task.collective = true;
        task.load = slower(loads_.of(collective));
        task.sum = sum_of(plan_.groups[idx(group_of(collective))].name);
      }
      task.first_need = needs_.size();
      for (const Edge& edge : ref.step->after) {
        const StepRef& before = steps_[idx(edge.step)];
        if (before.segment == ref.segment) {
          needs_.push_back({edge.step, 1 - edge.iterations_back, true});
        } else {
          needs_.push_back({edge.step, before.count, false});
        }
      }
      task.num_needs = needs_.size() - task.first_need;
    }
    if (!plan_.segments.empty()) host_of(static_cast<std::int32_t>(plan_.segments.size()) - 1);
  }

  // Of a segment: when the host begins with it, and how long it takes for one iteration. Segments come in
  // their order.
  struct Host {
    double begin_ns = 0, iteration_ns = 0;
  };
  Host& host_of(std::int32_t segment) {
    while (hosts_.size() <= idx(segment)) {
      const auto last = static_cast<std::int32_t>(hosts_.size()) - 1;
      const double begin = last < 0 ? 0
                                    : hosts_.back().begin_ns + static_cast<double>(iterations_of(last)) *
                                                                   hosts_.back().iteration_ns;
      hosts_.push_back({begin, 0});
    }
    return hosts_[idx(segment)];
  }
  std::int64_t iterations_of(std::int32_t segment) const {
    const auto* repeat = std::get_if<Repeat>(&plan_.segments[idx(segment)]);
    return repeat == nullptr ? 1 : repeat->count;
  }

  PortLoad slower(PortLoad load) const {
    for (const auto& [flow, rate] :
         {std::pair(&load.inside, Rate::inside), std::pair(&load.network, Rate::network)}) {
      flow->delay_ns *= factors_[Rate::latency], flow->gbps /= factors_[rate];
    }
    return load;
  }

  std::size_t sum_of(const std::string& group) {
    const auto found = std::find(group_names_.begin(), group_names_.end(), group);
    if (found != group_names_.end()) return kFixedSums + idx(found - group_names_.begin());
    group_names_.push_back(group);
    sums_.push_back(0);
    return sums_.size() - 1;
  }

  // ---- the host ----

  double issued_ns(const Stream& stream) const {
    const Host& host = hosts_[idx(stream.parts[stream.part].segment)];
    return host.begin_ns + static_cast<double>(stream.iteration) * host.iteration_ns +
           stream.task().issued_ns;
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
    const Task& task = stream.task();
    for (std::size_t n = task.first_need; n < task.first_need + task.num_needs; ++n) {
      const Need& need = needs_[n];
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
    const Task& task = stream.task();
    stream.runs = true;
    stream.begun = begun_++;
    stream.begin_ns = now_;
    stream.before = path_to(stream);
    stream.work = {}, stream.longer = 0;
    if (!task.collective) {
      stream.work[0].left = task.ns;
      if (!task.of_host) ++kernels_[task.sum];
      return;
    }
    ++collectives_;
    stream.work[0] = {task.load.inside.delay_ns, task.load.inside.bytes, 0};
    stream.work[1] = {task.load.network.delay_ns, task.load.network.bytes, 0};
    sums_[kInside] += task.load.sent_inside;
    sums_[kNetwork] += task.load.sent_network;
  }

  void end(Stream& stream) {
    const Task& task = stream.task();
    stream.runs = false;
    if (task.collective) {
      --collectives_;
    } else if (!task.of_host) {
      --kernels_[task.sum];
    }
    if (keep_spans_) spans_.push_back({task.step, stream.iteration, stream.begin_ns, stream.begin_ns, now_});
    stream.last = {now_, path_through(stream)};
    last_ends_[idx(task.step)] = stream.last;
    ++done_[idx(task.step)];
    const Part& part = stream.parts[stream.part];
    if (++stream.at < part.end) return;
    stream.at = part.begin;
    if (++stream.iteration < part.count) return;
    stream.iteration = 0;
    if (++stream.part < stream.parts.size()) stream.at = stream.parts[stream.part].begin;
  }

  // ---- the longest chain ----

  // It begins now because something that it waits for has just ended. That may be an earlier iteration's end
  // of a step that has ended again since; then both did so now, and either chain takes the whole time.
  RateTimes path_to(const Stream& stream) {
    const Ended* latest = &stream.last;
    const Task& task = stream.task();
    for (std::size_t n = task.first_need; n < task.first_need + task.num_needs; ++n) {
      const Ended& need = last_ends_[idx(needs_[n].step)];
      if (need.ns > latest->ns) latest = &need;
    }
    if (const double issued = issued_ns(stream); issued > latest->ns) {
      ++host_waits_;
      RateTimes of_host;
      of_host[Rate::host] = issued;
      return of_host;
    }
    return latest->path;
  }

  // With the task that ends now.
  RateTimes path_through(const Stream& stream) const {
    const Task& task = stream.task();
    RateTimes path = stream.before;
    const double ns = now_ - stream.begin_ns;
    const auto add = [&](Rate first, double first_ns, Rate rest) {
      first_ns = std::min(first_ns, ns);
      path[first] += first_ns, path[rest] += ns - first_ns;
    };
    if (!task.collective) {
      add(Rate::launch, launch_ns_ * factors_[Rate::launch], task.rate);
    } else if (stream.longer == 0) {
      add(Rate::latency, task.load.inside.delay_ns, Rate::inside);
    } else {
      add(Rate::latency, task.load.network.delay_ns, Rate::network);
    }
    return path;
  }

  // ---- speeds ----

  bool computes() const { return kernels_[kAttention] + kernels_[kProduct] + kernels_[kOther] > 0; }

  static bool transfers(const Stream& stream) {
    const auto moves = [](const Running& flow) { return flow.left > 0 && flow.delay_ns <= 0; };
    const auto will = [](const Running& flow) { return flow.left > 0; };
    return stream.task().load.transfers_at_once ? std::any_of(stream.work.begin(), stream.work.end(), will)
                                                : std::any_of(stream.work.begin(), stream.work.end(), moves);
  }

  // Whether anything runs.
  bool set_speeds() {
    bool disturbed = false, any = false;
    for (const Stream& stream : streams_) {
      any = any || stream.runs;
      disturbed = disturbed || (stream.runs && stream.task().collective && transfers(stream));
    }
    if (!any) return false;
    for (Stream& stream : streams_) {
      if (stream.runs && !stream.task().collective)
        stream.work[0].speed = disturbed ? stream.task().beside_transfers : 1;
    }
    if (disturbed) {
      share_port(0, loads_.inside_gbps() / factors_[Rate::inside], &PortLoad::inside);
      share_port(1, loads_.network_gbps() / factors_[Rate::network], &PortLoad::network);
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
      flow.speed = load.gbps * keeps;
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
      if (collectives_ > 0) sums_[kHidden] += step;
      return;
    }
    const Stream* first = nullptr;
    for (const Stream& stream : streams_) {
      if (stream.runs && (first == nullptr || stream.begun < first->begun)) first = &stream;
    }
    sums_[first == nullptr ? kHost : first->task().sum] += step;
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
                                   [&](const Part& part) { return part.segment == repeat_; });
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
    Moment moment{now_,        ended_, {}, {},        sums_, now_ - host_begins_with(ended_),
                  host_waits_, {},     {}, last_ends_};
    for (const Stream& stream : streams_) {
      moment.before.push_back(stream.before), moment.last.push_back(stream.last.path);
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

  double host_begins_with(std::int64_t iteration) const {
    const Host& host = hosts_[idx(repeat_)];
    return host.begin_ns + static_cast<double>(iteration) * host.iteration_ns;
  }

  // A host that comes ever further ahead, and that nobody has waited for meanwhile, is not waited for later.
  static bool alike(const Moment& a, const Moment& b) {
    if (a.places != b.places) return false;
    const double most = kSame * (b.now_ns - a.now_ns);
    const bool host_is_ahead = b.host_lead_ns >= a.host_lead_ns && b.host_waits == a.host_waits;
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
        lengthen(stream.before, before.before[s], factor);
      }
      if (!is_in_repeat(stream)) continue;
      stream.iteration += times * cycle;
      stream.last.ns += passed;
      lengthen(stream.last.path, before.last[s], factor);
    }
    for (const StepRef& ref : steps_) {
      if (ref.segment != repeat_) continue;
      done_[idx(ref.id)] += times * cycle;
      Ended& ended = last_ends_[idx(ref.id)];
      ended.ns += passed;
      lengthen(ended.path, before.ended[idx(ref.id)].path, factor);
    }
    ended_ += times * cycle;
    moments_.clear();
  }
  // By what the chain grew since then, so many times more. It may have become another chain of the same
  // length: what that has less of is not taken away more than once.
  static void lengthen(RateTimes& path, const RateTimes& then, double factor) {
    RateTimes grown;
    double all = 0, more = 0;
    for (std::size_t i = 0; i < kNumRates; ++i) {
      const double by = path.of[i] - then.of[i];
      all += by, more += std::max(by, 0.0);
      grown.of[i] = std::max(by, 0.0);
    }
    if (more > 0) path.add(grown, factor * all / more);
  }
  // For the limit: a stream that has nothing in this Repeat sets none.
  std::int64_t ended_by_or_none(const Stream& stream) const {
    const bool has = std::any_of(stream.parts.begin(), stream.parts.end(),
                                 [&](const Part& part) { return part.segment == repeat_; });
    return has ? ended_by(stream) : 0;
  }

  // ---- results ----

  StepClock finish() {
    StepClock clock;
    clock.time_ns = now_;
    clock.attention_ns = sums_[kAttention], clock.product_ns = sums_[kProduct];
    clock.other_kernel_ns = sums_[kOther], clock.hidden_ns = sums_[kHidden];
    clock.host_ns = sums_[kHost], clock.offload_ns = sums_[kOffload];
    clock.nvlink_bytes = sums_[kInside], clock.nic_bytes = sums_[kNetwork];
    for (std::size_t g = 0; g < group_names_.size(); ++g)
      clock.exposed.push_back({group_names_[g], sums_[kFixedSums + g]});
    const auto longest =
        std::max_element(streams_.begin(), streams_.end(),
                         [](const Stream& a, const Stream& b) { return a.last.ns < b.last.ns; });
    if (longest != streams_.end()) clock.path = longest->last.path;
    clock.spans = std::move(spans_);
    return clock;
  }

  const Plan& plan_;
  const Cluster& cluster_;
  const SoftwareProfile& software_;
  const bool keep_spans_;
  const RateFactors factors_;
  const double launch_ns_;
  const CollectiveSettings settings_;
  PortLoads loads_;
  const std::vector<StepRef> steps_;
  std::vector<Need> needs_;
  std::vector<std::int64_t> done_;  // ends of each step
  std::vector<Ended> last_ends_;    // of each step
  std::vector<Stream> streams_;
  std::vector<Host> hosts_;  // by segment
  std::vector<std::string> group_names_;

  double now_ = 0;
  std::uint64_t begun_ = 0;
  std::int64_t host_waits_ = 0;   // steps that began later because they were not issued before
  std::array<int, 3> kernels_{};  // that run, by Sum
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
