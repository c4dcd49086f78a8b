// Files of traces, whose format their name says: NAME.json is Chrome's, NAME.pftrace Perfetto's, both in
// words for people; DIR/ is a folder with one rank_N.json for each rank as PyTorch's profiler writes them,
// which is what HolisticTraceAnalysis reads.
#pragma once

#include <string>

#include "sim/cost/cluster/cluster.h"
#include "sim/present/traces/trace_slices.h"

namespace cp::sim {

// Throws InvalidInput for any other name.
void require_trace_name(const std::string& path);
// Makes the folder. Throws InvalidInput as above, and where a file cannot be written.
void write_trace_files(const std::string& path, const TraceSlices& slices, const Cluster& cluster);

}  // namespace cp::sim
