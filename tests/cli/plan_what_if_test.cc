// cpsim plan --sweep, --maximize, --minimize, --sensitivity, --next-experiment, from the outside: small
// searches.
#include <algorithm>
#include <csignal>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/cpsim_process.h"

namespace cp::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// A small space.
const Words kAnyTraining = {"plan",
                            "--model",
                            "llama-3.1-8b",
                            "--nodes",
                            "1",
                            "--global-batch",
                            "8",
                            "--recompute",
                            "full",
                            "--fix",
                            "pp=1,loss_chunks=16,order=tp-cp-dp-pp"};

std::string screen(const Words& words) {
  const Finished finished = cpsim(words);
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.err, IsEmpty());
  return finished.out;
}
json answer(const Words& words) { return json::parse(screen(with(words, {"--json"}))); }

TEST(PlanWhatIf, TheSweepHasARowForEachLength) {
  const Words sweep = with(kAnyTraining, {"--sweep", "seq_len=32K..64M,48K"});
  EXPECT_THAT(cpsim(sweep).err, HasSubstr("--sweep seq_len=32K..64M,48K: "));
  const Words lengths = with(kAnyTraining, {"--sweep", "seq_len=32K,64K,64M"});
  const std::string text = screen(lengths);
  EXPECT_THAT(text, StartsWith("llama-3.1-8b, 8 GPUs of dgx-h100: 2 of 3 lengths fit, up to 65,536 tokens"));
  for (const char* part :
       {"\n    tokens  GPUs ", "\n    32,768     8 ", "\n    65,536     8 ", "\n67,108,864     8 ",
        "nothing fits", "\nnothing     at 67,108,864 tokens: none of "})
    EXPECT_THAT(text, HasSubstr(part));
  const json rows = answer(lengths);
  EXPECT_EQ(rows["schema"], "cpsim.plan.sweep/1");
  ASSERT_EQ(rows["rows"].size(), 3U);
  // What the search says of that length.
  const json alone = answer(with(kAnyTraining, {"--seq-len", "64K"}));
  EXPECT_EQ(rows["rows"][1]["best"]["layout"], alone["best"][0]["layout"]);
  EXPECT_EQ(rows["rows"][1]["best"]["step_us"], alone["best"][0]["step_us"]);
  EXPECT_TRUE(rows["rows"][2]["best"].is_null());
}

