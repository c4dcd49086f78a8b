// docs/overlap.md: what pieces, slots and merges beside attention gain on each cluster, as the timeline says.
// CP_UPDATE_GOLDEN=1 writes it anew.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "shared/base/units.h"
#include "sim/base/number_text.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/timeline/estimate.h"
#include "sim/cost/timeline/kernel_cost.h"
#include "sim/cost/timeline/merge_stream.h"
#include "tests/support/golden.h"

namespace cp::sim {
namespace {

constexpr int kRanks = 8;

constexpr const char* kHead =
    "# Transfers beside attention, cluster by cluster\n\n"
    "What `--pieces`, `--slots` and `--merges` gain ([attention](attention.md) says what they do), as the "
    "timeline predicts it: 32,768 tokens, 64\n"
    "query heads, 32 kv heads of 128, bf16, causal, over eight neighbouring GPUs, by the software `cprun`. "
    "In "
    "brackets stands the communication that\n"
    "nothing hides; the fastest of a row is bold, without those that are less than 0.5 % faster than those "
    "before them. The search of `cpsim plan`\n"
    "chooses pieces and slots for each layout, and never merges. One cell is\n\n"
    "    cpsim estimate --cluster NAME --mesh cp=8 --seq-len 32768 --q-heads 64 --kv-heads 32 --head-dim 128 "
    "\\\n"
    "      --dtype bf16 --causal --strategy ulysses --pieces 2 --pass both\n\n"
    "This page is written by `CP_UPDATE_GOLDEN=1 cost_test --gtest_filter='OverlapPage.*'`, and the test "
    "fails where it is not what the\n"
    "timeline says.\n";

constexpr const char* kOfMerges =
    "\nWhat `--merges beside` gains is between two bounds. The least stands under `beside`: a merge and the "
    "attention beside it share the GPU, and\n"
    "take together what they take one after the other, so that nothing is gained but the time in which "
    "attention waits. The most stands under\n"
    "`merges take`: all of what the merges of the rank that has most of them take alone, if not one of them "
    "took anything from attention.\n"
    "Nobody has measured on a GPU what it is. A cell is the command above with `--strategy ring --balance "
    "head_tail --merges beside`.\n";

struct Column {
  std::string name;
  void (*choose)(Strategy&);
};
struct Section {
  std::string title;
  Strategy strategy;
  std::vector<Column> columns;
  bool of_merges = false;  // says what they are, and has a column of what they take
};

Strategy with_balance(Core core, const char* balance) {
  Strategy strategy;
  strategy.core = core, strategy.balance = parse_balance(balance);
  return strategy;
}

std::vector<Section> sections() {
  const std::vector<Column> pieces = {{"1 piece", [](Strategy& s) { s.pieces = 1; }},
                                      {"2", [](Strategy& s) { s.pieces = 2; }},
                                      {"4", [](Strategy& s) { s.pieces = 4; }}};
  const std::vector<Column> slots = {{"2 slots", [](Strategy& s) { s.slots = 2; }},
                                     {"3", [](Strategy& s) { s.slots = 3; }}};
  const std::vector<Column> merges = {{"in_turn", [](Strategy& s) { s.merges = Strategy::Merges::in_turn; }},
                                      {"beside", [](Strategy& s) { s.merges = Strategy::Merges::beside; }}};
  const Strategy ring = with_balance(Core::ring, "head_tail");
  return {{"ulysses", whole_ulysses(kRanks), pieces},
          {"all_gather, head_tail", with_balance(Core::all_gather, "head_tail"), pieces},
          {"ring, head_tail", ring, slots},
          {"merges of a ring, head_tail", ring, merges, true},
          {"merges of pass_q, head_tail", with_balance(Core::pass_q, "head_tail"), merges, true}};
}

AttentionRequest request_for(const Strategy& strategy) {
  AttentionRequest request;
  AttentionProblem& problem = request.problem;
  problem.q_len = problem.kv_len = 32768, problem.q_heads = 64, problem.kv_heads = 32;
  problem.head_dim = problem.v_head_dim = 128, problem.dtype = DType::bf16, problem.causal = true;
  request.strategy = strategy;
  request.ranks.resize(kRanks);
  std::iota(request.ranks.begin(), request.ranks.end(), 0);
  return request;
}

// What the merges of the rank that has most of them take, one after the other and alone.
double merges_us(AttentionRequest request, AttentionPass pass, const Cluster& cluster,
                 const SoftwareProfile& software) {
  request.strategy = as_run_by(request.strategy, software);
  request.strategy.merges = Strategy::Merges::beside;
  const KernelCost kernels(cluster, software);
  double most = 0;
  for (const Plan& plan : attention_plans(request, pass)) {
    double ns = 0;
    for (const StepRef& ref : steps_of(plan)) {
      if (!merges_beside(plan, ref.step->stream)) continue;
      ns += kernels.ns(std::get<Kernel>(ref.step->work), plan);
    }
    most = std::max(most, ns);
  }
  return most / kNsPerUs;
}

std::string row_of(const std::string& cluster, const Section& section, AttentionPass pass) {
  const Cluster one = find_cluster(cluster, 1);
  const Cluster used = find_cluster(cluster, std::max(1, kRanks / one.node.gpus));
  const SoftwareProfile software = find_software("cprun");
  std::vector<double> times;
  std::vector<std::string> cells;
  for (const Column& column : section.columns) {
    AttentionRequest request = request_for(section.strategy);
    column.choose(request.strategy);
    const AttentionEstimate estimate = estimate_attention(request, pass, used, software);
    times.push_back(estimate.time_us);
    cells.push_back(fmt::format("{} ({})", human_us(estimate.time_us), human_us(estimate.exposed_comm_us)));
  }
  std::size_t best = 0;
  for (std::size_t i = 1; i < times.size(); ++i) {
    if (times[i] * 1.005 < times[best]) best = i;
  }
  cells[best] = "**" + cells[best] + "**";
  if (section.of_merges)
    cells.push_back(human_us(merges_us(request_for(section.strategy), pass, used, software)));
  return fmt::format("| {} | {} | {} |\n", cluster, pass == AttentionPass::forward ? "forward" : "backward",
                     join(cells, " | "));
}

std::string page() {
  std::string text = kHead;
  bool has_told = false;
  for (const Section& section : sections()) {
    std::vector<std::string> names;
    for (const Column& column : section.columns) names.push_back(column.name);
    if (section.of_merges) names.emplace_back("merges take");
    if (section.of_merges && !std::exchange(has_told, true)) text += kOfMerges;
    text += fmt::format("\n## {}\n\n| cluster | pass | {} |\n|---|---|", section.title, join(names, " | "));
    for (std::size_t i = 0; i < names.size(); ++i) text += "---|";
    text += "\n";
    for (const std::string& cluster : cluster_names()) {
      for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward})
        text += row_of(cluster, section, pass);
    }
  }
  return text;
}

TEST(OverlapPage, IsWhatTheTimelineSays) {
  EXPECT_EQ(testing::compare_with_golden("../../docs/overlap.md", page()), "");
}

}  // namespace
}  // namespace cp::sim
