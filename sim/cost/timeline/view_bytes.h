// The size of a view in bytes.
#pragma once

#include "shared/base/index.h"
#include "shared/plan/plan.h"

namespace cp::sim {

// Counts the elements that the view names. A double, because times are computed in doubles.
inline double bytes_of(const View& view, const Plan& plan) {
  return static_cast<double>(view.numel() * size_bytes(plan.buffers[idx(view.buffer)].dtype));
}

}  // namespace cp::sim
