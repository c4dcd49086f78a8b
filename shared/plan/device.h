// Device: THE SEAM. The executor talks to it; the simulated fabric, Gloo and NCCL implement it.
//
// The semantics are those of CUDA streams and NCCL (contract 3). A device belongs to one rank, and only the
// thread of that rank calls its functions. A stream is a FIFO: each step starts when the step before it on
// the stream has finished.
//   launch       enqueues a step. It never blocks, and it does not touch the plan's memory before it returns.
//   record       marks everything that was enqueued on a stream so far, and returns the mark as an event.
//   wait         makes a stream, never the host, wait for such an event.
//   synchronize  is the only one of these that blocks the host: until everything enqueued has finished.
// Work that fails while it runs (a mismatch, a deadlock, a lost peer) is reported by synchronize, which
// throws one of the types of shared/base/error.h.
//
// For example, the executor orders a gather on stream 1 before a product on stream 0 like this:
//   device.launch(gather, 0);  device.wait(0, device.record(1));  device.launch(product, 0);
//
// A device has one plan that prepare() made ready, and beside it any number of plans that it keeps ready.
// Programs that run plans again and again keep them, by a PreparedPlan (prepared_plan.h): such a run blocks
// the host nowhere. Kept plans are in lanes. A lane is a set of streams of its own: plans of one lane share
// these streams and run one after another, and plans of two lanes may run at the same time. prepare() uses
// lane 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/plan/plan.h"
#include "shared/plan/target.h"

namespace cp {

// The caller's memory for one buffer of kind input, output or inout. `data` is an address that the device
// itself can use: of the host for the fabric and Gloo, of the GPU for NCCL. The caller owns the memory, and
// keeps it alive and untouched until synchronize returns.
struct Binding {
  BufferId buffer = -1;
  void* data = nullptr;
  std::int64_t size_bytes = 0;
};
using Bindings = std::vector<Binding>;

using EventId = std::int64_t;

// A plan that a device keeps ready; 0 is the one that prepare() made ready.
using PreparedId = std::int32_t;
using LaneId = std::int32_t;

// A stream of the caller's own program: on a GPU a cudaStream_t, where nullptr is CUDA's default stream.
// Other devices have no such streams; what their callers compute is done when they call, and nullptr stands
// for that.
using CallerStream = void*;

class Device {
 public:
  virtual ~Device() = default;

  virtual Rank rank() const = 0;
  // The target that plans for this device are best made for: it says which operations and types the device
  // has, and what its libraries want. A plan for another target runs too if the device has all of its
  // operations (contract 7). The target never changes while the device lives, and it is the same on all
  // devices whose ranks work together.
  virtual const Target& target() const = 0;

  // Makes everything that the plan needs: its arena, groups and streams. The device itself allocates each
  // buffer of the caller that has no binding. This is a collective call over the plan's ranks, and the plan
  // must outlive its execution. Throws InvalidInput for a plan of another rank, for an operation or a type
  // that the device lacks (refuse_foreign_plan() of shared/plan/bindings.h names it), and for a binding of
  // the wrong size.
  virtual void prepare(const Plan& plan, const Bindings& bindings) = 0;

  // Enqueues one of steps_of() of the prepared plan. The Step that `step` points to must stay where it is
  // until synchronize() returns; the StepRef itself need not. `iteration` counts the iterations of the
  // enclosing Repeat from 0, and is 0 outside of one.
  virtual void launch(const StepRef& step, std::int64_t iteration) = 0;
  virtual EventId record(StreamId stream) = 0;
  virtual void wait(StreamId stream, EventId event) = 0;
  virtual void synchronize() = 0;

  // These copy a whole buffer of the caller between host memory and the device. The plan is prepared, and
  // nothing runs on the device meanwhile.
  virtual void upload(BufferId buffer, std::span<const std::byte> host) = 0;
  virtual void download(BufferId buffer, std::span<std::byte> host) = 0;

  // ---- Plans that are kept. PreparedPlan makes these calls; a device that keeps no plans inherits refusals.

  // Makes ready everything that the plan needs, as prepare() does and with the same errors, and keeps it
  // beside all others, which may run meanwhile; those of the same lane it may wait for. This is a collective
  // call over the plan's ranks. A group belongs to one lane: throws InvalidInput if another lane's plan has a
  // group of the same name and ranks.
  virtual PreparedId keep(const Plan& plan, const Bindings& bindings, LaneId lane);
  // Chooses the plan that the calls from here on are about: launch, record, wait, upload and download. Each
  // buffer in `changed` is bound anew, for what is launched from here on; the others stay as they were bound
  // last. What was launched before keeps the addresses that it had. Throws InvalidInput as prepare() does for
  // a binding of the wrong size.
  virtual void use(PreparedId prepared, const Bindings& changed);
  // Gives back what the plan needs. Its last run must have ended, or the device have failed.
  virtual void release(PreparedId prepared);

  // Whether everything before the event has finished. It stays false after an error.
  virtual bool has_happened(EventId event);
  // Blocks the host until the event has happened, and throws what synchronize() throws.
  virtual void await(EventId event);

  // Around a run of the plan in use. begin_run() makes stream 0 of the plan wait for the run before it in the
  // lane, and for everything that is on the caller's stream so far. end_run() says that `end` is the end of
  // the run, and makes the caller's stream wait for it.
  virtual void begin_run(CallerStream caller);
  // In place of begin_run(), for a run that is in no stream of the caller's: stream 0 waits for the run
  // before it in the lane, and for these events, of any lanes. end_run() then leaves the caller's stream
  // alone.
  virtual void begin_run_after(std::span<const EventId> events);
  virtual void end_run(CallerStream caller, EventId end);
};

}  // namespace cp
