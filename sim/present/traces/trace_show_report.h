// What cpsim trace show prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "traces/trace_proto.h"

namespace cp::sim {

struct ShowOptions {
  bool observed = false;  // instead of what was issued
  std::optional<Rank> rank;
  std::optional<StreamId> stream;
  std::optional<std::int64_t> limit;  // of the operations
};

// By ascending rank: where each ran, its operations in order, and the digests of its outputs. Throws
// InvalidInput for a rank or a stream that the trace lacks, BadTrace where times do not fit the operations.
std::string show_text(const TraceFile& file, const ShowOptions& options);
// A line of JSON for each of these, and one for the place where the file was cut off.
std::string show_json_lines(const TraceFile& file, const ShowOptions& options);

}  // namespace cp::sim
