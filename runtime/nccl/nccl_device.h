// NcclDevice: a rank's GPU. Streams and events are CUDA's, collectives are NCCL's, attention is cuDNN's.
//
// Nothing waits on the host between prepare() and synchronize(), save that the first collectives of a
// communicator connect its ranks, that cuBLAS and cuDNN may load a kernel when it runs first, and that no
// more than NcclLaunches::kMostUnderWay collectives of one communicator are under way. How those of several
// communicators are kept in order is in nccl_launch.h. A watchdog thread follows the collectives by their
// events: it reports each that begins, and ends the device with an error when one makes no progress for
// `timeout`, when NCCL reports an error of its own, or when abort() is called; communicators are then
// aborted, on another thread and for no longer than `abort_timeout`.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/process_device.h"
#include "shared/plan/target.h"

namespace cp::runtime {

// How often the watchdog looks which collectives have begun and ended.
inline constexpr std::chrono::milliseconds kNcclLookPeriod{10};

// Of the communicators (ncclConfig_t); what is unset is NCCL's own choice.
struct NcclCommOptions {
  static constexpr int kMostCtas = 64;    // NCCL's MAXCHANNELS
  std::optional<int> min_ctas, max_ctas;  // NCCL's channels
  // NCCL_CTA_POLICY_*: 0 default; 1 efficiency: fewer channels for registered buffers. 2, zero, is refused:
  // NCCL takes it for windows alone, of memory that has equal offsets on all ranks, which buffers of plans
  // have not.
  std::optional<int> cta_policy;
  // ncclCommRegister of the arena and the caller's buffers. Those without a binding are then from
  // ncclMemAlloc; inside of a node, bound ones must be so too for it to have an effect.
  bool register_buffers = false;
};

struct NcclOptions {
  Rank rank = 0;
  std::int32_t world_size = 1;
  int cuda_device = 0;
  // What plans for the ranks' devices are made for, where it is another than the GPU's own: of a job whose
  // GPUs differ. It outlives the device.
  const Target* target = nullptr;
  // Brings an id that a group's first member made to the others: returns on every member what the first gave
  // as `id`. `key` is new at each call and equal on all members; blocks until the first member has come, or
  // for a time of its own.
  std::function<std::string(const std::string& key, const std::optional<std::string>& id)> share;
  // Every rank's `own`, by rank, for callers whose ranks all prepare the same plans together: groups are then
  // split from one communicator of the world (ncclCommSplit, which all its ranks must call). Unset: each
  // group has an id of its own.
  std::function<std::vector<std::string>(const std::string& key, const std::string& own)> all_gather = {};
  std::chrono::milliseconds timeout{30'000};  // of a collective without progress
  // Of connecting, in prepare(); unset: `timeout`, and at least 30 s, since NCCL takes seconds to start on a
  // machine of many GPUs.
  std::optional<std::chrono::milliseconds> connect_timeout = {};
  std::chrono::milliseconds abort_timeout{5'000};     // of ncclCommAbort
  std::chrono::milliseconds destroy_timeout{30'000};  // of ncclCommDestroy, when all work is done
  NcclCommOptions communicators = {};
  // In prepare(), with the plan's groups, before those that are new connect. What it throws, prepare()
  // throws, and the device is as it was.
  std::function<void(const std::vector<Group>&)> before_connect = {};
  // On the watchdog's thread or in synchronize(), soon after the collective begins.
  OnCollective on_collective = {};
  OnCollectiveEnd on_collective_end = {};  // the same, soon after it has ended; without a record
  // On the same threads, of a collective without progress for the timeout: whether it may go on for as long
  // again, since a member that has not begun it lives. Unset: it may not.
  std::function<bool(const CollectiveBegin&)> may_wait = {};
};

// "nccl", "cuda", "cuda driver", "cudnn".
std::map<std::string, std::string> gpu_library_versions();

// GPUs that this process sees; 0 without a driver.
int gpu_count();
// What plans for a GPU of this process are made for. Throws InvalidInput where there is no such GPU, or none
// of its generation is known.
const Target& gpu_target_of(int cuda_device);

// Whether a device that has gone left communicators behind, whose threads and kernels still use what it had:
// the process may go on, but is to end by _exit(), without the destructors of what they use.
bool left_behind();

class NcclDevice : public ProcessDevice {
 public:
  // Throws InvalidInput where there is no such GPU: with the number that there are.
  explicit NcclDevice(NcclOptions options);
  ~NcclDevice() override;

  Rank rank() const override;
  const Target& target() const override;  // of the GPU, or that of NcclOptions
  // Bindings are addresses of the GPU. Communicators are made in the order of the groups' names on all ranks,
  // split from the world's or each from its id (NcclOptions), and kept for later plans.
  void prepare(const Plan& plan, const Bindings& bindings) override;
  void launch(const StepRef& step, std::int64_t iteration) override;
  EventId record(StreamId stream) override;
  void wait(StreamId stream, EventId event) override;
  void synchronize() override;
  void upload(BufferId buffer, std::span<const std::byte> host) override;
  void download(BufferId buffer, std::span<std::byte> host) override;

  std::vector<OpRecord> take_observed() override;
  DeviceTimes take_times() override;
  // Kernels run on the GPU, out of sight: it counts as computing until a collective has had no progress for
  // the timeout.
  DeviceActivity activity() const override;
  bool host_memory() const override { return false; }
  void abort() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
