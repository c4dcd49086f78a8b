#include "runtime/nccl/nccl_device.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <span>
#include <utility>

#include "runtime/begun_collectives.h"
#include "runtime/cuda/cuda_device_memory.h"
#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_graphs.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/cuda_streams.h"
#include "runtime/cuda/host_copies.h"
#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/step_kernels.h"
#include "runtime/errors.h"
#include "runtime/latest_steps.h"
#include "runtime/nccl/first_error.h"
#include "runtime/nccl/gpu_facts.h"
#include "runtime/nccl/graph_runs.h"
#include "runtime/nccl/nccl_agreement.h"
#include "runtime/nccl/nccl_communicators.h"
#include "runtime/nccl/nccl_error.h"
#include "runtime/nccl/nccl_handles.h"
#include "runtime/nccl/nccl_launch.h"
#include "runtime/nccl/nccl_memory.h"
#include "runtime/nccl/nccl_order.h"
#include "runtime/nccl/nccl_prepared.h"
#include "runtime/nccl/nccl_steps.h"
#include "runtime/nccl/nccl_watchdog.h"
#include "runtime/nccl/nccl_windows.h"
#include "runtime/nccl/plan_graphs.h"
#include "runtime/planned_work.h"
#include "runtime/step_times.h"
#include "shared/plan/bindings.h"
#include "shared/plan/kept_plans.h"
#include "shared/plan/lane_arenas.h"
#include "shared/plan/lanes.h"

namespace cp::runtime {
namespace {

// The largest number of steps whose events wait to be read. The events of a run fit if it has no more steps.
// Chosen: two events for each of 16 Ki steps are 32 Ki events of CUDA.
constexpr std::size_t kUnreadTimes = 16'384;

std::atomic<bool> g_left_behind{false};

const NcclOptions& started(const NcclOptions& options) {
  require_gpu(options.cuda_device);
  CP_CUDA(cudaSetDevice(options.cuda_device));
  load_kernels();
  return options;
}

const Target& target_of(const NcclOptions& options) {
  return options.target != nullptr ? *options.target : gpu_target_of(options.cuda_device);
}

}  // namespace

class NcclDevice::Impl {
 public:
  explicit Impl(NcclOptions options)
      : options_(std::move(options)),
        target_(target_of(started(options_))),
        handles_(options_.cuda_device),
        communicators_(options_, handles_),
        agreement_(options_.rank, agree_while_idle()),
        watchdog_({.rank = options_.rank,
                   .cuda_device = options_.cuda_device,
                   .timeout = options_.timeout,
                   .on_collective = options_.on_collective,
                   .on_collective_end = options_.on_collective_end,
                   .may_wait = options_.may_wait,
                   .on_error = [this](const std::exception_ptr& error) { fail(error); }},
                  handles_) {}

  // Ends the communicators. Returns whether nothing of them is left, so that the rest can be destroyed.
  bool end() {
    watchdog_.stop();
    bool destroys = false;
    try {
      if (is_idle()) {
        collect_all_records();
        prepared_.for_each([&](NcclPrepared& prepared) {
          communicators_.deregister(prepared.registered);
          windows_.remove(prepared.windows);
        });
        graphs_.drop_all();
        destroys = handles_.destroy();
      }
    } catch (const Error&) {  // the GPU is lost
    }
    if (!destroys) handles_.abort();
    graphs_.drop_all();
    return handles_.await_end(destroys ? options_.destroy_timeout : options_.abort_timeout);
  }

  Rank rank() const { return options_.rank; }
  const Target& target() const { return target_; }

  void prepare(const Plan& plan, const Bindings& bindings) {
    CP_CUDA(cudaSetDevice(options_.cuda_device));
    synchronize();
    // What the caller enqueued for its buffers, on whichever stream, has happened: a run of this plan waits
    // for no stream of the caller's.
    CP_CUDA(cudaDeviceSynchronize());
    std::unique_ptr<NcclPrepared>& place = prepared_.first();
    std::shared_ptr<CudaArena> before;
    if (place) {
      collect_records(*place);
      communicators_.deregister(place->registered);
      windows_.remove(place->windows);
      before = place->memory->arena();
    }
    used_ = nullptr;
    if (place) latest_.forget(*place->plan);
    place.reset();
    steps_.unread.clear();
    times_.forget();
    events_.restart();
    place = make_ready(plan, bindings, 0, std::move(before));
    used_ = place.get();
  }

