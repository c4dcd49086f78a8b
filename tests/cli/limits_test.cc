// Values that are far too large: refused at once, with what would work, or answered as quickly as small ones.
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
constexpr const char* kMost = "9223372036854775807";

Words estimate(const Words& more) {
  Words words = {"estimate", "--cluster", "dgx-h100", "--q-heads", "2", "--causal"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
Words run(const Words& more) {
  Words words = {"run", "--q-heads", "2", "--causal"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
Words plan(const Words& more) {
  Words words = {"plan",      "--model", "llama-3.1-8b",   "--nodes", "2",
                 "--seq-len", "128K",    "--global-batch", "16"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct TooLarge {
  std::string name;
  Words words, message;
};
void PrintTo(const TooLarge& value, std::ostream* out) { *out << value.name; }

class Limits : public ::testing::TestWithParam<TooLarge> {};

TEST_P(Limits, AreNamedWithWhatWorks) {
  const Finished finished = cpsim(GetParam().words);
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.out, IsEmpty());
  EXPECT_THAT(finished.err, Not(HasSubstr("internal error")));
  for (const std::string& part : GetParam().message) EXPECT_THAT(finished.err, HasSubstr(part));
}

const TooLarge kTooLarge[] = {
    {"EstimateRanks",
     estimate({"--mesh", "cp=100000", "--seq-len", "131072"}),
     {"planning 100000 ranks", "takes about 37.25 TiB", " are free; use ", " ranks or fewer"}},
    {"RunRanks",
     run({"--mesh", "cp=100000", "--seq-len", "4096", "--head-dim", "1"}),
     {"planning and recording 100000 ranks", " ranks or fewer"}},
    {"RunRank",
     run({"--mesh", "cp=2@0/2147483647", "--seq-len", "128"}),
     {"--mesh cp=2@0/2147483647", "the rank", "2147483647", "16777215"}},
    {"EstimateHeadDim",
     estimate({"--mesh", "cp=2", "--seq-len", "128", "--head-dim", kMost}),
     {"head_dim=9223372036854775807 has more than 2^59 elements", "use head_dim=2251799813685248 at most"}},
    {"RunHeadDim",
     run({"--mesh", "cp=2", "--seq-len", "128", "--head-dim", kMost}),
     {"head_dim=9223372036854775807 has more than 2^59 elements", "use head_dim=2251799813685248 at most"}},
    {"RunHeads",
     {"run", "--mesh", "cp=2", "--seq-len", "128", "--q-heads", "4611686018427387904"},
     {"has more than 2^59 elements", "fewer heads"}},
    {"PlanMicroBatch",
     plan({"--micro-batch", kMost}),
     {"micro_batch=9223372036854775807 is more than global_batch=16", "use micro_batch=1"}},
    {"PlanThreads", plan({"--threads", "100000"}), {"--threads 100000 is out of range; use 1 to 1024"}},
    {"TraceOfMoreThanAnAge",
     estimate({"--mesh", "cp=2", "--seq-len", "1099511627776", "--trace", "never_written.json"}),
     {"pass forward ends after ", "a trace counts nanoseconds up to ", "draw a shorter sequence"}},
};
INSTANTIATE_TEST_SUITE_P(Of, Limits, ::testing::ValuesIn(kTooLarge),
                         [](const auto& row) { return row.param.name; });

// Two million nodes that nobody uses change nothing.
TEST(Limits, NodesThatNobodyUsesDoNotCount) {
  const auto figures = [](const char* nodes) {
    const Finished finished = cpsim(
        estimate({"--mesh", "cp=16", "--seq-len", "65536", "--pass", "both", "--json", "--nodes", nodes}));
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    auto answer = nlohmann::json::parse(finished.out);
    answer.erase("nodes");
    return answer;
  };
  EXPECT_EQ(figures("2097152"), figures("3"));
}

// A name of a file's own does not command the terminal.
TEST(Limits, ControlCharactersOfAClusterAreShownAsTheirCodes) {
  const TemporaryFolder folder;
  const std::string file = folder.file("mine.txtpb");
  std::ofstream(file) << "name: \"mine\\033]0;owned\\007\" like: \"dgx-h100\"\n";
  const Finished estimated =
      cpsim({"estimate", "--cluster", file, "--mesh", "cp=2", "--seq-len", "128", "--q-heads", "2"});
  EXPECT_EQ(estimated.exit_code, 0) << estimated.err;
  const Finished planned = cpsim({"plan", "--model", "llama-3.1-8b", "--cluster", file, "--nodes", "1",
                                  "--seq-len", "8K", "--global-batch", "8", "--fix", "tp=8"});
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  for (const Finished* finished : {&estimated, &planned})
    EXPECT_THAT(finished->out, AllOf(HasSubstr("mine\\x1b]0;owned\\x07"), Not(HasSubstr("\x1b"))));
}

}  // namespace
}  // namespace cp::cli
