// Data that random redistributions move, held against what is found element by element.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/redistribute/dtensor.h"
#include "shared/redistribute/lower.h"
#include "shared/redistribute/scaled.h"
#include "sim/proof/run/redistribute_run.h"
#include "tests/property/redistribute_cases.h"
#include "tests/support/any_case.h"
#include "tests/support/layout_generators.h"
#include "tests/support/shard_data.h"
#include "tests/support/values.h"

namespace cp::testing {
namespace {

using Partials = CaseKinds::Partials;

// The value of the element once all contributions are reduced.
double reduced(const Layout& layout, const ElementValue& value, std::int64_t element) {
  const ReduceOp op = reduction(layout).value_or(ReduceOp::sum);
  double result = value(element, 0), averaged = 1;
  for (std::int64_t c = 1; c < num_contributions(layout); ++c)
    result = combined(op, result, value(element, c));
  for (int axis = 0; axis < layout.mesh.num_axes(); ++axis) {
    const auto* partial = std::get_if<Partial>(&layout.placements[static_cast<std::size_t>(axis)]);
    if (partial != nullptr && partial->op == ReduceOp::avg) averaged *= layout.mesh.axis_size(axis);
  }
  return result / averaged;
}

// Contribution c adds 16^c, so that the digits of the sum count how often each one arrived; the element's
// number above them comes from one contribution alone.
RC_GTEST_PROP(RedistributeProperty, EachContributionArrivesExactlyOnce, ()) {
  RedistributeCase request = *any_case({.partials = Partials::linear, .casts = false, .max_ranks = 8});
  for (Layout* layout : {&request.source, &request.target}) {
    layout->dtype = DType::i64;
    for (Placement& placement : layout->placements) {
      if (std::holds_alternative<Partial>(placement)) placement = Partial{ReduceOp::sum};
    }
  }
  request.options.max_memory_factor = 1;
  const std::int64_t contributions = num_contributions(request.source);
  const ElementValue value = [&](std::int64_t element, std::int64_t c) {
    const double number = element % contributions == c ? static_cast<double>(element) * 0x1p32 : 0;
    return number + std::ldexp(1.0, static_cast<int>(4 * c));
  };
  const Shards target = run_plans(lower_all(plan_of(request)), make_shards(request.source, value));
  // Where the target is partial, its contributions add up.
  std::map<std::pair<std::vector<int>, std::int64_t>, double> sums;
  for (const Rank rank : request.target.mesh.ranks()) {
    std::vector<int> others = request.target.mesh.coordinates(rank);
    for (const int axis : partial_axes(request.target)) others[static_cast<std::size_t>(axis)] = 0;
    const std::vector<std::int64_t> elements = element_numbers(request.target, rank);
    RC_ASSERT(target.at(rank).size() == elements.size());
    for (std::size_t i = 0; i < elements.size(); ++i) sums[{others, elements[i]}] += target.at(rank)[i];
  }
  for (const auto& [key, sum] : sums) RC_ASSERT(sum == reduced(request.source, value, key.second));
}

RC_GTEST_PROP(RedistributeProperty, FullTensorOfARedistributedTensorIsTheTensor, ()) {
  const RedistributeCase request = *any_case({.casts = false, .tight = false, .max_ranks = 8});
  const auto seed = pick("seed", rc::gen::arbitrary<std::uint64_t>());
  const bool product = reduction(request.source) == ReduceOp::product;
  // Multiples of all numbers of ranks that a mean may be over, so small that f32 holds their products.
  const ElementValue value = [&](std::int64_t element, std::int64_t c) {
    const double number = small_integer(seed, element, c, product ? 3 : 20);
    return product ? number : 144 * number;
  };
  const Shards source = make_shards(request.source, value);
  Rank last = 0;
  for (const Mesh* mesh : {&request.source.mesh, &request.target.mesh}) {
    for (const Rank rank : mesh->ranks()) last = std::max(last, rank);
  }
  std::vector<std::vector<float>> full(static_cast<std::size_t>(last) + 1);
  sim::Fabric fabric(last + 1);
  fabric.run([&](Rank rank, Device& device) {
    const bool sends = request.source.mesh.contains(rank), receives = request.target.mesh.contains(rank);
    if (!sends && !receives) return;
    const std::vector<double> held = sends ? source.at(rank) : std::vector<double>{};
    std::vector<float> in(held.begin(), held.end());
    std::vector<float> out(receives ? static_cast<std::size_t>(local_numel(request.target, rank)) : 0);
    const auto tensor = [&](const Layout& layout, std::vector<float>& data) {
      return from_local(layout, rank, data.data(), static_cast<std::int64_t>(data.size() * sizeof(float)));
    };
    redistribute(device, tensor(request.source, in), tensor(request.target, out), request.options);
    if (!receives) return;
    std::vector<float>& whole = full[static_cast<std::size_t>(rank)];
    whole.resize(static_cast<std::size_t>(numel(request.target.shape)));
    full_tensor(device, tensor(request.target, out), whole.data());
  });
  for (const Rank rank : request.target.mesh.ranks()) {
    const std::vector<float>& whole = full[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < whole.size(); ++i) {
      const double expected = reduced(request.source, value, static_cast<std::int64_t>(i));
      // Means over 3 ranks round 1/3; the wrong multiple of 144/12 would be 12 away.
      RC_ASSERT(std::abs(static_cast<double>(whole[i]) - expected) <= 1e-3);
    }
  }
}

RC_GTEST_PROP(RedistributeProperty, ThereAndBackIsTheIdentity, ()) {
  RedistributeCase request = *any_case({.partials = Partials::none, .tight = false});
  const auto seed = pick("seed", rc::gen::arbitrary<std::uint64_t>());
  const Shards source =
      make_shards(request.source, [&](std::int64_t element) { return small_integer(seed, element, 0, 120); });
  const Shards there = run_plans(lower_all(plan_of(request)), source);
  std::swap(request.source, request.target);
  const Shards back = run_plans(lower_all(plan_of(request)), there);
  for (const auto& [rank, shard] : source) RC_ASSERT(back.at(rank) == shard);
}

// Contract 10: <R x, y> == <x, R^T y> over all ranks' storage, x being any tensor in the source's layout and
// y any in the dual of the target's.
RC_GTEST_PROP(RedistributeProperty, GradientIsTheTranspose, ()) {
  const RedistributeCase request =
      *any_case({.partials = Partials::linear, .casts = false, .tight = false, .max_ranks = 8});
  const auto seed = pick("seed", rc::gen::arbitrary<std::uint64_t>());
  const auto values = [&](std::uint64_t salt) -> ElementValue {
    return [=](std::int64_t element, std::int64_t c) { return small_integer(seed + salt, element, c, 5); };
  };
  GradientOptions options;
  options.redistribute = request.options;
  options.redistribute.max_memory_factor = 2;  // to_partial is a step of its own, with both shards alive
  options.scale = pick("options.scale", rc::gen::element(1.0, 0.25, 2.0, 3.0));
  const Gradient gradient = plan_gradient(request.source, request.target, options);
  const Shards x = make_shards(request.source, values(0));
  const Shards rx = run_plans(lower_all(plan_of(request)), x);
  const Shards y = make_shards(dual(request.target), values(1));
  const Shards ry = run_plans(lower_all_scaled(gradient.redistribution, gradient.scale), y);
  RC_ASSERT(options.scale * inner_product(rx, y) == inner_product(x, ry));
  sim::RedistributeRunOptions run;
  run.scale = gradient.scale;
  sim::run_redistribution(gradient.redistribution, run);
}

}  // namespace
}  // namespace cp::testing
