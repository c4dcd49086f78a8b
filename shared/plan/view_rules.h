// The rules that every view of a step must keep, and the words for breaking one. Used by validate_step()
// only.
#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/plan/operations.h"
#include "shared/plan/overlap.h"
#include "shared/plan/plan.h"

namespace cp {

// Of a Repeat, a period or a phase. Chosen: with a stride of at most kMaxElements / iterations, the offset in
// any iteration fits into 64 bits.
inline constexpr std::int64_t kMaxIterations = std::int64_t{1} << 31;
// 2^60 elements of 8 bytes are 2^63 bytes.
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 60;

// These put a view into words only if a rule fails, so that a plan of ten steps is still built in
// microseconds.
struct ShapeText {
  const Shape& shape;
  friend std::ostream& operator<<(std::ostream& out, const ShapeText& text) {
    return out << join(text.shape, "x");
  }
};
struct ViewText {
  const std::string& buffer;
  const View& view;
  friend std::ostream& operator<<(std::ostream& out, const ViewText& text) {
    out << text.buffer << "+" << text.view.offset << "[" << ShapeText{text.view.shape};
    if (!is_contiguous(text.view)) out << " strides " << ShapeText{text.view.strides};
    return out << "]";
  }
};

class ViewRules {
 public:
  ViewRules(const Plan& plan, const Step& step, std::int64_t repeat_count)
      : plan_(plan), step_(step), count_(repeat_count) {}

 protected:
  // ---- words ----

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    const std::string label = step_.label.empty() ? "" : str(" \"", step_.label, "\"");
    throw InvalidInput(
        str("step ", operation_name(step_.work), label, " of rank ", plan_.self, ": ", parts...));
  }
  template <class... Parts>
  void require(bool condition, const Parts&... parts) const {
    if (!condition) fail(parts...);
  }

  ViewText text(const View& view) const { return {buffer_of(view).name, view}; }

  // ---- rules ----

  // Checks the view by itself: its buffer, dtype and dimensions, and that it stays in the buffer in every
  // iteration.
  void check_view(const View& view, bool written) const;

  void contiguous(const View& view) const {
    require(is_contiguous(view), "the view ", text(view),
            " is not contiguous; collectives need that: copy it first");
  }
  void same_dtype(const View& a, const View& b) const {
    require(dtype_of(a) == dtype_of(b), text(a), " is ", name(dtype_of(a)), " but ", text(b), " is ",
            name(dtype_of(b)), "; use a cast");
  }
  void same_numel(const View& a, const View& b) const {
    require(a.numel() == b.numel(), text(a), " has ", a.numel(), " elements but ", text(b), " has ",
            b.numel());
  }
  void floating(const View& view) const {
    require(is_floating(dtype_of(view)), text(view), " is ", name(dtype_of(view)),
            "; a floating type is needed");
  }
  void shaped(const View& view, const Shape& shape, std::string_view role) const {
    if (view.shape == shape) return;
    fail(role, " is ", text(view), ", but the shape ", join(shape, "x"), " is needed");
  }
  void is_f32(const View& view, std::string_view role) const {
    require(dtype_of(view) == DType::f32, role, " is ", name(dtype_of(view)), "; it is always f32");
  }
  template <class... Advice>
  void disjoint(const View& a, const View& b, const Advice&... advice) const {
    require(!overlaps_at_lag(a, b, 0, count_), text(a), " and ", text(b), " share memory; ", advice...);
  }
  void four_dims(const View& view) const {
    require(view.shape.size() == 4, text(view), " is not [batch, seq, heads, head_dim]");
  }
  const Buffer& buffer_of(const View& view) const { return plan_.buffers[idx(view.buffer)]; }
  DType dtype_of(const View& view) const { return buffer_of(view).dtype; }
  const Plan& plan_;
  const Step& step_;
  const std::int64_t count_;  // iterations of the step

 private:
  void check_bounds(const View& view, const Buffer& buffer) const;
  void check_written_once(const View& view) const;
};

}  // namespace cp
