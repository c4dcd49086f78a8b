// Tables of kernels: attention, products and kernels that move memory.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/base/units.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/builder.h"
#include "sim/accuracy/calibrate/calibrate.h"
#include "sim/accuracy/calibrate/points.h"
#include "sim/cost/timeline/kernel_cost.h"

namespace cp::sim {
namespace {

using detail::above_0;
using detail::Points;
using detail::whole_above_0;

bool causal_of(const CsvRow& row) {
  const std::string& mask = row.text("mask");
  if (mask == "causal" || mask == "full") return mask == "causal";
  throw InvalidInput(str(row.where(), ": unknown mask '", mask, "'; use causal or full"));
}

AttentionProblem problem_of(std::int64_t seq_len, bool causal, const AttentionShape& shape) {
  AttentionProblem problem;
  problem.batch = shape.batch;
  problem.q_len = problem.kv_len = seq_len;
  problem.q_heads = problem.kv_heads = shape.q_heads;
  problem.head_dim = problem.v_head_dim = shape.head_dim;
  problem.dtype = DType::bf16;
  problem.causal = causal;
  return problem;
}

// The attention kernel of one GPU's plan, without what surrounds it.
double attention_us(const Plan& plan, const Cluster& cluster) {
  const SoftwareProfile software;
  const KernelCost cost(cluster, software);
  double ns = 0;
  for (const StepRef& ref : steps_of(plan)) {
    const auto* kernel = std::get_if<Kernel>(&ref.step->work);
    if (kernel == nullptr) continue;
    const bool attention = std::holds_alternative<AttentionForward>(*kernel) ||
                           std::holds_alternative<AttentionBackward>(*kernel);
    if (attention) ns += static_cast<double>(ref.count) * cost.ns(*kernel, plan);
  }
  return ns / 1e3;
}

std::string put_attention(Cluster& cluster, bool backward, bool causal, int head_dim, const Curve& curve) {
  std::size_t i = 0;
  for (; i < cluster.attention.size(); ++i) {
    const AttentionCurve& known = cluster.attention[i];
    if (known.backward == backward && known.causal == causal && known.head_dim == head_dim) break;
  }
  if (i == cluster.attention.size()) cluster.attention.push_back({backward, causal, head_dim, {}, "fa2"});
  cluster.attention[i].tflops = curve;
  return str("attention[", i, "].tflops");
}

Plan plan_of_product(std::int64_t m, std::int64_t n, std::int64_t k) {
  PlanBuilder builder(0, host_target());
  const BufferId a = builder.input("a", DType::bf16, m * k), b = builder.input("b", DType::bf16, k * n),
                 out = builder.output("out", DType::bf16, m * n);
  builder.add(builder.stream("compute"),
              MatMul{dense_view(a, 0, {m, k}), dense_view(b, 0, {k, n}), dense_view(out, 0, {m, n})});
  return std::move(builder).build({});
}

Plan plan_of_copy(double bytes) {
  const std::int64_t numel =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes) / 4);  // 2 bytes, in and out
  PlanBuilder builder(0, host_target());
  const BufferId in = builder.input("in", DType::bf16, numel),
                 out = builder.output("out", DType::bf16, numel);
  builder.add(builder.stream("compute"), Copy{flat_view(in, 0, numel), flat_view(out, 0, numel)});
  return std::move(builder).build({});
}

void require_rows(const std::vector<CsvRow>& table, std::string_view file, const char* columns) {
  if (table.empty())
    throw InvalidInput(str(file, ":1: the table has no row; add rows with the columns ", columns));
}

}  // namespace

std::vector<CsvRow> rows_of_gpu(std::vector<CsvRow> table, std::string_view file, const std::string& gpu) {
  if (gpu.empty()) {
    detail::require_one_gpu(table, file);
    return table;
  }
  std::set<std::string> known;
  for (const CsvRow& row : table) known.insert(row.text("gpu"));
  std::erase_if(table, [&](const CsvRow& row) { return row.text("gpu") != gpu; });
  if (!table.empty()) return table;
  throw InvalidInput(str(file, ": the table has no row of gpu ", gpu, "; use one of ", join(known, ", ")));
}

