// ProcessDevice: a Device whose rank is a process (or a thread that could be one): what it observed, when its steps ran, and how to
// end what waits. GlooDevice and NcclDevice are such devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/trace.h"

namespace cp::runtime {

// A collective of this rank that begins.
struct CollectiveBegin {
  const Plan& plan;
  const Collective& collective;
  const Group& group;
  std::int64_t number = 0;  // on its group, since the device was made
  StepId step = 0;          // of the plan
  Digest digest;            // of all on its group up to this one (runtime/begun_collectives.h)
  StreamId stream = 0;
};
// On a thread of the device, before the collective begins or soon after; several threads may call at once, but for one stream only
// one at a time.
using OnCollective = std::function<void(const CollectiveBegin&)>;

// The same collective when it has ended without an error.
struct CollectiveEnd {
  const CollectiveBegin& collective;
  const OpRecord* observed = nullptr;  // null where the device makes its records later
};
// As OnCollective: after the collective has ended, before its stream goes on or soon after.
using OnCollectiveEnd = std::function<void(const CollectiveEnd&)>;

// Steps of a stream whose times a device keeps for take_times(): the latest.
inline constexpr std::size_t kKeptTimes = std::size_t{1} << 20;

// When steps and collectives ran, since the device was made; each stream's in the order in which they ran.
struct DeviceTimes {
  std::vector<TimedOp> steps, collectives;
};

// What a device does at a moment.
struct DeviceActivity {
  bool computes = true;     // a step that is no collective runs, or may run
  std::uint64_t moved = 0;  // grows while payload arrives or leaves
};

// Errors of running work, thrown by synchronize: Timeout and PeerLost, with the operation, the group and the sequence number.
// After one the device is of no further use.
class ProcessDevice : public Device {
 public:
  // The collectives since the last call, by stream in order of completion, from the arguments of the library's calls. Sequence
  // numbers begin at 0 again. The device is idle meanwhile.
  virtual std::vector<OpRecord> take_observed() = 0;
  // When the steps of the prepared plan ran, and the collectives among them, since the last call: the latest kKeptTimes of each
  // stream. The device is idle meanwhile.
  virtual DeviceTimes take_times() = 0;
  // Whether bindings are addresses of the host's memory. Where they are not, a caller with buffers on the host prepares without bindings,
  // uploads and downloads.
  virtual bool host_memory() const = 0;
  // For any thread.
  virtual DeviceActivity activity() const = 0;
  // For any thread: what waits for a peer ends with PeerLost.
  virtual void abort() = 0;
};

}  // namespace cp::runtime
