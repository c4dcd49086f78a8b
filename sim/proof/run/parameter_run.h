// One parameter of hybrid-sharded data parallelism (hsdp_param.h), run on the fabric with data and proved:
// its shards are gathered; for each micro-batch a backward pass leaves gradients, which are normalized if
// they have another layout than the parameter's gradient, and added up; then they are scattered and
// all-reduced. Behind the gather each rank must have what its layout says of the parameter, and at the end
// what it says of the sum, or mean, of all gradients that any rank had.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared/fully_shard/hsdp_param.h"

namespace cp::sim {

struct ParameterRequest {
  explicit ParameterRequest(HsdpParam of) : param(std::move(of)) {}

  HsdpParam param;
  // What a backward pass leaves; unset: gradient() of the parameter.
  std::optional<Layout> produced = {};
  int micro_batches = 2;
  std::uint64_t seed = 0;
};

// What one plan of each rank does.
struct ParameterMove {
  std::string name;  // unshard, normalize, accumulate, scatter, all_reduce
  Layout from, to;
  std::int64_t sent = 0;  // bytes that a rank sends, the one that sends most
};

struct ParameterRun {
  std::vector<ParameterMove> moves;  // in their order, each once
  std::string finding;               // the first element that is wrong, of which rank; empty: none is
  bool holds() const { return finding.empty(); }
};

// Runs it. Values are whole numbers, so that each sum is exact in its dtype and results are compared for
// equality. Throws InvalidInput for a layout of gradients that cannot be normalized, for more sums than f16
// and bf16 hold exactly, and for meshes of more than 256 ranks.
ParameterRun run_parameter(const ParameterRequest& request);

}  // namespace cp::sim
