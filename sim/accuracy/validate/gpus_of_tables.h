// The GPUs that tables of kernels name, each with its rates and nothing else. For the tables alone.
#pragma once

#include <map>
#include <string>

#include "sim/cost/cluster/cluster.h"
#include "sim/cost/presets/csv.h"

namespace cp::sim::detail {

inline constexpr const char* kLeftOutRule =
    "configurations that a fifth of all hashes to were left out of the rates' fits";

class GpusOfTables {
 public:
  // Of the column `gpu`, read once. Throws InvalidInput at the row where there are no rates of that name.
  const Cluster& of(const CsvRow& row);
  const Cluster& named(const std::string& gpu);  // throws what find_rates throws

 private:
  std::map<std::string, Cluster> clusters_;
};

}  // namespace cp::sim::detail
