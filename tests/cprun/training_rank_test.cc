// Trainings whose ranks die while they save, or that do not agree on what they train.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "tests/cli/cpsim_process.h"
#include "tests/cprun/run_program.h"
#include "tests/cprun/scenario_file.h"
#include "traces/checkpoints/checkpoint.h"

namespace cp::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TrainingRanks : public ::testing::Test {
 protected:
  std::string training(const std::string& name, const std::string& rest) const {
    return scenario(folder_,
                    str(R"(train { model: "llama-3.1-8b" scaled_down: true layout: "dp_shard=2" seq_len: 8
    global_batch: 2 evaluation: 0 )",
                        rest, " }"),
                    name);
  }

  ProgramEnd run(const std::string& path, const std::vector<std::string>& environment) const {
    return cprun({"--nproc-per-node", "2", "--", built("training_rank"), path, folder_.file("losses")},
                 environment);
  }

  // By step; a step that was made twice, with another loss the second time, fails the test.
  std::map<std::int64_t, double> losses() const {
    std::ifstream file(folder_.file("losses"));
    std::map<std::int64_t, double> losses;
    std::int64_t step = 0;
    for (std::string loss; file >> step >> loss;) {
      const double value = std::strtod(loss.c_str(), nullptr);
      const auto [of_step, is_new] = losses.emplace(step, value);
      EXPECT_TRUE(is_new || of_step->second == value) << "step " << step << " was made again";
    }
    return losses;
  }

  const cli::TemporaryFolder folder_;
};

// Whichever rank is killed, behind whichever phase of a checkpoint: the next job goes on from one that is
// whole, and the curve is that of a training to which nothing happened, bit for bit.
TEST_F(TrainingRanks, GoOnWhereverOneIsKilledInACheckpoint) {
  constexpr int kTrainingSteps = 60;  // each job makes two at most: enough for two of each phase
  static_assert(kTrainingSteps >= 4 * std::size(kCheckpointPhases));
  const std::string whole = training("whole", str("steps: ", kTrainingSteps));
  ASSERT_EQ(run(whole, {}).exit_code, 0);
  const std::map<std::int64_t, double> expected = losses();
  ASSERT_EQ(expected.size(), std::size_t{kTrainingSteps});
  fs::remove(folder_.file("losses"));
  const std::string save = folder_.file("run");
  const std::string saved =
      training("saved", str("steps: ", kTrainingSteps, R"( save: ")", save, R"(" save_every: 1 keep: 1)"));
  for (const CheckpointPhaseFacts& phase : kCheckpointPhases) {
    for (const int rank : {0, 1}) {
      if (rank > 0 && !phase.of_each_rank) continue;
      SCOPED_TRACE(str(phase.name, " of rank ", rank));
      const std::int64_t before = std::ssize(losses());
      const ProgramEnd end = run(saved, {str("WHO=", rank), str("AT=", phase.name)});
      EXPECT_EQ(end.exit_code, 128 + SIGKILL) << end.err;
      const std::map<std::int64_t, double> so_far = losses();
      EXPECT_GT(std::ssize(so_far), before) << "no step was made";
      for (const auto& [step, loss] : so_far) ASSERT_EQ(loss, expected.at(step)) << "step " << step;
    }
  }
  const ProgramEnd end = run(saved, {});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(losses(), expected);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(save)) left.push_back(entry.path().filename().string());
  EXPECT_THAT(left, ElementsAre(checkpoint_name(kTrainingSteps)));
}

TEST_F(TrainingRanks, SayInWhatTheyDiffer) {
  std::ofstream(folder_.file("other.txt")) << std::string(1000, 'a');
  const std::string own = training("own", "steps: 2 seed: 3");
  const std::pair<const char*, std::string> others[] = {
      {"rank 1 has seed 4, where rank 0 has seed 3;", "steps: 2 seed: 4"},
      {"rank 1 has a text of 1000 tokens (digest ",
       str(R"(steps: 2 seed: 3 text: ")", folder_.file("other.txt"), R"(")")},
      {"rank 1 has steps 3, where rank 0 has steps 2; learning_rate 0.001, where rank 0 has learning_rate "
       "0.0003;",
       "steps: 3 seed: 3 learning_rate: 1e-3"}};
  for (const auto& [message, rest] : others) {
    const ProgramEnd end = run(own, {"WHO=1", str("OTHER=", training("other", rest))});
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_THAT(end.err, HasSubstr(str("ranks train differently: ", message)));
    EXPECT_THAT(end.err, HasSubstr("; give all machines the same scenario, flags and files"));
  }
}

}  // namespace
}  // namespace cp::testing
