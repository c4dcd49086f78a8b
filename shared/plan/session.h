// PlanSession: a plan on a device, from the first byte that goes up to the last that comes down. Every program that has a plan and data
// runs them through it (cprun, what cprun profile measures, programs that embed this one, the tests of every device), so that the order
// stands once:
//
//   prepare - upload - warm up - run - download
//
//   cp::PlanSession session(device, plan);
//   session.upload(x, bytes_of(numbers));
//   const double seconds = session.run({.warm_up = 1, .iterations = 10}).seconds / 10;
//   std::vector<std::byte> result = session.download(y);
//
// execute() of execute.h is for a plan that works in memory of the device and runs once.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"
#include "shared/plan/trace.h"

namespace cp {

// The caller's buffers, in memory of the host; they outlive the session.
struct HostBuffers {
  Bindings bindings;
  // Whether the device works in this memory itself, as ProcessDevice::host_memory() says of one. If not, the contents are copied: to the
  // device before the plan runs, and back to the host behind it.
  bool bound = true;
};

struct RunOptions {
  int warm_up =
      0;  // runs before those that count: for what only a first run does, as loading kernels and connecting ranks
  int iterations = 1;  // that count: all are enqueued behind each other, and waited for once
  // Takes what the executor asks for in the iterations that count.
  RankTrace* trace = nullptr;
  // On the caller's thread: `ready` behind the warm-up, while the device is idle, so that ranks can begin together and what the device
  // observed of the warm-up can be taken out; `issued` when everything is enqueued and nothing has been waited for.
  std::function<void()> ready = {}, issued = {};
};

// By the host's clock, from the return of `ready` on. Neither the warm-up nor copies of buffers are in it.
struct RunTimes {
  double issue_seconds = 0;  // until the last step was enqueued
  double seconds = 0;        // until the last step had finished
};

// What the device throws goes through, from every function; the session is of no further use then.
class PlanSession {
 public:
  // Prepares the device, so it is collective over the plan's ranks. Device and plan outlive the session, and while it is in use nobody
  // prepares the device for another plan. `bindings`: memory of the device; it allocates the buffers that have none.
  PlanSession(Device& device, const Plan& plan, const Bindings& bindings = {});
  // Throws InvalidInput for a buffer that the plan lacks, a temporary, one of another size, and one that is given twice.
  PlanSession(Device& device, const Plan& plan, HostBuffers buffers);

  const Plan& plan() const { return plan_; }
  // The caller's buffers that a plan reads (inputs and inouts), and those that it writes (outputs and inouts).
  std::vector<BufferId> inputs() const;
  std::vector<BufferId> outputs() const;

  // Of one buffer, as Device has them; whole buffers, while nothing runs.
  void upload(BufferId buffer, std::span<const std::byte> host);
  void download(BufferId buffer, std::span<std::byte> host);
  std::vector<std::byte> download(BufferId buffer);

  // Of all HostBuffers that are not bound: what the plan reads goes up, what it writes comes down. Else of no effect.
  void upload();
  void download();

  // May be called any number of times; each run finds what the one before left. A warm-up leaves inouts as it found them. Throws
  // InvalidInput for less than one iteration, or a negative warm-up.
  RunTimes run(const RunOptions& options = {});

 private:
  void warm_up(int runs);

  Device& device_;
  const Plan& plan_;
  const Bindings copied_;  // between host and device, by upload() and download()
};

// All of it: uploads, runs and downloads buffers of the host.
RunTimes run_on_host_buffers(Device& device, const Plan& plan, HostBuffers buffers,
                             const RunOptions& options = {});

}  // namespace cp
