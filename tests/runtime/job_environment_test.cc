#include "runtime/job_environment.h"

#include <cstdlib>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/messages.h"

namespace cp::runtime {
namespace {

using ::testing::HasSubstr;

// Sets variables, and puts the environment back.
class Variables {
 public:
  Variables() {
    for (const char* name : {"RANK",
                             "WORLD_SIZE",
                             "LOCAL_RANK",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "CPRUN_TOKEN",
                             "CPRUN_JOB_ID",
                             "CPRUN_TIMEOUT_MS",
                             "CPRUN_INTERFACE",
                             "CPRUN_BACKEND",
                             "CPRUN_ALLOW_SHARED_GPU",
                             "CPRUN_TRACE",
                             "CPRUN_HASH_HOSTS",
                             "TORCHELASTIC_RUN_ID",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "SLURM_STEP_ID",
                             "SLURM_PROCID",
                             "SLURM_NTASKS",
                             "SLURM_LOCALID"}) {
      const char* value = std::getenv(name);
      if (value != nullptr) before_[name] = value;
      ::unsetenv(name);
      names_.emplace_back(name);
    }
  }
  ~Variables() {
    for (const std::string& name : names_) {
      const auto found = before_.find(name);
      found == before_.end() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), found->second.c_str(), 1);
    }
  }
  void set(const std::string& assignment) {
    const std::size_t equals = assignment.find('=');
    ::setenv(assignment.substr(0, equals).c_str(), assignment.substr(equals + 1).c_str(), 1);
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::string> before_;
};

TEST(JobEnvironment, IsReadAsItWasWritten) {
  Variables variables;
  EXPECT_FALSE(job_environment());
  const JobEnvironment job{.rank = 5,
                           .world_size = 8,
                           .local_rank = 1,
                           .host = "10.0.0.1",
                           .port = 29500,
                           .token = "0123456789abcdef",
                           .job_id = "mine",
                           .timeout = std::chrono::milliseconds(2500),
                           .interface = "10.0.0.2",
                           .backend = "nccl",
                           .allow_shared_gpu = true,
                           .trace_folder = "traces/of this job",
                           .hash_host = true};
  for (const std::string& variable : variables_of(job)) variables.set(variable);
  const auto read = job_environment();
  ASSERT_TRUE(read);
  EXPECT_EQ(variables_of(*read), variables_of(job));
  EXPECT_EQ(std::getenv("CPRUN_TRACE"), nullptr);  // another program's Job would write over this one's trace
}

TEST(JobEnvironment, NamesWhatIsMissingOrMakesNoSense) {
  Variables variables;
  variables.set("CPRUN_TOKEN=0123456789abcdef");
  EXPECT_THAT(testing::message_of([] { job_environment(); }), HasSubstr("WORLD_SIZE is missing"));
  variables.set("WORLD_SIZE=4"), variables.set("RANK=4");
  EXPECT_THAT(testing::message_of([] { job_environment(); }),
              HasSubstr("RANK=4 is out of range; use 0 to 3"));
  variables.set("RANK=two");
  EXPECT_THAT(testing::message_of([] { job_environment(); }), HasSubstr("RANK 'two' is not a whole number"));
}

TEST(ForeignRank, KnowsOtherLaunchers) {
  const struct {
    const char* launcher;
    std::vector<const char*> variables;
  } rows[] = {
      {"torchrun", {"TORCHELASTIC_RUN_ID=x", "RANK=2", "WORLD_SIZE=4", "LOCAL_RANK=0"}},
      {"Open MPI", {"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=0"}},
      {"MPICH", {"PMI_RANK=2", "PMI_SIZE=4"}},
      {"Slurm", {"SLURM_STEP_ID=0", "SLURM_PROCID=2", "SLURM_NTASKS=4", "SLURM_LOCALID=0"}}};
  for (const auto& row : rows) {
    Variables variables;
    EXPECT_FALSE(foreign_rank());
    for (const char* variable : row.variables) variables.set(variable);
    const auto rank = foreign_rank();
    ASSERT_TRUE(rank) << row.launcher;
    EXPECT_EQ(rank->launcher, row.launcher);
    EXPECT_EQ(rank->rank, 2);
    EXPECT_EQ(rank->world_size, 4);
  }
  // RANK alone is anybody's.
  Variables variables;
  variables.set("RANK=2"), variables.set("WORLD_SIZE=4");
  EXPECT_FALSE(foreign_rank());
}

}  // namespace
}  // namespace cp::runtime
