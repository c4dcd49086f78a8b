// The points of a curve that is being measured, and what a lone kernel or transfer takes. For this folder
// alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/presets/csv.h"

namespace cp::sim::detail {

// Throws InvalidInput at `where` for a rate above what the hardware can do.
struct Peak {
  double value = 0;
  std::string name, unit;  // "network.nic_gbps", "GB/s"
};
void check_rate(const std::string& where, double rate, const Peak& peak, const Cluster& cluster);

// Values of one x are averaged, as ratios.
class Points {
 public:
  void add(double x, double y) { values_[x].push_back(y); }  // both > 0
  bool empty() const { return values_.empty(); }
  Curve curve() const;

 private:
  std::map<double, std::vector<double>> values_;
};

// Returns the curve with times that do not fall as bytes grow. Neighbours whose times fall get their
// geometric mean time: such falls, which clusters refuse, are mostly noise of a few measurements. `rates`
// tells that the curve holds bytes over time instead of times.
Curve without_falls(const Curve& curve, bool rates);

// A cell above 0, and one that is also whole; throw InvalidInput at the row.
double above_0(const CsvRow& row, std::string_view column);
std::int64_t whole_above_0(const CsvRow& row, std::string_view column);
bool has_cell(const CsvRow& row,
              std::string_view column);  // there is such a column, and the cell holds something

// Throws InvalidInput where the column gpu, if there is one, has several values.
void require_one_gpu(const std::vector<CsvRow>& table, std::string_view file);

// What the plan's kernels take, each alone.
double kernels_us(const Plan& plan, const Cluster& cluster);
// Two GPUs send each other `bytes`: of one node, or of two.
double swap_us(double bytes, bool across_nodes, const Cluster& cluster);

}  // namespace cp::sim::detail
