#include "tests/support/layout_generators.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "shared/base/index.h"
#include "tests/mesh/mesh_testing.h"
#include "tests/placement/layout_generator.h"

namespace cp::testing {
namespace {

using Partials = CaseKinds::Partials;

bool one_in(int n) { return *any_int(1, n) == 1; }

template <class T>
void shuffle(std::vector<T>& list) {
  for (std::size_t i = list.size(); i > 1; --i)
    std::swap(list[i - 1], list[idx(*any_int(0, static_cast<int>(i) - 1))]);
}

// Axes whose sizes multiply to at most max_ranks.
std::vector<MeshAxis> random_axes(int max_ranks) {
  std::vector<MeshAxis> axes;
  int left = max_ranks;
  for (const char* name : {"a", "b", "c"}) {
    axes.push_back({name, *any_int(1, std::min(4, left))});
    left /= axes.back().size;
    if (one_in(3)) break;
  }
  return axes;
}

int num_ranks(const std::vector<MeshAxis>& axes) {
  int product = 1;
  for (const MeshAxis& axis : axes) product *= axis.size;
  return product;
}

// The axes over ranks from a few more than they need, in numbered order every second time.
Mesh mesh_over_some_ranks(std::vector<MeshAxis> axes) {
  const int count = num_ranks(axes);
  if (one_in(2)) return Mesh(std::move(axes));
  std::vector<Rank> ranks(idx(count + 3));
  std::iota(ranks.begin(), ranks.end(), 0);
  shuffle(ranks);
  ranks.resize(idx(count));
  return Mesh(std::move(axes), std::move(ranks));
}

Mesh another_mesh(const Mesh& mesh, int max_ranks) {
  if (one_in(2)) return mesh_over_some_ranks(random_axes(max_ranks));
  std::vector<MeshAxis> axes = mesh.axes();
  std::vector<Rank> ranks = mesh.ranks();
  if (one_in(2)) axes = {{"flat", mesh.size()}};
  shuffle(axes);
  if (one_in(2)) shuffle(ranks);
  return Mesh(std::move(axes), std::move(ranks));
}

Shape random_shape(const Mesh& mesh) {
  Shape shape;
  for (int dims = *any_int(1, 3), dim = 0; dim < dims; ++dim) {
    const int size = one_in(4) ? mesh.size() : mesh.axis_size(*any_int(0, mesh.num_axes() - 1));
    const std::int64_t whole = std::int64_t{size} * *any_int(1, 3);
    shape.push_back(one_in(12) ? *any_int(0, 1) : std::max<std::int64_t>(0, whole + *any_int(-1, 1)));
  }
  constexpr std::int64_t kMaxElements = 4000;
  while (numel(shape) > kMaxElements) *std::max_element(shape.begin(), shape.end()) /= 2;
  return shape;
}

// The reduction that each axis would have where it is partial: all alike, or sum and avg mixed.
std::vector<ReduceOp> random_reductions(const Mesh& mesh, const CaseKinds& kinds, bool floating) {
  const ReduceOp op = kinds.partials == Partials::all
                          ? *rc::gen::element(ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product)
                          : ReduceOp::sum;
  std::vector<ReduceOp> ops(idx(mesh.num_axes()), op);
  if (op != ReduceOp::sum || !floating) return ops;
  for (std::size_t axis = 0; axis < ops.size(); ++axis) {
    const int size = mesh.axes()[axis].size;
    if (one_in(3) && (kinds.partials == Partials::all || size == 2 || size == 4)) ops[axis] = ReduceOp::avg;
  }
  return ops;
}

// `reductions`: of the axes that may be partial (all of them or none).
Layout random_layout_on(const Mesh& mesh, const Shape& shape, DType dtype,
                        const std::vector<ReduceOp>& reductions) {
  std::vector<Placement> placements(idx(mesh.num_axes()), Replicate{});
  std::vector<std::vector<int>> order(shape.size());
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const int kind = *any_int(0, 6);
    if (kind == 0) continue;
    if (kind < 3 && !reductions.empty()) {
      placements[idx(axis)] = Partial{reductions[idx(axis)]};
      continue;
    }
    std::vector<int>& axes = order[idx(*any_int(0, static_cast<int>(shape.size()) - 1))];
    axes.insert(axes.begin() + *any_int(0, static_cast<int>(axes.size())), axis);
  }
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    std::vector<Indices> lists(1, Indices(idx(shape[dim])));
    std::iota(lists.front().begin(), lists.front().end(), 0);
    for (const int axis : order[dim]) {
      // Chunked often: most collectives need even shards.
      Split split = Chunked{};
      if (one_in(2)) {
        split = random_nested_split(lists, shape[dim], mesh.axis_size(axis));
      } else {
        std::vector<Indices> narrowed;
        for (const Indices& list : lists) {
          for (int i = 0; i < mesh.axis_size(axis); ++i)
            narrowed.push_back(split_elements(split, list, mesh.axis_size(axis), i));
        }
        lists = std::move(narrowed);
      }
      placements[idx(axis)] = Shard{static_cast<int>(dim), split};
    }
  }
  return make_layout(mesh, std::move(placements), shape, dtype, std::move(order));
}

