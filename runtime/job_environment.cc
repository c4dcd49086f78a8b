#include "runtime/job_environment.h"

#include <cstdlib>
#include <limits>

#include "runtime/progress_page.h"
#include "runtime/rendezvous/client.h"
#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::runtime {
namespace {

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

std::int64_t in_range(const char* name, const char* text, std::int64_t least, std::int64_t most) {
  const std::int64_t value = parse_int(text, name);
  if (value >= least && value <= most) return value;
  throw InvalidInput(
      str("the environment variable ", name, "=", text, " is out of range; use ", least, " to ", most));
}

// Of a variable that the launcher sets.
std::int64_t number(const char* name, std::int64_t least, std::int64_t most, const char* launcher = "cprun") {
  if (const char* text = variable(name)) return in_range(name, text, least, most);
  throw InvalidInput(str("the environment variable ", name, " is missing, although ", launcher,
                         " sets it for each of its ranks"));
}

constexpr std::int64_t kMostRanks = 1 << 20;
constexpr const char *kTraceVariable = "CPRUN_TRACE", *kHashVariable = "CPRUN_HASH_HOSTS";

std::int32_t small(std::int64_t value) { return static_cast<std::int32_t>(value); }

}  // namespace

std::optional<JobEnvironment> job_environment() {
  const char* token = variable("CPRUN_TOKEN");
  if (token == nullptr) return std::nullopt;
  JobEnvironment job;
  job.token = token;
  job.world_size = small(number("WORLD_SIZE", 1, kMostRanks));
  job.rank = small(number("RANK", 0, job.world_size - 1));
  job.local_rank = variable("LOCAL_RANK") ? small(number("LOCAL_RANK", 0, kMostRanks)) : job.rank;
  if (const char* host = variable("MASTER_ADDR")) job.host = host;
  job.port = static_cast<std::uint16_t>(number("MASTER_PORT", 1, 65535));
  if (const char* id = variable("CPRUN_JOB_ID")) job.job_id = id;
  if (variable("CPRUN_TIMEOUT_MS"))
    job.timeout = std::chrono::milliseconds(number("CPRUN_TIMEOUT_MS", 1, std::int64_t{1} << 40));
  if (const char* interface = variable("CPRUN_INTERFACE")) job.interface = interface;
  if (const char* backend = variable("CPRUN_BACKEND")) job.backend = backend;
  if (variable("CPRUN_ALLOW_SHARED_GPU")) job.allow_shared_gpu = number("CPRUN_ALLOW_SHARED_GPU", 0, 1) != 0;
  if (const char* folder = variable(kTraceVariable)) job.trace_folder = folder;
  if (variable(kHashVariable)) job.hash_host = number(kHashVariable, 0, 1) != 0;
  if (const char* page = variable(kProgressVariable)) job.progress = ProgressWriter::open(page);
  for (const char* name : {"CPRUN_TOKEN", kProgressVariable, kTraceVariable})
    ::unsetenv(name);  // not for what this process starts
  return job;
}

// The folder of traces is there even if empty, so that a cprun in a program of another one hands that one's
// folder to nobody.
std::vector<std::string> variables_of(const JobEnvironment& job) {
  return {str("RANK=", job.rank),
          str("WORLD_SIZE=", job.world_size),
          str("LOCAL_RANK=", job.local_rank),
          str("MASTER_ADDR=", job.host),
          str("MASTER_PORT=", job.port),
          str("CPRUN_TOKEN=", job.token),
          str("CPRUN_JOB_ID=", job.job_id),
          str("CPRUN_TIMEOUT_MS=", job.timeout.count()),
          str("CPRUN_INTERFACE=", job.interface),
          str("CPRUN_BACKEND=", job.backend),
          str("CPRUN_ALLOW_SHARED_GPU=", job.allow_shared_gpu ? 1 : 0),
          str(kHashVariable, "=", job.hash_host ? 1 : 0),
          str(kTraceVariable, "=", job.trace_folder)};
}

std::optional<ForeignRank> foreign_rank() {
  struct Names {
    const char *launcher, *marker, *rank, *world_size, *local_rank;
  };
  constexpr Names kLaunchers[] = {
      {"torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
      {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK"},
      {"MPICH", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
      // Last: mpirun inside a Slurm allocation sets these as well. An allocation without a step has no
      // SLURM_STEP_ID.
      {"Slurm", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}};
  for (const Names& names : kLaunchers) {
    if (variable(names.marker) == nullptr || variable(names.rank) == nullptr) continue;
    ForeignRank rank{names.launcher, 0, 1, 0};
    rank.world_size = small(number(names.world_size, 1, kMostRanks, names.launcher));
    rank.rank = small(number(names.rank, 0, rank.world_size - 1, names.launcher));
    rank.local_rank = variable(names.local_rank)
                          ? small(number(names.local_rank, 0, kMostRanks, names.launcher))
                          : rank.rank;
    return rank;
  }
  return std::nullopt;
}

std::shared_ptr<RendezvousClient> join(const JobEnvironment& job) {
  return std::make_shared<RendezvousClient>(ClientOptions{.host = job.host,
                                                          .port = job.port,
                                                          .job_id = job.job_id,
                                                          .rank = job.rank,
                                                          .world_size = job.world_size,
                                                          .token = job.token,
                                                          .timeout = job.timeout});
}

}  // namespace cp::runtime
