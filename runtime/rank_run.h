// RankRun: one rank's passes on a device of its job, beside those of the other ranks. What cprun does with a scenario, for programs that
// have passes of their own:
//
//   all ranks compare what their passes are made from, and what they do together; a difference is an error, never a hang
//   the device is made, and the ranks agree on when times begin
//   each pass: bind its buffers - prepare - upload - warm up - run - download - take its trace
//
//   const std::shared_ptr<RendezvousClient> client = join(job);
//   RankRun run(job, client, {});
//   run.run(passes);                           // the caller's RankPasses, or those of sim/proof/run/rank_job.h
//   client->barrier("all have their results");  // before the device goes: others may still wait for what it sends
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
  // Each pass runs once before the run that counts, where the device's memory is not the host's: NCCL connects ranks in their first
  // collectives, and CUDA loads a kernel when it is launched first. It leaves nothing in the trace.
  bool warm_up = true;
  // Around each pass that the rank has a part in, on the caller's thread, each with the pass's trace, which stays where it is from the
  // first to the last of them: when it has its rank and its clock; when all steps are issued and `issued` is complete; and when all of
  // it is there, or, behind an error, what there is.
  std::function<void(const RankTrace&)> begin_pass = {}, issued = {}, end_pass = {};
};

struct RankRunResult {
  // Of the passes that the rank has a part in: the steps alone, without copies to and from the device and without the warm-up.
  std::vector<double> seconds;
  std::size_t steps = 0, collectives = 0;  // that were issued, and observed
};

class RankRun {
 public:
  using Options = RankRunOptions;

  RankRun(const JobEnvironment& job, std::shared_ptr<RendezvousClient> client, Options options);

  // Once, and by all ranks of the job, each with as many inputs(). Throws CollectiveMismatch where passes differ, InvalidInput where the
  // device cannot run them, TransferFault with checksums, and what JoinedDevice throws.
  RankRunResult run(RankPasses& passes);

 private:
  void compare(const RankPasses& passes);
  void connect(bool has_part);
  void align_clocks();
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
