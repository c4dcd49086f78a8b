// cprun as a launcher: it starts the ranks of this machine, watches over them, says what failed first, and
// compares what they did with the simulated fabric.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/job_environment.h"
#include "shared/plan/transfer_check.h"

namespace cp::cli {

struct LaunchRequest {
  int nproc_per_node = 0;  // 0: as many as the scenario needs
  int nnodes = 1, node_rank = 0;
  // The local rank of this machine's first rank. It is not 0 if another launcher started several cpruns here.
  int first_local_rank = 0;
  std::string job_id = "cprun";  // tells jobs on one endpoint apart
  // "host:port" of the rendezvous server, which runs on node 0. A job on one machine needs none.
  std::string endpoint;
  std::string token_file;  // the secret of a job on several machines
  // The address or interface at which other ranks reach the ranks of this machine. Empty: 127.0.0.1, or the
  // address from which this machine reaches the endpoint.
  std::string interface;
  std::string log_dir;
  std::string trace;  // a file; empty: none
  bool verify = false;
  std::string software;                  // as in RankOptions
  Checksums checksums = Checksums::off;  // as in RankOptions
  std::string backend = "gloo";          // one of runtime::backends()
  bool allow_shared_gpu = false;         // several ranks on one GPU
  bool hash_host = false;
  bool warm_up = true;  // as in RankOptions
  bool cuda_graphs = false;
  // How long ranks may take to join, and how long a rank may be silent before it counts as lost. Chosen;
  // --timeout sets it.
  std::chrono::milliseconds timeout{30'000};
  // How long others may wait for a rank that lives before it counts as stuck. 0: for ever, since it may be
  // computing.
  std::chrono::milliseconds compute_timeout{0};
  std::chrono::milliseconds grace{5'000};  // between SIGTERM and SIGKILL; chosen, --grace sets it

  // Exactly one of these three is given.
  std::string scenario;                    // path
  std::vector<std::string> program;        // and its arguments
  std::vector<std::string> own_arguments;  // the ranks are cprun itself with these arguments

  // With own_arguments: gets the folder in which the ranks have left their traces, when all have ended well,
  // and returns the exit code. Empty: they leave none.
  std::function<int(const std::string& folder)> own_traces;
};

// Runs the job and returns the exit code: that of the first failure, or 128 + n if signal n killed the rank
// that failed first. Throws InvalidInput for a request that cannot be started, BadTrace if the ranks' traces
// cannot be merged, and what RendezvousServer throws.
int launch(const LaunchRequest& request);

}  // namespace cp::cli
