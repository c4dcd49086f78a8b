// How fast one transfer is, where transfers were measured, below the first measured size too.
#pragma once

#include "sim/cost/cluster/curve.h"

namespace cp::sim {

// GB/s over the whole time of a transfer of so many bytes, along measured rates (not an empty curve), which
// have the latency in them. Below the first point the time is a straight line from `latency_us` at no bytes
// to what the first point took; a latency of 0, or one above that time, says nothing, and then the first
// point's time is the floor. So time never falls below that, nor as bytes grow if it does not between the
// points.
double transfer_gbps(const Curve& rates, double latency_us, double bytes);

}  // namespace cp::sim