  PreparedId keep(const Plan& plan, const Bindings& bindings, LaneId lane) {
    CP_CUDA(cudaSetDevice(options_.cuda_device));
    events_.make_all(!options_.traces);
    std::unique_ptr<NcclPrepared> made = make_ready(plan, bindings, lane, arenas_.of(lane));
    if (options_.graphs) graph_runs_.allow(*made);
    share(lane, made->memory->arena());
    lanes_.keep(plan, lane);
    return prepared_.add(std::move(made));
  }

  void use(PreparedId id, const Bindings& changed) {
    NcclPrepared& next = prepared_.at(id);
    next.memory->bind(*next.plan, changed);
    used_ = &next;
  }

  // Events and times of the plan's steps point to them. After an error what hangs may still use the plan's
  // memory, so that stays until the device goes, and nothing is asked of a GPU that may not answer.
  void release(PreparedId id) {
    NcclPrepared& released = prepared_.at(id);
    if (used_ == &released) used_ = nullptr;
    lanes_.release(*released.plan, released.lane);
    latest_.forget(*released.plan);
    if (handles_.is_ending()) {
      watchdog_.drain();
      events_.forget();
      steps_.unread.clear();
      times_.settle();
      return;
    }
    if (options_.traces) {
      await_streams();
      watchdog_.drain();
      read_times();
      times_.settle();
      collect_records(released);
    } else {
      watchdog_.drain(released.under_way);
    }
    communicators_.deregister(released.registered);
    windows_.remove(released.windows);
    prepared_.remove(id);
  }

  void launch(const StepRef& ref, std::int64_t iteration) {
    if (handles_.is_ending()) return;
    try {
      const StreamId stream = device_stream(ref.step->stream);
      latest_.launched(stream, *used_->plan, ref.id);
      if (!graph_runs_.takes(*used_, ref, iteration, stream)) launch_step(ref, iteration, stream);
    } catch (...) {
      fail_at_latest();
    }
  }

  EventId record(StreamId stream) {
    return enqueued([&] {
      const StreamId on = device_stream(stream);
      const std::optional<EventId> of_graph = graph_runs_.record(on);
      return of_graph ? *of_graph : events_.record(on);
    });
  }
  void wait(StreamId stream, EventId event) {
    enqueued([&] {
      const StreamId on = device_stream(stream);
      if (!graph_runs_.wait(on, event)) events_.wait(on, event);
      return event;
    });
  }

  void begin_run(CallerStream caller) {
    if (caller != nullptr) refuse_captured(caller);
    graph_runs_.leave();
    in_callers_stream_ = true;
    enqueued([&] {
      const StreamId first = device_stream(0);
      CP_CUDA(cudaEventRecord(from_caller_.get(), static_cast<cudaStream_t>(caller)));
      CP_CUDA(cudaStreamWaitEvent(cuda_stream(first), from_caller_.get(), 0));
      events_.enqueued(first);
      begin_behind_lane(first);
      return EventId{0};
    });
  }
  void begin_run_after(std::span<const EventId> events) {
    graph_runs_.leave();
    in_callers_stream_ = false;
    enqueued([&] {
      const StreamId first = device_stream(0);
      for (const EventId event : events) events_.wait(first, event);
      begin_behind_lane(first);
      return EventId{0};
    });
  }
  void end_run(CallerStream caller, EventId end) {
    enqueued([&] {
      graph_runs_.end(end);
      lanes_.last_end(used_->lane) = end;
      if (in_callers_stream_) events_.wait(static_cast<cudaStream_t>(caller), end);
      return end;
    });
    graph_runs_.leave();
  }

