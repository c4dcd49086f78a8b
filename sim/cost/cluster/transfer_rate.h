// How fast one transfer is by measured rates, also for sizes below the first measured one.
#pragma once

#include "sim/cost/cluster/curve.h"

namespace cp::sim {

// Returns the rate of a transfer in GB/s, as bytes divided by its whole time. `rates` are measured rates,
// which include the latency; the curve must not be empty. Below the first point, the time is a straight line
// from `latency_us` for no bytes to the time of the first point. If the latency is 0, or longer than the
// first point's time, it tells nothing; then every smaller transfer takes the first point's time. So the time
// never falls as bytes grow, if it does not fall between the points.
double transfer_gbps(const Curve& rates, double latency_us, double bytes);

}  // namespace cp::sim
