// The GPUs that tables of kernels name, each with its rates and nothing else. Internal to
// sim/accuracy/validate.
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
  // Returns a cluster of one such GPU; each is read once. The reference is valid as long as this object. of()
  // takes the name from the column `gpu`, and throws InvalidInput that names the row if there are no rates of
  // that name. named() throws what find_rates() throws.
  const Cluster& of(const CsvRow& row);
  const Cluster& named(const std::string& gpu);

 private:
  std::map<std::string, Cluster> clusters_;
};

}  // namespace cp::sim::detail