std::vector<MeasuredCurve> attention_curves(const std::vector<CsvRow>& table, std::string_view file,
                                            const AttentionShape& shape, const Cluster& cluster) {
  require_rows(table, file, "seq_len,mask,forward_milliseconds,backward_milliseconds");
  std::vector<MeasuredCurve> curves;
  for (const bool backward : {false, true}) {
    const char* column = backward ? "backward_milliseconds" : "forward_milliseconds";
    const double flops_per_pair = (backward ? 10.0 : 4.0) * shape.head_dim;
    for (const bool causal : {false, true}) {
      Points points;
      std::vector<MeasuredTime> rows;
      for (const CsvRow& row : table) {
        if (causal_of(row) != causal || !detail::has_cell(row, column)) continue;
        const std::int64_t seq_len = whole_above_0(row, "seq_len");
        const auto n = static_cast<double>(seq_len);
        const double pairs = double{1} * shape.batch * shape.q_heads * (causal ? n * (n + 1) / 2 : n * n);
        const double ms = above_0(row, column), tflops = pairs * flops_per_pair / ms * 1e-9;
        detail::check_rate(row.where(), tflops, {cluster.gpu.tflops_16, "gpu.tflops_16", "TFLOP/s"}, cluster);
        points.add(pairs, tflops);
        const AttentionRequest request{problem_of(seq_len, causal, shape), {0}, {}, false};
        rows.push_back(
            {row.where(), ms * kUsPerMs,
             [plan = attention_plan(request, backward ? AttentionPass::backward : AttentionPass::forward, 0)](
                 const Cluster& at) { return attention_us(plan, at); }});
      }
      if (points.empty()) continue;
      const std::string what = str("attention ", backward ? "backward" : "forward",
                                   causal ? ", causal" : ", full mask", ", head_dim ", shape.head_dim);
      curves.push_back({what, std::string(file), points.curve(), std::move(rows),
                        [=, head_dim = shape.head_dim](Cluster& to, const Curve& curve) {
                          return put_attention(to, backward, causal, head_dim, curve);
                        }});
    }
  }
  if (curves.empty()) {
    throw InvalidInput(str(table.front().where(),
                           ": the table has neither a column forward_milliseconds nor backward_milliseconds; "
                           "name the columns seq_len,mask,forward_milliseconds,backward_milliseconds"));
  }
  return curves;
}

MeasuredCurve matmul_curve(const std::vector<CsvRow>& table, std::string_view file, const Cluster& cluster) {
  require_rows(table, file, "m,n,k,milliseconds");
  const double peak = cluster.gpu.tflops_16 * cluster.gpu.sustained_clock;
  Points points;
  std::vector<MeasuredTime> rows;
  for (const CsvRow& row : table) {
    const std::int64_t m = whole_above_0(row, "m"), n = whole_above_0(row, "n"), k = whole_above_0(row, "k");
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    const double ms = above_0(row, "milliseconds"), tflops = flops / ms * 1e-9;
    detail::check_rate(row.where(), tflops, {peak, "gpu.tflops_16 (times gpu.sustained_clock)", "TFLOP/s"},
                       cluster);
    points.add(flops, tflops / peak);
    rows.push_back({row.where(), ms * kUsPerMs, [plan = plan_of_product(m, n, k)](const Cluster& at) {
                      return detail::kernels_us(plan, at);
                    }});
  }
  return {"products", std::string(file), points.curve(), std::move(rows),
          [](Cluster& to, const Curve& curve) {
            to.matmul_efficiency = curve;
            return std::string("matmul_efficiency");
          }};
}

MeasuredCurve memory_curve(const std::vector<CsvRow>& table, std::string_view file, const Cluster& cluster) {
  require_rows(table, file, "bytes,milliseconds");
  Points points;
  std::vector<MeasuredTime> rows;
  for (const CsvRow& row : table) {
    const double bytes = above_0(row, "bytes"), ms = above_0(row, "milliseconds"), gbps = bytes / ms * 1e-6;
    detail::check_rate(row.where(), gbps, {cluster.gpu.hbm_gbps, "gpu.hbm_gbps", "GB/s"}, cluster);
    points.add(bytes, gbps / cluster.gpu.hbm_gbps);
    rows.push_back({row.where(), ms * kUsPerMs, [plan = plan_of_copy(bytes)](const Cluster& at) {
                      return detail::kernels_us(plan, at);
                    }});
  }
  return {"memory", std::string(file), points.curve(), std::move(rows), [](Cluster& to, const Curve& curve) {
            to.memory_efficiency = curve;
            return std::string("memory_efficiency");
          }};
}

}  // namespace cp::sim
