// Everything that redistribution promises, checked for all pairs of layouts at small scale: what
// `cpsim verify redistribute` runs.
//
// For each pair a plan is made, held against the exhaustive search (audit.h), lowered for all ranks, proven
// by the checker, and executed with data on the fabric; each element of each rank's output is compared with
// what the index sets say. No step is sampled.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/dtype.h"
#include "shared/base/types.h"
#include "shared/mesh/mesh.h"
#include "shared/redistribute/cost_model.h"

namespace cp::sim {

struct VerifyRedistributeOptions {
  static constexpr int kMaxRanks = 16, kMaxTensorDims = 4;
  // Of means, which f32 holds exactly for no more (pair_run.h).
  static constexpr int kMaxRanksOfMeans = 8, kMaxTensorDimsOfMeans = 3;

  int num_ranks = 8;
  int tensor_dims = 3;
  // Also from mesh to mesh: other axes, permuted ranks, other ranks. Default: up to four ranks.
  std::optional<bool> cross_mesh;
  // Of the partial placements, one after the other: sum with all pairs, the others with those whose source is
  // partial. Default: all of them up to four ranks, sum alone above.
  std::optional<std::vector<ReduceOp>> reductions;
  CostModel cost;
  double max_memory_factor = 1;
  // Asks the planner with another model than the search, to see that the comparison can fail.
  std::optional<CostModel> planner_cost;
  int num_threads = 2;
  // Called after every few pairs, by any of the threads, one at a time.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
  const std::atomic<bool>* stop = nullptr;  // looked at before each pair; true ends the run early
};

// What is wrong with a pair. Every pair counts once for each kind.
enum class Fault : std::uint8_t {
  wrong,        // no plan, or one that the checker refuses, the fabric cannot run, or whose data are wrong
  over_bound,   // some rank's temporaries exceed max_memory_factor x 2M
  costlier,     // a cheaper chain exists
  cheaper,      // no such chain exists by the rules: planner or search misreads them
  misdeclared,  // time, bytes or memory are not what the redistribution says
};
inline constexpr std::size_t kNumFaults = 5;
std::string_view name(Fault fault);

struct VerifyRedistributeResult {
  std::int64_t pairs = 0;
  std::int64_t infeasible = 0;  // of them, without any chain in the bound, which planner and search agree on
  std::int64_t faulty[kNumFaults] = {};
  bool stopped = false;
  std::vector<std::string> failures;  // the first few of each kind, with the command that replays them

  std::int64_t count(Fault fault) const { return faulty[static_cast<std::size_t>(fault)]; }
  bool ok() const;

  // Seconds of all threads together.
  struct Times {
    double search = 0, plan = 0, lower = 0, check = 0, run = 0;
    Times& operator+=(const Times& other);
  } times;
};

// Throws InvalidInput for numbers of ranks or dimensions that are below 1, or above the limits, and for no
// reductions or one given twice.
VerifyRedistributeResult verify_redistribute(const VerifyRedistributeOptions& options);

// The pairs of meshes, the shapes and the reductions that it runs over. Shapes: even (8x8x8 for eight ranks:
// every split comes out even) and uneven (9x7x5).
struct RedistributionCase {
  Mesh source, target;
  Shape shape;
  ReduceOp reduction = ReduceOp::sum;
  bool partial_sources_alone = false;  // where another reduction has all pairs
};
std::vector<RedistributionCase> redistribution_cases(const VerifyRedistributeOptions& options);

}  // namespace cp::sim
