#include "shared/plan/view_rules.h"

#include <algorithm>

#include "shared/base/index.h"

namespace cp {

void ViewRules::check_view(const View& view, bool written) const {
  require(view.buffer >= 0 && idx(view.buffer) < plan_.buffers.size(), "buffer ", view.buffer,
          " is not one of the plan's ", plan_.buffers.size(), " buffers");
  const Buffer& buffer = buffer_of(view);
  require(plan_.target.dtypes.contains(buffer.dtype), "target ", plan_.target.name, " has no dtype ",
          name(buffer.dtype), " (buffer ", buffer.name, ")");
  require(!written || buffer.kind != BufferKind::input, "writes ", buffer.name,
          ", which is an input; make it an inout");
  require(view.shape.size() == view.strides.size(), "a view of ", buffer.name, " has ", view.shape.size(),
          " dimensions but ", view.strides.size(), " strides");
  bool empty = false;
  std::int64_t numel = 1;  // leaving out sizes of 0
  for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
    require(view.shape[dim] >= 0 && view.strides[dim] >= 0, "a view of ", buffer.name, " has size ",
            view.shape[dim], " and stride ", view.strides[dim], " in dimension ", dim,
            "; neither may be negative");
    empty = empty || view.shape[dim] == 0;
    const std::int64_t size = std::max<std::int64_t>(view.shape[dim], 1);
    require(size <= kMaxElements / numel, "a view of ", buffer.name, " has the shape ", ShapeText{view.shape},
            " of more than 2^60 elements");
    numel *= size;
  }
  const Advance& advance = view.advance;
  require(advance.period >= 0 && advance.phase >= 0 && advance.period <= kMaxIterations &&
              advance.phase <= kMaxIterations,
          "a view of ", buffer.name, " advances with period ", advance.period, " and phase ", advance.phase,
          "; use 0 to 2^31");
  if (empty) return;  // touches nothing, wherever it lies
  check_bounds(view, buffer);
  if (written) check_written_once(view);
}

// In steps that cannot overflow, since a view may come from a file.
void ViewRules::check_bounds(const View& view, const Buffer& buffer) const {
  std::int64_t room = buffer.numel - 1;
  bool inside = view.offset >= -kMaxElements && view.offset <= kMaxElements;
  for (std::size_t dim = 0; dim < view.shape.size() && inside; ++dim) {
    const std::int64_t reach = view.shape[dim] - 1, stride = view.strides[dim];
    inside = stride == 0 || reach <= room / stride;
    if (inside) room -= reach * stride;
  }
  const std::int64_t turns = std::max(view.advance.period, view.advance.phase + count_);
  inside =
      inside && view.advance.stride >= -kMaxElements / turns && view.advance.stride <= kMaxElements / turns;
  const Extent all = inside ? extent(view, count_) : Extent{};
  inside = inside && all.begin >= 0 && all.end <= buffer.numel;
  if (inside) return;
  const std::string moving =
      view.advance.stride == 0
          ? ""
          : str(" that advances by ", view.advance.stride, " in each of ", count_, " iterations (period ",
                view.advance.period, ", phase ", view.advance.phase, ")");
  fail("the view ", text(view), moving, " leaves its buffer of ", buffer.numel, " elements",
       all.empty() ? "" : str("; it covers [", all.begin, ", ", all.end, ")"));
}

// Each stride exceeds what the smaller ones reach, as in every tensor layout: no element comes twice.
void ViewRules::check_written_once(const View& view) const {
  std::int64_t last_stride = 0, reach = 0;
  for (std::size_t done = 0; done < view.shape.size(); ++done) {
    std::size_t next = view.shape.size();  // the dimension with the least stride above last_stride
    int ties = 0;
    for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
      if (view.shape[dim] == 1) continue;
      require(view.strides[dim] > 0, "writes the view ", text(view), ", whose stride 0 repeats elements");
      if (view.strides[dim] <= last_stride) continue;
      if (next < view.shape.size() && view.strides[dim] == view.strides[next]) ++ties;
      if (next == view.shape.size() || view.strides[dim] < view.strides[next]) next = dim, ties = 0;
    }
    if (next == view.shape.size()) return;
    require(ties == 0 && view.strides[next] > reach, "writes the view ", text(view),
            ", whose dimensions overlap; make each stride larger than the reach of the smaller ones");
    last_stride = view.strides[next];
    reach += (view.shape[next] - 1) * last_stride;
  }
}

}  // namespace cp
