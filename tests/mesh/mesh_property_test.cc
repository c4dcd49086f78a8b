#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>  // after GoogleTest, which it uses without including it

#include "shared/mesh/mesh.h"
#include "tests/mesh/mesh_testing.h"

namespace cp {
namespace {

bool contains(const std::vector<int>& axes, int axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

RC_GTEST_PROP(MeshProperty, TextFormRoundTrips, ()) {
  const Mesh mesh = *any_mesh();
  RC_ASSERT(Mesh::parse(mesh.to_string()) == mesh);
}

RC_GTEST_PROP(MeshProperty, CoordinatesCountRowMajorThroughTheRanks, ()) {
  const Mesh mesh = *any_mesh();
  for (int index = 0; index < mesh.size(); ++index) {
    const Rank rank = mesh.ranks()[static_cast<std::size_t>(index)];
    RC_ASSERT(mesh.contains(rank));
    RC_ASSERT(mesh.index_of(rank) == index);
    const std::vector<int> coordinates = mesh.coordinates(rank);
    int expected = 0;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      const int coordinate = coordinates[static_cast<std::size_t>(axis)];
      RC_ASSERT(coordinate == mesh.coordinate(rank, axis));
      RC_ASSERT(coordinate >= 0 && coordinate < mesh.axis_size(axis));
      expected = expected * mesh.axis_size(axis) + coordinate;
    }
    RC_ASSERT(expected == index);
    RC_ASSERT(mesh.rank_at(coordinates) == rank);
  }
}

RC_GTEST_PROP(MeshProperty, GroupsPartitionTheRanks, ()) {
  const Mesh mesh = *any_mesh();
  const std::vector<int> axes = *any_axes_of(mesh);
  std::size_t group_size = 1;
  for (const int axis : axes) group_size *= static_cast<std::size_t>(mesh.axis_size(axis));
  std::vector<Rank> all;
  for (const std::vector<Rank>& group : mesh.groups(axes)) {
    RC_ASSERT(group.size() == group_size);
    all.insert(all.end(), group.begin(), group.end());
  }
  std::vector<Rank> ranks = mesh.ranks();
  std::sort(all.begin(), all.end());
  std::sort(ranks.begin(), ranks.end());
  RC_ASSERT(all == ranks);
}

RC_GTEST_PROP(MeshProperty, GroupsDifferInTheirAxesAloneAndInOrder, ()) {
  const Mesh mesh = *any_mesh();
  const std::vector<int> axes = *any_axes_of(mesh);
  std::vector<std::vector<int>> keys;  // the remaining coordinates of each group
  for (const std::vector<Rank>& group : mesh.groups(axes)) {
    std::vector<int> key;
    for (std::size_t i = 0; i < group.size(); ++i) {
      std::vector<int> remaining;
      for (int axis = 0; axis < mesh.num_axes(); ++axis) {
        if (!contains(axes, axis)) remaining.push_back(mesh.coordinate(group[i], axis));
      }
      if (i == 0) key = remaining;
      RC_ASSERT(remaining == key);
      std::size_t index = 0;  // row-major over `axes` in the order given
      for (const int axis : axes) {
        index = index * static_cast<std::size_t>(mesh.axis_size(axis)) +
                static_cast<std::size_t>(mesh.coordinate(group[i], axis));
      }
      RC_ASSERT(index == i);
    }
    keys.push_back(key);
  }
  RC_ASSERT(std::is_sorted(keys.begin(), keys.end()));
}

RC_GTEST_PROP(MeshProperty, GroupsAgreeWithGroupOf, ()) {
  const Mesh mesh = *any_mesh();
  const std::vector<int> axes = *any_axes_of(mesh);
  for (const std::vector<Rank>& group : mesh.groups(axes)) {
    for (const Rank rank : group) RC_ASSERT(mesh.group_of(rank, axes) == group);
  }
}

RC_GTEST_PROP(MeshProperty, SlicesKeepTheRootsCoordinates, ()) {
  const Mesh mesh = *any_mesh();
  const Rank member = *any_rank_of(mesh);
  std::vector<int> axes = *any_axes_of(mesh, 1);
  std::sort(axes.begin(), axes.end());
  const Mesh slice = mesh.slice(names_of(mesh, axes), member);
  RC_ASSERT(slice.contains(member));
  for (const Rank rank : slice.ranks()) {
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      const auto found = std::find(axes.begin(), axes.end(), axis);
      const int expected = found == axes.end()
                               ? mesh.coordinate(member, axis)
                               : slice.coordinate(rank, static_cast<int>(found - axes.begin()));
      RC_ASSERT(mesh.coordinate(rank, axis) == expected);
    }
    RC_ASSERT(mesh.slice(names_of(mesh, axes), rank) == slice);
  }
}

RC_GTEST_PROP(MeshProperty, AnAliasIsTheFlatteningOfAConcatenation, ()) {
  const Mesh mesh = *any_mesh();
  const Rank member = *any_rank_of(mesh);
  const std::vector<int> axes = *any_axes_of(mesh, 1);
  std::vector<Mesh> parts;
  for (const std::string& name : names_of(mesh, axes)) parts.push_back(mesh.slice(name, member));
  const Mesh joined = Mesh::concatenate(parts, member);
  const Mesh flat = mesh.flatten(names_of(mesh, axes), "flat").slice("flat", member);
  RC_ASSERT(flat.ranks() == joined.ranks());
  RC_ASSERT(flat.ranks() == mesh.group_of(member, axes));
  for (std::size_t i = 0; i < axes.size(); ++i) {
    RC_ASSERT(joined.axes()[i] == mesh.axes()[static_cast<std::size_t>(axes[i])]);
    for (const Rank rank : joined.ranks()) {
      RC_ASSERT(joined.coordinate(rank, static_cast<int>(i)) == mesh.coordinate(rank, axes[i]));
    }
  }
}

}  // namespace
}  // namespace cp
