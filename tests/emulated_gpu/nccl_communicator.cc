#include "tests/emulated_gpu/nccl_communicator.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "shared/base/text.h"
#include "tests/emulated_gpu/devices.h"
#include "tests/emulated_gpu/emulated_nccl.h"
#include "tests/emulated_gpu/nccl_launch_order.h"

namespace cp::emulated {
namespace {

constexpr std::chrono::milliseconds kPoll{20};
std::atomic<std::chrono::milliseconds::rep> g_connect_ms{0};
std::atomic<std::uint64_t> g_most_under_way{0};

struct LastError {
  std::mutex mutex;
  std::string text;
};

LastError& last() {
  static auto& error = *new LastError;
  return error;
}

}  // namespace

void set_connect_time(std::chrono::milliseconds time) { g_connect_ms.store(time.count()); }

std::size_t take_most_under_way() { return g_most_under_way.exchange(0); }

void set_last_nccl_error(const std::string& message) {
  const std::lock_guard lock(last().mutex);
  last().text = message;
}

std::string last_nccl_error() {
  const std::lock_guard lock(last().mutex);
  return last().text;
}

Communicator::~Communicator() {
  // The last one to hold it may be its own job, which ends it.
  if (job_.get_id() == std::this_thread::get_id()) {
    job_.detach();
  } else if (job_.joinable()) {
    job_.join();
  }
}

std::string Communicator::name() const { return str("rank ", rank(), " of ", size()); }
std::string Communicator::next_child_root() { return str(token(), ".", children_++); }

NcclLaunchOrder& Communicator::launch_order() const {
  return nccl_launch_order(device_, members_.hellos[static_cast<std::size_t>(rank())].host);
}

bool Communicator::given_up() const { return is_aborted() || gpu(device_).error() != cudaSuccess; }

void Communicator::connect(Members members) {
  for (std::size_t i = 0; i < members.hellos.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Hello &a = members.hellos[j], &b = members.hellos[i];
      if (a.host == b.host && a.device == b.device)
        throw NcclFailure(ncclInvalidUsage, nccl_version() >= 23003
                                                ? "Multiple Ranks are using the same GPU/Partition. Set "
                                                  "NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration."
                                                : str("Duplicate GPU detected : rank ", j, " and rank ", i,
                                                      " both on CUDA device ", a.device, "000"));
    }
  }
  const std::lock_guard lock(mutex_);
  members_ = std::move(members);
  transfers_ = std::make_unique<NcclTransfers>(members_.rank, members_.sockets);
  connections_ = std::make_unique<NcclConnections>(members_);
  profiler_ = std::make_unique<NcclProfiler>(std::hash<std::string>{}(token()), size(), rank());
}

ncclResult_t Communicator::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

bool Communicator::has_failed() const {
  const ncclResult_t now = state();
  return now != ncclSuccess && now != ncclInProgress;  // a later call may be in progress
}

std::string Communicator::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Communicator::fail(ncclResult_t error, const std::string& what) {
  set_last_nccl_error(what);
  say(str("NCCL: ", what));
  const std::lock_guard lock(mutex_);
  if (state_ == ncclSuccess || state_ == ncclInProgress) {
    state_ = error;
    failure_ = what;
  }
  for (const Socket& socket : members_.sockets) socket.shut_down();
}

void Communicator::begin(std::function<void()> job) {
  finish_job();
  ncclResult_t before = ncclSuccess;
  {
    const std::lock_guard lock(mutex_);
    before = std::exchange(state_, ncclInProgress);
  }
  job_ = std::thread([this, before, job = std::move(job)] {
    set_current_device(device_);
    try {
      job();
      const std::lock_guard lock(mutex_);
      if (state_ == ncclInProgress) state_ = before;
    } catch (const NcclFailure& failure) {
      fail(failure.code, failure.what());
    } catch (const std::exception& failure) {
      fail(is_aborted() ? ncclInternalError : ncclRemoteError, failure.what());
    }
  });
}

void Communicator::finish_job() {
  const std::lock_guard lock(job_mutex_);  // an abort may wait for it beside who began it
  if (job_.joinable()) job_.join();
}

void Communicator::connect_peers(const std::vector<NcclOperation>& operations) {
  try {
    connections_->connect(operations, [this] { return is_aborted(); });
  } catch (const SocketError& error) {
    throw NcclFailure(ncclInternalError, str(name(), " cannot connect its peers: ", error.what()));
  }
}

