// Laws of redistributions that are checked on data, element by element.
#include <algorithm>
#include <vector>

#include "shared/base/index.h"
#include "shared/redistribute/lower.h"
#include "shared/redistribute/scaled.h"
#include "sim/fuzz/laws.h"
#include "sim/fuzz/mutants_law.h"
#include "sim/fuzz/redistribution_subject.h"
#include "sim/proof/exhaustive/shard_data.h"

namespace cp::sim {
namespace {

bool is_linear(const Layout& layout) {
  const auto op = reduction(layout);
  return !op || *op == ReduceOp::sum || *op == ReduceOp::avg;
}

class DataLaws : private RedistributionSubject {
 public:
  explicit DataLaws(const RedistributionSubject& subject) : RedistributionSubject(subject) {}

  void check_all() {
    if (!trial_.has_run() || ranks() > kMostRanks || elements_of_all(request_.source) > kMostElements ||
        elements_of_all(request_.target) > kMostElements ||
        std::ranges::any_of(request_.source.shape, [](std::int64_t size) {
          return size > kMostElements;  // empty tensors may be as long as they like
        })) {
      return;
    }
    if (trial_.asks("elements")) elements();
    if (trial_.asks("there_and_back")) there_and_back();
    if (trial_.asks("transpose")) transpose();
    if (trial_.asks("mutants")) mutants();
  }

 private:
  // The forward redistribution with a dtype that holds small whole numbers, and their sums, exactly.
  struct Exact {
    Layout source, target;
    std::vector<Plan> plans;
  };
  Exact exact(DType dtype) {
    Exact result{request_.source, request_.target, {}};
    result.source.dtype = result.target.dtype = dtype;
    RedistributeOptions options = forward_options();
    options.travel_dtype.reset();
    result.plans = lower_all(plan(result.source, result.target, options));
    return result;
  }

  static double combined(const Layout& layout, const ElementValue& value, std::int64_t element) {
    const ReduceOp op = reduction(layout).value_or(ReduceOp::sum);
    double result = value(element, 0);
    for (std::int64_t c = 1; c < num_contributions(layout); ++c) {
      const double next = value(element, c);
      if (op == ReduceOp::min) result = std::min(result, next);
      if (op == ReduceOp::max) result = std::max(result, next);
      if (op == ReduceOp::product) result *= next;
      if (op == ReduceOp::sum) result += next;
    }
    return result;
  }

  // Every element, in its place, with every contribution once.
  void elements() {
    for (const Layout* layout : {&request_.source, &request_.target}) {
      for (const Placement& placement : layout->placements) {
        if (const auto* partial = std::get_if<Partial>(&placement);
            partial != nullptr && partial->op == ReduceOp::avg)
          return;
      }
    }
    const Exact job = exact(DType::i64);
    const bool product = reduction(job.source) == ReduceOp::product;
    const ElementValue value = [&](std::int64_t element, std::int64_t c) {
      return product ? small_integer(request_.seed, element, c, 2)
                     : small_integer(request_.seed, element, c, 1000);
    };
    if (num_contributions(job.source) > 12) return;
    const Shards target =
        trial_.property("elements", [&] { return run_plans(job.plans, make_shards(job.source, value)); });
    if (is_partial(job.target)) return;  // what its contributions are alone is the planner's choice
    for (const Rank rank : job.target.mesh.ranks()) {
      const std::vector<std::int64_t> numbers = element_numbers(job.target, rank);
      const std::vector<double>& found = target.at(rank);
      trial_.require(found.size() == numbers.size(), "elements", "rank ", rank, " has ", found.size(),
                     " elements of ", numbers.size());
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const double expected = combined(job.source, value, numbers[i]);
        trial_.require(found[i] == expected, "elements", "rank ", rank, ", local element ", i, " (global ",
                       numbers[i], "): got ", found[i], ", expected ", expected);
      }
    }
  }

  void there_and_back() {
    if (is_partial(request_.source) || is_partial(request_.target)) return;
    const Exact there = exact(DType::i32);
    const Shards source = make_shards(
        there.source, [&](std::int64_t element) { return small_integer(request_.seed, element, 0, 1000); });
    RedistributeOptions options = forward_options();
    options.travel_dtype.reset();
    const std::vector<Plan> back = lower_all(plan(there.target, there.source, options));
    const Shards result =
        trial_.property("there_and_back", [&] { return run_plans(back, run_plans(there.plans, source)); });
    for (const auto& [rank, shard] : source) {
      trial_.require(result.at(rank) == shard, "there_and_back", "rank ", rank, " gets back ",
                     join(result.at(rank)), " for ", join(shard));
    }
  }

  // <R x, y> = <x, R^T y> on storage.
  void transpose() {
    for (const Layout* layout : {&request_.source, &request_.target}) {
      if (!is_linear(*layout)) return;
      for (int axis = 0; axis < layout->mesh.num_axes(); ++axis) {
        const auto* partial = std::get_if<Partial>(&layout->placements[idx(axis)]);
        const int size = layout->mesh.axis_size(axis);
        if (partial != nullptr && partial->op == ReduceOp::avg && (size & (size - 1)) != 0)
          return;  // f32 rounds
      }
    }
    Exact forward = exact(DType::f32);
    GradientOptions options;
    options.redistribute = forward_options();
    options.redistribute.travel_dtype.reset();
    const Gradient gradient =
        trial_.property("transpose", [&] { return plan_gradient(forward.source, forward.target, options); });
    const auto values = [&](std::uint64_t salt) -> ElementValue {
      return [=, this](std::int64_t element, std::int64_t c) {
        return small_integer(request_.seed + salt, element, c, 3);
      };
    };
    const Shards x = make_shards(forward.source, values(0)), y = make_shards(dual(forward.target), values(1));
    trial_.property("transpose", [&] {
      const double left = inner_product(run_plans(forward.plans, x), y);
      const double right =
          inner_product(x, run_plans(lower_all_scaled(gradient.redistribution, gradient.scale), y));
      trial_.require(left == right, "transpose", "<R x, y> = ", left, " and <x, R^T y> = ", right, " for ",
                     to_string(forward.source), " => ", to_string(forward.target));
    });
  }

  // Of plans that are damaged, in a dtype that every result is exact in.
  void mutants() {
    for (const Layout* layout : {&request_.source, &request_.target}) {
      if (reduction(*layout) == ReduceOp::avg) return;
    }
    const Exact job = exact(DType::i64);
    const Shards source = make_shards(job.source, [&](std::int64_t element, std::int64_t c) {
      return small_integer(request_.seed, element, c, 1000);
    });
    const auto run = [&](const std::vector<Plan>& plans, const BatonOrder& order) {
      FabricOptions options;
      options.schedule = Schedule::baton;
      options.order = order;
      Hasher hasher;
      for (const auto& [rank, shard] : run_plans(plans, source, options)) {
        hasher.add(rank);
        for (const double value : shard) hasher.add(value);
      }
      return to_string(hasher.digest());
    };
    check_mutants(job.plans, request_.seed, run, run(job.plans, {}), trial_);
  }
};

}  // namespace

void check_redistribution_data_laws(const RedistributionSubject& subject) { DataLaws(subject).check_all(); }

}  // namespace cp::sim
