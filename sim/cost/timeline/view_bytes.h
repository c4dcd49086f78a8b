// What a view weighs.
#pragma once

#include "shared/base/index.h"
#include "shared/plan/plan.h"

namespace cp::sim {

// Of the elements that the view names; a double, as times are worked out in.
inline double bytes_of(const View& view, const Plan& plan) {
  return static_cast<double>(view.numel() * size_bytes(plan.buffers[idx(view.buffer)].dtype));
}

}  // namespace cp::sim
