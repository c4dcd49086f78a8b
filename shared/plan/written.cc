#include "shared/plan/written.h"

#include <algorithm>

namespace cp {
namespace {

// Chosen: the columns of a matrix come in two or three parts, and heads in as many as there are ranks. Each
// new part is compared with those before.
constexpr std::size_t kMostParts = 16;

std::int64_t length(const Extent& extent) { return extent.end - extent.begin; }

Extent around(const Extent& a, const Extent& b) {
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

bool same_elements(const View& a, const View& b) {
  return a.offset == b.offset && a.shape == b.shape && a.strides == b.strides;
}

}  // namespace

void Written::add(const View& view) {
  const std::int64_t numel = view.numel();
  const Extent extent = extent_at(view, 0);
  if (numel == 0) return;
  if (numel == length(extent)) return add_filled(extent);
  if (parts_.size() == kMostParts) return;
  for (const View* part : parts_) {
    if (overlaps_at_lag(*part, view, 0, 1)) return;
  }
  around_ = parts_.empty() ? extent : around(around_, extent);
  parts_.push_back(&view);
  numel_ += numel;
  if (numel_ < length(around_)) return;
  add_filled(around_);
  parts_.clear();
  numel_ = 0;
}

void Written::add_filled(Extent extent) {
  const auto touches = [&](const Extent& other) {
    return other.begin <= extent.end && extent.begin <= other.end;
  };
  if (filled_.empty() || (more_filled_.empty() && touches(filled_))) {
    filled_ = filled_.empty() ? extent : around(filled_, extent);
    return;
  }
  // What it joins may touch others, too.
  more_filled_.push_back(filled_);
  for (std::size_t i = 0; i < more_filled_.size();) {
    if (!touches(more_filled_[i])) {
      ++i;
      continue;
    }
    extent = around(extent, more_filled_[i]);
    more_filled_[i] = more_filled_.back();
    more_filled_.pop_back();
    i = 0;
  }
  filled_ = extent;
}

bool Written::holds(const View& view) const {
  const Extent extent = extent_at(view, 0);
  if (extent.empty()) return true;
  const auto holds_all = [&](const Extent& filled) {
    return filled.begin <= extent.begin && extent.end <= filled.end;
  };
  return holds_all(filled_) || std::any_of(more_filled_.begin(), more_filled_.end(), holds_all) ||
         std::any_of(parts_.begin(), parts_.end(),
                     [&](const View* part) { return same_elements(*part, view); });
}

}  // namespace cp
