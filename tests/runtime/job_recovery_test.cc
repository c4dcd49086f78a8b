// After a failure, the processes of a job make another one, over Gloo. tests/gpu/nccl_job_recovery_test.cc
// does so over NCCL.
#include <vector>

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "tests/runtime/job_attempts.h"
#include "tests/runtime/processes.h"

namespace cp {
namespace {

#ifndef CP_HAVE_GLOO

TEST(JobRecovery, IsTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#else

// The sum of both ranks' ones.
std::vector<float> sum(runtime::Job& job) {
  const Mesh mesh = Mesh::parse("cp=2");
  const Layout parts = parse_layout("P(sum)", mesh, {64}, DType::f32),
               whole = parse_layout("R", mesh, {64}, DType::f32);
  std::vector<float> in(64, 1), out(64);
  job.redistribute(from_local(parts, job.rank(), in.data(), 256),
                   from_local(whole, job.rank(), out.data(), 256));
  return out;
}

std::string recovers(Rank rank, const std::string& directory) {
  testing::JobAttempts attempts(rank, 2, directory, "gloo");
  std::string said = attempts.attempt([&](runtime::Job& job) {
    sum(job);
    if (rank == 1) throw CheckFailure("lost on purpose");
    sum(job);
  });
  // Where rank 1 was: the last step that it had begun.
  for (const char* words : {"rank 1 (host ", "#0 of ", "[0,1], step ", "ended with an exception"}) {
    if (rank == 0 && said.find(words) == std::string::npos) return str("'", words, "' is missing in: ", said);
  }
  if (rank == 1 && said != "lost on purpose") return said;
  std::string wrong;
  const std::string again = attempts.attempt([&](runtime::Job& job) {
    for (int i = 0; i < 3 && wrong.empty(); ++i)
      wrong = sum(job) == std::vector<float>(64, 2) ? "" : "another sum in the second job";
  });
  return again.empty() ? wrong : again;
}

TEST(JobRecovery, ProcessesOfAFailedJobMakeAnother) {
  const testing::TemporaryDirectory directory;
  EXPECT_EQ(testing::run_processes(2, [&](Rank rank) { return recovers(rank, directory.path()); }),
            std::vector<std::string>(2));
}

#endif

}  // namespace
}  // namespace cp