void Communicator::launch(std::vector<NcclOperation> operations, const std::vector<cudaStream_t>& streams) {
  const Use use(*this);
  std::uint64_t turn = 0;
  {
    const std::lock_guard lock(mutex_);
    turn = issued_;
  }
  if (turn == 0) std::this_thread::sleep_for(std::chrono::milliseconds(g_connect_ms.load()));
  connect_peers(operations);
  if (is_aborted()) throw NcclFailure(ncclInternalError, str(name(), " was aborted"));
  profiler_->tell(operations);
  std::vector<std::shared_ptr<Stream>> all;
  all.reserve(streams.size());
  for (const cudaStream_t stream : streams) all.push_back(find_stream(stream));
  for (const auto& stream : all) {
    if (stream->capture() != all.front()->capture())
      throw NcclFailure(
          ncclInvalidUsage,
          "Streams given to a communicator within a NCCL group must either be all uncaptured or "
          "all captured by the same graph.");
  }
  if (const auto into = all.front()->capture()) return capture(*into, std::move(operations), all);
  Gpu& own = gpu(device_);
  for (std::size_t i = 1; i < all.size(); ++i) {
    std::shared_ptr<Record> before;
    own.push(all[i], [&](Stream& stream) { before = stream.record(); });
    own.push(all.front(), [&](Stream& stream) { stream.wait_for(before); });
  }
  std::shared_ptr<Record> after;
  const auto work = turn_of(std::move(operations));
  own.push(all.front(), [&](Stream& stream) {
    stream.push(work, true);  // its turn is to pass even when the device has failed
    if (all.size() > 1) after = stream.record();
  });
  for (std::size_t i = 1; i < all.size(); ++i)
    own.push(all[i], [&](Stream& stream) { stream.wait_for(after); });
}

std::function<void()> Communicator::turn_of(std::vector<NcclOperation> operations) {
  std::uint64_t turn = 0;
  {
    const std::lock_guard lock(mutex_);
    turn = issued_++;
    const std::uint64_t under_way = issued_ - done_;
    if (under_way > g_most_under_way.load()) g_most_under_way.store(under_way);
  }
  const std::uint64_t gpu_turn = launch_order().enqueue();
  return [self = shared_from_this(), turn, gpu_turn, all = std::move(operations)]() mutable {
    self->run(turn, gpu_turn, all);
  };
}

void Communicator::capture(Capture& capture, std::vector<NcclOperation> operations,
                           const std::vector<std::shared_ptr<Stream>>& streams) {
  const auto require = [](cudaError_t error) {
    if (error != cudaSuccess) throw NcclFailure(ncclUnhandledCudaError, cudaGetErrorString(error));
  };
  std::size_t point = 0;
  for (std::size_t i = 1; i < streams.size(); ++i) {
    require(capture.record(*streams[i], point));
    require(capture.wait(streams.front(), point));
  }
  const auto make = [self = shared_from_this(), held = graphs_, all = std::move(operations)] {
    return Stream::Work([work = self->turn_of(all), held]() mutable { work(); });
  };
  require(capture.add(*streams.front(), make, true));
  if (streams.size() > 1) require(capture.record(*streams.front(), point));
  for (std::size_t i = 1; i < streams.size(); ++i) require(capture.wait(streams[i], point));
}

void Communicator::run(std::uint64_t turn, std::uint64_t gpu_turn, std::vector<NcclOperation>& operations) {
  {
    std::unique_lock lock(mutex_);
    while (done_ != turn) changed_.wait_for(lock, kPoll);
  }
  const auto is_given_up = [&] { return given_up(); };
  launch_order().run(gpu_turn, is_given_up, [&] {
    if (!given_up() && !has_failed()) {
      try {
        transfers_->run(operations, is_given_up);
      } catch (const NcclFailure& failure) {
        fail(failure.code, str(name(), ": ", failure.what()));
      }
    }
    // Work of a broken communicator stays on the GPU until it is aborted.
    while (!given_up() && has_failed()) std::this_thread::sleep_for(kPoll);
  });
  const std::lock_guard lock(mutex_);
  ++done_;
  changed_.notify_all();
}

bool Communicator::has_work() const {
  const std::lock_guard lock(mutex_);
  return done_ != issued_;
}

void Communicator::await_work() const {
  std::unique_lock lock(mutex_);
  while (done_ != issued_ && gpu(device_).error() == cudaSuccess) changed_.wait_for(lock, kPoll);
}

void Communicator::await_graphs() const {
  while (graphs_.use_count() > 1) std::this_thread::sleep_for(kPoll);
}

void Communicator::abort() {
  aborted_.store(true);
  const std::lock_guard lock(mutex_);
  for (const Socket& socket : members_.sockets) socket.shut_down();
  changed_.notify_all();
}

void Communicator::freed() const {
  if (uses_.load() == 0) return;
  say(str("NCCL: ", name(), " is freed while a call uses it"));
  std::abort();
}

void Communicator::leave() {
  const std::lock_guard lock(mutex_);
  if (transfers_ && state_ == ncclSuccess) transfers_->say_goodbye();
}

}  // namespace cp::emulated