  const GraphUse& graph_use() const { return graph_runs_.use(); }

  bool has_happened(EventId event) {
    if (error_ || handles_.is_ending()) return false;
    return enqueued([&] { return EventId{events_.has_happened(event)}; }) != 0;
  }

  void await(EventId event) {
    await_on_host(handles_, [&] { return has_happened(event); });
    if (error_) throw_error();
  }

  void synchronize() {
    await_streams();
    watchdog_.drain();
    if (error_) throw_error();
    order_.forget();
    graph_runs_.forget();
    latest_.forget();
    communicators_.forget_ends();
    if (options_.traces && events_.left() < launches_of_run_) read_times();
  }

  void upload(BufferId buffer, std::span<const std::byte> host) {
    copies_.upload(data("upload", buffer, host.size()), host);
  }
  void download(BufferId buffer, std::span<std::byte> host) {
    copies_.download(host, data("download", buffer, host.size()));
  }

  std::vector<OpRecord> take_observed() {
    watchdog_.drain();
    collect_all_records();
    communicators_.reset_sequences();
    // Plans that are kept run by turns, and each has left its own records.
    std::ranges::sort(observed_, {},
                      [](const NcclRecord& its) { return std::pair(its.record.stream, its.launch); });
    std::vector<OpRecord> records;
    for (NcclRecord& its : std::exchange(observed_, {})) records.push_back(std::move(its.record));
    return records;
  }

  DeviceActivity activity() const { return {!watchdog_.is_stalled() && !meets_idle_.load(), 0}; }

  DeviceTimes take_times() {
    read_times();
    return times_.take();
  }

  // Any thread may call this.
  void abort() {
    fail(std::make_exception_ptr(
        PeerLost(str("rank ", options_.rank, ": the communicators were aborted on this side"))));
  }

 private:
  // Keeps the error if it is the first, and begins the end of the communicators. Any thread may call this.
  void fail(const std::exception_ptr& error) {
    error_.set(error);
    handles_.abort();
    graphs_.drop_all();  // or the abort would wait for them
  }

  // In a handler: as fail(), with the steps that were launched last, since CUDA reports an error of running
  // work by any later call and says of none where it came from. The errors of collectives name theirs.
  void fail_at_latest() {
    const std::string latest = latest_.text();
    try {
      throw;
    } catch (const Error& error) {
      if (!error.facts().operation.empty()) return fail(std::current_exception());
      ErrorFacts facts = error.facts();
      facts.culprits = {options_.rank};
      fail(std::make_exception_ptr(
          Error(error.kind(),
                str("rank ", options_.rank, ": ", error.what(),
                    latest.empty() ? "" : str("; the steps launched last are ", latest)),
                std::move(facts))));
    } catch (...) {
      fail(std::current_exception());
    }
  }

  [[noreturn]] void throw_error() const {
    if (!handles_.await_end(options_.abort_timeout)) {
      error_.rethrow(str("; its communicators did not abort within ",
                         static_cast<double>(options_.abort_timeout.count()) / 1000,
                         " s, so that they and all memory of the device are left behind"));
    }
    error_.rethrow("");
  }

  // ---- prepare

  std::unique_ptr<NcclPrepared> make_ready(const Plan& plan, const Bindings& bindings, LaneId lane,
                                           std::shared_ptr<CudaArena> arena) {
    communicators_.make_room(plan.groups, agreement_ && is_idle());
    auto prepared = std::make_unique<NcclPrepared>();
    prepared->plan = &plan;
    prepared->lane = lane;
    prepared->streams = lanes_.streams_for(plan, lane, priorities(plan));
    add_streams(plan, prepared->streams, lane);
    connect(*prepared);
    build(*prepared, bindings, std::move(arena));
    prepared->digests = collective_digests(plan);
    if (options_.traces) count_steps(plan);
    return prepared;
  }

