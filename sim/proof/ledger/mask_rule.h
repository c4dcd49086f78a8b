// The mask once more, from the words of shared/context_parallel/problem.h and sharing no code with it: what
// the reference and the ledgers go by, so that an error in one of the two shows.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/context_parallel/problem.h"

namespace cp::sim {

// Keys that the query of a batch entry may see; {0, 0} when it sees none.
KeyInterval visible_keys(const AttentionProblem& problem, std::int64_t batch, std::int64_t query);

// Of all queries of all batch entries, [batch][query].
std::vector<std::vector<KeyInterval>> visible_keys(const AttentionProblem& problem);

}  // namespace cp::sim
