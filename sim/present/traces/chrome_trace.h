// Chrome's trace format (JSON), as PyTorch's profiler writes it, for chrome://tracing, Perfetto and
// HolisticTraceAnalysis.
//
// A process for each rank (pid: the rank) with a thread for each stream, and one for its host, which launches
// every step when the pass begins and so never holds a kernel back: the timeline has no model of the host.
// ProfilerStep#0 spans all passes. Times are in us with three decimals, in ascending order. In the file of
// all ranks an arrow goes from each send of an Exchange to its receive.
#pragma once

#include <cstddef>
#include <iosfwd>

#include "sim/cost/cluster/cluster.h"
#include "sim/present/traces/trace_slices.h"

namespace cp::sim {

// All ranks; distributedInfo has the rank of the first.
void write_chrome_trace(std::ostream& out, const TraceSlices& slices, const Cluster& cluster);
// That one of slices.ranks, without arrows: what HolisticTraceAnalysis wants in a file.
void write_chrome_trace(std::ostream& out, const TraceSlices& slices, const Cluster& cluster,
                        std::size_t rank);

}  // namespace cp::sim
