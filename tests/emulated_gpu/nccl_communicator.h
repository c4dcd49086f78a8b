// One rank of an emulated communicator: what it is, its state, and the work that it runs.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <nccl.h>

#include "tests/emulated_gpu/capture.h"
#include "tests/emulated_gpu/nccl_bootstrap.h"
#include "tests/emulated_gpu/nccl_connections.h"
#include "tests/emulated_gpu/nccl_launch_order.h"
#include "tests/emulated_gpu/nccl_profiler.h"
#include "tests/emulated_gpu/nccl_transfer.h"

namespace cp::emulated {

class NcclFailure : public std::runtime_error {
 public:
  enum class Group { ends, stays_open };  // what the call began
  NcclFailure(ncclResult_t result, const std::string& what, Group its_group = Group::ends)
      : std::runtime_error(what), code(result), group(its_group) {}
  ncclResult_t code;
  Group group;
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(int device, bool blocking, int most_channels, bool zero_ctas = false)
      : device_(device), blocking_(blocking), most_channels_(most_channels), zero_ctas_(zero_ctas) {}
  ~Communicator();

  int device() const { return device_; }
  bool blocking() const { return blocking_; }
  int most_channels() const { return most_channels_; }
  // Whether copy engines move what they can: the policy asks for it, and all ranks are on one host.
  bool has_copy_engines() const;
  int rank() const { return members_.rank; }
  int size() const { return static_cast<int>(members_.hellos.size()); }
  const std::string& token() const { return members_.token; }
  std::string name() const;       // of messages: "rank 1 of 4"
  std::string next_child_root();  // where the next split meets
  bool is_aborted() const { return aborted_.load(); }
  bool given_up() const;  // aborted, or the GPU has failed

  // Takes its place. Throws NcclFailure where two ranks of one host share a GPU.
  void connect(Members members);

  // ncclInProgress, ncclSuccess or what went wrong first.
  ncclResult_t state() const;
  bool has_failed() const;
  std::string failure() const;
  void fail(ncclResult_t error, const std::string& what);  // says so; the peers see that the connections end

  // Runs on a thread of its own, after what was begun before. The state is ncclInProgress meanwhile and then
  // what it was, or the NcclFailure's.
  void begin(std::function<void()> job);
  void finish_job();

  // Connects the ranks that these calls need: blocks until their peers have called, too, or the abort.
  void connect_peers(const std::vector<NcclOperation>& operations);
  // Does so at first. Enqueues, unless aborted meanwhile; the calls run as one. All are of this communicator.
  void launch(std::vector<NcclOperation> operations, const std::vector<cudaStream_t>& streams);
  bool has_work() const;
  void await_work() const;
  // Until no graph has work of this communicator in it any more, as NCCL does since 2.26.
  void await_graphs() const;

  // What waits ends, here and, as the loss of this rank, at the peers. await_work() then waits for what runs
  // on the GPU.
  void abort();
  void leave();  // the peers hear that it is on purpose

  // Calls that are in it; freed(), in none.
  class Use {
   public:
    explicit Use(Communicator& used) : used_(used) { used_.uses_.fetch_add(1); }
    ~Use() { used_.uses_.fetch_sub(1); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Communicator& used_;
  };
  void freed() const;

  std::set<void*> registered;  // handles of ncclCommRegister

  // Windows (ncclCommWindowRegister).
  struct Window {
    std::byte* data = nullptr;
    std::size_t size = 0;
    std::int32_t number = 0;  // in the order of registrations, which is that of all ranks
    bool symmetric = false;
    std::shared_ptr<char> handle = {};  // whose address the caller has
  };
  // Meets the other ranks, and compares what they register with `own`. Throws NcclFailure where they differ.
  void* add_window(const Window& own, Hello hello);
  bool remove_window(void* handle);
  const Window* window_of(const void* handle) const;
  // The symmetric window that has these bytes.
  const Window* symmetric_window(const std::byte* data, std::size_t size) const;

 private:
  NcclLaunchOrder& launch_order() const;
  // Gives the launch its turns, and returns what its stream runs.
  std::function<void()> turn_of(std::vector<NcclOperation> operations);
  void capture(Capture& capture, std::vector<NcclOperation> operations,
               const std::vector<std::shared_ptr<Stream>>& streams);
  void run(std::uint64_t turn, std::uint64_t gpu_turn, std::vector<NcclOperation>& operations);

  const int device_;
  const bool blocking_;
  const int most_channels_;
  const bool zero_ctas_;
  std::map<const void*, Window> windows_;  // by handle
  std::int32_t next_window_ = 0;
  Members members_;
  std::unique_ptr<NcclTransfers> transfers_;
  std::unique_ptr<NcclConnections> connections_;
  std::unique_ptr<NcclProfiler> profiler_;
  std::atomic<bool> aborted_{false};
  std::atomic<int> children_{0}, uses_{0};
  std::mutex job_mutex_;
  std::thread job_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  ncclResult_t state_ = ncclSuccess;
  std::string failure_;
  std::uint64_t issued_ = 0, done_ = 0;  // launches
  // Held once more by each graph, and each run of one, that has work of this communicator in it.
  std::shared_ptr<char> graphs_ = std::make_shared<char>();
};

void set_connect_time(std::chrono::milliseconds time);
std::size_t take_most_under_way();

// What ncclGetLastError says.
void set_last_nccl_error(const std::string& message);
std::string last_nccl_error();

}  // namespace cp::emulated

struct ncclComm {
  std::shared_ptr<cp::emulated::Communicator> impl;
};
