// ProcessDevice: a Device whose rank is a process (or a thread that could be one). Beyond a Device it tells
// what it observed and when its steps ran, and it can end whatever waits. GlooDevice and NcclDevice are such
// devices.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/device_memory.h"
#include "shared/plan/trace.h"

namespace cp::runtime {

// A collective that begins on this rank.
struct CollectiveBegin {
  const Plan& plan;
  const Collective& collective;
  const Group& group;
  std::int64_t number = 0;  // on its group, since the device was made
  StepId step = 0;          // of the plan
  Digest digest;            // of all on its group up to this one (runtime/begun_collectives.h)
  StreamId stream = 0;      // of the device, which numbers the streams of all lanes
  // How long the device lets it make no progress, if it watches that itself; else 0.
  std::chrono::milliseconds patience{0};
};
// On a thread of the device, before the collective begins or soon after; several threads may call at once,
// but for one stream only one at a time.
using OnCollective = std::function<void(const CollectiveBegin&)>;

// The same collective when it has ended without an error.
struct CollectiveEnd {
  const CollectiveBegin& collective;
  const OpRecord* observed = nullptr;  // null where the device makes its records later
};
// As OnCollective: after the collective has ended, before its stream goes on or soon after.
using OnCollectiveEnd = std::function<void(const CollectiveEnd&)>;

// How many times a device keeps of each stream until take_times() asks for them. Older ones are dropped, so
// that a program that never asks does not use up the memory.
inline constexpr std::size_t kKeptTimes = std::size_t{1} << 20;

// When steps and collectives ran, in ns since the device was made. Those of one stream come in the order in
// which they ran.
struct DeviceTimes {
  std::vector<TimedOp> steps, collectives;
};

// What a device does at this moment. Heartbeats carry it to the server, which judges by it whether a rank is
// stuck.
struct DeviceActivity {
  bool computes = true;     // a step that is no collective runs, or may run
  std::uint64_t moved = 0;  // grows while payload arrives or leaves
};

// Errors of running work are thrown by synchronize: Timeout and PeerLost, with the operation, the group and
// the sequence number. After such an error the device is of no further use.
class ProcessDevice : public Device {
 public:
  // The collectives that ended since the last call, by stream in order of completion, made from the arguments
  // of the library's calls. Sequence numbers begin at 0 again. Call it while the device is idle.
  virtual std::vector<OpRecord> take_observed() = 0;
  // When the steps of the prepared plan ran since the last call, and the collectives among them: the latest
  // kKeptTimes of each stream. Call it while the device is idle.
  virtual DeviceTimes take_times() = 0;
  // Whether bindings are addresses of the host's memory. If they are not, a caller whose buffers are on the
  // host prepares without bindings, and uploads and downloads.
  virtual bool host_memory() const = 0;
  // Memory for buffers that plans of the device share; null where it is the host's. It must go before the
  // device does, and no plan may use it then.
  virtual std::unique_ptr<DeviceMemory> memory() { return nullptr; }
  // Any thread may call this.
  virtual DeviceActivity activity() const = 0;
  // Any thread may call this. Whatever waits for a peer then ends with PeerLost.
  virtual void abort() = 0;
};

}  // namespace cp::runtime
