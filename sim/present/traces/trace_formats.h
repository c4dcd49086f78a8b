// Writes files of traces, in the format that their name says. NAME.json is Chrome's and NAME.pftrace is
// Perfetto's, both in words for people. DIR/ is a folder with one rank_N.json for each rank, as PyTorch's
// profiler writes them and HolisticTraceAnalysis reads them.
#pragma once

#include <string>

#include "sim/cost/cluster/cluster.h"
#include "sim/present/traces/trace_slices.h"

namespace cp::sim {

// Throws InvalidInput for any other name.
void require_trace_name(const std::string& path);
// Writes the file, or makes the folder and writes its files. Throws InvalidInput as above, and if a file
// cannot be written.
void write_trace_files(const std::string& path, const TraceSlices& slices, const Cluster& cluster);

}  // namespace cp::sim
