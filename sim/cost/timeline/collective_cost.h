// How long a collective of a whole group takes after its last member has arrived. If the cluster has a
// measured curve for exactly this number of GPUs, the curve counts; otherwise the algebra of
// sim/cost/timeline/nccl_model.h does.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/timeline/nccl_model.h"

namespace cp::sim {

// Returns the settings with what the software adds to them: which all-reduce it uses instead of the
// library's.
CollectiveSettings settings_of(CollectiveSettings settings, const SoftwareProfile& software);

// Returns the time in ns. `bytes` is the whole buffer, as nccl-tests counts it: all blocks of an all-gather,
// reduce-scatter or all-to-all.
double collective_ns(CollectiveKind kind, double bytes, std::span<const Rank> gpus, const Cluster& cluster,
                     const CollectiveSettings& settings = {});
// The same for tensor-parallel ranks. If the software has an all-reduce of its own
// (CollectiveSettings::all_reduce), and the cluster has a rate for it with this number of GPUs in one NVLink
// domain, that time counts, and half of it for a reduce-scatter or the gather after it. Otherwise it is the
// time above.
double region_ns(CollectiveKind kind, double bytes, const Spread& spread, const Cluster& cluster,
                 const CollectiveSettings& settings);
// A time with its interval, and how it is known. Four fifths of the scored rows of the tables nccl_tests
// (measured at other sizes) and nccl_algebra (not measured at all) lie within such intervals.
struct CollectiveEstimate {
  double us = 0, low_us = 0, high_us = 0;
  std::optional<Origin> curve;   // the origin of the curve that was used, if one was
  CollectiveChoice choice = {};  // if no curve was used: the algorithm and protocol that the library takes
};
// The width of the interval, as widths.h counts: for a curve at another size than measured (`measured`), and
// for what nobody measured, inside of a node or `across` nodes.
double collective_width(bool measured, bool across, bool nvlink, double bytes);
// For at least two GPUs. In a send_recv each GPU sends to the next one. If the cluster has no curve for it,
// the transfer curves count, as they do for the exchange of a plan.
CollectiveEstimate collective_estimate(CollectiveKind kind, double bytes, std::span<const Rank> gpus,
                                       const Cluster& cluster, const CollectiveSettings& settings = {});
// The time in us along measured points. Two neighbouring points define a latency and a rate, which hold
// between them; those of the last two points also hold beyond the last. Below the first point, every size
// takes its time.
double along_us(const Curve& time_us, double bytes);
double collective_ns(CollectiveKind kind, double bytes, const Spread& spread, const Cluster& cluster,
                     const CollectiveSettings& settings = {});
// The time of a collective of a plan that is not an Exchange. If the spread of its group is known, the second
// form does not look at all members again.
double collective_ns(const Collective& collective, const Plan& plan, const Cluster& cluster,
                     const CollectiveSettings& settings = {});
double collective_ns(const Collective& collective, const Plan& plan, const Spread& spread,
                     const Cluster& cluster, const CollectiveSettings& settings = {});

}  // namespace cp::sim
