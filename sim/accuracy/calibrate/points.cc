#include "sim/accuracy/calibrate/points.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/base/units.h"
#include "shared/plan/builder.h"
#include "sim/cost/timeline/kernel_cost.h"
#include "sim/cost/timeline/timeline.h"

namespace cp::sim::detail {
void check_rate(const std::string& where, double rate, const Peak& peak, const Cluster& cluster) {
  if (rate <= peak.value) return;
  throw InvalidInput(str(where, ": a rate of ", rate, " ", peak.unit, " is above ", peak.name, " of ",
                         cluster.name, ", ", peak.value,
                         "; correct the row, or give --cluster a file with like: \"", cluster.name,
                         "\" and the true ", peak.name));
}

Curve Points::curve() const {
  std::vector<CurvePoint> points;
  for (const auto& [x, values] : values_) {
    double log_sum = 0;
    for (const double value : values) log_sum += std::log(value);
    points.push_back(
        {x, values.size() == 1 ? values.front() : std::exp(log_sum / static_cast<double>(values.size()))});
  }
  return Curve(std::move(points));
}

Curve without_falls(const Curve& curve, bool rates) {
  struct Pool {
    double log_sum = 0;
    std::size_t points = 0;
    double log_time() const { return log_sum / static_cast<double>(points); }
  };
  std::vector<Pool> pools;
  for (const CurvePoint& point : curve.points()) {
    pools.push_back({std::log(rates ? point.x / point.y : point.y), 1});
    while (pools.size() > 1 && pools.back().log_time() < pools[pools.size() - 2].log_time()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back().log_sum += last.log_sum, pools.back().points += last.points;
    }
  }
  std::vector<CurvePoint> points = curve.points();
  std::size_t at = 0;
  for (const Pool& pool : pools) {
    const double time = std::exp(pool.log_time());
    for (std::size_t i = 0; i < pool.points; ++i, ++at) {
      if (pool.points > 1) points[at].y = rates ? points[at].x / time : time;
    }
  }
  return Curve(std::move(points));
}

double above_0(const CsvRow& row, std::string_view column) {
  const double value = row.number(column);
  if (value > 0) return value;
  throw InvalidInput(
      str(row.where(), ": ", column, " ", value, " must be above 0; correct or remove the row"));
}

std::int64_t whole_above_0(const CsvRow& row, std::string_view column) {
  constexpr double kMost = 1LL << 31;
  const double value = above_0(row, column);
  if (value == std::floor(value) && value <= kMost) return static_cast<std::int64_t>(value);
  throw InvalidInput(str(row.where(), ": ", column, " ", row.text(column),
                         " must be a whole number up to 2^31; write, for example, 4096"));
}

bool has_cell(const CsvRow& row, std::string_view column) {
  return row.has(column) && !row.text(column).empty();
}

void require_one_gpu(const std::vector<CsvRow>& table, std::string_view file) {
  std::set<std::string> gpus;
  for (const CsvRow& row : table) {
    if (row.has("gpu")) gpus.insert(row.text("gpu"));
  }
  if (gpus.size() > 1)
    throw InvalidInput(str(file, ": the table holds rows of ", join(gpus, ", "), "; add, for example, --gpu ",
                           *gpus.begin()));
}

double kernels_us(const Plan& plan, const Cluster& cluster) {
  const SoftwareProfile software;
  const KernelCost cost(cluster, software);
  double ns = 0;
  for (const StepRef& ref : steps_of(plan)) {
    const auto* kernel = std::get_if<Kernel>(&ref.step->work);
    if (kernel != nullptr) ns += static_cast<double>(ref.count) * cost.ns(*kernel, plan);
  }
  return ns / kNsPerUs;
}

double swap_us(double bytes, bool across_nodes, const Cluster& cluster) {
  Cluster pair = cluster;
  pair.nodes = across_nodes ? std::max(2, cluster.nodes) : cluster.nodes;
  const std::vector<Rank> ranks = {0, across_nodes ? pair.node.gpus : 1};
  const auto numel =
      std::max<std::int64_t>(1, std::llround(bytes / static_cast<double>(size_bytes(DType::bf16))));
  std::vector<Plan> plans;
  for (const std::int32_t self : {0, 1}) {
    const std::int32_t peer = 1 - self;
    PlanBuilder builder(ranks[static_cast<std::size_t>(self)], host_target());
    const BufferId in = builder.input("in", DType::bf16, numel),
                   out = builder.output("out", DType::bf16, numel);
    builder.add(builder.stream("comm"), Exchange{builder.group("pair", ranks),
                                                 {{peer, flat_view(in, 0, numel)}},
                                                 {{peer, flat_view(out, 0, numel)}},
                                                 counts_digest({{0, 1, numel}, {1, 0, numel}})});
    plans.push_back(std::move(builder).build({}));
  }
  return replay(plans, pair, {}).time_ns / kNsPerUs;
}

}  // namespace cp::sim::detail
