// PlanSession runs a plan on a device, from the first byte that goes up to the last that comes down. Every
// program that has a plan and data runs them through it (cprun, cprun profile, programs that embed this one,
// the tests of every device), so that the order of calls is written once:
//
//   prepare - upload - warm up - run - download
//
//   cp::PlanSession session(device, plan);
//   session.upload(x, bytes_of(numbers));
//   const double seconds = session.run({.warm_up = 1, .iterations = 10}).seconds / 10;
//   std::vector<std::byte> result = session.download(y);
//
// If a plan works in memory of the device and runs only once, execute() of execute.h is enough.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"
#include "shared/plan/prepared_plan.h"
#include "shared/plan/trace.h"

namespace cp {

// The caller's buffers, in memory of the host. The caller owns them, and they must outlive the session.
struct HostBuffers {
  Bindings bindings;
  // Whether the device works in this memory itself; ProcessDevice::host_memory() tells. If not, the contents
  // are copied to the device before the plan runs, and back to the host behind it.
  bool bound = true;
};

struct RunOptions {
  // run_on_host_buffers() alone: the device keeps the plan (prepared_plan.h) instead of preparing it, so that
  // what is said of kept plans is true of it, such as NcclOptions::graphs.
  bool kept = false;
  // Runs before those that count, for work that only a first run does, such as loading kernels and connecting
  // ranks.
  int warm_up = 0;
  // Runs that count. All are enqueued one behind the other, and the session waits for them once.
  int iterations = 1;
  // If given, it records what the executor launches in the iterations that count.
  RankTrace* trace = nullptr;
  // Both are called on the caller's thread. `ready` is called behind the warm-up, while the device is idle:
  // ranks can wait for one another there, and take out what the device observed of the warm-up. `issued` is
  // called when everything is enqueued and nothing has been waited for.
  std::function<void()> ready = {}, issued = {};
};

// Times by the host's clock, from the return of `ready` on. Neither the warm-up nor copies of buffers count.
struct RunTimes {
  double issue_seconds = 0;  // until the last step was enqueued
  double seconds = 0;        // until the last step had finished
};

// Every function lets through what the device throws. The session is of no further use then.
class PlanSession {
 public:
  // Prepares the device, so this is a collective call over the plan's ranks. Device and plan must outlive the
  // session, and nobody may prepare the device for another plan while the session is in use. `bindings` are
  // memory of the device, which allocates the buffers that have none.
  PlanSession(Device& device, const Plan& plan, const Bindings& bindings = {});
  // The same with buffers of the host. Throws InvalidInput if the plan lacks a buffer, if it is a temporary
  // or of another size, and if one is given twice.
  // With `kept` the device keeps the plan (prepared_plan.h) instead, beside others, until the session ends;
  // runs then follow one another whole.
  PlanSession(Device& device, const Plan& plan, const HostBuffers& buffers, bool kept = false);

  const Plan& plan() const { return plan_; }
  // The caller's buffers that a plan reads (inputs and inouts), and those that it writes (outputs and
  // inouts).
  std::vector<BufferId> inputs() const;
  std::vector<BufferId> outputs() const;

  // Copy one whole buffer, as Device::upload and Device::download do, while nothing runs.
  void upload(BufferId buffer, std::span<const std::byte> host);
  void download(BufferId buffer, std::span<std::byte> host);
  std::vector<std::byte> download(BufferId buffer);

  // Copy all HostBuffers that are not bound: those that the plan reads go up, those that it writes come down.
  // Without such buffers these do nothing.
  void upload();
  void download();

  // Runs the plan. It may be called any number of times, and each run finds what the one before left in the
  // buffers; a warm-up leaves inouts as it found them. Throws InvalidInput for less than one iteration, and
  // for a negative warm-up.
  RunTimes run(const RunOptions& options = {});

 private:
  void warm_up(int runs);
  void enqueue(RankTrace* trace);

  Device& device_;
  const Plan& plan_;
  const Bindings copied_;  // between host and device, by upload() and download()
  std::optional<PreparedPlan> kept_;
};

// Does all of it in one call: uploads, runs and downloads buffers of the host.
RunTimes run_on_host_buffers(Device& device, const Plan& plan, const HostBuffers& buffers,
                             const RunOptions& options = {});

}  // namespace cp
