// Tables of context-parallel attention.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/cluster/read_cluster.h"
#include "sim/cluster/read_software.h"
#include "sim/presets/csv.h"
#include "sim/timeline/estimate.h"
#include "sim/validate/tables.h"

namespace cp::sim::detail {
namespace {

std::int64_t whole(const CsvRow& row, std::string_view column) {
  return static_cast<std::int64_t>(std::llround(row.number(column)));
}

// The names of the tables' authors for how the sequence is split.
Balance balance_of(const CsvRow& row, std::string_view column) {
  const std::string& name = row.text(column);
  if (name == "zigzag") return parse_balance("head_tail");
  if (name == "stripe") return parse_balance("striped");
  if (name == "ring" || name == "basic") return parse_balance("contiguous");
  throw InvalidInput(
      str(row.where(), ": unknown ", column, " '", name, "'; use ring, basic, zigzag or stripe"));
}

AttentionRequest request_of(const AttentionProblem& problem, int cp, const Strategy& strategy) {
  AttentionRequest request{problem, {}, strategy, false, {.gradients = {}, .lse = LsePlace::computed}};
  request.ranks.resize(static_cast<std::size_t>(cp));
  std::iota(request.ranks.begin(), request.ranks.end(), 0);
  return request;
}

AttentionProblem square(std::int64_t seq_len, std::int64_t q_heads, std::int64_t kv_heads,
                        std::int64_t head_dim, std::int64_t batch, bool causal) {
  AttentionProblem problem;
  problem.batch = batch;
  problem.q_len = problem.kv_len = seq_len;
  problem.q_heads = q_heads, problem.kv_heads = kv_heads;
  problem.head_dim = problem.v_head_dim = head_dim;
  problem.dtype = DType::bf16;
  problem.causal = causal;
  return problem;
}

double predicted_us(const AttentionRequest& request, AttentionPass pass, const Cluster& cluster,
                    const SoftwareProfile& software) {
  return estimate_attention(request, pass, cluster, software).time_us;
}

void speed_up(Cluster& cluster, double forward_factor, double backward_factor) {
  for (AttentionCurve& curve : cluster.attention) {
    std::vector<CurvePoint> points = curve.tflops.points();
    for (CurvePoint& point : points) point.y *= curve.backward ? backward_factor : forward_factor;
    curve.tflops = Curve(std::move(points));
  }
  for (AttentionRate& rate : cluster.rates.attention)
    rate.tflops *= rate.backward ? backward_factor : forward_factor;
}

}  // namespace

ValidationTable ring_attention(bool backward, const SoftwareProfile* replaced) {
  const SoftwareProfile software = replaced != nullptr ? *replaced : find_software("ring-flash-attention");
  ValidationTable table{.cluster = "a800, h800", .software = software.name};
  table.in_sample_rule = "cp = 16 sets how much overlaps; cp = 64 is scored";
  table.target_median = backward ? 0.06 : 0.08, table.target_p90 = 0.15;
  for (const CsvRow& csv : validation_table("ring_attention_a800_h800")) {
    if ((csv.text("pass") == "bwd") != backward) continue;
    const std::string& gpu = csv.text("gpu");
    const int cp = static_cast<int>(whole(csv, "cp"));
    const std::int64_t seq_len = whole(csv, "seq_len"), heads = whole(csv, "heads"),
                       head_dim = whole(csv, "head_dim");
    const bool causal = csv.text("mask") == "causal";
    Strategy strategy;
    strategy.balance = balance_of(csv, "strategy");
    const Cluster cluster = find_cluster(gpu == "A800" ? "a800" : "h800", std::max(1, cp / 8));
    const AttentionRequest request =
        request_of(square(seq_len, heads, heads, head_dim, whole(csv, "batch"), causal), cp, strategy);
    ValidationRow row{.where = csv.where()};
    row.what = str(gpu, " cp=", cp, " S=", seq_len, " ", csv.text("mask"), " ", csv.text("strategy"));
    row.measured = csv.number("milliseconds") * 1e3;
    row.predicted =
        predicted_us(request, backward ? AttentionPass::backward : AttentionPass::forward, cluster, software);
    row.in_sample = cp == 16;
    row.grid = causal ? str(gpu, " ", cp, " ", seq_len) : "";
    constexpr std::int64_t kShortHop = 8'000'000;
    if (seq_len / cp * heads * head_dim * 2 * 2 < kShortHop) row.oddity = "hops under 8 MB";
    if (gpu == "A800" && backward && !causal && cp == 64 && seq_len == 65536)
      row.oddity = "235 ms where the causal rows beside it take 147";
    if (gpu == "A800" && !backward && causal && cp == 16 && seq_len == 524288 &&
        csv.text("strategy") == "zigzag")
      row.oddity = "overlaps fully where its neighbours do not";
    table.rows.push_back(std::move(row));
  }
  return table;
}

ValidationTable ring_flash_attention(const SoftwareProfile* replaced) {
  const SoftwareProfile software = replaced != nullptr ? *replaced : find_software("ring-flash-attention");
  ValidationTable table{.cluster = "h800, dgx-a100", .software = software.name};
  table.in_sample_rule = "the rows of one GPU set the attention kernels' rate; eight GPUs are scored";
  table.target_median = 0.10, table.target_p90 = 0.20;
  const std::vector<CsvRow> rows = validation_table("ring_flash_attention");
  const auto seconds = [](const CsvRow& row) { return 1 / row.number("iterations_per_second"); };
  const auto both_passes = [](const CsvRow& row) { return row.text("pass") == "fwd+bwd"; };
  const auto predict = [&](const CsvRow& row, const Cluster& cluster) {
    const int gpus = static_cast<int>(whole(row, "gpus"));
    Strategy strategy;
    if (gpus > 1) strategy.balance = balance_of(row, "strategy");
    const AttentionRequest request =
        request_of(square(whole(row, "tokens_per_gpu") * gpus, whole(row, "q_heads"), whole(row, "kv_heads"),
                          whole(row, "head_dim"), 1, row.text("mask") == "causal"),
                   gpus, strategy);
    double us = predicted_us(request, AttentionPass::forward, cluster, software);
    if (both_passes(row)) us += predicted_us(request, AttentionPass::backward, cluster, software);
    return us;
  };
  for (const std::string gpu : {"H800", "A100"}) {
    Cluster cluster = find_cluster(gpu == "H800" ? "h800" : "dgx-a100", 1);
    // One factor for each pass makes the kernels as fast as they were on one GPU.
    double forward_s = 0, both_s = 0, forward_us = 0, both_us = 0;
    for (const CsvRow& row : rows) {
      if (row.text("gpu") != gpu || whole(row, "gpus") != 1) continue;
      (both_passes(row) ? both_s : forward_s) = seconds(row);
      (both_passes(row) ? both_us : forward_us) = predict(row, cluster);
    }
    const double forward_factor = forward_us / (forward_s * 1e6),
                 backward_factor = (both_us - forward_us) / ((both_s - forward_s) * 1e6);
    speed_up(cluster, forward_factor, backward_factor);
    for (const CsvRow& csv : rows) {
      if (csv.text("gpu") != gpu) continue;
      ValidationRow row{.where = csv.where()};
      row.what = str(gpu, " x ", csv.text("gpus"), " ", csv.text("pass"), " ", csv.text("strategy"));
      row.measured = seconds(csv) * 1e6;
      row.predicted = predict(csv, cluster);
      row.in_sample = whole(csv, "gpus") == 1;
      if (!row.in_sample) row.grid = str(gpu, " ", csv.text("pass"));
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

namespace {

constexpr int kUspGpus = 8;
constexpr std::int64_t kUspLong = 131072, kUspHostBound = 8192;

double predicted_usp_us(const CsvRow& row, const Cluster& cluster, const SoftwareProfile& software) {
  Strategy strategy;
  strategy.ulysses_degree = static_cast<int>(whole(row, "ulysses_degree"));
  strategy.balance = balance_of(row, "ring_kind");
  const std::int64_t heads = whole(row, "q_heads");
  const AttentionRequest request =
      request_of(square(whole(row, "seq_len"), heads, heads / whole(row, "gqa_group"), whole(row, "head_dim"),
                        whole(row, "batch"), true),
                 kUspGpus, strategy);
  return predicted_us(request, AttentionPass::forward, cluster, software);
}

ValidationRow usp_row(const CsvRow& csv, double predicted) {
  ValidationRow row{.where = csv.where()};
  const std::string shape =
      str(csv.text("q_heads"), " heads/", csv.text("gqa_group"), " d=", csv.text("head_dim"));
  row.what = str(shape, " u=", csv.text("ulysses_degree"), " ", csv.text("ring_kind"),
                 csv.text("packed_qkv") == "1" ? " packed" : "");
  row.measured = 1e6 / csv.number("iterations_per_second");
  row.predicted = predicted;
  row.in_sample = whole(csv, "ulysses_degree") == kUspGpus;
  row.grid = str(shape, " ", csv.text("packed_qkv"));
  return row;
}

}  // namespace

ValidationTable usp(const SoftwareProfile* replaced) {
  const SoftwareProfile software = replaced != nullptr ? *replaced : find_software("usp");
  ValidationTable table{.cluster = "dgx-a100", .software = software.name};
  table.in_sample_rule = "u = 8 sets the kernels' rate for each head_dim; u = 4, 2, 1 are scored";
  table.target_median = 0.10, table.target_p90 = 0.25;
  std::vector<CsvRow> rows = validation_table("usp_8xa100_nvlink");
  std::erase_if(rows, [](const CsvRow& row) { return whole(row, "seq_len") <= kUspHostBound; });
  std::vector<std::int64_t> head_dims;
  for (const CsvRow& row : rows) {
    if (std::find(head_dims.begin(), head_dims.end(), whole(row, "head_dim")) == head_dims.end())
      head_dims.push_back(whole(row, "head_dim"));
  }
  for (const std::int64_t head_dim : head_dims) {
    Cluster cluster = find_cluster("dgx-a100", 1);
    // The mean ratio of the rows without a ring.
    double log_ratio = 0;
    int calibrating = 0;
    for (const CsvRow& row : rows) {
      if (whole(row, "head_dim") != head_dim || whole(row, "ulysses_degree") != kUspGpus ||
          whole(row, "seq_len") != kUspLong)
        continue;
      log_ratio +=
          std::log(predicted_usp_us(row, cluster, software) * row.number("iterations_per_second") * 1e-6);
      ++calibrating;
    }
    const double factor = calibrating == 0 ? 1 : std::exp(log_ratio / calibrating);
    speed_up(cluster, factor, factor);
    for (const CsvRow& csv : rows) {
      if (whole(csv, "head_dim") != head_dim) continue;
      ValidationRow row = usp_row(csv, predicted_usp_us(csv, cluster, software));
      const bool slow_twin = csv.text("iterations_per_second") == "8.722" ||
                             csv.text("iterations_per_second") == "8.994" ||
                             csv.text("iterations_per_second") == "7.769";
      if (slow_twin) row.oddity = "packed, and slower than its unpacked twin";
      if (whole(csv, "seq_len") != kUspLong) {
        row.what = str("S=", csv.text("seq_len"), " ", row.what);
        row.in_sample = false;
        row.oddity = "noisy";
      }
      table.rows.push_back(std::move(row));
    }
  }
  return table;
}

ValidationTable usp_short(const SoftwareProfile* replaced) {
  const SoftwareProfile software = replaced != nullptr ? *replaced : find_software("usp");
  ValidationTable table{.cluster = "dgx-a100", .software = software.name};
  table.in_sample_rule = "8,192 tokens by u = 8 set the host's time for a call; all other rows are scored";
  table.target_median = 0.20, table.target_p90 = 0.60;
  const Cluster cluster = find_cluster("dgx-a100", 1);
  for (const CsvRow& csv : validation_table("usp_8xa100_nvlink")) {
    const std::int64_t seq_len = whole(csv, "seq_len");
    if (seq_len > kUspHostBound) continue;
    ValidationRow row = usp_row(csv, predicted_usp_us(csv, cluster, software));
    row.what = str("S=", seq_len, " ", row.what);
    row.in_sample = row.in_sample && seq_len == kUspHostBound;
    row.grid = "";  // the host takes as long, whatever the strategy
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace cp::sim::detail
