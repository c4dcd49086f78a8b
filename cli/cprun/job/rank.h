// Runs one rank of a scenario, in a process of its own: it joins the job, compares its plans with those of
// the others, runs them, checks the results and writes its trace.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/job_environment.h"
#include "shared/plan/transfer_check.h"

namespace cp::cli {

struct RankOptions {
  std::string scenario;        // path
  std::string software;        // name or path of a software profile, whose max_ctas counts; empty: none
  std::string trace_folder;    // for rank-N.cptrace; empty: no trace is written
  bool check_results = false;  // compares with the results of one device, which takes time and memory
  bool hash_host = false;      // leaves the host's name out of the trace
  // Checksums of payloads: what arrived is compared with what the senders had, when a plan ends or at each
  // collective.
  Checksums checksums = Checksums::off;
  bool warm_up = true;       // on GPUs, each plan runs once before the run that counts
  bool cuda_graphs = false;  // on GPUs, each plan becomes a CUDA graph, and runs twice before
};

// Joins the job, calls work(), says goodbye, and returns the exit code. The text that work() returns is
// printed after the goodbye, so that no success is told before all ranks are known to have done the same.
//
// An Error of work() is told on standard error and to the rendezvous server, and so is a lack of memory;
// neither is thrown further. A rank that ends only because another one failed prints nothing, does not count
// as a cause, and returns the exit code of a lost peer.
int run_in_job(const runtime::JobEnvironment& job,
               const std::function<std::string(const std::shared_ptr<runtime::RendezvousClient>&)>& work);

// Runs this process's rank of the scenario in options.scenario, by run_in_job(). Rank 0 prints one line about
// all ranks.
int run_rank(const RankOptions& options, const runtime::JobEnvironment& job);

}  // namespace cp::cli
