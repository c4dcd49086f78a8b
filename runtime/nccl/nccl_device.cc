#include "runtime/nccl/nccl_device.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "runtime/begun_collectives.h"
#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/cuda_streams.h"
#include "runtime/cuda/host_copies.h"
#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/step_kernels.h"
#include "runtime/errors.h"
#include "runtime/nccl/first_error.h"
#include "runtime/nccl/gpu_facts.h"
#include "runtime/nccl/nccl_communicators.h"
#include "runtime/nccl/nccl_error.h"
#include "runtime/nccl/nccl_handles.h"
#include "runtime/nccl/nccl_launch.h"
#include "runtime/nccl/nccl_memory.h"
#include "runtime/nccl/nccl_watchdog.h"
#include "runtime/step_times.h"
#include "shared/plan/bindings.h"

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
        forget_plan();
        destroys = handles_.destroy();
      }
    } catch (const Error&) {  // the GPU is lost
    }
    if (!destroys) handles_.abort();
    return handles_.await_end(destroys ? options_.destroy_timeout : options_.abort_timeout);
  }

  Rank rank() const { return options_.rank; }
  const Target& target() const { return target_; }

  void prepare(const Plan& plan, const Bindings& bindings) {
    if (options_.before_connect) options_.before_connect(plan.groups);
    CP_CUDA(cudaSetDevice(options_.cuda_device));
    synchronize();
    forget_plan();
    memory_ = std::make_unique<CudaMemory>(
        plan, bindings, options_.communicators.register_buffers ? nccl_allocator() : cuda_allocator(),
        std::move(memory_));
    kernels_.emplace(plan, *memory_, libraries_);
    choose_streams(plan);
    connect(plan);
    count_steps(plan);
    plan_ = &plan;
  }

  void launch(const StepRef& ref, std::int64_t iteration) {
    if (handles_.is_ending()) return;
    try {
      const Step& step = *ref.step;
      const cudaStream_t stream = streams_[static_cast<std::size_t>(step.stream)];
      if (const Collective* collective = std::get_if<Collective>(&step.work)) {
        launch_collective(ref, *collective, iteration, stream);
        return;
      }
      static_cast<void>(events_.begin(step.stream));
      launched_.push_back(&step);
      kernels_->launch(ref, iteration, stream);
      events_.end();
    } catch (...) {
      fail(std::current_exception());
    }
  }

  EventId record(StreamId stream) {
    return enqueued([&] { return events_.record(stream); });
  }
  void wait(StreamId stream, EventId event) {
    enqueued([&] { return events_.wait(stream, event), event; });
  }

  void synchronize() {
    await_streams();
    watchdog_.drain();
    if (error_) throw_error();
    if (launches_) launches_->forget_turns();
    if (events_.left() < launches_of_run_) read_times();
  }

  void upload(BufferId buffer, std::span<const std::byte> host) {
    copies_.upload(data("upload", buffer, host.size()), host);
  }
  void download(BufferId buffer, std::span<std::byte> host) {
    copies_.download(host, data("download", buffer, host.size()));
  }

  std::vector<OpRecord> take_observed() {
    watchdog_.drain();
    collect_records();
    communicators_.reset_sequences();
    std::ranges::stable_sort(observed_, {}, &OpRecord::stream);
    return std::exchange(observed_, {});
  }

  DeviceActivity activity() const { return {!watchdog_.is_stalled(), 0}; }

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

  // Forgets what belongs to the plan before, whose events have all happened. What it observed stays.
  void forget_plan() {
    collect_records();
    plan_ = nullptr;
    events_.forget();
    launched_.clear();
    times_.use(0);
    launches_.reset();
    communicators_.forget_buffers();
    kernels_.reset();
  }

  // A plan's stream with collectives gets a CUDA stream of high priority, so that a collective need not wait
  // behind the thread blocks of a long kernel.
  void choose_streams(const Plan& plan) {
    std::vector<bool> communicates(plan.streams.size());
    for (const StepRef& ref : steps_of(plan)) {
      if (is_collective(*ref.step)) communicates[static_cast<std::size_t>(ref.step->stream)] = true;
    }
    streams_.clear();
    std::size_t used[2] = {};
    for (const bool high : communicates) {
      std::vector<CudaStream>& pool = stream_pools_[high];
      if (used[high] == pool.size())
        pool.emplace_back(high ? CudaStream::Priority::high : CudaStream::Priority::normal);
      streams_.push_back(pool[used[high]++].get());
    }
  }

  void connect(const Plan& plan) {
    try {
      const std::vector<NcclCommunicator*> members = communicators_.connect(plan.groups);
      if (options_.communicators.register_buffers) communicators_.register_buffers(members, buffers_of(plan));
      launches_.emplace(plan, *memory_, members, nccl_keeps_launch_order());
    } catch (...) {
      fail(std::current_exception());
      throw_error();
    }
  }

  // The arena and the caller's buffers, without empty ones.
  std::vector<std::span<std::byte>> buffers_of(const Plan& plan) const {
    std::vector<std::span<std::byte>> buffers;
    std::byte* arena = nullptr;
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
      const Buffer& buffer = plan.buffers[i];
      std::byte* const data = memory_->data(static_cast<BufferId>(i));
      if (buffer.bytes() == 0) continue;
      if (buffer.kind == BufferKind::temporary) {
        arena = data - buffer.offset_bytes;
      } else {
        buffers.emplace_back(data, static_cast<std::size_t>(buffer.bytes()));
      }
    }
    if (arena != nullptr) buffers.emplace_back(arena, static_cast<std::size_t>(plan.arena_bytes));
    return buffers;
  }

  void count_steps(const Plan& plan) {
    digests_ = collective_digests(plan);
    launches_of_run_ = 0;
    for (const StepRef& ref : steps_of(plan)) launches_of_run_ += static_cast<std::size_t>(ref.count);
    // For two runs, so that events are read after every other run at most; 1024 (chosen) for small plans.
    const std::size_t room = std::clamp<std::size_t>(2 * launches_of_run_, 1024, kUnreadTimes);
    events_.use(streams_, room);
    times_.use(streams_.size());
    launched_.reserve(room);
  }

  // ---- running

  // The watchdog hears of a collective before its calls, since these may block (the first ones of a
  // communicator connect). The waits for room and for a turn come before the begin is recorded, so that they
  // do not count as time of the collective.
  void launch_collective(const StepRef& ref, const Collective& collective, std::int64_t iteration,
                         cudaStream_t stream) {
    const Step& step = *ref.step;
    const GroupId group = group_of(collective);
    NcclCommunicator& member = launches_->member(group);
    if (!launches_->await_room(group, handles_)) return;
    if (launches_->await_turn(group, stream)) events_.enqueued(step.stream);
    const StepEvents::Pair pair = events_.begin(step.stream);
    launched_.push_back(&step);
    if (!handles_.enter()) return;
    const BegunCollectives::Point point = member.begun.begin(digests_.at(static_cast<std::size_t>(ref.id)));
    const WatchedCollective watched{.plan = plan_,
                                    .collective = &collective,
                                    .communicator = &member,
                                    .stream = step.stream,
                                    .step = ref.id,
                                    .number = point.number,
                                    .sequence = point.sequence,
                                    .digest = point.digest,
                                    .begin = pair.begin,
                                    .end = pair.end};
    watchdog_.begin(watched);
    const ncclResult_t result =
        launches_->issue(collective, {step.stream, launches_count_++, iteration}, stream);
    handles_.leave();
    if (result == ncclInProgress)
      communicators_.await(*member.comm, describe(options_.rank, watched), facts_of(options_.rank, watched));
    if (result != ncclSuccess && result != ncclInProgress)
      throw_nccl(result, *member.comm, describe(options_.rank, watched), facts_of(options_.rank, watched));
    events_.end();
    watchdog_.issued();
    launches_->done(group, stream, pair.end);
  }

  // Runs f(). Its errors are kept for synchronize() to throw, like all errors of running work.
  template <class F>
  EventId enqueued(const F& f) {
    if (handles_.is_ending()) return 0;
    try {
      return f();
    } catch (...) {
      fail(std::current_exception());
      return 0;
    }
  }

  bool is_idle() {
    if (handles_.is_ending()) return false;
    try {
      return std::ranges::all_of(streams_, [](cudaStream_t stream) { return is_finished(stream); });
    } catch (...) {
      fail(std::current_exception());
      return false;
    }
  }

  // Looks all the time at first, and after kSpin only every kNap: a short run ends without delay, and a long
  // one leaves the processor to others. Both are chosen; kNap is Linux's default timer slack, by which
  // shorter sleeps would be late anyway. cudaStreamSynchronize is not used, because an abort might not end
  // it.
  void await_streams() {
    constexpr std::chrono::microseconds kSpin{200}, kNap{50};
    const auto begin = std::chrono::steady_clock::now();
    while (!handles_.is_ending() && !is_idle()) {
      if (std::chrono::steady_clock::now() - begin < kSpin) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(kNap);
      }
    }
  }

  // The address of the plan's buffer, for a copy of `host_bytes` bytes to or from the host. `what` is the
  // caller's name, for messages.
  std::byte* data(const char* what, BufferId buffer, std::size_t host_bytes) const {
    CP_INVARIANT(plan_ != nullptr, "no plan is prepared");
    check_host_copy(*plan_, what, buffer, host_bytes);
    return memory_->data(buffer);
  }

  // ---- what was left behind

  // Keeps the records of the collectives that were issued; after an error only of those that have ended.
  void collect_records() {
    if (!launches_) return;
    std::vector<std::int64_t> ended = watchdog_.take_ended();
    for (OpRecord& record : launches_->take_records()) {
      const auto stream = static_cast<std::size_t>(record.stream);
      if (error_ && (stream >= ended.size() || ended[stream]-- <= 0)) continue;
      observed_.push_back(std::move(record));
    }
  }

  void read_times() {
    const std::vector<StepEvents::Interval> intervals = events_.take();
    for (std::size_t i = 0; i < intervals.size(); ++i) {
      if (intervals[i].begin_ns >= 0) times_.add(*launched_[i], intervals[i].begin_ns, intervals[i].end_ns);
    }
    launched_.clear();
  }

  const NcclOptions options_;
  const Target& target_;
  NcclHandles handles_;
  FirstError error_;
  NcclCommunicators communicators_;
  LibraryKernels libraries_;
  HostCopies copies_;
  std::vector<CudaStream> stream_pools_[2];  // of normal and of high priority

  // Of the prepared plan.
  const Plan* plan_ = nullptr;
  std::unique_ptr<CudaMemory> memory_;  // its arena stays for the next plan
  std::optional<StepKernels> kernels_;
  std::optional<NcclLaunches> launches_;
  std::vector<cudaStream_t> streams_;  // by StreamId
  std::vector<Digest> digests_;        // of its collectives, by StepId
  std::size_t launches_of_run_ = 0;
  StepEvents events_;
  std::vector<const Step*> launched_;  // whose times are unread
  StepTimes times_;
  std::int64_t launches_count_ = 0;

  std::vector<OpRecord> observed_;  // of this plan and those before it
  NcclWatchdog watchdog_;           // last: uses the above
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
  impl_->prepare(plan, bindings);
}
void NcclDevice::launch(const StepRef& step, std::int64_t iteration) { impl_->launch(step, iteration); }
EventId NcclDevice::record(StreamId stream) { return impl_->record(stream); }
void NcclDevice::wait(StreamId stream, EventId event) { impl_->wait(stream, event); }
void NcclDevice::synchronize() { impl_->synchronize(); }
void NcclDevice::upload(BufferId buffer, std::span<const std::byte> host) { impl_->upload(buffer, host); }
void NcclDevice::download(BufferId buffer, std::span<std::byte> host) { impl_->download(buffer, host); }
std::vector<OpRecord> NcclDevice::take_observed() { return impl_->take_observed(); }
DeviceTimes NcclDevice::take_times() { return impl_->take_times(); }
DeviceActivity NcclDevice::activity() const { return impl_->activity(); }
void NcclDevice::abort() { impl_->abort(); }

}  // namespace cp::runtime
