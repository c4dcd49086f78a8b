// cprun in the launcher: starts the ranks of this machine, watches over them, says what failed first, and
// compares what they did with the simulated fabric.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/job_environment.h"
#include "shared/plan/transfer_check.h"

namespace cp::cli {

struct LaunchRequest {
  int nproc_per_node = 0;  // 0: as many as the scenario needs
  int nnodes = 1, node_rank = 0;
  int first_local_rank = 0;  // of this machine's ranks, where another launcher started several cpruns on it
  std::string job_id = "cprun";  // tells jobs on one endpoint apart
  std::string endpoint;  // "host:port" of the rendezvous server, which runs on node 0; one machine needs none
  std::string token_file;  // of several machines
  // That peers of this machine's ranks connect to; empty: 127.0.0.1, or the address that reaches the
  // endpoint.
  std::string interface;
  std::string log_dir;
  std::string trace;  // a file; empty: none
  bool verify = false;
  Checksums checksums = Checksums::off;  // as in RankOptions
  std::string backend = "gloo";          // one of runtime::backends()
  bool allow_shared_gpu = false;         // several ranks on one GPU
  bool hash_host = false;
  bool warm_up = true;                        // as in RankOptions
  std::chrono::milliseconds timeout{30'000};  // of joining, and until a silent rank counts as lost
  std::chrono::milliseconds compute_timeout{
      0};  // until a rank that lives and is waited for counts as stuck; 0: never
  std::chrono::milliseconds grace{5'000};  // between SIGTERM and SIGKILL

  // One of the three.
  std::string scenario;                    // path
  std::vector<std::string> program;        // and its arguments
  std::vector<std::string> own_arguments;  // of cprun itself as a rank
};

// Returns the exit code: that of the first failure, 128 + n for a rank that signal n killed. Throws
// InvalidInput for what cannot be started, and what RendezvousServer throws.
int launch(const LaunchRequest& request);

}  // namespace cp::cli
