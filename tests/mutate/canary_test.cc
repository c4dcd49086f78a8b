// The canaries: cases with a planted bug, one file each. Whoever runs cases must fail with them.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/fuzz/mutate/trials.h"
#include "tests/mutate/damaged_jobs.h"
#include "traces/fuzz_case.h"

namespace cp::testing {
namespace {

// Files are named after who catches them. Tests run in the project's root.
TEST(Canary, EachIsCaughtByTheJudgeOfItsName) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/corpus/canary")) {
    const std::string file = entry.path().filename();
    const proto::FuzzCase job = read_case_file(entry.path());
    ASSERT_TRUE(job.has_mutation()) << file;
    const std::optional<proto::Finding> finding = sim::find_mutant(job);
    ASSERT_TRUE(finding.has_value()) << file;
    EXPECT_EQ(finding->property(), "mutant: " + file.substr(0, file.find('_')))
        << file << ": " << finding->message();
    ++files;
  }
  EXPECT_GE(files, 4);
}

TEST(Canary, ACaseWhoseMutantIsEquivalentHasNoFinding) {
  proto::FuzzCase job = redistribute_case("S(0)", "S(1)");
  *job.mutable_mutation() = mutation_of(sim::MutationKind::repeat_step, 0, 0);  // packs twice
  EXPECT_FALSE(sim::find_mutant(job).has_value());
}

}  // namespace
}  // namespace cp::testing
