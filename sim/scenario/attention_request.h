// What `cpsim run` is asked to do: the texts of flags and scenarios made into a problem and strategies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "sim/fabric/fabric.h"
#include "traces/scenario.pb.h"

namespace cp::sim {

struct AttentionJob {
  AttentionProblem problem;
  std::vector<Rank> ranks;  // the cp ranks
  std::string where;        // "cp=8", or what of a larger mesh is run
  std::vector<Strategy> strategies;
  std::vector<std::string> notes;  // where a name stands for another strategy on so many ranks
  bool backward = false;
  AttentionOptions options;
  Schedule schedule = Schedule::parallel;
  std::uint64_t seed = 0;
  Target target = host_target();
};

// Throws InvalidInput that names the flag at fault, quotes its text and says what would work. Whether a
// strategy is legal is not asked here. `device`: the target where the job names none.
AttentionJob make_attention_job(const proto::Attention& job, const Target& device = host_target());

// Throws InvalidInput for gradients that are asked of a job without a backward pass.
void require_backward(const proto::Attention& job);

}  // namespace cp::sim