  // Makes the arena that of the lane's plans, if it is greater than theirs.
  void share(LaneId lane, const std::shared_ptr<CudaArena>& arena) {
    if (!arenas_.offer(lane, arena)) return;
    if (const EventId last = lanes_.last_end(lane); last >= 0) await(last);
    prepared_.for_each_in(lane, [&](NcclPrepared& kept) {
      communicators_.deregister(kept.registered);
      kept.memory->move_to(*kept.plan, arena);
      if (kept.graphs) kept.graphs->clear();
      if (options_.communicators.register_buffers) register_buffers(kept);
    });
  }

  static constexpr int kNormal = 0, kHigh = 1;
  // A plan's stream with collectives gets a CUDA stream of high priority, so that a collective need not wait
  // behind the thread blocks of a long kernel.
  static std::vector<int> priorities(const Plan& plan) {
    std::vector<int> kinds(plan.streams.size(), kNormal);
    for (const StepRef& ref : steps_of(plan)) {
      if (is_collective(*ref.step)) kinds[static_cast<std::size_t>(ref.step->stream)] = kHigh;
    }
    return kinds;
  }

  void add_streams(const Plan& plan, const std::vector<StreamId>& streams, LaneId lane) {
    const std::vector<int> kinds = priorities(plan);
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (static_cast<std::size_t>(streams[i]) < cuda_streams_.size()) continue;
      cuda_streams_.emplace_back(kinds[i] == kHigh ? CudaStream::Priority::high
                                                   : CudaStream::Priority::normal);
      events_.add_stream(cuda_streams_.back().get());
    }
    times_.require(cuda_streams_.size(), lane);
  }

  StreamId device_stream(StreamId stream) const {
    CP_INVARIANT(used_ != nullptr, "no plan is prepared");
    return used_->streams.at(static_cast<std::size_t>(stream));
  }
  cudaStream_t cuda_stream(StreamId stream) const {
    return cuda_streams_[static_cast<std::size_t>(stream)].get();
  }

  // Runs f(), which calls NCCL and leaves communicators of no use if it throws.
  template <class F>
  void or_fail(const F& f) {
    try {
      f();
    } catch (...) {
      fail(std::current_exception());
      throw_error();
    }
  }

  void connect(NcclPrepared& prepared) {
    const Plan& plan = *prepared.plan;
    // Ranks of one GPU have it by turns.
    const std::int64_t turns =
        options_.each_is_a_host ? std::max<std::int64_t>(1, std::ssize(options_.here)) : 1;
    or_fail([&] {
      auto connected = communicators_.connect(plan.groups, planned_time(plan) * turns, agreement_);
      prepared.members = std::move(connected.members);
      prepared.longest = connected.longest;
    });
  }

  // Graphs of kernels take their time, another one on each rank. So they are built when nobody waits in a
  // call that has a time limit, and nobody launches before all have built theirs.
  void build(NcclPrepared& prepared, const Bindings& bindings, std::shared_ptr<CudaArena> arena) {
    const Plan& plan = *prepared.plan;
    try {
      prepared.memory = std::make_unique<CudaMemory>(
          plan, bindings, options_.communicators.register_buffers ? nccl_allocator() : cuda_allocator(),
          std::move(arena), nccl_allocator());
      prepared.kernels.emplace(plan, prepared.streams, *prepared.memory, libraries_);
    } catch (const std::exception& error) {
      tell_failure(plan, error.what());
      throw;
    }
    // Before windows, which all ranks register together: nobody may wait there for one that could not build.
    agreement_.ready(plan.groups, "");
    or_fail([&] {
      if (options_.communicators.register_buffers) register_buffers(prepared);
      windows_.add(plan, prepared.members, prepared.memory->symmetric(), prepared.windows);
      prepared.launches.emplace(plan, *prepared.memory, prepared.members, prepared.windows, options_.traces);
    });
  }

  // The others wait for this rank; what they answer, or that they are lost, changes nothing here.
  void tell_failure(const Plan& plan, const std::string& why) {
    try {
      agreement_.ready(plan.groups, why);
    } catch (const Error&) {
    }
  }

