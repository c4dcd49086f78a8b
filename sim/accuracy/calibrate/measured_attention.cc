// Tables of whole attentions.
#include <algorithm>
#include <numeric>
#include <set>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/context_parallel/attention_plan.h"
#include "sim/accuracy/calibrate/fit_software.h"
#include "sim/accuracy/calibrate/points.h"
#include "sim/cost/timeline/estimate.h"

namespace cp::sim {
namespace {

using detail::whole_above_0;

bool has_all(const CsvRow& row, const CsvCells& cells) {
  return std::all_of(cells.begin(), cells.end(),
                     [&](const auto& cell) { return row.text(cell.first) == cell.second; });
}

// One of two words.
bool is_first(const CsvRow& row, std::string_view column, std::string_view first, std::string_view second) {
  const std::string& cell = row.text(column);
  if (cell == first || cell == second) return cell == first;
  throw InvalidInput(str(row.where(), ": unknown ", column, " '", cell, "'; use ", first, " or ", second));
}

Balance balance_of(const CsvRow& row) {
  const std::string& name = row.text("strategy");
  if (name == "zigzag") return parse_balance("head_tail");
  if (name == "stripe") return parse_balance("striped");
  if (name == "ring") return parse_balance("contiguous");
  throw InvalidInput(str(row.where(), ": unknown strategy '", name, "'; use ring, zigzag or stripe"));
}

struct Job {
  AttentionRequest request;
  AttentionPass pass = AttentionPass::forward;
  std::int64_t hop_bytes = 0;
};

Job job_of(const CsvRow& row) {
  constexpr std::int64_t kMostRanks = 4096;
  Job job;
  job.pass = is_first(row, "pass", "fwd", "bwd") ? AttentionPass::forward : AttentionPass::backward;
  AttentionProblem& problem = job.request.problem;
  problem.batch = whole_above_0(row, "batch");
  problem.q_len = problem.kv_len = whole_above_0(row, "seq_len");
  problem.q_heads = whole_above_0(row, "heads");
  problem.kv_heads = detail::has_cell(row, "kv_heads") ? whole_above_0(row, "kv_heads") : problem.q_heads;
  problem.head_dim = problem.v_head_dim = whole_above_0(row, "head_dim");
  problem.dtype = DType::bf16;
  problem.causal = is_first(row, "mask", "causal", "full");
  const std::int64_t cp = whole_above_0(row, "cp");
  if (cp > kMostRanks)
    throw InvalidInput(str(row.where(), ": cp ", cp, " is out of range; use 1 to ", kMostRanks));
  job.request.ranks.resize(static_cast<std::size_t>(cp));
  std::iota(job.request.ranks.begin(), job.request.ranks.end(), 0);
  job.request.strategy.balance = balance_of(row);
  job.request.keep_for_backward = false, job.request.options.lse = LsePlace::computed;
  job.hop_bytes = problem.q_len / cp * problem.kv_heads * problem.head_dim * problem.batch * 2 *
                  size_bytes(problem.dtype);
  return job;
}

const Cluster& with_nodes_for(std::size_t ranks, const std::string& gpu, const Cluster& cluster,
                              std::map<std::pair<std::string, int>, Cluster>& sized) {
  const int nodes = (static_cast<int>(ranks) + cluster.node.gpus - 1) / cluster.node.gpus;
  const auto [at, is_new] = sized.try_emplace({gpu, nodes}, cluster);
  if (is_new) at->second.nodes = nodes;
  return at->second;
}

[[noreturn]] void fail_empty(const std::vector<CsvRow>& table, std::string_view file,
                             const std::map<std::string, Cluster>& clusters, bool of_some_gpu) {
  if (table.empty())
    throw InvalidInput(str(file, ":1: the table has no row; add rows below the names of the columns"));
  if (of_some_gpu)
    throw InvalidInput(
        str(file, ": --where, --except and --min-hop leave no row of the table; loosen one of them"));
  std::set<std::string> asked, known;
  for (const auto& [gpu, cluster] : clusters) asked.insert(gpu);
  for (const CsvRow& row : table) known.insert(row.text("gpu"));
  throw InvalidInput(
      str(file, ": the table has no row of gpu ", join(asked, ", "), "; use one of ", join(known, ", ")));
}

}  // namespace

std::vector<AttentionTime> read_attention_times(const std::vector<CsvRow>& table, std::string_view file,
                                                const RowFilter& filter,
                                                const std::map<std::string, Cluster>& clusters,
                                                const SoftwareProfile& software,
                                                std::map<std::pair<std::string, int>, Cluster>& sized) {
  std::vector<AttentionTime> times;
  bool of_some_gpu = false;
  const bool all_gpus = clusters.contains("");
  if (all_gpus) detail::require_one_gpu(table, file);
  for (const CsvRow& row : table) {
    const std::string gpu = all_gpus ? "" : row.text("gpu");
    const auto cluster = clusters.find(gpu);
    if (cluster == clusters.end()) continue;
    of_some_gpu = true;
    const auto holds = [&](const CsvCells& cells) { return has_all(row, cells); };
    if (!std::all_of(filter.where.begin(), filter.where.end(), holds)) continue;
    if (std::any_of(filter.except.begin(), filter.except.end(), holds)) continue;
    Job job = job_of(row);
    if (job.hop_bytes < filter.min_hop_bytes) continue;
    job.request.strategy = as_run_by(job.request.strategy, software);
    AttentionTime time{row.where(), detail::above_0(row, "milliseconds") * 1e3, {}, nullptr};
    try {
      time.plans = attention_plans(job.request, job.pass);
    } catch (const InvalidInput& error) {
      throw InvalidInput(str(row.where(), ": ", error.what()));
    }
    time.cluster = &with_nodes_for(job.request.ranks.size(), gpu, cluster->second, sized);
    times.push_back(std::move(time));
  }
  if (times.empty()) fail_empty(table, file, clusters, of_some_gpu);
  return times;
}

}  // namespace cp::sim
