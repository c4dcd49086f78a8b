#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/operations.h"

namespace cp {
namespace {

std::string words(const Plan& part, const Buffer& buffer) {
  return str("splice of a plan of rank ", part.self, ": its buffer ", buffer.name, " of ", buffer.numel,
             " x ", name(buffer.dtype));
}

// Views of the part's buffer as views of this plan.
struct Window {
  View view;
  bool moves = false;  // with this plan's Repeat, while the part has none; else with the part's

  void rename(View& inner) const {
    inner.buffer = view.buffer;
    inner.offset = moves ? view.offset + offset_at(inner, 0) : offset_at(view, 0) + inner.offset;
    if (moves) inner.advance = view.advance;
  }
};

// Rewrites streams, groups and views of steps.
class Renaming {
 public:
  std::vector<StreamId> streams;
  std::vector<GroupId> groups;
  std::vector<Window> windows;  // by buffer

  Work work(const Work& from) const {
    Work result = from;
    visit_operation(result, [&](auto& op) {
      visit_fields(op, [&](std::string_view, auto& field) { rename(field); });
      if constexpr (requires { op.group; }) op.group = groups.at(static_cast<std::size_t>(op.group));
    });
    return result;
  }

 private:
  void rename(View& view) const {
    // A Broadcast's input may be no view.
    if (view.buffer >= 0) windows.at(static_cast<std::size_t>(view.buffer)).rename(view);
  }
  void rename(Transfer& transfer) const { rename(transfer.view), rename(transfer.there); }
  template <class T>
  void rename(std::vector<T>& values) const {
    for (T& value : values) rename(value);
  }
  template <class T>
  void rename(const T&) const {}
};

}  // namespace

void PlanBuilder::splice(const Plan& part, const std::map<std::string, View>& bindings,
                         std::string_view prefix) {
  if (part.self != plan_.self) {
    throw InvalidInput(str("splice of a plan of rank ", part.self, " into a plan of rank ", plan_.self,
                           "; both must be of one rank"));
  }
  const auto repeats = [](const Segment& segment) { return std::holds_alternative<Repeat>(segment); };
  if (in_repeat_ && std::any_of(part.segments.begin(), part.segments.end(), repeats)) {
    throw InvalidInput(
        "splice of a plan with a Repeat inside a Repeat; Repeats do not nest: unroll one of them");
  }
  // Everything is looked up before the first step is added, so that a refused part adds no step.
  Renaming renaming;
  for (const Buffer& buffer : part.buffers) {
    if (buffer.kind == BufferKind::temporary) {
      const BufferId made = buffer.symmetric
                                ? symmetric(str(prefix, buffer.name), buffer.dtype, buffer.numel)
                                : temporary(str(prefix, buffer.name), buffer.dtype, buffer.numel);
      renaming.windows.push_back({flat_view(made, 0, buffer.numel), in_repeat_});
      continue;
    }
    const auto found = bindings.find(buffer.name);
    if (found == bindings.end()) {
      std::vector<std::string> names;
      for (const auto& [bound, view] : bindings) names.push_back(bound);
      throw InvalidInput(
          str(words(part, buffer), " has no window; there are windows for ", join(names, ", ")));
    }
    const View& view = found->second;
    if (view.buffer < 0 || static_cast<std::size_t>(view.buffer) >= plan_.buffers.size()) {
      throw InvalidInput(str(words(part, buffer), " has a window of buffer ", view.buffer,
                             ", which is not one of the plan's ", plan_.buffers.size()));
    }
    const Buffer& target = plan_.buffers[static_cast<std::size_t>(view.buffer)];
    if (view.numel() < buffer.numel || target.dtype != buffer.dtype || !is_contiguous(view)) {
      throw InvalidInput(str(words(part, buffer), " does not fit the window ", target.name, "+", view.offset,
                             "[", join(view.shape, "x"), "] of ", view.numel(), " x ", name(target.dtype),
                             "; a window is contiguous, of the same dtype and at least as large"));
    }
    renaming.windows.push_back({view, in_repeat_});
  }
  // A window that no buffer asks for is most likely a name that was misspelt.
  for (const auto& [bound, view] : bindings) {
    const auto known =
        std::find_if(part.buffers.begin(), part.buffers.end(), [&, &wanted = bound](const Buffer& buffer) {
          return buffer.name == wanted && buffer.kind != BufferKind::temporary;
        });
    if (known == part.buffers.end()) {
      throw InvalidInput(str("splice of a plan of rank ", part.self, ": it has no buffer ", bound,
                             " that a window could be given to"));
    }
  }
  for (const std::string& name : part.streams) renaming.streams.push_back(stream(name));
  for (const Group& group : part.groups)
    renaming.groups.push_back(this->group(group.name, group.ranks, group.copy_engine));
  // The steps' edges are not taken over: other numbers hold here, and build() derives them from what the
  // steps touch, with those of the steps around the part.
  const auto append = [&](const Step& step) {
    const StreamId on = renaming.streams.at(static_cast<std::size_t>(step.stream));
    std::visit([&](auto work) { add(on, std::move(work), step.label); }, renaming.work(step.work));
  };
  for (const Segment& segment : part.segments) {
    if (const Step* step = std::get_if<Step>(&segment)) {
      append(*step);
      continue;
    }
    const Repeat& repeat = std::get<Repeat>(segment);
    begin_repeat(repeat.count);
    for (const Step& step : repeat.steps) append(step);
    end_repeat();
  }
}

}  // namespace cp
