// Checks everything that redistribution promises, for all pairs of layouts at small scale. `cpsim verify
// redistribute` runs this.
//
// For each pair a plan is made, held against the exhaustive search (audit.h), lowered for all ranks, proven
// by the checker, and run with data on the fabric. Each element of each rank's output is compared with what
// the index sets say. Every step is done for every pair; nothing is sampled.
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
  // Chosen: the number of layouts, and so of pairs, grows too fast to go further.
  static constexpr int kMaxRanks = 16, kMaxTensorDims = 4;
  // The limits for means. Derived: f32 holds the means exactly for no more ranks and elements (pair_run.h).
  static constexpr int kMaxRanksOfMeans = 8, kMaxTensorDimsOfMeans = 3;

  int num_ranks = 8;
  int tensor_dims = 3;
  // Whether pairs from mesh to mesh are checked, too: other axes, permuted ranks, other ranks. Unset: up to
  // four ranks.
  std::optional<bool> cross_mesh;
  // The reductions of the partial placements, one after the other. Sum goes with all pairs, the others only
  // with those whose source is partial. Unset: all reductions up to four ranks, and sum alone above.
  std::optional<std::vector<ReduceOp>> reductions;
  CostModel cost;
  double max_memory_factor = 1;
  // If set, the planner is asked with another cost model than the search, so that a test sees the comparison
  // fail.
  std::optional<CostModel> planner_cost;
  int num_threads = 2;
  // Called after every few pairs by any of the threads, by one at a time.
  std::function<void(std::int64_t done, std::int64_t total)> progress;
  const std::atomic<bool>* stop = nullptr;  // read before each pair; true ends the run early
};

// What may be wrong with a pair. A pair counts at most once for each kind.
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
  std::int64_t infeasible = 0;  // pairs without any chain in the bound, as planner and search agree
  std::int64_t faulty[kNumFaults] = {};
  bool stopped = false;
  std::vector<std::string> failures;  // the first few of each kind, with the command that runs them again

  std::int64_t count(Fault fault) const { return faulty[static_cast<std::size_t>(fault)]; }
  bool ok() const;

  // Seconds, added up over all threads.
  struct Times {
    double search = 0, plan = 0, lower = 0, check = 0, run = 0;
    Times& operator+=(const Times& other);
  } times;
};

// Throws InvalidInput if the number of ranks or dimensions is below 1 or above the limits, and if there are
// no reductions or one comes twice.
VerifyRedistributeResult verify_redistribute(const VerifyRedistributeOptions& options);

// One pair of meshes, with the shape and the reduction that all pairs of layouts on them are checked with.
// The shapes are even (for eight ranks 8x8x8, in which every split comes out even) and uneven (9x7x5).
struct RedistributionCase {
  Mesh source, target;
  Shape shape;
  ReduceOp reduction = ReduceOp::sum;
  bool partial_sources_alone = false;  // where another reduction has all pairs
};
std::vector<RedistributionCase> redistribution_cases(const VerifyRedistributeOptions& options);

}  // namespace cp::sim