  // While it meets others on a GPU that is idle, this rank does nothing at all, which activity() says.
  NcclAgreement::Agree agree_while_idle() {
    if (!options_.agree) return {};
    return [this](const Group& group, std::int64_t number, const std::string& own) {
      struct Ended {
        std::atomic<bool>& flag;
        ~Ended() { flag.store(false); }
      } const ended{meets_idle_};
      meets_idle_.store(is_idle());
      return options_.agree(group, number, own);
    };
  }

  void register_buffers(NcclPrepared& prepared) {
    communicators_.register_buffers(prepared.members, buffers_of(*prepared.plan, *prepared.memory),
                                    prepared.registered);
  }

  // The arena and the caller's buffers, without empty ones.
  static std::vector<std::span<std::byte>> buffers_of(const Plan& plan, const CudaMemory& memory) {
    std::vector<std::span<std::byte>> buffers;
    std::byte* arena = nullptr;
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
      const Buffer& buffer = plan.buffers[i];
      std::byte* const data = memory.data(static_cast<BufferId>(i));
      if (buffer.bytes() == 0 || buffer.symmetric) continue;  // windows are registered already
      if (buffer.kind == BufferKind::temporary) {
        arena = data - (buffer.offset_bytes - plan.symmetric_bytes);
      } else {
        buffers.emplace_back(data, static_cast<std::size_t>(buffer.bytes()));
      }
    }
    if (arena != nullptr)
      buffers.emplace_back(arena, static_cast<std::size_t>(plan.arena_bytes - plan.symmetric_bytes));
    return buffers;
  }

  void count_steps(const Plan& plan) {
    std::size_t launches = 0;
    for (const StepRef& ref : steps_of(plan)) launches += static_cast<std::size_t>(ref.count);
    // For two runs, so that events are read after every other run at most; 1024 (chosen) for small plans.
    const std::size_t room = std::clamp<std::size_t>(2 * launches, 1024, kUnreadTimes);
    launches_of_run_ = std::max(launches_of_run_, launches);
    events_.reserve(room);
    steps_.unread.reserve(room);
  }

  // ---- running

  void launch_step(const StepRef& ref, std::int64_t iteration, StreamId stream) {
    const Step& step = *ref.step;
    if (options_.before_step) {
      options_.before_step(step, cuda_stream(stream));
      events_.enqueued(stream);
    }
    if (const Collective* collective = std::get_if<Collective>(&step.work)) {
      launch_collective(ref, *collective, iteration, stream);
      return;
    }
    if (options_.traces) {
      static_cast<void>(events_.begin(stream));
      steps_.unread.push_back({&step, stream, nullptr});
    } else {
      events_.enqueued(stream);
    }
    used_->kernels->launch(ref, iteration, cuda_stream(stream));
    if (options_.traces) events_.end();
  }

  // The watchdog hears of a collective before its calls, since these may block (the first ones of a
  // communicator connect). The waits for room and for a turn come before the begin is recorded, so that they
  // do not count as time of the collective.
  void launch_collective(const StepRef& ref, const Collective& collective, std::int64_t iteration,
                         StreamId stream) {
    const Step& step = *ref.step;
    const cudaStream_t on = cuda_stream(stream);
    NcclCommunicator& member = used_->launches->member(group_of(collective));
    if (!order_.await_room(member, handles_) || !steps_.await_pair(1)) return;
    if (order_.await_turn(member, on)) events_.enqueued(stream);
    const StepEvents::Pair pair = options_.traces ? events_.begin(stream) : events_.begin_untimed(stream);
    if (options_.traces) steps_.unread.push_back({&step, stream, nullptr});
    if (!handles_.enter()) return;
    const WatchedCollective watched = used_->begin(collective, member, ref.id, stream, pair);
    watchdog_.begin(watched);
    const ncclResult_t result =
        used_->launches->issue(collective, {step.stream, steps_.launches++, iteration}, watched.sequence, on);
    handles_.leave();
    if (result == ncclInProgress)
      communicators_.await(*member.comm, describe(options_.rank, watched), facts_of(options_.rank, watched));
    if (result != ncclSuccess && result != ncclInProgress)
      throw_nccl(result, *member.comm, describe(options_.rank, watched), facts_of(options_.rank, watched));
    if (options_.traces) {
      events_.end();
    } else {
      events_.end_untimed(stream, pair);
    }
    watchdog_.issued();
    order_.done(member, on, pair.end);
  }

  void begin_behind_lane(StreamId first) {
    if (const EventId before = lanes_.last_end(used_->lane); before >= 0) events_.wait(first, before);
    graph_runs_.begin(*used_, first);
  }

  // Runs f(). Its errors are kept for synchronize() to throw, like all errors of running work.
  template <class F>
  EventId enqueued(const F& f) {
    if (handles_.is_ending()) return 0;
    try {
      return f();
    } catch (...) {
      fail_at_latest();
      return 0;
    }
  }

  bool is_idle() {
    if (handles_.is_ending()) return false;
    try {
      return std::ranges::all_of(cuda_streams_,
                                 [](const CudaStream& stream) { return is_finished(stream.get()); });
    } catch (...) {
      fail_at_latest();
      return false;
    }
  }

  void await_streams() {
    await_on_host(handles_, [this] { return is_idle(); });
  }

  // The address of the plan's buffer, for a copy of `host_bytes` bytes to or from the host. `what` is the
  // caller's name, for messages.
  std::byte* data(const char* what, BufferId buffer, std::size_t host_bytes) const {
    CP_INVARIANT(used_ != nullptr, "no plan is prepared");
    check_host_copy(*used_->plan, what, buffer, host_bytes);
    return used_->memory->data(buffer);
  }

  // ---- what was left behind

  void collect_all_records() {
    prepared_.for_each([this](NcclPrepared& prepared) { collect_records(prepared); });
  }

  // Keeps the records of the collectives that were issued; after an error only of those that have ended.
  void collect_records(NcclPrepared& prepared) {
    if (!prepared.launches || !options_.traces) return;
    const std::vector<std::int64_t> latest = watchdog_.take_ended();
    ended_.resize(std::max(ended_.size(), latest.size()));
    for (std::size_t stream = 0; stream < latest.size(); ++stream) ended_[stream] += latest[stream];
    for (NcclRecord& its : prepared.launches->take_records()) {
      const auto stream =
          static_cast<std::size_t>(prepared.streams[static_cast<std::size_t>(its.record.stream)]);
      if (stream >= ended_.size() || ended_[stream] <= 0) {
        if (error_) continue;
      } else {
        --ended_[stream];
      }
      its.record.stream = stream_in_traces(prepared.lane, its.record.stream);
      observed_.push_back(std::move(its));
    }
  }

  void read_times() {
    const std::vector<StepEvents::Interval> intervals = events_.take();
    for (std::size_t i = 0; i < intervals.size(); ++i) {
      const auto& [begin_ns, end_ns] = intervals[i];
      const NcclSteps::Unread& launched = steps_.unread[i];
      if (begin_ns < 0) continue;
      if (launched.graph == nullptr) times_.stream(launched.stream).add(*launched.step, begin_ns, end_ns);
      if (launched.graph == nullptr) continue;
      for (const PlanGraph::Launched& one : launched.graph->steps)
        times_.stream(one.stream).add_of_graph(*one.step, begin_ns, end_ns);
    }
    steps_.unread.clear();
  }

  const NcclOptions options_;
  const Target& target_;
  NcclHandles handles_;
  FirstError error_;
  NcclCommunicators communicators_;
  std::atomic<bool> meets_idle_{false};
  NcclAgreement agreement_;
  NcclWindows windows_{handles_};
  LibraryKernels libraries_{FusedKernels(FusedOptions{options_.graph_folder, options_.on_note}), {}};
  HostCopies copies_;
  NcclOrder order_{nccl_keeps_launch_order()};

  Lanes lanes_;
  std::vector<CudaStream> cuda_streams_;  // those of lanes_
  StepEvents events_;
  CudaEvent from_caller_{CudaEvent::Timing::off};

  NcclPrepared* used_ = nullptr;   // the plan in use
  bool in_callers_stream_ = true;  // the run under way
  CudaGraphs graphs_;              // those of prepared_
  LatestSteps latest_;
  KeptPlans<NcclPrepared> prepared_;
  LaneArenas<CudaArena> arenas_;  // of plans that are kept

  NcclSteps steps_{.options = options_,
                   .handles = handles_,
                   .order = order_,
                   .events = events_,
                   .watchdog = watchdog_,
                   .streams = cuda_streams_};
  GraphRuns graph_runs_{graphs_, steps_, [this](const StepRef& ref, std::int64_t iteration, StreamId stream) {
                          launch_step(ref, iteration, stream);
                        }};

  // With traces alone.
  std::size_t launches_of_run_ = 0;  // the most of any plan
  StepTimes times_;
  std::vector<std::int64_t> ended_;  // collectives without a record yet, by stream
  std::vector<NcclRecord> observed_;

  NcclWatchdog watchdog_;  // last: uses the above
};

