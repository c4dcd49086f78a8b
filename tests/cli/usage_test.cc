// What cpsim says to bad input, and about itself.
#include <algorithm>
#include <cstddef>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct BadInput {
  std::string name;
  Words words;
  int exit_code;
  Words message;  // all of these
};

void PrintTo(const BadInput& input, std::ostream* out) { *out << input.name; }

class UsageOf : public ::testing::TestWithParam<BadInput> {};

// One message on standard error, nothing on standard output.
TEST_P(UsageOf, IsRefusedWithValuesReasonAndWhatWorks) {
  const BadInput& input = GetParam();
  const Finished finished = cpsim(input.words);
  EXPECT_EQ(finished.exit_code, input.exit_code);
  EXPECT_THAT(finished.out, IsEmpty());
  EXPECT_THAT(finished.err, StartsWith("cpsim"));
  for (const std::string& part : input.message) EXPECT_THAT(finished.err, HasSubstr(part));
  EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
}

// A redistribute command with these flags instead of, or beside, those of a good one.
Words with(const Words& flags) {
  Words words = {"redistribute"};
  const std::vector<std::pair<std::string, std::string>> good = {
      {"--mesh", "dp=2,tp=4"}, {"--shape", "8x8"}, {"--from", "S(0),R"}, {"--to", "R,S(1)"}};
  for (const auto& [flag, value] : good) {
    if (std::find(flags.begin(), flags.end(), flag) == flags.end()) words.insert(words.end(), {flag, value});
  }
  words.insert(words.end(), flags.begin(), flags.end());
  return words;
}

const BadInput kBadInputs[] = {
    {"NoCommand", {}, 2, {"a command is missing", "use one of: plan, run, redistribute, prove, estimate"}},
    {"UnknownCommand", {"redistrbute"}, 2, {"'redistrbute'", "did you mean redistribute?"}},
    {"FarFromAnyCommand",
     {"frobnicate"},
     2,
     {"'frobnicate'", "use one of: plan, run, redistribute, prove, estimate"}},
    {"UnknownSubcommand", {"verify", "redistribut"}, 2, {"cpsim verify", "did you mean redistribute?"}},
    {"NoSubcommand", {"verify"}, 2, {"a command is missing", "redistribute"}},
    {"UnknownFlag", with({"--max-memory-facto", "2"}), 2, {"did you mean --max-memory-factor?"}},
    {"ValueMissing", {"redistribute", "--mesh"}, 2, {"--mesh needs a value (MESH)", "--help"}},
    {"SecondValueMissing", {"plan", "--compare", "tp=8"}, 2, {"--compare needs 2 values (LAYOUT)", "--help"}},
    {"WordMissing", {"trace", "show"}, 2, {"the argument trace is missing (FILE|DIR)", "--help"}},
    {"CountOfNothing", {"calibrate", "--gpus", "0"}, 2, {"--gpus 0 is out of range; use 1 to 2147483647"}},
    {"MeshMissing", {"redistribute", "--shape", "8x8"}, 2, {"--mesh is missing", "--mesh dp=2,cp=4"}},
    {"StrayWord", with({"quickly"}), 2, {"'quickly'", "--help"}},
    {"FlagTwice",
     with({"--mesh", "dp=2,tp=4", "--mesh", "dp=8"}),
     2,
     {"--mesh was given more than once", "give it once"}},
    {"MeshSize", with({"--mesh", "dp=2x,tp=4"}), 2, {"--mesh dp=2x,tp=4", "whole number", "for example"}},
    {"Shape", with({"--shape", "8xq"}), 2, {"--shape 8xq", "'q'", "whole number"}},
    {"NegativeShape", with({"--shape", "8x-8"}), 2, {"--shape 8x-8", "-8 is negative", "1024x1024x256"}},
    {"Dtype", with({"--dtype", "f64"}), 2, {"--dtype f64", "f32, f16, bf16, i32, i64"}},
    {"TravelDtype", with({"--travel-dtype", "fp8"}), 2, {"--travel-dtype fp8", "bf16"}},
    {"NumberOfPlacements", with({"--from", "S(0)"}), 2, {"--from S(0)", "2 axes", "one for each axis"}},
    {"TensorDim", with({"--to", "S(5),R"}), 2, {"--to S(5),R", "dimension 5", "-2 .. 1"}},
    {"Placement", with({"--to", "Q,R"}), 2, {"'Q'", "S(DIM)"}},
    {"OtherReduction",
     with({"--from", "P(sum),R", "--to", "P(max),R"}),
     2,
     {"P(sum) to P(max)", "mesh axis dp"}},
    {"MeanOfIntegers", with({"--from", "P(avg),R", "--dtype", "i32"}), 2, {"avg", "i32"}},
    {"Objective", with({"--objective", "speed"}), 2, {"--objective speed", "time or bytes"}},
    {"Schedule", with({"--schedule", "random"}), 2, {"--schedule random", "parallel or baton"}},
    {"Seed", with({"--seed", "-1"}), 2, {"--seed -1", "0 or more"}},
    {"Factor", with({"--max-memory-factor", "much"}), 2, {"--max-memory-factor much", "not a number"}},
    {"ZeroFactor", with({"--max-memory-factor", "0"}), 2, {"max_memory_factor=0", "more than 0"}},
    {"TightFactor",
     with({"--from", "S(0),S(1)", "--to", "S(1),S(0)", "--max-memory-factor", "0.01"}),
     20,
     {"max_memory_factor=0.01", "the smallest one found needs", "max_memory_factor="}},
    {"Efficiency", with({"--exchange-efficiency", "1.5"}), 2, {"1.5", "exchange"}},
    {"AxisOfBandwidth", with({"--axis-gbps", "tq=3"}), 2, {"tq=3", "use dp or tp"}},
    {"BandwidthForm", with({"--axis-gbps", "tp"}), 2, {"'tp'", "dp=45,tp=300"}},
    {"Gradient", with({"--gradient", "both"}), 2, {"--gradient both", "adjoint or replicated"}},
    {"GradientScale",
     with({"--gradient", "adjoint", "--gradient-scale", "2"}),
     2,
     {"--gradient-scale 2", "none or up or down"}},
    {"GradientScaleOfNoGradient",
     with({"--gradient-scale", "up"}),
     2,
     {"--gradient-scale up", "add --gradient replicated"}},
    {"GradientScaleOfNoGroup",
     with({"--from", "S(0),R", "--to", "S(1),R", "--gradient", "replicated", "--gradient-scale", "down"}),
     2,
     {"--gradient-scale down", "no axis goes from R to S", "use none"}},
    {"GradientScaleOfIntegers",
     with({"--from", "S(0),R", "--to", "R,R", "--dtype", "i32", "--gradient", "replicated",
           "--gradient-scale", "up"}),
     2,
     {"i32", "floating dtype"}},
    {"SizesOfDocuments",
     with({"--from", "S(0,per_sequence:0/8:sizes:3/4),R"}),
     2,
     {"axis dp", "document 0 at 0 .. 8", "sum to 7, but they split 8", "sizes:4/4"}},
    {"GradientOfMax",
     with({"--from", "P(max),R", "--gradient", "adjoint"}),
     2,
     {"P(max)", "no gradient", "P(sum)"}},
    {"RankWithoutPlan", with({"--rank", "1"}), 2, {"--rank", "--plan"}},
    {"RankOutsideOfTheMesh", with({"--plan", "--rank", "8"}), 2, {"--rank 8", "dp=2,tp=4"}},
    {"TraceWithoutRun", with({"--trace", "x.trace"}), 2, {"--trace", "--run"}},
    {"ScenarioFile", {"redistribute", "--scenario", "/nowhere/x.txtpb"}, 2, {"/nowhere/x.txtpb"}},
    {"SavedWhereNoFolderIs",
     with({"--save-scenario", "/nowhere/x.txtpb"}),
     2,
     {"/nowhere/x.txtpb", "existing folder"}},
    {"UnknownHelp", {"help", "plann"}, 2, {"'plann'", "redistribute"}},
};
INSTANTIATE_TEST_SUITE_P(Usage, UsageOf, ::testing::ValuesIn(kBadInputs),
                         [](const auto& param) { return param.param.name; });

