// How long a collective of a whole group takes once its last member has arrived: the measured curve where the
// cluster has one for just as many GPUs, else the algebra of sim/cost/timeline/nccl_model.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/timeline/nccl_model.h"

namespace cp::sim {

// What the library is told, and which all-reduce the software has in its place.
CollectiveSettings settings_of(CollectiveSettings settings, const SoftwareProfile& software);

// The whole buffer in bytes, as nccl-tests counts: all blocks of an all-gather, reduce-scatter or all-to-all.
double collective_ns(CollectiveKind kind, double bytes, std::span<const Rank> gpus, const Cluster& cluster,
                     const CollectiveSettings& settings = {});
// Of tensor-parallel ranks: the all-reduce of the software's own (CollectiveSettings::all_reduce) where the
// cluster has a rate of it for as many GPUs in one NVLink domain, and half of it for a reduce-scatter or the
// gather behind it; else as above.
double region_ns(CollectiveKind kind, double bytes, const Spread& spread, const Cluster& cluster,
                 const CollectiveSettings& settings);
// How it is known, and how far it may be off: four fifths of the scored rows of nccl_tests (measured at other
// sizes) and of nccl_algebra (not measured at all) lie within.
struct CollectiveEstimate {
  double us = 0, low_us = 0, high_us = 0;
  std::optional<Origin> curve;   // the origin of the curve that it goes along; none: no curve
  CollectiveChoice choice = {};  // what the library does there; where there is no curve
};
// How wide it is, as widths.h counts: of a curve at another size than measured; of what nobody measured,
// inside of a node or across.
double collective_width(bool measured, bool across, bool nvlink, double bytes);
// Of at least two GPUs. A send_recv, each GPU to the next one, goes along transfer curves where the cluster
// has no curve of its own for it, as the exchange of a plan does.
CollectiveEstimate collective_estimate(CollectiveKind kind, double bytes, std::span<const Rank> gpus,
                                       const Cluster& cluster, const CollectiveSettings& settings = {});
// Time over size along measured points: a latency and a rate between neighbours, which go on beyond the last
// two; below the first point latency is all there is.
double along_us(const Curve& time_us, double bytes);
double collective_ns(CollectiveKind kind, double bytes, const Spread& spread, const Cluster& cluster,
                     const CollectiveSettings& settings = {});
// Of a collective of a plan that is no Exchange; where its group's spread is known, without looking at all
// members.
double collective_ns(const Collective& collective, const Plan& plan, const Cluster& cluster,
                     const CollectiveSettings& settings = {});
double collective_ns(const Collective& collective, const Plan& plan, const Spread& spread,
                     const Cluster& cluster, const CollectiveSettings& settings = {});

}  // namespace cp::sim
