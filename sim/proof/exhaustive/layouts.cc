#include "sim/proof/exhaustive/layouts.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace cp::sim {

namespace {

// Ordered factorisations of `n` into factors greater than 1; the empty one for n == 1.
std::vector<std::vector<int>> factorisations(int n) {
  if (n == 1) return {{}};
  std::vector<std::vector<int>> all;
  for (int first = 2; first <= n; ++first) {
    if (n % first != 0) continue;
    for (std::vector<int>& rest : factorisations(n / first)) {
      rest.insert(rest.begin(), first);
      all.push_back(std::move(rest));
    }
  }
  return all;
}

// Every way to order the elements of each list: the product of their permutations.
std::vector<std::vector<std::vector<int>>> all_orders(const std::vector<std::vector<int>>& lists) {
  std::vector<std::vector<std::vector<int>>> all = {{}};
  for (std::vector<int> list : lists) {
    std::vector<std::vector<std::vector<int>>> longer;
    std::sort(list.begin(), list.end());
    do {
      for (std::vector<std::vector<int>> head : all) {
        head.push_back(list);
        longer.push_back(std::move(head));
      }
    } while (std::next_permutation(list.begin(), list.end()));
    all = std::move(longer);
  }
  return all;
}

// The choice-th placement of an axis: Replicate, Shard(0), Shard(1), ..., Partial.
Placement placement_of(std::size_t choice, std::size_t num_dims, std::optional<ReduceOp> reduction) {
  if (choice == 0) return Replicate{};
  if (choice <= num_dims) return Shard{static_cast<int>(choice) - 1, Chunked{}};
  return Partial{*reduction};
}

}  // namespace

std::vector<Mesh> all_meshes(const std::vector<Rank>& ranks) {
  std::vector<Mesh> meshes;
  for (std::vector<int> sizes : factorisations(static_cast<int>(ranks.size()))) {
    if (sizes.empty()) sizes = {1};
    std::vector<MeshAxis> axes;
    for (const int size : sizes) {
      axes.push_back({std::string(1, static_cast<char>('a' + axes.size())), size});
    }
    meshes.emplace_back(std::move(axes), ranks);
  }
  return meshes;
}

std::vector<Mesh> all_meshes(int num_ranks) {
  std::vector<Rank> ranks(static_cast<std::size_t>(num_ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return all_meshes(ranks);
}

std::vector<Layout> all_layouts(const Mesh& mesh, const Shape& shape, DType dtype,
                                std::optional<ReduceOp> reduction) {
  const std::size_t num_axes = static_cast<std::size_t>(mesh.num_axes());
  const std::size_t num_choices = shape.size() + (reduction ? 2 : 1);
  std::vector<Layout> layouts;
  std::vector<std::size_t> choice(num_axes, 0);
  for (bool more = true; more;) {
    std::vector<Placement> placements;
    std::vector<std::vector<int>> shard_axes(shape.size());
    for (std::size_t axis = 0; axis < num_axes; ++axis) {
      placements.push_back(placement_of(choice[axis], shape.size(), reduction));
      if (const Shard* shard = std::get_if<Shard>(&placements.back())) {
        shard_axes[static_cast<std::size_t>(shard->dim)].push_back(static_cast<int>(axis));
      }
    }
    for (const std::vector<std::vector<int>>& order : all_orders(shard_axes)) {
      layouts.push_back(make_layout(mesh, placements, shape, dtype, order));
    }
    // The next choice, as an odometer whose last axis turns fastest.
    std::size_t axis = num_axes;
    while (axis > 0 && ++choice[axis - 1] == num_choices) choice[--axis] = 0;
    more = axis > 0;
  }
  return layouts;
}

bool is_legal_pair(const Layout& source, const Layout& target) {
  if (source.mesh != target.mesh) return !is_partial(target);
  const std::vector<int> held = partial_axes(source);
  const std::vector<int> kept = partial_axes(target);
  return std::all_of(kept.begin(), kept.end(),
                     [&](int axis) { return std::find(held.begin(), held.end(), axis) != held.end(); });
}

}  // namespace cp::sim