TEST(Usage, EveryCommandHasHelpWithAnExample) {
  for (const Words& command :
       {Words{}, Words{"redistribute"}, Words{"verify"}, Words{"verify", "redistribute"}, Words{"help"}}) {
    Words words = command;
    words.emplace_back("--help");
    const Finished finished = cpsim(words);
    EXPECT_EQ(finished.exit_code, 0);
    EXPECT_THAT(finished.out, AllOf(HasSubstr("Usage: cpsim"), HasSubstr("Example")));
    EXPECT_THAT(finished.err, IsEmpty());
    Words help = {"help"};
    help.insert(help.end(), command.begin(), command.end());
    EXPECT_EQ(cpsim(help).out, finished.out);
  }
}

// Up to the examples, which are to be copied whole.
TEST(Usage, HelpFitsATerminal) {
  constexpr std::size_t kMost = 110;
  for (const char* command : {"", "plan", "run", "redistribute", "estimate", "validate", "calibrate",
                              "verify", "fuzz", "replay", "mutate", "trace", "list", "mesh", "help"}) {
    const std::string help = cpsim(*command == 0 ? Words{"--help"} : Words{command, "--help"}).out;
    std::istringstream lines(help.substr(0, help.find("Example")));
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(line.size(), kMost) << command << ": " << line;
  }
}

// What a flag is, is said by more than its default.
TEST(Usage, EveryFlagSaysWhatItIs) {
  for (const char* command :
       {"plan", "run", "redistribute", "estimate", "calibrate", "fuzz", "mutate", "validate", "mesh"}) {
    std::istringstream lines(cpsim({command, "--help"}).out);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  --") || line.size() < 30) continue;
      const std::string text = line.substr(30);
      EXPECT_FALSE(text.starts_with("[") || text.starts_with("Of ") || text.starts_with("The same")) << line;
    }
  }
}

TEST(Usage, TheVersionIsOneLine) {
  const Finished finished = cpsim({"--version"});
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_THAT(finished.out, ::testing::MatchesRegex("cpsim [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

}  // namespace
}  // namespace cp::cli