// Some of the axes that are partial in the source stay partial in the target.
Layout with_some_partial(const Layout& source, const Layout& target,
                         const std::vector<ReduceOp>& reductions) {
  std::vector<Placement> placements = target.placements;
  std::vector<std::vector<int>> order = target.shard_axes;
  for (int axis = 0; axis < source.mesh.num_axes(); ++axis) {
    const auto* held = std::get_if<Partial>(&source.placements[idx(axis)]);
    if (held == nullptr && reductions.empty()) continue;
    if (!one_in(held == nullptr ? 6 : 3)) continue;
    // Sizes may not fit the lists that they split once another axis is gone.
    for (std::vector<int>& axes : order) {
      if (std::find(axes.begin(), axes.end(), axis) == axes.end()) continue;
      std::erase(axes, axis);
      for (const int other : axes) std::get<Shard>(placements[idx(other)]).split = Chunked{};
    }
    placements[idx(axis)] = held == nullptr ? Placement{Partial{reductions[idx(axis)]}} : Placement{*held};
  }
  return make_layout(target.mesh, std::move(placements), target.shape, target.dtype, std::move(order));
}

RedistributeOptions random_options(const CaseKinds& kinds) {
  RedistributeOptions options;
  if (one_in(3)) options.objective = Objective::bytes;
  if (kinds.tight) {
    options.max_memory_factor = *rc::gen::element(1.0, 1.0, 0.25, 0.5, 0.75, 2.0);
  } else if (kinds.casts) {
    options.max_memory_factor = 2;
  }
  if (one_in(3)) {  // steps cost next to nothing, so that chains of many win
    options.cost.step_latency_us = 0.01;
    options.cost.peer_latency_us = 0.001;
    options.cost.local_latency_us = 0.001;
  }
  return options;
}

DType random_floating() { return *rc::gen::element(DType::f32, DType::f16, DType::bf16); }

RedistributeCase random_case(const CaseKinds& kinds) {
  const Mesh mesh = mesh_over_some_ranks(random_axes(kinds.max_ranks));
  const Mesh target_mesh = one_in(3) ? another_mesh(mesh, kinds.max_ranks) : mesh;
  const Shape shape = random_shape(mesh);
  const bool floating = !kinds.casts || one_in(2);
  DType from = kinds.casts ? *rc::gen::element(DType::i32, DType::i64) : DType::f32, to = from;
  RedistributeOptions options = random_options(kinds);
  if (kinds.casts && floating) {
    from = to = random_floating();
    if (one_in(3)) to = random_floating();
    if (one_in(4)) options.travel_dtype = random_floating();
  }
  std::vector<ReduceOp> reductions;
  if (kinds.partials != Partials::none) reductions = random_reductions(mesh, kinds, floating);
  Layout source = random_layout_on(mesh, shape, from, reductions);
  Layout target = random_layout_on(target_mesh, shape, to, {});
  if (mesh == target_mesh) target = with_some_partial(source, target, reductions);
  return {std::move(source), std::move(target), std::move(options)};
}

}  // namespace

void showValue(const RedistributeCase& request, std::ostream& out) {
  out << to_string(request.source) << "  =>  " << to_string(request.target) << ", by "
      << (request.options.objective == Objective::time ? "time" : "bytes") << ", factor "
      << request.options.max_memory_factor << ", step latency " << request.options.cost.step_latency_us;
  if (request.options.travel_dtype) out << ", travels as " << name(*request.options.travel_dtype);
}

rc::Gen<RedistributeCase> any_case(CaseKinds kinds) {
  return rc::gen::noShrink(rc::gen::exec([kinds] { return random_case(kinds); }));
}

RedistributeCase case_of_seed(std::uint64_t seed, CaseKinds kinds) {
  return any_case(kinds)(rc::Random(seed), rc::kNominalSize).value();
}

}  // namespace cp::testing
