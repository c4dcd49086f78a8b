#include "shared/mesh/mesh_data.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {
namespace {

std::vector<int> row_major_strides(const std::vector<MeshAxis>& axes) {
  std::vector<int> strides(axes.size(), 1);
  for (std::size_t i = axes.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * axes[i].size;
  return strides;
}

template <class Named>
auto find_name(const std::vector<Named>& items, std::string_view name) {
  return std::find_if(items.begin(), items.end(), [&](const Named& item) { return item.name == name; });
}

}  // namespace

std::string axes_text(const std::vector<MeshAxis>& axes) {
  std::vector<std::string> texts;
  texts.reserve(axes.size());
  for (const MeshAxis& axis : axes) texts.push_back(str(axis.name, "=", axis.size));
  return join(texts);
}

void check_axis_name(std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  if (!name.empty() && std::all_of(name.begin(), name.end(), is_allowed)) return;
  throw InvalidInput(str("'", name, "' cannot name a mesh axis; use letters, digits, '_', '-' and '.'"));
}

int check_axes(const std::vector<MeshAxis>& axes) {
  if (axes.empty()) throw InvalidInput("a mesh needs at least one axis; a single rank is dp=1");
  std::int64_t size = 1;
  for (auto axis = axes.begin(); axis != axes.end(); ++axis) {
    check_axis_name(axis->name);
    if (axis->size < 1) {
      throw InvalidInput(str("the mesh axis ", axis->name, "=", axis->size, " in ", axes_text(axes),
                             " has no ranks; the smallest size is 1"));
    }
    const bool is_repeated =
        std::any_of(axes.begin(), axis, [&](const MeshAxis& earlier) { return earlier.name == axis->name; });
    if (is_repeated) {
      throw InvalidInput(
          str("the mesh axis ", axis->name, " comes twice in ", axes_text(axes), "; rename one of them"));
    }
    size *= axis->size;
    if (size > Mesh::kMaxRanks) {
      throw InvalidInput(
          str("the mesh ", axes_text(axes), " has too many ranks; the largest mesh has ", Mesh::kMaxRanks));
    }
  }
  return static_cast<int>(size);
}

Mesh::Data::Data(std::vector<MeshAxis> mesh_axes, std::vector<Rank> ranks) : axes(std::move(mesh_axes)) {
  const int size = check_axes(axes);
  if (ranks.size() != static_cast<std::size_t>(size)) {
    throw InvalidInput(str("the mesh ", axes_text(axes), " needs ", size, " ranks, not ", ranks.size(),
                           "; list each rank once, row-major"));
  }
  strides = row_major_strides(axes);
  auto all = std::make_shared<const RankTable>(std::move(ranks));
  if (all->highest() >= Mesh::kMaxRanks) {
    throw InvalidInput(str("rank ", all->highest(), " of the mesh ", axes_text(axes),
                           " is out of range; ranks are 0 to ", Mesh::kMaxRanks - 1));
  }
  table = std::move(all);
}

std::shared_ptr<const Mesh::Data> Mesh::Data::cut(const std::shared_ptr<const Data>& from,
                                                  std::vector<std::string> names,
                                                  const std::vector<std::vector<int>>& parts, int position) {
  std::vector<MeshAxis> axes;
  std::vector<int> chosen;
  std::vector<std::vector<int>> root_axes(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    MeshAxis axis{std::move(names[i]), 1};
    for (const int source : parts[i]) {
      axis.size *= from->size_of(source);
      chosen.push_back(source);
      const std::vector<int> behind = from->behind(source);
      root_axes[i].insert(root_axes[i].end(), behind.begin(), behind.end());
    }
    axes.push_back(std::move(axis));
  }
  const auto result = std::make_shared<Data>(std::move(axes), from->group_at(position, chosen));
  result->root = from->root ? from->root : from;
  result->root_axes = std::move(root_axes);
  return result;
}

std::vector<int> Mesh::Data::behind(int axis) const {
  return root ? root_axes[static_cast<std::size_t>(axis)] : std::vector<int>{axis};
}

bool Mesh::Data::equals(const Data& other) const {
  if (this == &other) return true;
  return axes == other.axes && (table == other.table || table->ranks() == other.table->ranks());
}

int Mesh::Data::find_axis(std::string_view name) const {
  const auto found = find_name(axes, name);
  return found == axes.end() ? -1 : static_cast<int>(found - axes.begin());
}

const MeshAlias* Mesh::Data::find_alias(std::string_view name) const {
  const auto found = find_name(aliases, name);
  return found == aliases.end() ? nullptr : &*found;
}

void Mesh::Data::check_axis(int axis) const {
  if (axis >= 0 && axis < num_axes()) return;
  throw InvalidInput(
      str("the mesh ", axes_text(axes), " has no axis ", axis, "; its axes are 0 .. ", num_axes() - 1));
}

std::vector<bool> Mesh::Data::mark(std::span<const int> chosen) const {
  std::vector<bool> marked(axes.size());
  for (const int axis : chosen) {
    check_axis(axis);
    if (marked[static_cast<std::size_t>(axis)]) {
      throw InvalidInput(str("the axis ", name_of(axis), " of the mesh ", axes_text(axes),
                             " is chosen twice; choose each axis once"));
    }
    marked[static_cast<std::size_t>(axis)] = true;
  }
  return marked;
}

std::vector<int> Mesh::Data::offsets(std::span<const int> chosen) const {
  std::vector<int> result = {0};
  for (const int axis : chosen) {
    if (size_of(axis) == 1) continue;  // else every such axis would copy the list
    const std::vector<int> outer = std::exchange(result, {});
    result.reserve(outer.size() * static_cast<std::size_t>(size_of(axis)));
    for (const int offset : outer) {
      for (int i = 0; i < size_of(axis); ++i) result.push_back(offset + i * stride_of(axis));
    }
  }
  return result;
}

std::vector<Rank> Mesh::Data::ranks_at(int first, const std::vector<int>& from_first) const {
  std::vector<Rank> ranks;
  ranks.reserve(from_first.size());
  for (const int offset : from_first) ranks.push_back(rank_of(first + offset));
  return ranks;
}

std::vector<Rank> Mesh::Data::group_at(int position, std::span<const int> chosen) const {
  int first = position;
  for (const int axis : chosen) first -= coordinate_of(position, axis) * stride_of(axis);
  return ranks_at(first, offsets(chosen));
}

}  // namespace cp
