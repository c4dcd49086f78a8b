// The mask once more, from the words of shared/context_parallel/problem.h, and without sharing code with it.
// The reference and the ledgers go by this one, so that an error in one of the two shows.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/context_parallel/problem.h"

namespace cp::sim {

// The keys that the query of a batch entry may see. {0, 0} if it sees none.
KeyInterval visible_keys(const AttentionProblem& problem, std::int64_t batch, std::int64_t query);

// The same for all queries of all batch entries, [batch][query].
std::vector<std::vector<KeyInterval>> visible_keys(const AttentionProblem& problem);

}  // namespace cp::sim
