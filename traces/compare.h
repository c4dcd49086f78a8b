// Compares the traces of two runs, for example of the fabric and of a real cluster: they must be identical in
// everything but time.
//
// For each rank, four comparisons are made: `issued` of each side with its own `observed` (collectives only,
// since the boundary of the library sees no kernels), `observed` of both sides, `issued` of both sides
// (kernels, too), and the digests. Only the first divergence of a rank is reported, since what follows it
// usually follows from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/plan/trace.h"

namespace cp {

struct CompareOptions {
  // The trace of this side was cut off, as after a crash. Then nothing that it merely lacks is a difference:
  // operations at the end of a stream, ranks, digests.
  bool a_is_cut = false, b_is_cut = false;
  std::size_t neighbours = 2;  // operations to show before and after a divergence
};

// A few operations of one stream, around the one that differs.
struct Neighbourhood {
  std::string side;                  // "A observed"
  std::size_t first = 0;             // position on the stream of the first operation here
  std::size_t total = 0;             // number of operations on the stream
  std::vector<OpRecord> operations;  // lacks the one that differs if the stream ends before it
};

struct RankDivergence {
  Rank rank = 0;
  StreamId stream = 0;
  // Position on the stream. It counts collectives, or all operations if two issued sections are compared
  // (among_collectives is false then).
  std::size_t at = 0;
  bool among_collectives = true;
  Neighbourhood one, other;
  // What differs there, for example "reduction: sum, max"; empty if one side has ended.
  std::vector<std::string> fields;
};

struct DigestDifference {
  Rank rank = 0;
  std::string buffer;
  std::optional<Digest> a, b;  // nothing: this side has no digest of the buffer
};

struct ComparedTime {
  std::int64_t count_a = 0, count_b = 0;
  double ns_a = 0, ns_b = 0;
};
struct OperationTime : ComparedTime {
  std::string operation;
};

struct TraceComparison {
  std::size_t num_ranks = 0;                // ranks that both sides have
  std::int64_t num_operations = 0;          // issued operations on these ranks, of the longer side
  std::vector<Rank> only_in_a, only_in_b;   // these are differences, unless the other side was cut off
  std::vector<RankDivergence> divergences;  // at most one for each rank, by ascending rank
  std::vector<DigestDifference> digests;
  // For each operation the sum of its issued times over all ranks, the longest first. If a side has no issued
  // times, its observed ones.
  std::vector<OperationTime> times;
  // From the first begin to the last end of any operation, with the ranks' clocks aligned; counts are of all
  // timed operations.
  ComparedTime whole;
  bool identical = true;
};

// Throws InvalidInput if a rank comes twice on one side.
TraceComparison compare_traces(const std::vector<RankTrace>& a, const std::vector<RankTrace>& b,
                               const CompareOptions& options = {});

// The fields in which two records differ, with both values: "dtype: f32, bf16". Of bytes, the first peer that
// differs, by its index in the group: "sent bytes[2]: 64, 60".
std::vector<std::string> differing_fields(const OpRecord& a, const OpRecord& b);

}  // namespace cp
