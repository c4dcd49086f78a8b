// The axes of a layout's mesh in the order of neighbours, for those who need them without names.
#pragma once

#include <array>
#include <cstdint>

#include "shared/transformer/parallel_layout.h"

namespace cp {

enum class LayoutAxis : std::uint8_t { dp_replicate, dp_shard, cp, tp, pp };
// The one that varies fastest first.
std::array<LayoutAxis, 5> axes_of(AxisOrder order);
// The degree along an axis.
int size_of(const ParallelLayout& layout, LayoutAxis axis);

}  // namespace cp
