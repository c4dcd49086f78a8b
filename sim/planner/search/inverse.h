// The other way round: how far a length can grow, how few GPUs do, how the answer changes along a range.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/planner/search/answer.h"
#include "sim/planner/search/search.h"

namespace cp::sim {

// ---- along a range ----

// "32K..1M" is 32K, 64K, ..., 1M, and the last one itself where doubling misses it; "8K,12K" those two, in
// their order, each once. K is 1024 and M is 1024 K. `what` they are numbers of is for messages. Throws
// InvalidInput that shows both forms.
std::vector<std::int64_t> parse_numbers(std::string_view text, std::string_view what);
std::vector<std::int64_t> parse_lengths(std::string_view text);

// The answer to one of several questions; none where nothing is legal (`refused`) or fits, and `why` says so.
struct SweepPoint {
  std::optional<Candidate> best;
  std::string why;
  bool refused = false;
};
// Questions that differ in one thing: a length, a batch, GPUs, a cluster. Throws the InvalidInput of the first
// one where nothing is legal in any. When it is stopped: the points that were searched to their ends. `next`
// is called before each search.
std::vector<SweepPoint> sweep(const std::vector<PlanQuestion>& questions, const SearchOptions& options = {},
                              const std::function<void(const PlanQuestion&)>& next = {});

// ---- what fits ----

// A layout that is legal and fits; of all, the first in the order of the space. Quick: nothing is replayed.
std::optional<ParallelLayout> feasible(const PlanQuestion& question);

struct InverseOptions {
  const std::atomic<bool>* stop = nullptr;   // when it becomes true there is no answer
  std::function<void(std::int64_t)> trying;  // called with each length, or number of GPUs
};

// The same question at another length; in decode the cache grows with it.
PlanQuestion at_seq_len(PlanQuestion question, std::int64_t seq_len);

// Lengths that all ranks share evenly, the least of 1024 and more.
std::int64_t seq_len_grain(const PlanQuestion& question);

// The longest sequence, a multiple of `grain`, for which something fits, from the question's own length,
// rounded down, to `limit`; nullopt where not even that fits. Memory grows with the length, so that a
// bisection finds it.
std::optional<std::int64_t> longest_seq_len(const PlanQuestion& question, std::int64_t grain,
                                            std::int64_t limit = std::int64_t{1} << 26,
                                            const InverseOptions& options = {});

// ---- how few GPUs ----

// Counts up to the question's GPUs, ascending: parts of a node that divide it, then whole nodes.
std::vector<int> gpu_counts(const PlanQuestion& question);
// The same question on one of these counts.
PlanQuestion at_gpus(PlanQuestion question, int gpus);

// The step's time in which so many tokens are computed a second, by all GPUs together.
double most_us_of(const PlanQuestion& question, double tokens_per_s);

// The fewest GPUs with which something fits, takes at most `search.most_us` a step and, in decode, reads its
// prompt within the question's limit: all counts are tried, since degrees must divide and larger counts are
// faster. Counts on which the flops of the model alone would take longer at the peak are passed over.
struct FewestGpus {
  std::optional<int> gpus;
  std::vector<int> too_slow;  // fewer ones on which something fits, but is too slow
};
FewestGpus fewest_gpus(const PlanQuestion& question, const SearchOptions& search = {},
                       const InverseOptions& options = {});

}  // namespace cp::sim
