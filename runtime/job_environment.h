// JobEnvironment: what a process of a job learns from its environment variables: which rank it is, and where
// to find the other ranks. cprun sets the variables. Where torchrun has a variable for the same thing, it has
// the same name here.
//
//   RANK, WORLD_SIZE, LOCAL_RANK   the rank among all, how many there are, and the rank on its machine
//   MASTER_ADDR, MASTER_PORT       the rendezvous server
//   CPRUN_TOKEN, CPRUN_JOB_ID      what the server asks for
//   CPRUN_TIMEOUT_MS               the time limit of connecting, and of each wait for a peer
//   CPRUN_INTERFACE                the address or name that peers of this rank connect to
//   CPRUN_BACKEND                  what runs the plans (runtime/backend.h): gloo or nccl
//   CPRUN_ALLOW_SHARED_GPU         1: several ranks may have one GPU
//   CPRUN_PROGRESS                 the launcher's page of this process (runtime/progress_page.h)
//   CPRUN_TRACE                    the folder in which a program's Job writes its trace (job.h)
//   CPRUN_HASH_HOSTS               1: the trace has a hash in place of the host's name
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
  // Where this process writes what it is doing, for the launcher to read. Null if the launcher has no page
  // for this process.
  std::shared_ptr<ProgressWriter> progress = nullptr;
  std::string trace_folder = {};  // empty: nobody wants a trace of the program
  bool hash_host = false;
};

// Reads the variables, and removes the token and the page from the environment, so that programs which this
// process starts do not inherit them. Call it once in a process. Returns nothing if cprun did not start this
// process (there is no CPRUN_TOKEN). Throws InvalidInput that names a variable which is missing or makes no
// sense.
std::optional<JobEnvironment> job_environment();

// Returns the variables ("RANK=3", ...) from which job_environment() reads the same job again. The page is
// not among them, because a descriptor cannot be passed as text.
std::vector<std::string> variables_of(const JobEnvironment& job);

// The rank as another launcher tells it: torchrun, Slurm, Open MPI or MPICH.
struct ForeignRank {
  std::string launcher;  // "torchrun", "Slurm", ...
  Rank rank = 0;
  std::int32_t world_size = 1, local_rank = 0;
};
// Returns nothing if no such launcher started this process.
std::optional<ForeignRank> foreign_rank();

// Joins the job. Blocks until the server has accepted the rank. Throws what the constructor of
// RendezvousClient throws.
std::shared_ptr<RendezvousClient> join(const JobEnvironment& job);

}  // namespace cp::runtime
