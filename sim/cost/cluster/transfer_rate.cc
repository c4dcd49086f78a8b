#include "sim/cost/cluster/transfer_rate.h"

#include "shared/base/error.h"

namespace cp::sim {
namespace {

constexpr double kGbpsPerBytesPerUs = 1e-3;

}  // namespace

double transfer_gbps(const Curve& rates, double latency_us, double bytes) {
  CP_INVARIANT(!rates.empty(), "no rates of ", bytes, " bytes");
  const CurvePoint& first = rates.points().front();
  if (bytes >= first.x) return rates.at(bytes);
  if (bytes <= 0) return first.y;
  const double first_us = first.x / first.y * kGbpsPerBytesPerUs;
  const double floor_us = latency_us > 0 && latency_us < first_us ? latency_us : first_us;
  return bytes / (floor_us + (first_us - floor_us) * bytes / first.x) * kGbpsPerBytesPerUs;
}

}  // namespace cp::sim
