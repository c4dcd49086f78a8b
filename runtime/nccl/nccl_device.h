// NcclDevice is a Device for one rank on a GPU. Streams and events are CUDA's, collectives are NCCL's, and
// attention is cuDNN's if the build has it.
//
// Between prepare() and synchronize() the host waits for nothing, with three exceptions: the first
// collective of a communicator and the first transfer between two ranks connect them, inside of the call and
// until the peers call it, too; cuBLAS and cuDNN may load a kernel when it runs first; and no more than
// NcclLaunches::kMostUnderWay collectives of one communicator may be under way. nccl_launch.h tells how the
// collectives of several communicators are kept in order.
//
// A watchdog thread follows the collectives by their events and reports each that begins. The device ends
// with an error if a collective makes no progress for `timeout` and what the plan's kernels take, if NCCL
// reports an error of its own, or if abort() is called. The communicators are then aborted on another thread,
// for which synchronize() waits no longer than `abort_timeout`.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/process_device.h"
#include "shared/plan/target.h"

namespace cp::runtime {

// How often the watchdog looks which collectives have begun and ended. Chosen: timeouts are seconds, so 10 ms
// are exact enough for them, and a hundred looks a second take little of a core.
inline constexpr std::chrono::milliseconds kNcclLookPeriod{10};

// Options of the communicators (ncclConfig_t). What is not set is NCCL's own choice.
struct NcclCommOptions {
  static constexpr int kMostCtas = 64;    // MAXCHANNELS of NCCL's sources
  std::optional<int> min_ctas, max_ctas;  // CTAs (thread blocks) of a collective, one for each NCCL channel
  // NCCL_CTA_POLICY_*: 0 is the default, and 1 (efficiency) takes fewer channels for registered buffers. 2
  // (zero) is refused: it is that of the groups with copy_engine, and of no others, since NCCL uses it only
  // for windows of memory that has equal offsets on all ranks.
  std::optional<int> cta_policy;
  // Whether the arena and the caller's buffers are registered (ncclCommRegister). Buffers without a binding
  // are then made by ncclMemAlloc. Inside a node the registration of a bound buffer has an effect only if the
  // caller made it by ncclMemAlloc, too.
  bool register_buffers = false;
  // How many communicators a rank keeps, each for one group: beyond that, those that no plan uses are given
  // back, the least recently used ones first. It has an effect only if NcclOptions::agree is set. Chosen: a
  // mesh of five axes has five groups on each rank, and with its pairs and a double ring less than 20; NCCL
  // takes up to some hundred MB of the GPU for each of eight GPUs' (estimated), and makes it in 0.3 to 1 s.
  int most_kept = 32;
};

struct NcclOptions {
  Rank rank = 0;
  std::int32_t world_size = 1;
  int cuda_device = 0;
  // The target that plans are made for, if it is not the GPU's own, as in a job whose GPUs differ. It must
  // outlive the device. Null: the GPU's own.
  const Target* target = nullptr;
  // Brings the id of a communicator, which a group's first member made, to the others: it returns on every
  // member what the first member gave as `id`. `key` is new at each call, and equal on all members. It blocks
  // until the first member has come, or until a timeout of its own.
  std::function<std::string(const std::string& key, const std::optional<std::string>& id)> share;
  // Returns the `own` of every rank, by rank. Set it only if all ranks of the world prepare plans together:
  // groups are then split from one communicator of the world (ncclCommSplit, which all its ranks must call).
  // If it is not set, each group has an id of its own.
  std::function<std::vector<std::string>(const std::string& key, const std::string& own)> all_gather = {};
  // Where the members of a group meet while they prepare a plan (nccl_agreement.h). Returns what each member
  // gave as `own`, in the order of group.ranks, when all have called it with this group and number; a
  // group's numbers begin at 0 and grow by one. It waits for as long as the others live, and throws if one of
  // them is lost. If it is not set, ranks prepare and launch without a word: those that wait for one that
  // builds kernels do it in a collective, where its time counts.
  std::function<std::vector<std::string>(const Group& group, std::int64_t number, const std::string& own)>
      agree = {};
  // The ranks of this machine, if they are known, and whether NCCL takes each of them for a host of its own,
  // since ranks share a GPU. prepare() and keep() then refuse groups for which NCCL would not find the shared
  // memory or the file descriptors, with the numbers (nccl_pools.h, nccl_descriptors.h).
  std::vector<Rank> here = {};
  bool each_is_a_host = false;

  // Whether records and times are kept for take_observed() and take_times(). A program that never asks for
  // them saves two events for each step, and their memory.
  bool traces = true;

  // Whether kept plans become CUDA graphs, so that a run costs the host one launch instead of one for each
  // step. plan_graphs.h says which runs do. What the device observes and the order of everything stay the
  // same. Of times only those of whole runs are known: each step has those of its run, and says so in its
  // label (step_times.h). A collective of a graph counts as begun when the graph has begun, and as under way
  // until the whole graph has ended; so `timeout` has to be longer than a run of the plan.
  //
  // Capturing may exchange addresses with other ranks (NCCL_GRAPH_REGISTER, on by default). So the ranks of a
  // plan must change the buffers of its runs in the same runs, unless NCCL_GRAPH_REGISTER=0, as the nccl back
  // end sets it. A plan that cannot be captured is launched step by step; graph_use() says why.
  bool graphs = false;
  // Called on the rank's thread, with the reason for people, when a plan turns out not to be captured.
  std::function<void(const std::string&)> on_refused_graph = {};

