// Device: THE SEAM. The executor talks to it; the simulated fabric, Gloo and NCCL implement it.
//
// The semantics are those of CUDA streams and NCCL (contract 3). A device belongs to one rank; its functions
// are called by one thread, that of the rank.
//   launch      enqueues and never blocks, and never touches the plan's memory itself before returning
//   stream      a FIFO: a step starts when the one before it has finished
//   record/wait an event marks the work enqueued on a stream so far; wait makes a stream, not the host, wait
//   for it synchronize alone blocks the host, until everything enqueued has finished
// Errors of running work (mismatch, deadlock, lost peer) are thrown by synchronize, as the types of
// shared/base/error.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shared/plan/plan.h"

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

  // Makes everything that the plan needs: arena, groups, streams. Buffers of the caller that have no binding
  // are allocated by the device. The plan must outlive its execution. Throws InvalidInput for an operation
  // that the device lacks (naming it) or a binding of the wrong size. Collective over the plan's ranks.
  virtual void prepare(const Plan& plan, const Bindings& bindings) = 0;

  // `step` is a step of the prepared plan; `iteration` counts the enclosing Repeat, 0 outside.
  virtual void launch(const Step& step, std::int64_t iteration) = 0;
  virtual EventId record(StreamId stream) = 0;
  virtual void wait(StreamId stream, EventId event) = 0;
  virtual void synchronize() = 0;

  // Copy the whole of a caller's buffer of the prepared plan to and from host memory. The device is idle
  // meanwhile.
  virtual void upload(BufferId buffer, std::span<const std::byte> host) = 0;
  virtual void download(BufferId buffer, std::span<std::byte> host) = 0;
};

}  // namespace cp
