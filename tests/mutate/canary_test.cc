// The canaries: cases with a planted bug, one file each. Whoever runs cases must fail with them.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/mutate/trials.h"
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
    const auto subject = sim::make_subject(job);
    const std::optional<sim::MutantTrial> trial = attempt(*subject, job.mutation());
    ASSERT_TRUE(trial.has_value()) << file;
    EXPECT_EQ(name(trial->judgement.outcome), file.substr(0, file.find('_')))
        << file << ": " << trial->mutation.text << ": " << trial->judgement.explanation;
    ++files;
  }
  EXPECT_GE(files, 4);
}

}  // namespace
}  // namespace cp::testing