// The same spelling for all that can be swept, with dashes or underscores.
TEST(PlanWhatIf, GpusAreSweptBesideTheFirstRow) {
  const Words words = with(kAnyTraining, {"--seq-len", "32K", "--sweep", "gpus=2,8,3,16"});
  const json found = answer(words);
  EXPECT_EQ(found["varies"], "gpus");
  ASSERT_EQ(found["rows"].size(), 4U);
  const json &first = found["rows"][0], &second = found["rows"][1], &third = found["rows"][2];
  EXPECT_EQ(first["value"], 2);
  EXPECT_EQ(second["gpus"], 8);
  const auto rate = [](const json& row) {
    return row["best"]["tokens_per_s_per_gpu"].get<double>() * row["gpus"].get<double>();
  };
  EXPECT_EQ(first["vs_first"], 1);
  EXPECT_DOUBLE_EQ(second["tokens_per_s"].get<double>(), rate(second));
  EXPECT_DOUBLE_EQ(second["vs_first"].get<double>(), rate(second) / rate(first));
  EXPECT_GT(second["vs_first"], 2);
  // What a search of its own says; three GPUs are no part of a node.
  const json alone = answer(with(kAnyTraining, {"--seq-len", "32K"}));
  EXPECT_EQ(second["best"]["layout"], alone["best"][0]["layout"]);
  EXPECT_TRUE(third["best"].is_null());
  EXPECT_TRUE(third["gpus"].is_null());
  EXPECT_THAT(third["why"].get<std::string>(), HasSubstr("neither divides the 8 GPUs"));
  const std::string text = screen(words);
  EXPECT_THAT(text,
              StartsWith("llama-3.1-8b, 32,768 tokens, dgx-h100: 3 of 4 fit; most tokens a second with 16 "
                         "GPUs, "));
  for (const char* part : {"with 2 GPUs\n", "\nGPUs ", "  vs first  ", "not possible",
                           "\nrefused     with 3 GPUs: --gpus 3 neither", "\nnext        cpsim plan "})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(PlanWhatIf, ClustersAndBatchesAreSwept) {
  const Words words = with(kAnyTraining, {"--seq-len", "32K", "--sweep", "cluster=dgx-h100,hgx-h200"});
  const json found = answer(words);
  EXPECT_EQ(found["rows"][1]["value"], "hgx-h200");
  EXPECT_EQ(found["rows"][1]["cluster"], "hgx-h200");
  EXPECT_EQ(found["rows"][1]["best"]["step_us"],
            answer(with(kAnyTraining, {"--seq-len", "32K", "--cluster", "hgx-h200"}))["best"][0]["step_us"]);
  EXPECT_THAT(screen(words), AllOf(StartsWith("llama-3.1-8b, 32,768 tokens: all 2 fit; "),
                                   HasSubstr("\ndgx-h100     8 "), HasSubstr("\nhgx-h200     8 ")));
  const json batches =
      answer({"plan", "--model", "llama-3.1-8b", "--nodes", "1", "--seq-len", "32K", "--recompute", "full",
              "--fix", "tp=8,loss_chunks=16", "--sweep", "global_batch=4..16"})["rows"];
  ASSERT_EQ(batches.size(), 3U);
  EXPECT_EQ(batches[2]["global_batch"], 16);
  EXPECT_GT(batches[2]["best"]["step_us"], batches[0]["best"]["step_us"]);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

TEST(PlanWhatIf, RowsAreAlsoCommaSeparated) {
  const Words words = with(kAnyTraining, {"--sweep", "seq-len=64M,32K", "--csv", "-"});
  const std::string csv = screen(words);
  EXPECT_THAT(csv, StartsWith("varies,value,seq_len,global_batch,nodes,gpus,cluster,layout,step_us,"));
  EXPECT_THAT(csv, AllOf(HasSubstr("\nseq-len,67108864,67108864,8,1,8,dgx-h100,,,"),
                         HasSubstr("\nseq-len,32768,32768,8,1,8,dgx-h100,")));
  // Each line has a column for each name.
  for (const std::string& line : lines_of(csv)) {
    std::size_t columns = 1;
    bool quoted = false;
    for (const char c : line) {
      if (c == '"') quoted = !quoted;
      if (c == ',' && !quoted) ++columns;
    }
    EXPECT_EQ(columns, 20U) << line;
  }
  const TemporaryFolder folder;
  const std::string path = folder.file("rows.csv");
  const std::string text = screen(with(kAnyTraining, {"--sweep", "seq-len=64M,32K", "--csv", path}));
  EXPECT_THAT(text, StartsWith("llama-3.1-8b"));
  std::ifstream file(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), csv);
}

// Three lines say what was asked; no line of a table is wider than 120 columns; --quiet drops the head.
TEST(PlanWhatIf, TheHeadIsThreeLinesAndTablesAreNarrow) {
  for (const Words& more : {Words{"--sweep", "nodes=1,2"}, Words{"--sensitivity"}, Words{"--next-experiment"},
                            Words{"--minimize", "gpus"}}) {
    const Words words = with(kAnyTraining, with({"--seq-len", "64K"}, more));
    const std::string text = screen(words), brief = screen(with(words, {"--quiet"}));
    const std::size_t head = text.find("\n\nasked       training: "), on = text.find("\non          "),
                      assumed = text.find("\nassumed     ");
    ASSERT_NE(head, std::string::npos) << text;
    ASSERT_LT(on, assumed);
    EXPECT_EQ(lines_of(text.substr(head + 2, text.find("\n\n", head + 2) - head - 2)).size(), 3U) << text;
    EXPECT_THAT(text.substr(assumed, text.find('\n', assumed + 1) - assumed), HasSubstr("; all: "));
    EXPECT_THAT(brief, AllOf(Not(HasSubstr("\nasked ")), Not(HasSubstr("\nassumed ")),
                             StartsWith(text.substr(0, text.find('\n')))));
    for (const std::string& line : lines_of(text)) {
      // Commands are to be copied.
      if (line.find("cpsim plan") == std::string::npos && line.find("cprun profile") == std::string::npos) {
        EXPECT_LE(line.size(), 120U) << line;
      }
    }
  }
}

// A layout of a table is taken wherever a layout is.
TEST(PlanWhatIf, ALayoutInShortIsExplained) {
  const Words words = with(kAnyTraining, {"--seq-len", "32K"});
  const json whole = answer(with(words, {"--explain", "tp=2,cp=4,strategy=ring,balance=head_tail"}));
  json in_short = answer(with(words, {"--explain", "tp=2,cp=4,ring,head_tail"}));
  EXPECT_EQ(in_short["asked"], "tp=2,cp=4,ring,head_tail");
  in_short["asked"] = whole["asked"];
  EXPECT_EQ(in_short, whole);
}

TEST(PlanWhatIf, TheSweepKeepsTheTokensOfABatch) {
  const json rows =
      answer({"plan", "--model", "llama-3.1-8b", "--nodes", "1", "--global-batch-tokens", "256K",
              "--recompute", "full", "--fix", "tp=8,loss_chunks=16", "--sweep", "seq_len=16K..32K"})["rows"];
  ASSERT_EQ(rows.size(), 2U);
  // As many tokens, with more attention: neither half nor twice the time.
  const double ratio = rows[1]["best"]["step_us"].get<double>() / rows[0]["best"]["step_us"].get<double>();
  EXPECT_GT(ratio, 1);
  EXPECT_LT(ratio, 1.5);
}

TEST(PlanWhatIf, TheLongestLengthFitsAndOneMoreDoesNot) {
  const Words maximize = with(kAnyTraining, {"--maximize", "seq_len"});
  const json found = answer(maximize);
  EXPECT_EQ(found["schema"], "cpsim.plan.maximize/1");
  ASSERT_EQ(found["rows"].size(), 1U);
  const std::int64_t longest = found["rows"][0]["seq_len"];
  EXPECT_GT(longest, 131072);
  EXPECT_LE(found["rows"][0]["best"]["counted_bytes"], found["rows"][0]["best"]["usable_bytes"]);
  EXPECT_EQ(cpsim(with(kAnyTraining, {"--seq-len", std::to_string(longest + 1024)})).exit_code, 20);
  const std::string text = screen(with(maximize, {"--seq-len", "32K"}));
  EXPECT_THAT(text,
              AllOf(StartsWith("llama-3.1-8b, 8 GPUs of dgx-h100: at most "), HasSubstr(" tokens fit, "),
                    HasSubstr(" 32,768     8 "), HasSubstr("\none more    with "),
                    HasSubstr("\nnext        cpsim plan --model llama-3.1-8b ")));
  EXPECT_EQ(answer(with(maximize, {"--seq-len", "32K"}))["rows"][1]["seq_len"], longest);
}

TEST(PlanWhatIf, TheFewestNodesAreFound) {
  const Words minimize = {"plan", "--model",    "llama-3.1-70b", "--nodes",     "4",    "--seq-len",
                          "8K",   "--fix",      "tp=8,pp=1",     "--recompute", "full", "--global-batch",
                          "32",   "--minimize", "gpus"};
  const json found = answer(minimize);
  EXPECT_EQ(found["schema"], "cpsim.plan.minimize/1");
  const int nodes = found["rows"][0]["nodes"];
  EXPECT_GE(nodes, 2);
  EXPECT_EQ(found["rows"][0]["gpus"], 8 * nodes);
  const std::string text = screen(minimize);
  EXPECT_THAT(text,
              AllOf(StartsWith("llama-3.1-70b, 8,192 tokens: "), HasSubstr(" are enough, "),
                    HasSubstr("\nfewer       none of "), HasSubstr("--gpus " + std::to_string(8 * nodes))));
}

// Also parts of a node, and counts that read the prompt in time where fewer do not.
TEST(PlanWhatIf, TheFewestGpusMayBeAPartOfANodeOrMoreThanFit) {
  const json part =
      answer({"plan", "--model", "llama-3.1-8b", "--gpus", "8", "--seq-len", "8K", "--global-batch", "8",
              "--recompute", "full", "--fix", "pp=1", "--minimize", "gpus"});
  const int gpus = part["rows"][0]["gpus"];
  EXPECT_LT(gpus, 8);
  EXPECT_EQ(part["rows"][1]["gpus"], 8);
  const Words decode = {"plan",         "--model", "llama-3.1-70b", "--phase", "decode", "--cached", "128K",
                        "--concurrent", "2",       "--ttft-max",    "15000"};
  const json found = answer(with(decode, {"--minimize", "gpus"}));
  const int enough = found["rows"][0]["gpus"];
  EXPECT_GT(enough, 8);
  EXPECT_EQ(cpsim(with(decode, {"--gpus", std::to_string(enough)})).exit_code, 0);
  EXPECT_THAT(found["notes"][0].get<std::string>(), HasSubstr("reads the prompt"));
  for (int fewer = 1; fewer < enough; fewer *= 2)
    EXPECT_EQ(cpsim(with(decode, {"--gpus", std::to_string(fewer)})).exit_code, 20) << fewer;
}

// The fewest whose step is within a limit: what a search of each count says.
TEST(PlanWhatIf, TheFewestGpusAreFastEnough) {
  const Words words = {"plan",
                       "--model",
                       "llama-3.1-8b",
                       "--nodes",
                       "4",
                       "--seq-len",
                       "8K",
                       "--global-batch",
                       "64",
                       "--recompute",
                       "full",
                       "--fix",
                       "tp=4,cp=1,pp=1,loss_chunks=16,order=tp-cp-dp-pp"};
  const auto step_us = [&](int gpus) {
    Words on = words;
    on[3] = "--gpus", on[4] = std::to_string(gpus);
    return answer(on)["best"][0]["step_us"].get<double>();
  };
  const double on_8 = step_us(8), on_16 = step_us(16);
  ASSERT_LT(1.2 * on_16, on_8);
  const std::string limit = std::to_string(static_cast<int>((on_16 + on_8) / 2)) + "us";
  const Words minimize = with(words, {"--minimize", "gpus"});
  const json found = answer(with(minimize, {"--step-time-max", limit}));
  EXPECT_EQ(found["rows"][0]["gpus"], 16);
  EXPECT_EQ(found["rows"][0]["best"]["step_us"], on_16);
  EXPECT_THAT(found["notes"][0].get<std::string>(),
              AllOf(StartsWith("fewer: 8 GPUs take "), HasSubstr(", not at most ")));
  EXPECT_THAT(screen(with(minimize, {"--step-time-max", limit})),
              AllOf(StartsWith("llama-3.1-8b, 8,192 tokens, at most "),
                    HasSubstr(" a step: 16 GPUs of dgx-h100 of 32 "
                              "are enough, ")));
  // The same as tokens a second; without a limit fewer do.
  const std::string rate = std::to_string(64 * 8192 / (on_16 * 1.1e-6));
  EXPECT_EQ(answer(with(minimize, {"--tokens-per-s-min", rate}))["rows"][0]["gpus"], 16);
  EXPECT_LT(answer(minimize)["rows"][0]["gpus"], 16);
  // What cannot be: the least limit that can.
  const Finished none = cpsim(with(minimize, {"--step-time-max", "1ms"}));
  EXPECT_EQ(none.exit_code, 20) << none.out << none.err;
  const std::size_t use = none.err.find("use --step-time-max ");
  ASSERT_NE(use, std::string::npos) << none.err;
  const std::string enough = none.err.substr(use + 20, none.err.find(',', use) - use - 20);
  EXPECT_EQ(answer(with(minimize, {"--step-time-max", enough}))["rows"].size(), 1U) << enough;
}

TEST(PlanWhatIf, ServingIsAskedTheSame) {
  const Words serving = {"plan",         "--model", "llama-3.1-8b", "--nodes", "1",
                         "--concurrent", "8",       "--fix",        "pp=1"};
  const json decode = answer(with(serving, {"--phase", "decode", "--maximize", "seq_len"}));
  EXPECT_GT(decode["rows"][0]["seq_len"], 131072);
  // Up to the length that was found the cache fits: as a search of its own says, with as many new tokens.
  const json prefill = answer(with(serving, {"--phase", "prefill", "--sweep", "seq_len=8K,16K"}));
  EXPECT_EQ(prefill["rows"].size(), 2U);
  EXPECT_THAT(screen(with(serving, {"--phase", "decode", "--cached", "32K", "--sensitivity"})),
              HasSubstr("memory 10 % slower"));
}

TEST(PlanWhatIf, SensitivityHasARowForEachChange) {
  const Words words = with(kAnyTraining, {"--seq-len", "64K", "--sensitivity"});
  const std::string text = screen(words);
  EXPECT_THAT(text, StartsWith("llama-3.1-8b, 65,536 tokens, 8 GPUs of dgx-h100: "));
  for (const char* part :
       {"\nchange ", "\nnone ", "\nattention 10 % slower ", "\nlatency 10 % faster ", "  behind  layout\n1 "})
    EXPECT_THAT(text, HasSubstr(part));
  const json found = answer(words);
  EXPECT_EQ(found["schema"], "cpsim.plan.sensitivity/1");
  EXPECT_EQ(found["changes"].size(), 16U);
  EXPECT_EQ(found["changes"][0]["step_us"].size(), found["layouts"].size());
  EXPECT_EQ(found["changes"][0]["order"].size(), found["layouts"].size());
  const bool stays = found["changes"][0]["order"][0] == 1;
  EXPECT_LE(found["robust"].get<bool>(), stays);
}

TEST(PlanWhatIf, ExperimentsAreAtMostThree) {
  const Words words = with(kAnyTraining, {"--seq-len", "64K", "--next-experiment"});
  const json found = answer(words);
  EXPECT_EQ(found["schema"], "cpsim.plan.next_experiment/1");
  EXPECT_LE(found["experiments"].size(), 3U);
  EXPECT_EQ(found["robust"].get<bool>(), found["measurements"].empty());
  const std::string text = screen(words);
  // The same things that the plan's own screen weighs, with what is typed.
  for (const json& candidate : found["candidates"]) {
    EXPECT_GT(candidate["saves_us"], 0);
    ASSERT_FALSE(candidate["commands"].empty());
  }
  const bool nothing = found["candidates"].empty();
  if (!nothing) {
    EXPECT_THAT(text, AllOf(HasSubstr("\nrun first   "), HasSubstr("\nit settles  ")));
    for (const json& command : found["candidates"][0]["commands"])
      EXPECT_THAT(text, HasSubstr("\n            " + command.get<std::string>() + "\n"));
  }
  if (found["robust"]) {
    EXPECT_EQ(text.find("no measurement would change that") != std::string::npos, nothing);
  } else {
    // What to type, and what to do with its answer.
    EXPECT_THAT(text, AllOf(HasSubstr("cprun profile "), HasSubstr(" than assumed: "),
                            HasSubstr("\nelse        stay with "), HasSubstr("\nthen        cpsim plan "),
                            HasSubstr(" --cluster mine.txtpb ")));
  }
  for (const json& run : found["experiments"]) {
    EXPECT_GT(run["separates"], 0);
    EXPECT_LE(run["separates"], 1);
  }
}

TEST(PlanWhatIf, BadInputIsRefused) {
  const auto error = [](const Words& more) {
    const Finished finished = cpsim(with(kAnyTraining, more));
    EXPECT_EQ(finished.exit_code, 2) << finished.out << finished.err;
    EXPECT_THAT(finished.out, IsEmpty());
    return finished.err;
  };
  EXPECT_THAT(error({"--sweep", "tp=1..8"}),
              AllOf(HasSubstr("--sweep tp=1..8"), HasSubstr("seq-len=32K..1M")));
  EXPECT_THAT(error({"--sweep", "32K..1M"}), HasSubstr("seq-len=32K..1M"));
  EXPECT_THAT(error({"--sweep", "node=1,2"}), HasSubstr("did you mean nodes=?"));
  EXPECT_THAT(error({"--sweep", "nodes=2,many"}),
              AllOf(HasSubstr("--sweep nodes=2,many"), HasSubstr("1..8")));
  EXPECT_THAT(error({"--sweep", "nodes=4G"}), HasSubstr("out of range"));
  EXPECT_THAT(error({"--sweep", "cluster=dgx-h100,hgxh200", "--seq-len", "8K"}), HasSubstr("hgx-h200"));
  EXPECT_THAT(error({"--sweep", "cluster=,"}), HasSubstr("has no value"));
  EXPECT_THAT(error({"--sweep", "seq_len=1M..32K"}), HasSubstr("ends before it begins"));
  EXPECT_THAT(error({"--sweep", "seq-len=1K,2K", "--documents", "0/1024"}),
              HasSubstr("--documents 0/1024 are those of one length, and --sweep seq-len=1K,2K varies it"));
  EXPECT_THAT(error({"--maximize", "seq-len", "--documents", "0/1024"}),
              HasSubstr("--documents 0/1024 are those of one length"));
  EXPECT_THAT(error({"--maximize", "gpus"}), HasSubstr("use --maximize seq-len, or --minimize gpus"));
  EXPECT_THAT(error({"--minimize", "seq_len"}), HasSubstr("use --minimize gpus, or --maximize seq-len"));
  EXPECT_THAT(error({"--step-time-max", "10s"}), HasSubstr("a limit of --minimize gpus"));
  EXPECT_THAT(error({"--minimize", "gpus", "--step-time-max", "0"}), HasSubstr("out of range"));
  EXPECT_THAT(error({"--minimize", "gpus", "--step-time-max", "10s", "--tokens-per-s-min", "5"}),
              HasSubstr("give one of them"));
  EXPECT_THAT(error({"--sensitivity", "--csv", "-"}), HasSubstr("use --json"));
  EXPECT_THAT(error({"--sensitivity", "--sweep", "seq_len=8K"}), HasSubstr("one at a time"));
  EXPECT_THAT(error({"--sensitivity", "--report", "x.html"}), HasSubstr("--report is of a plan"));
  EXPECT_THAT(error({"--sensitivity"}), HasSubstr("--seq-len is missing"));
  EXPECT_THAT(
      cpsim({"plan", "--model", "llama-3.1-8b", "--global-batch-tokens", "1M", "--maximize", "seq_len"}).err,
      HasSubstr("--global-batch such as 16"));
  EXPECT_THAT(cpsim({"plan", "--model", "llama-3.1-8b", "--phase", "decode", "--cached", "8K", "--sweep",
                     "seq_len=16K"})
                  .err,
              HasSubstr("--cached 8192"));
}

TEST(PlanWhatIf, NothingFitsIsACodeOfItsOwn) {
  const Words large = {"plan",           "--model", "llama-3.1-405b", "--nodes", "1",
                       "--global-batch", "8",       "--fix",          "tp=8"};
  for (const Words& more : {Words{"--maximize", "seq_len"}, Words{"--sweep", "seq_len=8K,16K"},
                            Words{"--minimize", "gpus", "--seq-len", "8K"}}) {
    const Finished finished = cpsim(with(large, more));
    EXPECT_EQ(finished.exit_code, 20) << finished.out << finished.err;
    EXPECT_THAT(finished.err, HasSubstr("The nearest is "));
  }
}

// The lengths that were searched stay.
TEST(PlanWhatIf, CtrlCShowsTheRowsSoFar) {
  CpsimProcess process({"plan", "--model", "llama-3.1-8b", "--nodes", "2048", "--sweep", "seq_len=64K..64M",
                        "--global-batch", "2048", "--threads", "1", "--fix", "tp=8,cp=8"},
                       CpsimProcess::Terminal::standard_error);
  ASSERT_TRUE(process.wait_for_error_text(" tokens: "));
  process.signal(SIGINT);
  const Finished finished = process.finish();
  EXPECT_EQ(finished.exit_code, 130) << finished.out << finished.err;
  if (!finished.out.empty()) {
    EXPECT_THAT(finished.out, HasSubstr("\nwarning     interrupted: "));
  }
}

}  // namespace
}  // namespace cp::cli
