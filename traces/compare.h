// Comparing the traces of two runs: they must be identical in everything but time.
//
// For each rank: `issued` of each side with its own `observed` (the collectives), `observed` of both,
// `issued` of both (kernels too), and the digests. Of a rank that differs the first divergence alone is told:
// what follows it follows from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shared/plan/trace.h"

namespace cp {

struct CompareOptions {
  // The side was cut off: what it lacks at the end of a stream, and ranks and digests that it lacks, are no
  // differences.
  bool a_is_cut = false, b_is_cut = false;
  std::size_t neighbours = 2;  // operations shown before and after a divergence
};

// A few operations of one stream around the one that differs.
struct Neighbourhood {
  std::string side;                  // "A observed"
  std::size_t first = 0;             // the position on the stream of the first one here
  std::size_t total = 0;             // operations on the stream
  std::vector<OpRecord> operations;  // without the one that differs, where the stream ends before it
};

struct RankDivergence {
  Rank rank = 0;
  StreamId stream = 0;
  // Position on the stream, among collectives or, of two issued sections, among all operations.
  std::size_t at = 0;
  bool among_collectives = true;
  Neighbourhood one, other;
  std::vector<std::string>
      fields;  // what differs there: "reduction: sum, max"; empty where one side has ended
};

struct DigestDifference {
  Rank rank = 0;
  std::string buffer;
  std::optional<Digest> a, b;  // nothing: that side has none
};

struct ComparedTime {
  std::int64_t count_a = 0, count_b = 0;
  double ns_a = 0, ns_b = 0;
};
struct OperationTime : ComparedTime {
  std::string operation;
};

struct TraceComparison {
  std::size_t num_ranks = 0;                // that both sides have
  std::int64_t num_operations = 0;          // issued on them, of the longer side
  std::vector<Rank> only_in_a, only_in_b;   // differences unless the other side was cut off
  std::vector<RankDivergence> divergences;  // at most one a rank, by ascending rank
  std::vector<DigestDifference> digests;
  // Sums over ranks of the issued times (where a side has none, the observed ones), the longest first.
  std::vector<OperationTime> times;
  // From the first begin to the last end, clocks aligned; counts are of all timed operations.
  ComparedTime whole;
  bool identical = true;
};

// Throws InvalidInput when a rank comes twice on one side.
TraceComparison compare_traces(const std::vector<RankTrace>& a, const std::vector<RankTrace>& b,
                               const CompareOptions& options = {});

// The fields in which two records differ, with both values: "dtype: f32, bf16", "sent bytes[2]: 64, 60" of
// the first peer.
std::vector<std::string> differing_fields(const OpRecord& a, const OpRecord& b);

}  // namespace cp
