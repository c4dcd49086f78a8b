// Job: a program of the user's own as one of the ranks that cprun started.
//
//   int main() {
//     cp::runtime::Job job;  // rank and world from the environment
//     job.redistribute(cp::from_local(rows, job.rank(), in.data(), bytes),
//                      cp::from_local(columns, job.rank(), out.data(), bytes));
//     cp::ContextParallelAttention attention(job.device(), ranks, strategy, job.plans());
//     ...
//   }
//
// The destructor waits until all ranks are here and have done the same. A program that ends by an exception,
// or without destroying its Job, is a failure of the job. Start it with:
//
//   cprun --nproc-per-node 4 -- ./program
//
// With cprun --backend nccl each rank has a GPU, which is the current one of the thread that made the Job.
// The buffers of plans and of redistribute() are then addresses of that GPU's memory (from cudaMalloc).
//
// After an NCCL error, threads of NCCL may outlive the Job and still use the process's memory. Check
// devices_left_behind() of joined_device.h; if it is true, leave with std::_Exit().
//
// With cprun --trace FILE the Job writes down what the program runs on the device: every step that it issues,
// and every collective that the library's calls amount to. cprun puts the ranks' parts together in FILE, and
// cpsim trace compare says whether two runs did the same, on whichever back ends. Nothing of it is dropped,
// so trace short runs.
//
// All ranks must make the same calls in the same order. Ranks compare a plan with one another before they use
// it for the first time, and keep it afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/errors.h"
#include "shared/plan/device.h"
#include "shared/plan/plan_cache.h"
#include "shared/plan/prepared_plan.h"
#include "shared/plan/trace.h"
#include "shared/redistribute/dtensor.h"

namespace cp::runtime {

class RendezvousClient;

class Job {
 public:
  // Joins the job, and returns when the rendezvous server has taken this rank. `most_plans` is how many plans
  // it keeps. Throws InvalidInput if cprun did not start the process, and RendezvousError,
  // AuthenticationError or Timeout if joining fails.
  explicit Job(std::size_t most_plans = 64);
  // Calls finish(), unless an exception is on its way. If finish() throws, the destructor prints why and ends
  // the process with the exit code of the error's kind (launcher/exit_code.h): ranks that did different
  // things have wrong results, so the process must not end with 0.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Rank rank() const;
  std::int32_t world_size() const, local_rank() const;

  // The rank's device, of the backend that cprun was told. Its buffers are host memory on gloo, and addresses
  // of the rank's GPU on nccl. Its errors (PeerLost, Timeout) name the rank that failed first. The Job owns
  // it. To run a plan of your own on it, use a PlanSession (shared/plan/session.h).
  Device& device();
  bool host_memory() const;      // whether its buffers are host memory
  const Target& target() const;  // what plans for it are best made for, on all ranks alike
  PlanCache& plans();
  RendezvousClient& rendezvous();  // keys, barriers and gathers of small data

  void barrier(const std::string& name);  // of all ranks

  // Waits until all members of this rank's groups are here, and says goodbye; the device is gone then. Call
  // it yourself if the program is to keep its results only when they are known to be right. Throws
  // CollectiveMismatch if this rank has run other collectives or plans than the others, and PeerLost if
  // another rank has, or if the job failed.
  void finish();

  // Moves `in` to the layout of `out`, into out's memory, as redistribute() of dtensor.h does. The device
  // keeps the latest plans ready, so that moving the same layouts again prepares nothing. Both memories are
  // the device's and belong to the caller. A rank that is in neither mesh has nothing to do. It returns when
  // `out` has been written; on a GPU it begins behind everything that is on the stream `caller`, CUDA's
  // default stream unless the program names another.
  void redistribute(const DTensor& in, const DTensor& out, const RedistributeOptions& options = {},
                    RankTrace* trace = nullptr, CallerStream caller = nullptr);
  // Computes the gradient of redistribute(in -> out), from grad_out to grad_in, times options.scale, as
  // redistribute_backward() of dtensor.h does, and returns and keeps the plan as redistribute() above.
  void redistribute_backward(const Layout& in, const Layout& out, const DTensor& grad_out,
                             const DTensor& grad_in, const GradientOptions& options = {},
                             RankTrace* trace = nullptr, CallerStream caller = nullptr);

  // The same, but these return at once if the layouts are known. What they enqueue takes its place in the
  // stream `caller`, and both memories belong to it until the run has ended (prepared_plan.h has the rules).
  //
  //   Correct                                                Wrong
  //   start_redistribute(in, out, {}, s);                    start_redistribute(in, out, {}, s);
  //   kernel<<<.., s>>>(out.data);                           kernel<<<.., t>>>(out.data);  // t waits not
  //   start_redistribute(in, out).wait(); read(out);         start_redistribute(in, out); read(out);
  PlanRun start_redistribute(const DTensor& in, const DTensor& out, const RedistributeOptions& options = {},
                             CallerStream caller = nullptr);
  PlanRun start_redistribute_backward(const Layout& in, const Layout& out, const DTensor& grad_out,
                                      const DTensor& grad_in, const GradientOptions& options = {},
                                      CallerStream caller = nullptr);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
