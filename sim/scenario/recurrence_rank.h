// The part of rank_job.h that is about recurrences. Each function is the one of that name there, for
// `recurrence` scenarios, and throws as it does.
#pragma once

#include <memory>
#include <vector>

#include "sim/scenario/rank_job.h"

namespace cp::sim {

int world_size_of(const proto::Recurrence& scenario);
RankMemory rank_memory(const proto::Recurrence& scenario, Rank rank);
std::unique_ptr<RankJob> make_rank_job(const proto::Recurrence& scenario, Rank rank, const Target& device);
std::vector<RankTrace> simulate(const proto::Recurrence& scenario, const Target& device);

}  // namespace cp::sim
