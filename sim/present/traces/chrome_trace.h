// Writes traces in Chrome's format (JSON): all ranks in words for people (chrome://tracing, Perfetto), or one
// rank as PyTorch's profiler writes it (HolisticTraceAnalysis). Times are in us with three decimals, in
// ascending order.
//
// For people: there is a process for each rank (pid: the rank) with a thread for each stream, which says what
// runs there, and one for the passes. An arrow goes from each send of an Exchange to its receive. Nothing is
// called by the name of something that did not run, whether the run was simulated, Gloo's or NCCL's.
//
// As the profiler: communication has the names of NCCL's kernels. A process for the rank's host launches
// every step when the pass begins, so it never holds a kernel back: the timeline has no model of the host.
// ProfilerStep#0 spans all passes.
#pragma once

#include <cstddef>
#include <iosfwd>

#include "sim/cost/cluster/cluster.h"
#include "sim/present/traces/trace_slices.h"

namespace cp::sim {

// Writes all ranks, for people.
void write_chrome_trace(std::ostream& out, const TraceSlices& slices);
// Writes the rank slices.ranks[rank] as PyTorch's profiler does. HolisticTraceAnalysis wants one rank in a
// file.
void write_profiler_trace(std::ostream& out, const TraceSlices& slices, const Cluster& cluster,
                          std::size_t rank);

}  // namespace cp::sim
