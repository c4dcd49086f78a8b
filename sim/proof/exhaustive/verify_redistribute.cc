#include "sim/proof/exhaustive/verify_redistribute.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <numeric>
#include <string_view>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/base/parallel_for.h"
#include "sim/fabric/fabric.h"
#include "sim/proof/exhaustive/exhaustive.h"
#include "sim/proof/exhaustive/layouts.h"
#include "sim/proof/exhaustive/pair_check.h"
#include "sim/proof/exhaustive/pair_run.h"
#include "sim/proof/exhaustive/timed.h"

namespace cp::sim {

namespace {

// In which results are exact.
DType dtype_for(ReduceOp reduction) { return reduction == ReduceOp::avg ? DType::f32 : DType::i64; }

// Of each kind. Chosen: enough to see what they have in common.
constexpr std::size_t kFailuresShown = 5;

std::vector<ReduceOp> reductions_of(const VerifyRedistributeOptions& options) {
  if (options.reductions) return *options.reductions;
  if (options.num_ranks > 4) return {ReduceOp::sum};
  std::vector<ReduceOp> all = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};
  if (options.tensor_dims > VerifyRedistributeOptions::kMaxTensorDimsOfMeans) std::erase(all, ReduceOp::avg);
  return all;
}

void validate(const VerifyRedistributeOptions& options) {
  const auto require = [](std::string_view what, int value, int most) {
    if (value >= 1 && value <= most) return;
    throw InvalidInput(str(what, "=", value,
                           " is out of range: all pairs of layouts are checked, whose number grows faster "
                           "than exponentially; use 1 to ",
                           most));
  };
  using Options = VerifyRedistributeOptions;
  require("ranks", options.num_ranks, Options::kMaxRanks);
  require("tensor_dims", options.tensor_dims, Options::kMaxTensorDims);
  std::vector<ReduceOp> reductions = reductions_of(options);
  if (reductions.empty()) throw InvalidInput("no reductions to check; use sum, avg, min, max, product");
  const bool has_means = std::count(reductions.begin(), reductions.end(), ReduceOp::avg) > 0;
  if (has_means && (options.num_ranks > Options::kMaxRanksOfMeans ||
                    options.tensor_dims > Options::kMaxTensorDimsOfMeans)) {
    throw InvalidInput(str("means over ", options.num_ranks, " ranks in ", options.tensor_dims,
                           " dimensions are not exact in f32; use at most ", Options::kMaxRanksOfMeans,
                           " ranks and ", Options::kMaxTensorDimsOfMeans, " dimensions, or leave avg out"));
  }
  std::sort(reductions.begin(), reductions.end());
  const auto twice = std::adjacent_find(reductions.begin(), reductions.end());
  if (twice != reductions.end())
    throw InvalidInput(str("the reduction ", name(*twice), " comes twice; name each once"));
}

// For eight ranks and three dimensions 8x8x8 and 9x7x5.
std::vector<Shape> shapes_for(int num_ranks, int tensor_dims) {
  Shape even(static_cast<std::size_t>(tensor_dims), num_ranks), uneven;
  for (int dim = 0; dim < tensor_dims; ++dim) uneven.push_back(std::max(1, num_ranks + 1 - 2 * dim));
  return {even, uneven};
}

// Ranks that a target mesh may have: the same in another order, partly others, all others, fewer.
std::vector<std::vector<Rank>> other_ranks(int num_ranks) {
  const auto range = [](int begin, int end) {
    std::vector<Rank> ranks(static_cast<std::size_t>(end - begin));
    std::iota(ranks.begin(), ranks.end(), begin);
    return ranks;
  };
  const std::vector<Rank> same = range(0, num_ranks);
  std::vector<Rank> reversed(same.rbegin(), same.rend()), swapped = same;
  if (num_ranks > 2) std::swap(swapped[1], swapped[static_cast<std::size_t>(num_ranks) - 2]);
  std::vector<std::vector<Rank>> all = {same,
                                        reversed,
                                        swapped,
                                        range(num_ranks / 2, num_ranks / 2 + num_ranks),
                                        range(num_ranks, 2 * num_ranks),
                                        range(0, (num_ranks + 1) / 2)};
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::string replay_command(const VerifyRedistributeOptions& options, const Layout& source,
                           const Layout& target) {
  return str("cpsim redistribute --mesh ", source.mesh.to_string(),
             target.mesh == source.mesh ? "" : str(" --to-mesh ", target.mesh.to_string()), " --shape ",
             join(source.shape, "x"), " --dtype ", name(source.dtype), " --from '",
             placements_to_string(source), "' --to '", placements_to_string(target), "'",
             options.max_memory_factor == 1 ? "" : str(" --max-memory-factor ", options.max_memory_factor),
             " --run");
}

// All pairs of one source: what a thread takes at a time.
struct Batch {
  const ExhaustiveSearch* search = nullptr;
  std::size_t source = 0;
};

bool is_partial_source(const ExhaustiveSearch& search, std::size_t source) {
  return !search.layouts()[source].holdings.partial_axes.empty();
}

// Shared by the threads.
class Verification {
 public:
  explicit Verification(const VerifyRedistributeOptions& options)
      : options_(options), cases_(redistribution_cases(options)), searches_(cases_.size()) {
    for (const RedistributionCase& one : cases_) {
      for (const Mesh* mesh : {&one.source, &one.target}) {
        for (const Rank rank : mesh->ranks()) world_size_ = std::max(world_size_, rank + 1);
      }
    }
  }

  VerifyRedistributeResult run() {
    parallel_for(cases_.size(), options_.num_threads, [&](std::size_t i, std::size_t) { prepare(i); });
    std::vector<Batch> batches;
    for (std::size_t i = 0; i < searches_.size(); ++i) {
      const ExhaustiveSearch* search = searches_[i].get();
      if (search == nullptr) continue;  // stopped before
      for (std::size_t source = 0; source < search->num_sources(); ++source) {
        if (cases_[i].partial_sources_alone && !is_partial_source(*search, source)) continue;
        batches.push_back({search, source});
        total_ += num_targets(batches.back());
      }
    }
    reports_.resize(batches.size());
    std::vector<std::unique_ptr<Fabric>> fabrics(static_cast<std::size_t>(options_.num_threads));
    parallel_for(batches.size(), options_.num_threads, [&](std::size_t i, std::size_t worker) {
      if (!fabrics[worker]) fabrics[worker] = std::make_unique<Fabric>(world_size_, fabric_options());
      verify(batches[i], *fabrics[worker], reports_[i]);
    });
    return merged();
  }

 private:
  // What a batch found.
  struct Report {
    VerifyRedistributeResult result;
    std::array<std::vector<std::string>, kNumFaults> failures;  // the first few of each kind
  };

  static FabricOptions fabric_options() {
    FabricOptions options;
    options.record_traces = false;
    return options;
  }

  bool stopped() const { return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed); }

  void prepare(std::size_t i) {
    if (stopped()) return;
    const RedistributionCase& one = cases_[i];
    searches_[i] =
        std::make_unique<ExhaustiveSearch>(one.source, one.target, one.shape, dtype_for(one.reduction),
                                           options_.cost, options_.max_memory_factor, one.reduction);
  }

  static bool is_legal(const Batch& batch, std::size_t target) {
    return is_legal_pair(batch.search->layouts()[batch.source].layout,
                         batch.search->layouts()[target].layout);
  }

  static std::int64_t num_targets(const Batch& batch) {
    std::int64_t count = 0;
    for (std::size_t target = batch.search->first_target(); target < batch.search->layouts().size();
         ++target) {
      count += is_legal(batch, target);
    }
    return count;
  }

  void verify(const Batch& batch, Fabric& fabric, Report& report) {
    VerifyRedistributeResult& result = report.result;
    if ((result.stopped = stopped())) return;
    std::vector<std::optional<ExhaustiveSearch::Chain>> cheapest;
    timed(result.times.search, [&] { cheapest = batch.search->cheapest(batch.source); });
    std::vector<CheckedPair> pairs;
    const std::size_t first = batch.search->first_target();
    for (std::size_t target = first; target < batch.search->layouts().size() && !result.stopped; ++target) {
      if (!is_legal(batch, target)) continue;
      pairs.push_back(
          check_pair(*batch.search, batch.source, target, cheapest[target - first], options_, result.times));
      result.stopped = stopped();
    }
    timed(result.times.run, [&] { run_pairs(*batch.search, pairs, fabric); });
    for (const CheckedPair& pair : pairs) count(*batch.search, pair, report);
    advance(static_cast<std::int64_t>(pairs.size()));
  }

  void count(const ExhaustiveSearch& search, const CheckedPair& pair, Report& report) const {
    ++report.result.pairs;
    report.result.infeasible += pair.infeasible;
    std::array<bool, kNumFaults> counted = {};
    for (const Finding& finding : pair.findings) {
      const std::size_t kind = static_cast<std::size_t>(finding.fault);
      if (std::exchange(counted[kind], true)) continue;
      ++report.result.faulty[kind];
      if (report.failures[kind].size() == kFailuresShown) continue;
      const Layout& source = search.layouts()[pair.source].layout;
      const Layout& target = search.layouts()[pair.target].layout;
      report.failures[kind].push_back(
          str(name(finding.fault), ": ", finding.what, "\n  ", replay_command(options_, source, target)));
    }
  }

  void advance(std::int64_t pairs) {
    if (!options_.progress) return;
    const std::lock_guard lock(progress_mutex_);
    done_ += pairs;
    options_.progress(done_, total_);
  }

  VerifyRedistributeResult merged() const {
    VerifyRedistributeResult all;
    all.stopped = stopped();
    std::array<std::size_t, kNumFaults> shown = {};
    for (const Report& report : reports_) {
      all.pairs += report.result.pairs;
      all.infeasible += report.result.infeasible;
      all.times += report.result.times;
      for (std::size_t kind = 0; kind < kNumFaults; ++kind) {
        all.faulty[kind] += report.result.faulty[kind];
        for (const std::string& failure : report.failures[kind]) {
          if (shown[kind]++ < kFailuresShown) all.failures.push_back(failure);
        }
      }
    }
    return all;
  }

  const VerifyRedistributeOptions& options_;
  std::vector<RedistributionCase> cases_;
  std::vector<std::unique_ptr<ExhaustiveSearch>> searches_;  // by case
  int world_size_ = 0;
  std::vector<Report> reports_;  // by batch: the order of the failures is that of the pairs
  std::mutex progress_mutex_;
  std::int64_t done_ = 0, total_ = 0;
};

}  // namespace

