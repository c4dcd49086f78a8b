// Job: a program of the user's own as one of the ranks that cprun started.
//
//   int main() {
//     cp::runtime::Job job;  // rank and world from the environment
//     job.redistribute(cp::from_local(rows, job.rank(), in.data(), bytes), cp::from_local(columns, job.rank(), out.data(), bytes));
//     cp::ContextParallelAttention attention(job.device(), ranks, strategy, job.plans());
//     ...
//   }  // waits until all ranks are here, and have done the same; a program that ends by an exception, or without a Job's end, is a
//      // failure of the job
//
//   cprun --nproc-per-node 4 -- ./program
//
// With cprun --backend nccl each rank has a GPU, which is the current one of the thread that made the Job: the buffers that plans and
// redistribute() are given are addresses of its memory (cudaMalloc).
//
// After an error NCCL's threads may be left behind, which then still use the process's memory: devices_left_behind() of joined_device.h says
// so, and the program is to end by std::_Exit().
//
// All ranks make the same calls in the same order. Plans are compared between ranks before their first use, and kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/errors.h"
#include "shared/plan/device.h"
#include "shared/plan/plan_cache.h"
#include "shared/plan/trace.h"
#include "shared/redistribute/dtensor.h"

namespace cp::runtime {

class RendezvousClient;

class Job {
 public:
  // Joins; returns when the rendezvous server has taken this rank. Throws InvalidInput where cprun did not start the process, and
  // RendezvousError, AuthenticationError and Timeout. `most_plans` are kept.
  explicit Job(std::size_t most_plans = 64);
  // As finish(), unless an exception is on its way; where finish() throws, prints why and ends the process with the exit code of the
  // error's kind (launcher/exit_code.h): ranks that did different things have wrong results, and must not end with 0.
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Rank rank() const;
  std::int32_t world_size() const, local_rank() const;

  // Of the backend that cprun was told: buffers are host memory on gloo, and addresses of the rank's GPU on nccl. Its errors (PeerLost,
  // Timeout) name the rank that failed first. Plans of one's own run on it in a PlanSession (shared/plan/session.h).
  Device& device();
  bool host_memory() const;      // whether its buffers are host memory
  const Target& target() const;  // what plans for it are best made for, on all ranks alike
  PlanCache& plans();
  RendezvousClient& rendezvous();  // keys, barriers and gathers of small data

  void barrier(const std::string& name);  // of all ranks

  // Waits until all members of this rank's groups are here, and says goodbye; the device is gone then. Throws CollectiveMismatch where
  // this rank has run other collectives or plans than the others, and PeerLost where another has, or the job failed. To be called where a
  // program wants to keep its results only when they are known to be right.
  void finish();

  // Moves `in` to the layout of `out`, into out's memory (both the device's), as redistribute() of dtensor.h; its plan is kept. Ranks that neither mesh has
  // have nothing to do.
  void redistribute(const DTensor& in, const DTensor& out, const RedistributeOptions& options = {},
                    RankTrace* trace = nullptr);
  // The gradient of redistribute(in -> out), from grad_out to grad_in, times options.scale; as redistribute_backward() of dtensor.h.
  // Its plan is kept.
  void redistribute_backward(const Layout& in, const Layout& out, const DTensor& grad_out,
                             const DTensor& grad_in, const GradientOptions& options = {},
                             RankTrace* trace = nullptr);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::runtime
