#include "tests/emulated_gpu/nccl_group.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "shared/base/text.h"
#include "tests/emulated_gpu/devices.h"

namespace cp::emulated {
namespace {

struct Job {
  CommunicatorPtr communicator;
  std::function<void()> run;
};

struct Work {
  CommunicatorPtr communicator;
  std::vector<NcclOperation> operations;
};

struct End {
  CommunicatorPtr communicator;
  std::function<void()> free;
};

struct Open {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<Job> jobs;
  std::vector<Work> work;  // of a communicator each, in order of their first calls
  std::vector<End> ends;
};

thread_local Open t_open;

void enqueue(const Work& work) {
  std::vector<cudaStream_t> streams;
  for (const NcclOperation& operation : work.operations)
    if (std::ranges::find(streams, operation.stream) == streams.end()) streams.push_back(operation.stream);
  work.communicator->launch(work.operations, streams);
}

// Several communicators at once, so that their order in the group does not matter. A failure comes again when
// the work is enqueued.
void connect(const std::vector<Work>& all) {
  if (all.size() < 2) return;
  std::vector<std::jthread> threads;
  for (const Work& work : all) {
    if (!work.communicator->blocking()) continue;
    threads.emplace_back([&work] {
      try {
        work.communicator->connect_peers(work.operations);
      } catch (const NcclFailure&) {
      }
    });
  }
}

ncclResult_t close(Open open) {
  ncclResult_t result = ncclSuccess;
  bool blocking = true;
  for (const Job& job : open.jobs) blocking = job.communicator->blocking() && blocking;
  for (const Work& work : open.work) blocking = work.communicator->blocking() && blocking;
  for (Job& job : open.jobs) job.communicator->begin(std::move(job.run));
  connect(open.work);
  for (Work& work : open.work) {
    // As NCCL does: a communicator that does not block leaves even the launch to a thread.
    if (work.communicator->blocking()) {
      try {
        enqueue(work);
      } catch (const NcclFailure& failure) {
        set_last_nccl_error(failure.what());
        result = failure.code;
      }
    } else {
      work.communicator->begin([work] { enqueue(work); });
    }
  }
  for (const End& end : open.ends) end.communicator->await_work();
  for (const End& end : open.ends) end.communicator->await_graphs();
  for (const End& end : open.ends) {
    end.communicator->freed();
    end.free();
  }
  if (!blocking) return ncclInProgress;
  for (const Job& job : open.jobs) {
    job.communicator->finish_job();
    if (result == ncclSuccess) result = job.communicator->state();
  }
  return result;
}

}  // namespace

ncclResult_t start_group() {
  ++t_open.depth;
  return ncclSuccess;
}

bool is_empty_group() {
  return t_open.depth == 1 && t_open.jobs.empty() && t_open.work.empty() && t_open.ends.empty();
}

ncclResult_t end_group() {
  if (t_open.depth == 0) {
    set_last_nccl_error("ncclGroupEnd: not in a group call.");
    return ncclInvalidUsage;
  }
  if (--t_open.depth > 0) return ncclSuccess;
  Open open = std::exchange(t_open, {});
  return open.error != ncclSuccess ? open.error : close(std::move(open));
}

void require_gpu_of_process() {
  if (forked() || in_host_function()) throw NcclFailure(ncclUnhandledCudaError, "no GPU in this process");
}

ncclResult_t fail_call(const char* function, const NcclFailure& failure) {
  const std::string what = str(function, ": ", failure.what());
  set_last_nccl_error(what);
  say(what);
  if (failure.group == NcclFailure::Group::stays_open) return failure.code;
  if (t_open.error == ncclSuccess) t_open.error = failure.code;
  static_cast<void>(end_group());
  return failure.code;
}

void add_job(const CommunicatorPtr& state, std::function<void()> job) {
  t_open.jobs.push_back({state, std::move(job)});
}

void add_operation(const CommunicatorPtr& communicator, const NcclOperation& operation) {
  const auto found =
      std::ranges::find_if(t_open.work, [&](const Work& work) { return work.communicator == communicator; });
  if (found != t_open.work.end()) {
    found->operations.push_back(operation);
  } else {
    t_open.work.push_back({communicator, {operation}});
  }
}

void add_end(const CommunicatorPtr& communicator, std::function<void()> free) {
  t_open.ends.push_back({communicator, std::move(free)});
}

}  // namespace cp::emulated