NcclDevice::NcclDevice(NcclOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

bool left_behind() { return g_left_behind.load(); }

// What hangs still uses the device's memory and streams. So these are moved to a list that nobody destroys.
NcclDevice::~NcclDevice() {
  if (impl_->end()) return;
  g_left_behind.store(true);
  static std::mutex mutex;
  static auto& left_behind = *new std::vector<std::unique_ptr<Impl>>;
  const std::lock_guard lock(mutex);
  left_behind.push_back(std::move(impl_));
}

Rank NcclDevice::rank() const { return impl_->rank(); }
const Target& NcclDevice::target() const { return impl_->target(); }
void NcclDevice::prepare(const Plan& plan, const Bindings& bindings) {
  refuse_foreign_plan(plan, *this, "nccl");
  refuse_copy_engines(plan, nccl_versions());
  impl_->prepare(plan, bindings);
}
void NcclDevice::launch(const StepRef& step, std::int64_t iteration) { impl_->launch(step, iteration); }
EventId NcclDevice::record(StreamId stream) { return impl_->record(stream); }
void NcclDevice::wait(StreamId stream, EventId event) { impl_->wait(stream, event); }
void NcclDevice::synchronize() { impl_->synchronize(); }
void NcclDevice::upload(BufferId buffer, std::span<const std::byte> host) { impl_->upload(buffer, host); }
void NcclDevice::download(BufferId buffer, std::span<std::byte> host) { impl_->download(buffer, host); }
PreparedId NcclDevice::keep(const Plan& plan, const Bindings& bindings, LaneId lane) {
  refuse_foreign_plan(plan, *this, "nccl");
  refuse_copy_engines(plan, nccl_versions());
  return impl_->keep(plan, bindings, lane);
}
void NcclDevice::use(PreparedId prepared, const Bindings& changed) { impl_->use(prepared, changed); }
void NcclDevice::release(PreparedId prepared) { impl_->release(prepared); }
bool NcclDevice::has_happened(EventId event) { return impl_->has_happened(event); }
void NcclDevice::await(EventId event) { impl_->await(event); }
void NcclDevice::begin_run(CallerStream caller) { impl_->begin_run(caller); }
void NcclDevice::begin_run_after(std::span<const EventId> events) { impl_->begin_run_after(events); }
void NcclDevice::end_run(CallerStream caller, EventId end) { impl_->end_run(caller, end); }
const GraphUse& NcclDevice::graph_use() const { return impl_->graph_use(); }
std::vector<OpRecord> NcclDevice::take_observed() { return impl_->take_observed(); }
DeviceTimes NcclDevice::take_times() { return impl_->take_times(); }
std::unique_ptr<DeviceMemory> NcclDevice::memory() { return std::make_unique<CudaDeviceMemory>(); }
DeviceActivity NcclDevice::activity() const { return impl_->activity(); }
void NcclDevice::abort() { impl_->abort(); }

}  // namespace cp::runtime
