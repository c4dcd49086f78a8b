// Writes traces in Perfetto's own format (protobuf, traces/perfetto_subset.proto), which is smaller than
// Chrome's.
//
// The words are those of Chrome's file of all ranks. There is a process for each rank (pid: the rank) with a
// thread for each stream. Each send of an Exchange is an instant on the sender's stream, with an arrow to an
// instant on the receiver's, at the time when both have arrived.
#pragma once

#include <iosfwd>

#include "sim/present/traces/trace_slices.h"

namespace cp::sim {

// Throws what require_utf8() throws if a name is not UTF-8.
void write_perfetto_trace(std::ostream& out, const TraceSlices& slices);

}  // namespace cp::sim
