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
};

}  // namespace cp