  // All times here are chosen; none is measured. 30 s is the default of a job (job_environment.h).
  // How long a collective may make no progress, beyond the time that the plan's kernels may take at worst, on
  // this rank or, if `agree` is set, on any rank that it shares a group with (runtime/planned_work.h).
  std::chrono::milliseconds timeout{30'000};
  // How long connecting a group may take in prepare(). If it is not set, it is `timeout`, but at least 30 s,
  // since NCCL takes seconds to start on a machine of many GPUs.
  std::optional<std::chrono::milliseconds> connect_timeout = {};
  // How long ncclCommAbort may take. An error of the job waits for it, so it is shorter than the others.
  std::chrono::milliseconds abort_timeout{5'000};
  // How long ncclCommDestroy may take, when all work is done.
  std::chrono::milliseconds destroy_timeout{30'000};
  NcclCommOptions communicators = {};

  // Where cuDNN's graphs are kept for later processes (runtime/cuda/graph_files.h). Unset: as the environment
  // says. Empty: nowhere.
  std::optional<std::string> graph_folder = {};
  // Called with one line of what a user may want to know: that a step needs memory beside its plan, or that
  // graphs cannot be kept. Threads of the device may call it.
  std::function<void(const std::string& note)> on_note = {};
  // Called on the watchdog's thread or inside synchronize(), soon after a collective begins, and soon after
  // it has ended (then without a record).
  OnCollective on_collective = {};
  OnCollectiveEnd on_collective_end = {};
  // Called on the same threads if a collective has made no progress for `timeout`. Returns whether the
  // collective may go on for as long again, because a member that has not begun it lives. If it is not set,
  // no collective may.
  std::function<bool(const CollectiveBegin&)> may_wait = {};
  // Called by launch() before the step is enqueued, with the CUDA stream (cudaStream_t) that the step will
  // run on: what this function enqueues there runs before the step. Tests delay steps by it, so that a wait
  // that a plan lacks shows.
  std::function<void(const Step&, CallerStream)> before_step = {};
};

// The versions of the libraries, by name: "nccl", "cuda", "cuda driver", "cudnn", as far as they are there.
std::map<std::string, std::string> gpu_library_versions();

// The number of GPUs that this process sees; 0 if there is no driver.
int gpu_count();
// The target of this GPU's generation, whatever libraries there are. Throws as gpu_target_of().
const Target& gpu_generation_of(int cuda_device);
// The target that plans for this GPU are made for, with the cuDNN that this process has. Throws InvalidInput
// if this process sees no such GPU, or if its generation is not known.
const Target& gpu_target_of(int cuda_device);

// Whether a device that was destroyed has left communicators behind, because they did not end in time. Their
// threads and kernels still use what the device had. The process may go on, but must end by _exit(), so that
// no destructor runs of what they use.
bool left_behind();

// What became of the runs of kept plans (NcclOptions::graphs).
struct GraphUse {
  std::int64_t launched = 0, captured = 0, replayed = 0;  // runs; one that is captured is not replayed, too
  std::vector<std::string> refused;                       // why a plan is not captured, for people
};

class NcclDevice : public ProcessDevice {
 public:
  // Throws InvalidInput if this process sees no such GPU, with the number that there are.
  explicit NcclDevice(NcclOptions options);
  // Ends the communicators: destroys them if all work is done and well, else aborts them. Those that do not
  // end in time are left behind with all memory of the device (left_behind()).
  ~NcclDevice() override;

  Rank rank() const override;
  const Target& target() const override;  // that of NcclOptions, else the GPU's
  // Bindings are addresses of the GPU's memory. On all ranks the missing communicators are made in the order
  // of the groups' names. The device keeps them for later plans, up to NcclCommOptions::most_kept.
  //
  // Kernels are made ready when all groups have connected. If ranks agree, it returns when the kernels of all
  // members of the plan's groups are ready. If one of them cannot make its kernels ready, that one throws
  // why, the others throw PeerLost with the same words, and all devices are as they were before.
  void prepare(const Plan& plan, const Bindings& bindings) override;
  void launch(const StepRef& step, std::int64_t iteration) override;
  EventId record(StreamId stream) override;
  void wait(StreamId stream, EventId event) override;
  void synchronize() override;
  void upload(BufferId buffer, std::span<const std::byte> host) override;
  void download(BufferId buffer, std::span<std::byte> host) override;

  // Kept plans. keep() waits for no stream of the GPU; a run blocks the host nowhere, but for what the head
  // of this file lists. Lanes have CUDA streams of their own. begin_run() throws InvalidInput, and enqueues
  // nothing, if the caller's stream is being captured.
  PreparedId keep(const Plan& plan, const Bindings& bindings, LaneId lane) override;
  void use(PreparedId prepared, const Bindings& changed) override;
  void release(PreparedId prepared) override;
  bool has_happened(EventId event) override;
  void await(EventId event) override;
  void begin_run(CallerStream caller) override;
  void begin_run_after(std::span<const EventId> events) override;
  void end_run(CallerStream caller, EventId end) override;

  // Of this device so far. For the rank's thread.
  const GraphUse& graph_use() const;

  std::vector<OpRecord> take_observed() override;
  DeviceTimes take_times() override;
  // The host cannot see kernels run on the GPU. So the device counts as computing until a collective has made
  // no progress for the timeout.
  DeviceActivity activity() const override;
  bool host_memory() const override { return false; }
  std::unique_ptr<DeviceMemory> memory() override;
  void abort() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
