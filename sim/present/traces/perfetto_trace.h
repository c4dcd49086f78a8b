// Perfetto's own trace format (protobuf, traces/perfetto_subset.proto): smaller than Chrome's, and its
// viewer's own.
//
// The same words as in Chrome's file of all ranks. A process for each rank (pid: the rank) with a thread for
// each stream. Each send of an Exchange is an
// instant on the sender's stream with an arrow to one on the receiver's, at the time when both have arrived.
#pragma once

#include <iosfwd>

#include "sim/present/traces/trace_slices.h"

namespace cp::sim {

void write_perfetto_trace(std::ostream& out, const TraceSlices& slices);

}  // namespace cp::sim
