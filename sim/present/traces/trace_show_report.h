// The text that `cpsim trace show` prints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "traces/trace_proto.h"

namespace cp::sim {

struct ShowOptions {
  // Shows the observed operations instead of the issued ones.
  bool observed = false;
  std::optional<Rank> rank;
  std::optional<StreamId> stream;
  std::optional<std::int64_t> limit;  // shows at most this many operations
};

// Shows, by ascending rank, where each rank ran, its operations in order, and the digests of its outputs.
// Throws InvalidInput for a rank or a stream that the trace does not have, and BadTrace if times do not fit
// the operations.
std::string show_text(const TraceFile& file, const ShowOptions& options);
// The same as lines of JSON, one for each of these, and one for the place where the file was cut off. Throws
// as show_text().
std::string show_json_lines(const TraceFile& file, const ShowOptions& options);

}  // namespace cp::sim
