// Inverse questions: how long a sequence can be, how few GPUs are enough, and how the answer changes along a
// range of lengths.
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
// Questions that differ in one thing: a length, a batch, GPUs, a cluster. Throws the InvalidInput of the
// first one where nothing is legal in any. When it is stopped: the points that were searched to their ends.
// `next` is called before each search.
std::vector<SweepPoint> sweep(const std::vector<PlanQuestion>& questions, const SearchOptions& options = {},
                              const std::function<void(const PlanQuestion&)>& next = {});

// ---- what fits ----

struct InverseOptions {
  int threads = 0;                           // 0: one for each core
  const std::atomic<bool>* stop = nullptr;   // when it becomes true, the search ends without an answer
  std::function<void(std::int64_t)> trying;  // called with each length, or number of GPUs
};

// The same question at another length. In decode the new tokens are part of it, and the cache is the rest.
PlanQuestion at_seq_len(PlanQuestion question, std::int64_t seq_len);

// The step in which lengths are tried: the smallest multiple of 1024 that any number of the GPUs' cp ranks
// shares evenly, in two halves each (as head_tail needs).
std::int64_t seq_len_grain(const PlanQuestion& question);

// Finds the longest sequence for which some layout fits, among the multiples of `grain` from the question's
// own length (rounded down) to `limit`. Returns nothing if not even the question's own length fits. It
// bisects, which is right because memory grows with the length. The default limit is 64 M tokens.
std::optional<std::int64_t> longest_seq_len(const PlanQuestion& question, std::int64_t grain,
                                            std::int64_t limit = std::int64_t{1} << 26,
                                            const InverseOptions& options = {});

// ---- how few GPUs ----

// The numbers of GPUs that are tried, ascending, up to the question's own: parts of a node that divide it,
// then whole nodes.
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