std::string_view name(Fault fault) {
  constexpr std::array<std::string_view, kNumFaults> kNames = {"wrong", "over bound", "costlier", "cheaper",
                                                               "misdeclared"};
  return kNames[static_cast<std::size_t>(fault)];
}

VerifyRedistributeResult::Times& VerifyRedistributeResult::Times::operator+=(const Times& other) {
  search += other.search;
  plan += other.plan;
  lower += other.lower;
  check += other.check;
  run += other.run;
  return *this;
}

bool VerifyRedistributeResult::ok() const {
  return !stopped &&
         std::all_of(std::begin(faulty), std::end(faulty), [](std::int64_t count) { return count == 0; });
}

std::vector<RedistributionCase> redistribution_cases(const VerifyRedistributeOptions& options) {
  validate(options);
  const std::vector<Mesh> meshes = all_meshes(options.num_ranks);
  std::vector<RedistributionCase> cases;
  const auto add = [&](const Mesh& source, const Mesh& target, const Shape& shape) {
    for (const ReduceOp reduction : reductions_of(options))
      cases.push_back({source, target, shape, reduction, reduction != ReduceOp::sum});
  };
  for (const Shape& shape : shapes_for(options.num_ranks, options.tensor_dims)) {
    for (const Mesh& mesh : meshes) add(mesh, mesh, shape);
    if (!options.cross_mesh.value_or(options.num_ranks <= 4)) continue;
    for (const Mesh& source : meshes) {
      for (const std::vector<Rank>& ranks : other_ranks(options.num_ranks)) {
        for (const Mesh& target : all_meshes(ranks)) {
          if (target != source) add(source, target, shape);
        }
      }
    }
  }
  return cases;
}

VerifyRedistributeResult verify_redistribute(const VerifyRedistributeOptions& options) {
  return Verification(options).run();
}

}  // namespace cp::sim
