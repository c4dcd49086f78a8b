// The text form of placements and layouts, and their hash.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/placement/layout.h"
#include "shared/placement/layout_rules.h"

namespace cp {
namespace {

[[noreturn]] void reject_placement(std::string_view text, std::string_view reason) {
  throw InvalidInput(
      str("cannot read the placement '", text, "': ", reason,
          "; write S(DIM), S(DIM,SPLIT), R or P(OP), and S(DIM)[N] for the N-th axis that splits a "
          "dimension, for example S(0), S(1,head_tail), R, P(sum), S(0)[1],S(0)[0]; or as DTensor does: "
          "Shard(0), "
          "Replicate(), Partial()"));
}

// What stands between the parentheses of "S(...)" and "Shard(...)"; none where the text is neither.
std::optional<std::string_view> arguments_of(std::string_view body, std::string_view short_name,
                                             std::string_view torch_name) {
  for (const std::string_view name : {short_name, torch_name}) {
    if (!body.ends_with(')') || !body.starts_with(name)) continue;
    const std::string_view rest = trim(body.substr(name.size()));
    if (rest.starts_with('(')) return trim(rest.substr(1, rest.size() - 2));
  }
  return std::nullopt;
}

// "dim=0" -> "0": Python's keyword before a value.
std::string_view without_keyword(std::string_view argument, std::string_view keyword) {
  if (!argument.starts_with(keyword)) return argument;
  const std::string_view rest = trim(argument.substr(keyword.size()));
  return rest.starts_with('=') ? trim(rest.substr(1)) : argument;
}

std::string_view without_quotes(std::string_view text) {
  const bool quoted =
      text.size() >= 2 && text.front() == text.back() && (text.front() == '"' || text.front() == '\'');
  return quoted ? text.substr(1, text.size() - 2) : text;
}

// "[Shard(0), Replicate()]", "(Shard(0),)": Python's lists and tuples.
std::string_view without_brackets(std::string_view text) {
  text = trim(text);
  const bool list = text.starts_with('[') && text.ends_with(']');
  const bool tuple = text.starts_with('(') && text.ends_with(')');
  if (!list && !tuple) return text;
  text = trim(text.substr(1, text.size() - 2));
  if (text.ends_with(',')) text.remove_suffix(1);
  return text;
}

struct ParsedPlacement {
  Placement placement;
  std::optional<std::int64_t> position;  // of the axis in the split order of its dimension
};

// The text between "S(" or "Shard(" and ")".
Shard parse_shard(std::string_view arguments, std::string_view text, int num_dims) {
  const std::size_t comma = std::min(arguments.find(','), arguments.size());
  const std::string_view dim = without_keyword(trim(arguments.substr(0, comma)), "dim");
  if (dim.empty()) reject_placement(text, "the dimension is missing");
  const std::string_view split = comma < arguments.size() ? arguments.substr(comma + 1) : "";
  return {resolve_dim(parse_int(dim, str("in '", text, "' the dimension")), num_dims), parse_split(split)};
}

ParsedPlacement parse_placement(std::string_view text, int num_dims) {
  std::string_view body = text;
  std::optional<std::int64_t> position;
  if (body.ends_with(']')) {
    const std::size_t bracket = body.rfind('[');
    if (bracket == std::string_view::npos) reject_placement(text, "']' without '['");
    position =
        parse_int(body.substr(bracket + 1, body.size() - bracket - 2), str("in '", text, "' the position"));
    body = trim(body.substr(0, bracket));
    if (!body.starts_with('S')) reject_placement(text, "only a shard has a position");
  }
  if (body == "R" || body == "Replicate" || arguments_of(body, "R", "Replicate") == "")
    return {Replicate{}, std::nullopt};
  if (body == "P") reject_placement(text, "the reduction is missing");
  if (const auto partial = arguments_of(body, "P", "Partial")) {
    const std::string_view op = without_quotes(without_keyword(*partial, "reduce_op"));
    // torch.distributed.tensor.Partial: its reduction is the sum where none is given.
    const bool of_torch = body.starts_with("Partial");
    return {Partial{op.empty() && of_torch ? ReduceOp::sum : parse_reduce_op(op)}, std::nullopt};
  }
  if (const auto shard = arguments_of(body, "S", "Shard"))
    return {parse_shard(*shard, text, num_dims), position};
  if (body.starts_with("_S")) {
    reject_placement(
        text,
        "a strided shard means that axes split a dimension in another order than the mesh's; write "
        "their order as positions");
  }
  reject_placement(text, "there is no such placement");
}

// Sorts the axes of one dimension by their positions, if they have any.
void apply_positions(std::vector<int>& axes, const std::vector<ParsedPlacement>& parsed,
                     std::string_view text) {
  const auto position = [&](int axis) { return parsed[static_cast<std::size_t>(axis)].position; };
  const auto placed =
      std::count_if(axes.begin(), axes.end(), [&](int axis) { return position(axis).has_value(); });
  if (placed == 0) return;
  std::sort(axes.begin(), axes.end(), [&](int a, int b) { return position(a) < position(b); });
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (position(axes[i]) == static_cast<std::int64_t>(i)) continue;
    throw InvalidInput(str("the positions in '", text, "' do not order the ", axes.size(),
                           " axes that shard one dimension; give them the positions 0 .. ", axes.size() - 1,
                           ", each once, or none of them a position"));
  }
}

std::string to_string(const Placement& placement, std::optional<std::ptrdiff_t> position) {
  if (const auto* partial = std::get_if<Partial>(&placement)) return str("P(", name(partial->op), ")");
  const auto* shard = std::get_if<Shard>(&placement);
  if (shard == nullptr) return "R";
  const std::string split = to_string(shard->split);
  return str("S(", shard->dim, split.empty() ? "" : ",", split, ")",
             position ? str("[", *position, "]") : "");
}

}  // namespace

