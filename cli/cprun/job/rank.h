// One rank of a scenario, in a process of its own: joins the job, compares plans, runs them, checks what came
// out, writes its trace.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/job_environment.h"
#include "shared/plan/transfer_check.h"

namespace cp::cli {

struct RankOptions {
  std::string scenario;        // path
  std::string trace_folder;    // for rank-N.cptrace; empty: no trace is written
  bool check_results = false;  // against one device, which takes time and memory
  bool hash_host = false;      // leave the host's name out of the trace
  Checksums checksums = Checksums::
      off;  // of payloads: compared with what the senders had, at the end of each plan or at each collective
  bool warm_up = true;  // on GPUs, plans run once before the run that counts
};

// Joins the job, does the work and says goodbye; returns the exit code. What the work returns is printed
// after the goodbye: no success is told before it is known that all ranks have done the same. What goes wrong
// is told on standard error and to the rendezvous server; a rank that ends because another one failed says
// so, and does not count as a cause.
int run_in_job(const runtime::JobEnvironment& job,
               const std::function<std::string(const std::shared_ptr<runtime::RendezvousClient>&)>& work);

// A scenario's.
int run_rank(const RankOptions& options, const runtime::JobEnvironment& job);

}  // namespace cp::cli
