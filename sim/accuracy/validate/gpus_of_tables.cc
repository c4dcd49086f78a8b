#include "sim/accuracy/validate/gpus_of_tables.h"

#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/cost/cluster/read_rates.h"

namespace cp::sim::detail {
namespace {

// Makes a cluster of the rates alone. It gets no launch time, since the floors of the rates contain the
// launches.
Cluster cluster_of(Rates rates) {
  Cluster cluster;
  cluster.name = cluster.gpu.name = rates.gpu;
  cluster.gpu.tflops_16 = rates.tflops_16, cluster.gpu.tflops_fp8 = 2 * rates.tflops_16;
  cluster.gpu.hbm_gbps = rates.hbm_gbps;
  cluster.rates = std::move(rates);
  return cluster;
}

}  // namespace

const Cluster& GpusOfTables::of(const CsvRow& row) {
  try {
    return named(row.text("gpu"));
  } catch (const InvalidInput& error) {
    throw InvalidInput(str(row.where(), ": gpu: ", error.what()));
  }
}

const Cluster& GpusOfTables::named(const std::string& gpu) {
  const auto known = clusters_.find(gpu);
  if (known != clusters_.end()) return known->second;
  return clusters_.emplace(gpu, cluster_of(find_rates(gpu))).first->second;
}

}  // namespace cp::sim::detail
