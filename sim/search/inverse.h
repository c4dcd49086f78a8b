// The other way round: how far a length can grow, how few GPUs do, how the answer changes along a range.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/search/answer.h"
#include "sim/search/search.h"

namespace cp::sim {

// One answer for each length of a sweep; none where nothing fits, and `why` says so.
struct SweepPoint {
  std::int64_t seq_len = 0;
  std::optional<Candidate> best;
  std::string why;
};
// With a fixed batch in sequences. The same errors as search_layouts for a question that is wrong at every length.
std::vector<SweepPoint> sweep_seq_len(const PlanQuestion& question, const std::vector<std::int64_t>& lengths,
                                      const SearchOptions& options = {});
// "32K..1M" is 32K, 64K, ..., 1M; "8K,12K" those two. Throws InvalidInput that shows both forms.
std::vector<std::int64_t> parse_lengths(std::string_view text);

// A layout that is legal and fits; of all, the first in the order of the space. Quick: nothing is replayed.
std::optional<ParallelLayout> feasible(const PlanQuestion& question);

// The longest sequence, a multiple of `grain`, for which something fits, between the question's own length and `limit`; nullopt
// where not even that fits. Memory grows with the length, so that a bisection finds it.
std::optional<std::int64_t> longest_seq_len(PlanQuestion question, std::int64_t grain = 1024,
                                            std::int64_t limit = std::int64_t{1} << 26);

// The fewest nodes, up to the question's, for which something fits.
std::optional<int> fewest_nodes(PlanQuestion question);

}  // namespace cp::sim
