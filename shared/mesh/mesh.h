// A Mesh arranges a list of ranks as a grid with named axes, for example 2 x 4 ranks along "dp" and "cp".
//
// The ranks are laid out row-major: the last axis varies fastest. In Mesh({{"dp", 2}, {"cp", 4}}) rank 6 has
// the coordinates dp=1, cp=2. You may also name the ranks yourself, in any order: the grid [[0, 2], [1, 3]]
// is Mesh({{"a", 2}, {"b", 2}}, {0, 2, 1, 3}), and its text form is a=2,b=2@0/2/1/3.
//
// A mesh is an immutable value. Copies share their storage, so a copy is cheap, and any thread may use it.
// The semantics are those of PyTorch's DeviceMesh wherever both have a feature: a slice names a subsequence
// of the axes, and an alias names several axes flattened into one. Unlike DeviceMesh, a Mesh has no global
// state and creates no communicators. Every function throws InvalidInput if the mesh cannot do what is asked:
// if it has no such axis, rank or alias.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/types.h"

namespace cp {

struct MeshAxis {
  std::string name;  // letters, digits, '_', '-' and '.'; unique in its mesh
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

class Mesh {
 public:
  // The largest mesh: 16 Mi ranks. Chosen, not derived: it is far above any cluster, and a table of ranks of
  // this size is 64 MiB. The limit turns a slip such as --mesh dp=8Gi into an error instead of an exhausted
  // memory.
  static constexpr int kMaxRanks = 1 << 24;

  // A mesh of the ranks 0 .. N-1, where N is the product of the sizes. Throws InvalidInput if there are no
  // axes, a name is empty, malformed or repeated, a size is below 1, or N is more than kMaxRanks.
  explicit Mesh(std::vector<MeshAxis> axes);
  // A mesh of the given ranks, row-major. Also throws if there are not exactly N of them, one is outside 0 ..
  // kMaxRanks - 1, or one comes twice.
  Mesh(std::vector<MeshAxis> axes, std::vector<Rank> ranks);

  // Parses "dp=2,cp=4" or "a=2,b=2@0/2/1/3"; to_string() prints the same form. Aliases are not part of it.
  static Mesh parse(std::string_view text);

  int num_axes() const;
  int size() const;  // number of ranks
  const std::vector<MeshAxis>& axes() const;
  int axis_size(int axis) const;
  const std::vector<Rank>& ranks() const;       // row-major
  int axis_index(std::string_view name) const;  // throws for an alias

  // Look-ups of a rank and back; each takes constant time. contains() is the only one that does not throw if
  // the rank is not in the mesh.
  bool contains(Rank rank) const;
  int index_of(Rank rank) const;              // position in ranks()
  int coordinate(Rank rank, int axis) const;  // 0 .. axis_size(axis)-1
  std::vector<int> coordinates(Rank rank) const;
  Rank rank_at(std::span<const int> coordinates) const;

  // Partitions the mesh's ranks into groups: two ranks are in one group if their coordinates differ along
  // `axes` only. These are the groups in which a collective along `axes` runs. Inside a group the last of the
  // given axes varies fastest, so groups({1, 0}) lists the ranks of each group in another order than
  // groups({0, 1}). The groups themselves come row-major in the coordinates of the remaining axes. Without
  // axes every rank is a group of its own. For example, groups("cp") of dp=2,cp=2 is {{0, 1}, {2, 3}}, and
  // groups("dp") is {{0, 2}, {1, 3}}.
  //
  // Throws InvalidInput if an axis comes twice. Time: linear in the number of ranks.
  std::vector<std::vector<Rank>> groups(std::span<const int> axes) const;
  std::vector<std::vector<Rank>> groups(std::string_view name) const;  // an axis or an alias
  // The group of groups(axes) that holds `rank`. Time: linear in the size of this group.
  std::vector<Rank> group_of(Rank rank, std::span<const int> axes) const;

  // Cuts out the sub-mesh that spans the axes `names` and goes through `member`: the ranks that agree with
  // `member` in all other coordinates. A name may be an alias made by flatten(), which becomes one axis of
  // the result.
  //
  // The names must stand in the order of the mesh's axes, as PyTorch demands; an alias stands for the axes
  // behind it. So slice({"cp", "dp"}) of a mesh with the axes dp, pp, cp throws; use concatenate() for
  // another order. The slice does not inherit aliases.
  Mesh slice(std::span<const std::string> names, Rank member) const;
  Mesh slice(std::string_view name, Rank member) const;

  // Returns the same mesh with one more name: `alias` stands for the axes `names` flattened into one, in this
  // order. Each name is an axis or an alias, and no axis may come twice. slice(alias, rank) then gives the
  // 1-D mesh. Throws InvalidInput if the alias is taken.
  Mesh flatten(std::span<const std::string> names, std::string alias) const;
  bool has_alias(std::string_view alias) const;
  // The axes behind a name, in flattening order: the axis itself, or those that the alias was made of.
  std::vector<int> axes_of(std::string_view name) const;

  // Joins slices of one mesh into one mesh that has all their axes, in the order given, and goes through
  // `member`: the counterpart of PyTorch's concatenation of sub-meshes. concatenate({cp, dp}) makes the order
  // that slice() refuses. Throws InvalidInput unless all parts are slices (or slices of slices) of equal
  // meshes and hold `member`, and no axis comes twice.
  static Mesh concatenate(std::span<const Mesh> parts, Rank member);

  // Two meshes are equal if their axes (names and sizes) and their ranks are. Aliases do not count, nor does
  // the mesh that a slice was cut from.
  bool operator==(const Mesh& other) const;
  std::string to_string() const;

 private:
  struct Data;
  explicit Mesh(std::shared_ptr<const Data> data);
  std::shared_ptr<const Data> data_;  // null only after a move from this mesh
};

// Adds to the digest exactly what operator== compares.
Hasher& hash(Hasher& hasher, const Mesh& mesh);

}  // namespace cp
