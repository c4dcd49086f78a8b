// Makes a problem and strategies from the texts of flags and scenarios: what `cpsim run` is asked to do.
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
  std::string where;        // "cp=8", or which part of a larger mesh is run
  std::vector<Strategy> strategies;
  // Says so if a name stands for another strategy on this number of ranks.
  std::vector<std::string> notes;
  bool backward = false;
  AttentionOptions options;
  Schedule schedule = Schedule::parallel;
  std::uint64_t seed = 0;
  Target target = host_target();
};

// Reads the job. `device` is the target if the job names none. Throws InvalidInput that names the flag at
// fault, quotes its text and says what would work. It does not check whether the strategies are legal.
AttentionJob make_attention_job(const proto::Attention& job, const Target& device = host_target());

// Throws InvalidInput if the job asks for gradients, but not for a backward pass.
void require_backward(const proto::Attention& job);

}  // namespace cp::sim
