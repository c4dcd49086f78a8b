// Mesh: named axes over an explicit list of ranks.
//
// The ranks are laid out row-major over the axes: the last axis varies fastest. The list need not be 0, 1, 2,
// ...: the mesh [[0, 2], [1, 3]] is Mesh({{"a", 2}, {"b", 2}}, {0, 2, 1, 3}), in text a=2,b=2@0/2/1/3.
//
// A mesh is an immutable value: copies share their storage, and any thread may use them. Behaviour follows
// PyTorch's DeviceMesh where both have a feature (slices are subsequences, a flattened axis carries an
// alias), without its global state. Every request that a mesh cannot meet throws InvalidInput.
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
  std::string name;  // letters, digits, '_', '-' and '.'
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

class Mesh {
 public:
  // A slip in a flag such as --mesh dp=8Gi is to be an error, not an exhausted memory.
  static constexpr int kMaxRanks = 1 << 24;

  // Ranks 0 .. N-1. Throws for no axes at all, an empty, malformed or repeated name, a size below 1, and more
  // than kMaxRanks ranks.
  explicit Mesh(std::vector<MeshAxis> axes);
  // The given ranks, row-major; also throws when their number is not the product of the sizes, one is not
  // from 0 to kMaxRanks - 1, or one is repeated.
  Mesh(std::vector<MeshAxis> axes, std::vector<Rank> ranks);

  // Parses "dp=2,cp=4" or "a=2,b=2@0/2/1/3"; to_string() prints the same form (aliases are not part of it).
  static Mesh parse(std::string_view text);

  int num_axes() const;
  int size() const;  // number of ranks
  const std::vector<MeshAxis>& axes() const;
  int axis_size(int axis) const;
  const std::vector<Rank>& ranks() const;       // row-major
  int axis_index(std::string_view name) const;  // of an axis, not of an alias

  // Constant time.
  bool contains(Rank rank) const;
  int index_of(Rank rank) const;              // position in ranks()
  int coordinate(Rank rank, int axis) const;  // 0 .. axis_size(axis)-1
  std::vector<int> coordinates(Rank rank) const;
  Rank rank_at(std::span<const int> coordinates) const;

  // The partition of the mesh's ranks into groups that differ only in the coordinates of `axes` (in the order
  // given: the last one varies fastest inside a group). Groups come in the order of the remaining
  // coordinates, row-major. No axes: one group for each rank. Throws when an axis comes twice. Time: linear
  // in the ranks.
  std::vector<std::vector<Rank>> groups(std::span<const int> axes) const;
  std::vector<std::vector<Rank>> groups(std::string_view name) const;  // an axis or an alias
  // The one of those groups that holds `rank`. Time: linear in the group.
  std::vector<Rank> group_of(Rank rank, std::span<const int> axes) const;

  // The sub-mesh of `names` (axes, or aliases made by flatten: each is one axis of the result) that holds
  // `member`. The names must be a subsequence of the mesh's axes, where an alias stands for the axes behind
  // it: slice({"cp", "dp"}) of a (dp, pp, cp) mesh is an error; concatenate() makes other orders. Aliases do
  // not pass to the slice.
  Mesh slice(std::span<const std::string> names, Rank member) const;
  Mesh slice(std::string_view name, Rank member) const;

  // The same mesh, which from now on also knows `alias` as the flattening of `names` (axes or aliases, in
  // that order, each axis once) into one axis; slice(alias, rank) gives the 1-D mesh. Throws when the alias
  // is taken.
  Mesh flatten(std::span<const std::string> names, std::string alias) const;
  bool has_alias(std::string_view alias) const;
  // The axes behind an axis name or an alias, in flattening order.
  std::vector<int> axes_of(std::string_view name) const;

  // Sub-meshes of one mesh, joined along their axes in the order given, as in slice("cp") + slice("dp"). All
  // parts must be slices (of slices) of equal meshes and hold `member`, and no axis may come twice.
  static Mesh concatenate(std::span<const Mesh> parts, Rank member);

  // Axes (names and sizes) and ranks are equal; aliases and the mesh that a slice was cut from do not count.
  bool operator==(const Mesh& other) const;
  std::string to_string() const;

 private:
  struct Data;
  explicit Mesh(std::shared_ptr<const Data> data);
  std::shared_ptr<const Data> data_;  // null only in a mesh that was moved from
};

// Adds what operator== compares.
Hasher& hash(Hasher& hasher, const Mesh& mesh);

}  // namespace cp
