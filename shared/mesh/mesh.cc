#include "shared/mesh/mesh.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/mesh/mesh_data.h"

namespace cp {
namespace {

std::vector<Rank> first_ranks(int size) {
  std::vector<Rank> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

int parse_bounded(std::string_view text, const std::string& what, int least, int limit) {
  const std::int64_t value = parse_int(text, what);
  if (value >= least && value <= limit) return static_cast<int>(value);
  throw InvalidInput(str(what, " '", text, "' is out of range; use ", least, " to ", limit));
}

}  // namespace

Mesh::Mesh(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

Mesh::Mesh(std::vector<MeshAxis> axes) {
  const int size = check_axes(axes);
  data_ = std::make_shared<const Data>(std::move(axes), first_ranks(size));
}

Mesh::Mesh(std::vector<MeshAxis> axes, std::vector<Rank> ranks)
    : data_(std::make_shared<const Data>(std::move(axes), std::move(ranks))) {}

Mesh Mesh::parse(std::string_view text) {
  const std::size_t at = text.find('@');
  std::vector<MeshAxis> axes;
  for (const std::string_view part : split(text.substr(0, at), ',')) {
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      throw InvalidInput(str("the mesh axis '", part, "' in '", text, "' has no size; write it as dp=2"));
    }
    const std::string name(trim(part.substr(0, equals)));
    axes.push_back(
        {name, parse_bounded(part.substr(equals + 1), "the size of mesh axis " + name, 1, kMaxRanks)});
  }
  if (at == std::string_view::npos) return Mesh(std::move(axes));

  std::vector<Rank> ranks;
  for (const std::string_view part : split(text.substr(at + 1), '/')) {
    ranks.push_back(parse_bounded(part, "the rank", 0, kMaxRanks - 1));
  }
  return Mesh(std::move(axes), std::move(ranks));
}

int Mesh::num_axes() const { return data_->num_axes(); }
int Mesh::size() const { return data_->table->size(); }
const std::vector<MeshAxis>& Mesh::axes() const { return data_->axes; }
const std::vector<Rank>& Mesh::ranks() const { return data_->table->ranks(); }

int Mesh::axis_size(int axis) const {
  data_->check_axis(axis);
  return data_->size_of(axis);
}

int Mesh::axis_index(std::string_view name) const {
  const int axis = data_->find_axis(name);
  if (axis >= 0) return axis;
  const std::string reason = has_alias(name) ? "an alias, not an axis, of" : "not an axis of";
  throw InvalidInput(str("'", name, "' is ", reason, " the mesh ", axes_text(data_->axes)));
}

bool Mesh::contains(Rank rank) const { return data_->table->find(rank) != RankTable::kAbsent; }

int Mesh::index_of(Rank rank) const {
  const int position = data_->table->find(rank);
  if (position != RankTable::kAbsent) return position;
  throw InvalidInput(str("rank ", rank, " is not in the mesh ", axes_text(data_->axes), "; its ", size(),
                         " ranks lie within ", data_->table->lowest(), " .. ", data_->table->highest()));
}

int Mesh::coordinate(Rank rank, int axis) const {
  data_->check_axis(axis);
  return data_->coordinate_of(index_of(rank), axis);
}

std::vector<int> Mesh::coordinates(Rank rank) const {
  const int position = index_of(rank);
  std::vector<int> result;
  result.reserve(data_->axes.size());
  for (int axis = 0; axis < num_axes(); ++axis) result.push_back(data_->coordinate_of(position, axis));
  return result;
}

Rank Mesh::rank_at(std::span<const int> coordinates) const {
  bool fits = coordinates.size() == data_->axes.size();
  int position = 0;
  for (int axis = 0; fits && axis < num_axes(); ++axis) {
    const int coordinate = coordinates[static_cast<std::size_t>(axis)];
    fits = coordinate >= 0 && coordinate < data_->size_of(axis);
    if (fits) position += coordinate * data_->stride_of(axis);
  }
  if (fits) return data_->rank_of(position);
  throw InvalidInput(str("the mesh ", axes_text(data_->axes), " has no coordinates (", join(coordinates),
                         "); give one for each axis, from 0 to its size - 1"));
}

std::vector<std::vector<Rank>> Mesh::groups(std::span<const int> axes) const {
  const std::vector<bool> inside = data_->mark(axes);
  std::vector<int> remaining;
  for (int axis = 0; axis < num_axes(); ++axis) {
    if (!inside[static_cast<std::size_t>(axis)]) remaining.push_back(axis);
  }
  const std::vector<int> within = data_->offsets(axes);
  std::vector<std::vector<Rank>> result;
  for (const int first : data_->offsets(remaining)) result.push_back(data_->ranks_at(first, within));
  return result;
}

std::vector<std::vector<Rank>> Mesh::groups(std::string_view name) const { return groups(axes_of(name)); }

std::vector<Rank> Mesh::group_of(Rank rank, std::span<const int> axes) const {
  data_->mark(axes);
  return data_->group_at(index_of(rank), axes);
}

Mesh Mesh::slice(std::span<const std::string> names, Rank member) const {
  if (names.empty()) {
    throw InvalidInput(
        str("a slice of the mesh ", axes_text(data_->axes), " names no axis; name at least one"));
  }
  std::vector<std::vector<int>> parts;
  int last = -1;
  for (const std::string& name : names) {
    parts.push_back(axes_of(name));
    const auto [lowest, highest] = std::minmax_element(parts.back().begin(), parts.back().end());
    if (*lowest <= last) {
      throw InvalidInput(str("slice (", join(names), ") is not a subsequence of the axes of the mesh ",
                             axes_text(data_->axes), ": ", name, " does not come after ",
                             data_->name_of(last),
                             "; name the axes in mesh order, or concatenate one slice for each"));
    }
    last = *highest;
  }
  return Mesh(Data::cut(data_, {names.begin(), names.end()}, parts, index_of(member)));
}

Mesh Mesh::slice(std::string_view name, Rank member) const {
  const std::string only(name);
  return slice(std::span(&only, 1), member);
}

Mesh Mesh::flatten(std::span<const std::string> names, std::string alias) const {
  check_axis_name(alias);
  if (has_alias(alias) || data_->find_axis(alias) >= 0) {
    throw InvalidInput(str("the mesh ", axes_text(data_->axes), " already has an axis or an alias ", alias,
                           "; choose another name"));
  }
  std::vector<int> axes;
  for (const std::string& name : names) {
    const std::vector<int> behind = axes_of(name);
    axes.insert(axes.end(), behind.begin(), behind.end());
  }
  if (axes.empty()) throw InvalidInput(str("the alias ", alias, " flattens no axis; name at least one"));
  data_->mark(axes);
  const auto data = std::make_shared<Data>(*data_);
  data->aliases.push_back({std::move(alias), std::move(axes)});
  return Mesh(data);
}

bool Mesh::has_alias(std::string_view alias) const { return data_->find_alias(alias) != nullptr; }

std::vector<int> Mesh::axes_of(std::string_view name) const {
  if (const int axis = data_->find_axis(name); axis >= 0) return {axis};
  if (const MeshAlias* alias = data_->find_alias(name)) return alias->axes;
  std::vector<std::string> aliases;
  for (const MeshAlias& alias : data_->aliases) aliases.push_back(alias.name);
  throw InvalidInput(str("'", name, "' is neither an axis nor an alias of the mesh ", axes_text(data_->axes),
                         "; its aliases are: ", aliases.empty() ? "none" : join(aliases)));
}

Mesh Mesh::concatenate(std::span<const Mesh> parts, Rank member) {
  if (parts.empty()) throw InvalidInput("there are no meshes to concatenate; give at least one slice");
  const auto root_of = [](const Mesh& mesh) { return mesh.data_->root ? mesh.data_->root : mesh.data_; };
  const std::shared_ptr<const Data> root = root_of(parts.front());
  std::vector<std::string> names;
  std::vector<std::vector<int>> axes;
  std::vector<int> all;
  for (const Mesh& part : parts) {
    if (!root_of(part)->equals(*root)) {
      throw InvalidInput(str("the meshes ", parts.front().to_string(), " and ", part.to_string(),
                             " cannot be concatenated: they are slices of different meshes, ",
                             axes_text(root->axes), " and ", axes_text(root_of(part)->axes)));
    }
    part.index_of(member);
    for (int axis = 0; axis < part.num_axes(); ++axis) {
      names.push_back(part.data_->name_of(axis));
      axes.push_back(part.data_->behind(axis));
      all.insert(all.end(), axes.back().begin(), axes.back().end());
    }
  }
  root->mark(all);
  return Mesh(Data::cut(root, std::move(names), axes, root->table->find(member)));
}

bool Mesh::operator==(const Mesh& other) const { return data_->equals(*other.data_); }

std::string Mesh::to_string() const {
  const std::string text = axes_text(data_->axes);
  return ranks() == first_ranks(size()) ? text : text + "@" + join(ranks(), "/");
}

Hasher& hash(Hasher& hasher, const Mesh& mesh) {
  hasher.add(mesh.axes().size());
  for (const MeshAxis& axis : mesh.axes()) hasher.add(std::string_view(axis.name)).add(axis.size);
  return hasher.add_all(mesh.ranks());
}

}  // namespace cp
