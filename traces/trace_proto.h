// Trace files: the traces of a run's ranks, written and read.
#pragma once

#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/trace.h"
#include "traces/record_file.h"
#include "traces/trace.pb.h"

namespace cp {

// One rank's whole trace as one message. Throws InvalidInput for a name that is not UTF-8.
proto::RankTrace to_proto(const RankTrace& trace);

// The inverse. The message may come from anywhere: throws InvalidInput, with the path of the field and its
// value, for unknown enumerators, a group that is not listed, negative ranks, streams or bytes, and digests
// that come twice.
RankTrace from_proto(const proto::RankTrace& message);

// The records that hold one rank's trace, or the next part of it; at least one, since a rank that did nothing
// is a rank all the same. The environment and the clock go into the first.
void write_rank(RecordWriter& out, const RankTrace& trace);

// Goes on with the rank's trace where it ended. Throws InvalidInput for a buffer's second digest and for
// another environment.
void append(RankTrace& trace, RankTrace part);

// A trace file with the given ranks, in order; long traces are split over several records. Throws
// InvalidInput when a rank comes twice, BadTrace when the stream or file cannot be written.
void write_trace(std::ostream& out, std::span<const RankTrace> traces);
void write_trace_file(const std::string& path, std::span<const RankTrace> traces);

struct TraceFile {
  std::vector<RankTrace> ranks;  // in order of their first records
  std::optional<std::string>
      truncation;  // where the file was cut off, in words: the whole records before that are in `ranks`
};

// Records of unknown kinds are skipped. Throws BadTrace for what is no trace or is damaged; a file that was
// cut off, as after a crash, is none of those. `name` is for messages.
TraceFile read_trace(std::istream& in, const std::string& name);
TraceFile read_trace_file(const std::string& path);

}  // namespace cp
