// What a process of a job knows from its environment: its rank, and where the others are found. cprun sets
// it; the names are those of torchrun, where it has one.
//
//   RANK, WORLD_SIZE, LOCAL_RANK   the rank among all, how many there are, and the rank on its machine
//   MASTER_ADDR, MASTER_PORT       the rendezvous server
//   CPRUN_TOKEN, CPRUN_JOB_ID      what the server asks for
//   CPRUN_TIMEOUT_MS               the time limit of connecting, and of each wait for a peer
//   CPRUN_INTERFACE                the address or name that peers of this rank connect to
//   CPRUN_BACKEND                  what runs the plans (runtime/backend.h): gloo or nccl
//   CPRUN_ALLOW_SHARED_GPU         1: several ranks may have one GPU
//   CPRUN_PROGRESS                 the launcher's page of this process (runtime/progress_page.h)
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shared/base/types.h"

namespace cp::runtime {

class ProgressWriter;
class RendezvousClient;

struct JobEnvironment {
  Rank rank = 0;
  std::int32_t world_size = 1;
  std::int32_t local_rank = 0;
  std::string host = "127.0.0.1";  // of the rendezvous server
  std::uint16_t port = 0;
  std::string token;
  std::string job_id = "cprun";
  std::chrono::milliseconds timeout{30'000};
  std::string interface = "127.0.0.1";
  std::string backend = "gloo";  // one of backends() (backend.h)
  bool allow_shared_gpu = false;
  // Read by the launcher; null where it has none for this process.
  std::shared_ptr<ProgressWriter> progress = nullptr;
};

// Takes the token and the page out of the environment, so that what this process starts does not have them:
// once for each process. Nothing where cprun did not start this process (no CPRUN_TOKEN). Throws InvalidInput
// that names the variable, for one that is missing or makes no sense.
std::optional<JobEnvironment> job_environment();

// "RANK=3", ...: what job_environment() reads again; without the page, which is no text.
std::vector<std::string> variables_of(const JobEnvironment& job);

// Rank, number of ranks and local rank by another launcher: torchrun, Slurm, Open MPI, MPICH. Nothing where
// there is none.
struct ForeignRank {
  std::string launcher;  // "torchrun", "Slurm", ...
  Rank rank = 0;
  std::int32_t world_size = 1, local_rank = 0;
};
std::optional<ForeignRank> foreign_rank();

// Joins the job; blocks until the server has taken the rank. Throws what RendezvousClient throws.
std::shared_ptr<RendezvousClient> join(const JobEnvironment& job);

}  // namespace cp::runtime
