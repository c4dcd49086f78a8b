// PreparedPlan: a plan that a device keeps ready, so that a program runs it again and again, beside work of
// its own and beside other plans.
//
//   cp::PreparedPlan forward(device, plan);                      // once; all ranks of the plan do
//   for (Batch& batch : batches) {
//     project<<<..., stream>>>(batch, q);                        // the caller's own kernel
//     forward.run({{kQ, q, bytes}, {kOut, out, bytes}}, stream); // returns at once
//     multiply<<<..., stream>>>(out);                            // sees what the plan has written
//   }
//
// run() only enqueues and builds nothing. On Gloo and NCCL, once a plan has run some times, the thread that
// calls it allocates nothing and waits for nothing, unless the device keeps traces or the run gets one, whose
// records grow; what the libraries do inside of their calls, and on threads of their own, is theirs.
// nccl_device.h lists where NCCL may make the host wait. The run takes its place in the caller's stream: it
// begins when everything that was on the stream before is done, and what is put on the stream behind it
// begins when the run has ended. Devices without streams of the caller's (Gloo, the simulated fabric) begin
// with what the caller's memory holds when run() is called, and the caller waits for the PlanRun before he
// reads what it wrote.
//
// Rules of order:
//   - Runs of one lane follow one another in the order of the calls of run(), whichever plans they are of.
//   - Runs of two lanes have no order but that of the callers' streams, of run_after() and of wait().
//   - All ranks call run() in one order for all plans that share ranks, as with any collective.
//   - The memory that is bound to a run belongs to it until it has ended.
//
//   Correct                                   Wrong
//   run(b, s); kernel<<<.., s>>>(out);        run(b, s); kernel<<<.., t>>>(out);  // t waits for nothing
//   run(b).wait(); read(out);  // on a host   run(b); read(out);                  // it may still run
//   run(b).wait(); free(out);                 run(b); free(out);                  // the run has it
//
// The destructor waits for the last run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/enqueuer.h"
#include "shared/plan/plan.h"
#include "shared/plan/trace.h"

namespace cp {

// One run that was enqueued. A small value that may be copied; the device must outlive it. One that was
// default constructed has ended.
class PlanRun {
 public:
  PlanRun() = default;
  PlanRun(Device& device, EventId end) : device_(&device), end_(end) {}

  // Whether the run has ended. It stays false if the device failed; wait() says why.
  bool has_ended() const { return device_ == nullptr || device_->has_happened(end_); }
  // Blocks the host until the run has ended. Throws what Device::synchronize() throws: an error of this run,
  // or of one before it.
  void wait() const {
    if (device_ != nullptr) device_->await(end_);
  }

 private:
  friend class PreparedPlan;
  Device* device_ = nullptr;
  EventId end_ = -1;
};

class PreparedPlan {
 public:
  // Makes the plan ready on the device and keeps it, as Device::keep() does and with its errors: a collective
  // call over the plan's ranks. Plan and device must outlive this object. Buffers of the caller that get no
  // binding, neither here nor by a run, are the device's own.
  PreparedPlan(Device& device, const Plan& plan, const Bindings& bindings = {}, LaneId lane = 0);
  // Waits for the last run, and gives back what the plan needed. An error of that run is not thrown here; the
  // next wait() or synchronize() of the device throws it.
  ~PreparedPlan();
  PreparedPlan(const PreparedPlan&) = delete;
  PreparedPlan& operator=(const PreparedPlan&) = delete;

  const Plan& plan() const { return plan_; }

  // Enqueues a run and returns. Each buffer in `changed` is bound anew, for this run and those after it.
  // Throws InvalidInput for a binding of the wrong size, before anything is enqueued; errors of running work
  // are thrown by whoever waits.
  PlanRun run(const Bindings& changed = {}, CallerStream caller = nullptr, RankTrace* trace = nullptr);

  // The same of a run that begins when these have ended, which may be of other lanes of the device, and that
  // is in no stream of the caller's: nothing that the caller computes waits for it, and it waits for nothing
  // of that.
  PlanRun run_after(std::span<const PlanRun> before, const Bindings& changed = {},
                    RankTrace* trace = nullptr);

  // The last run, or one that has ended if there was none.
  const PlanRun& last_run() const { return last_; }

  // These wait for the last run, and copy one whole buffer as Device::upload and Device::download do.
  void upload(BufferId buffer, std::span<const std::byte> host);
  void download(BufferId buffer, std::span<std::byte> host);

 private:
  PlanRun enqueue(CallerStream caller, RankTrace* trace);

  Device& device_;
  const Plan& plan_;
  Enqueuer steps_;
  PreparedId id_;
  PlanRun last_;
  std::vector<EventId> before_;  // of run_after(), kept from call to call to avoid allocations
};

}  // namespace cp
