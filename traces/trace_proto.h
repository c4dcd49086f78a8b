// Writes and reads trace files, which hold the traces of a run's ranks.
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

// One rank's whole trace as one message. Throws InvalidInput if a name is not UTF-8.
proto::RankTrace to_proto(const RankTrace& trace);

// The inverse. The message may come from anywhere: throws InvalidInput, with the path of the field and its
// value, if an enumerator is unknown, a group is not listed, a rank, stream or number of bytes is negative,
// or a digest comes twice.
RankTrace from_proto(const proto::RankTrace& message);

// Writes one rank's trace, or the next part of it, as one or more records. Even a rank that did nothing gets
// a record, since it is a rank all the same. The environment and the clock go into the first.
void write_rank(RecordWriter& out, const RankTrace& trace);

// Appends the next part of a rank's trace. Throws InvalidInput if a buffer gets a second digest, or the
// environment differs.
void append(RankTrace& trace, RankTrace part);

// Writes a trace file with the given ranks, in order. Long traces are split over several records. Throws
// InvalidInput if a rank comes twice, and BadTrace if the stream or file cannot be written.
void write_trace(std::ostream& out, std::span<const RankTrace> traces);
void write_trace_file(const std::string& path, std::span<const RankTrace> traces);

struct TraceFile {
  std::vector<RankTrace> ranks;  // in order of their first records
  // If the file was cut off: says in words where. The whole records before that are in `ranks`.
  std::optional<std::string> truncation;
};

// Reads a trace file. Records of unknown kinds are skipped. Throws BadTrace if it is no trace file or is
// damaged. A file that was cut off, as after a crash, is neither: its whole records are returned, and
// `truncation` says where it ends. `name` is for messages.
TraceFile read_trace(std::istream& in, const std::string& name);
TraceFile read_trace_file(const std::string& path);

}  // namespace cp