ParsedPlacements parse_placements(std::string_view text, int num_dims) {
  std::vector<ParsedPlacement> parsed;
  ParsedPlacements result;
  for (const std::string_view part : split(without_brackets(text), ',')) {
    parsed.push_back(parse_placement(trim(part), num_dims));
    result.placements.push_back(parsed.back().placement);
  }
  result.shard_axes = axes_in_mesh_order(result.placements, num_dims);
  for (std::vector<int>& axes : result.shard_axes) apply_positions(axes, parsed, text);
  return result;
}

Layout parse_layout(std::string_view placements, Mesh mesh, Shape shape, DType dtype) {
  ParsedPlacements parsed = parse_placements(placements, static_cast<int>(shape.size()));
  return make_layout(std::move(mesh), std::move(parsed.placements), std::move(shape), dtype,
                     std::move(parsed.shard_axes));
}

std::string placements_to_string(const Layout& layout) {
  std::vector<std::string> parts;
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    std::optional<std::ptrdiff_t> position;
    if (const auto* shard = std::get_if<Shard>(&layout.placements[axis])) {
      const std::vector<int>& axes = layout.shard_axes[static_cast<std::size_t>(shard->dim)];
      if (!std::is_sorted(axes.begin(), axes.end())) {
        position = std::find(axes.begin(), axes.end(), static_cast<int>(axis)) - axes.begin();
      }
    }
    parts.push_back(to_string(layout.placements[axis], position));
  }
  return join(parts);
}

std::string to_string(const Layout& layout) {
  return str(placements_to_string(layout), " on ", layout.mesh.to_string(), " of ",
             layout.shape.empty() ? "scalar" : join(layout.shape, "x"), " ", name(layout.dtype));
}

Hasher& hash(Hasher& hasher, const Layout& layout) {
  hash(hasher, layout.mesh).add(static_cast<int>(layout.dtype)).add_all(layout.shape);
  // The text says all there is to say about placements and their order.
  return hasher.add(std::string_view(placements_to_string(layout)));
}

}  // namespace cp
