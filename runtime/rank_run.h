// RankRun runs one rank's passes on a device of its job, beside the passes of the other ranks. cprun runs
// scenarios with it, and programs that have passes of their own can use it too:
//
//   1. All ranks compare what their passes are made from, and what they do together. A difference is an error,
//      never a hang.
//   2. The device is made, and the ranks agree on when times begin.
//   3. Each pass: bind its buffers - prepare - upload - warm up - run - download - take its trace.
//
//   const std::shared_ptr<RendezvousClient> client = join(job);
//   RankRun run(job, client, {});
//   run.run(passes);  // the caller's RankPasses, or those of sim/scenario/rank_job.h
//   client->barrier("all have their results");
//
// The barrier comes before the device goes, because others may still wait for what it sends.
//
// A program without passes, which makes its plans as it goes, is a Job (job.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/job_environment.h"
#include "runtime/joined_device.h"
#include "runtime/rendezvous/client.h"
#include "shared/plan/rank_passes.h"
#include "shared/plan/trace.h"

namespace cp::runtime {

struct RankRunOptions {
  JoinedDeviceOptions device = {};  // but for every_rank_prepares, which the run finds out
  // If the device's memory is not the host's, each pass runs once before the run that counts: NCCL connects
  // ranks in their first collectives, and CUDA loads a kernel when it is launched first. The warm-up leaves
  // nothing in the trace.
  bool warm_up = true;
  // If the device's memory is not the host's, the device keeps each pass, so that it can be a CUDA graph
  // (NcclBackendOptions::graphs). There are two warm-ups then, and the run that counts is a replay.
  bool kept = false;
  // These are called around each pass that the rank has a part in, on the caller's thread, with the pass's
  // trace: begin_pass when the trace has its rank and its clock; issued when all steps are issued, so that
  // its `issued` is complete; and end_pass when all of the trace is there, or, after an error, as much of it
  // as there is. The trace stays at one address from the first call to the last.
  std::function<void(const RankTrace&)> begin_pass = {}, issued = {}, end_pass = {};
};

struct RankRunResult {
  // How long each pass took that the rank has a part in: the steps alone, without the warm-up and without
  // copies to and from the device.
  std::vector<double> seconds;
  std::size_t steps = 0, collectives = 0;  // that were issued, and observed
};

// By how much this rank's clock is ahead of the earliest rank's, as a trace has it: times count from this
// call on, which follows the making of the device; ranks' hosts agree on the time of day as well as they do.
// A collective call.
std::int64_t clock_offset_ns(RendezvousClient& client);

class RankRun {
 public:
  using Options = RankRunOptions;

  RankRun(const JobEnvironment& job, std::shared_ptr<RendezvousClient> client, Options options);

  // Runs all passes. All ranks of the job must call it, once, and each with as many inputs(). Throws
  // CollectiveMismatch if the ranks' passes differ, InvalidInput if the device cannot run them, TransferFault
  // if checksums differ, and what JoinedDevice throws.
  RankRunResult run(RankPasses& passes);

 private:
  void compare(const RankPasses& passes);
  void connect(bool has_part);
  double run_pass(RankPasses& passes, std::size_t pass, RankTrace& trace);
  double execute(const Plan& plan, const Bindings& bindings, RankTrace& trace);
  void take_times(RankTrace& trace);
  void end_failed_pass(RankTrace& trace);

  const JobEnvironment job_;
  const std::shared_ptr<RendezvousClient> client_;
  Options options_;
  bool runs_on_all_ = false;  // every rank has a part
  std::int64_t clock_offset_ns_ = 0;
  std::optional<JoinedDevice> device_;
};

}  // namespace cp::runtime
