// Device: THE SEAM. The executor talks to it; the simulated fabric, Gloo and NCCL implement it.
//
// The semantics are those of CUDA streams and NCCL (contract 3). A device belongs to one rank; its functions
// are called by one thread, that of the rank.
//   launch       enqueues and never blocks, and never touches the plan's memory itself before returning
//   stream       a FIFO: a step starts when the one before it has finished
//   record/wait  an event marks the work enqueued on a stream so far; wait makes a stream, not the host, wait for it
//   synchronize  alone blocks the host, until everything enqueued has finished
// Errors of running work (mismatch, deadlock, lost peer) are thrown by synchronize, as the types of
// shared/base/error.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/plan/plan.h"
#include "shared/plan/target.h"

namespace cp {

// The caller's memory for one buffer of kind input, output or inout; in the device's own address space. The
// caller keeps it alive and untouched until synchronize returns.
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
  // What plans for this device are best made for: its operations and types, and what its libraries want. It runs plans for other targets
  // too, where it has their operations (contract 7). The same for as long as the device lives, and, of devices whose ranks work together,
  // the same on all of them.
  virtual const Target& target() const = 0;

  // Makes everything that the plan needs: arena, groups, streams. Buffers of the caller that have no binding
  // are allocated by the device. The plan must outlive its execution. Throws InvalidInput for a plan of another rank, for an operation or
  // a type that the device lacks (refuse_foreign_plan() of shared/plan/bindings.h names it) and for a binding of the wrong size.
  // Collective over the plan's ranks.
  virtual void prepare(const Plan& plan, const Bindings& bindings) = 0;

  // `step` is one of steps_of() of the prepared plan, whose Step stays where it is until synchronize() returns, while the reference need
  // not; `iteration` counts the enclosing Repeat, 0 outside.
  virtual void launch(const StepRef& step, std::int64_t iteration) = 0;
  virtual EventId record(StreamId stream) = 0;
  virtual void wait(StreamId stream, EventId event) = 0;
  virtual void synchronize() = 0;

  // Copy the whole of a caller's buffer of the prepared plan to and from host memory. The device is idle
  // meanwhile.
  virtual void upload(BufferId buffer, std::span<const std::byte> host) = 0;
  virtual void download(BufferId buffer, std::span<std::byte> host) = 0;
};

}  // namespace cp
