// The storage behind a Mesh: its axes, its ranks, and the mesh that it was cut from. Private to shared/mesh.
// A "position" in this folder is an index into the mesh's row-major list of ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/mesh/mesh.h"
#include "shared/mesh/rank_table.h"

namespace cp {

// "dp=2,cp=4".
std::string axes_text(const std::vector<MeshAxis>& axes);

// Throws InvalidInput for a name that the text form of a mesh could not carry.
void check_axis_name(std::string_view name);

// Checks the axes and returns the number of ranks. Throws InvalidInput as the constructor of Mesh does.
int check_axes(const std::vector<MeshAxis>& axes);

struct MeshAlias {
  std::string name;
  std::vector<int> axes;  // in flattening order
};

struct Mesh::Data {
  std::vector<MeshAxis> axes;
  std::vector<int> strides;                // in positions, for each axis
  std::shared_ptr<const RankTable> table;  // shared by meshes that differ in their aliases alone
  std::vector<MeshAlias> aliases;
  // A mesh that was cut from another one remembers this root, and for each of its own axes the axes of the
  // root that it flattens; concatenate() needs both to join two slices. A root has neither.
  std::shared_ptr<const Data> root;
  std::vector<std::vector<int>> root_axes;

  // Makes a root. Throws InvalidInput as the constructor of Mesh does.
  Data(std::vector<MeshAxis> mesh_axes, std::vector<Rank> ranks);

  // Cuts the mesh through `position` of `from` that has one axis for each of `parts`: the flattening of these
  // axes of `from`.
  static std::shared_ptr<const Data> cut(const std::shared_ptr<const Data>& from,
                                         std::vector<std::string> names,
                                         const std::vector<std::vector<int>>& parts, int position);

  int num_axes() const { return static_cast<int>(axes.size()); }
  int size_of(int axis) const { return axes[static_cast<std::size_t>(axis)].size; }
  int stride_of(int axis) const { return strides[static_cast<std::size_t>(axis)]; }
  const std::string& name_of(int axis) const { return axes[static_cast<std::size_t>(axis)].name; }
  Rank rank_of(int position) const { return table->ranks()[static_cast<std::size_t>(position)]; }
  int coordinate_of(int position, int axis) const { return position / stride_of(axis) % size_of(axis); }

  // The axes of the root that `axis` flattens.
  std::vector<int> behind(int axis) const;

  // What operator== of Mesh compares.
  bool equals(const Data& other) const;

  int find_axis(std::string_view name) const;                // -1 when there is none
  const MeshAlias* find_alias(std::string_view name) const;  // null when there is none

  // Both throw InvalidInput if an axis is out of range, and mark() also if one comes twice.
  void check_axis(int axis) const;
  std::vector<bool> mark(std::span<const int> chosen) const;  // for each axis whether it is chosen

  // The positions of the ranks that differ along `chosen` only, relative to the first of them. The last of
  // the chosen axes varies fastest.
  std::vector<int> offsets(std::span<const int> chosen) const;
  // The ranks at these offsets from position `first`.
  std::vector<Rank> ranks_at(int first, const std::vector<int>& from_first) const;
  // The ranks that differ from the one at `position` only along `chosen`.
  std::vector<Rank> group_at(int position, std::span<const int> chosen) const;
};

}  // namespace cp
