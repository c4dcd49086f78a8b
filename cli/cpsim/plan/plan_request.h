// What `cpsim plan` is asked: the texts of flags and scenarios made into a question.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sim/planner/search/question.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// Every default that the job does not set stands among the question's assumptions. Throws InvalidInput that
// names the flag at fault, quotes its text and says what would work.
// `emitted`: what the layout is to be handed over to. Of it, and of the framework that the software's profile
// names, the search keeps to what it can say; what it runs of the workload instead is planned, and stands
// among the assumptions.
sim::PlanQuestion make_plan_question(const proto::PlanLayouts& job,
                                     std::optional<sim::Framework> emitted = std::nullopt);

// A layout of which some keys are given. Throws InvalidInput where no layout of the question's GPUs has them.
sim::PartialLayout parse_partial_layout(const sim::PlanQuestion& question, std::string_view flag,
                                        std::string_view text);

// A layout of the question, over all of its GPUs and as its software runs it: ranks that its degrees leave
// form dp_shard, in serving dp_replicate; its micro-batch and recomputation are the question's where they are
// fixed and the text does not say. It may be one that is refused. Throws InvalidInput.
ParallelLayout parse_layout_of(const sim::PlanQuestion& question, std::string_view flag,
                               std::string_view text);

// "131072", "128K", "128Ki", "1M": K is 1024 and M is 1024 K. Throws InvalidInput.
std::int64_t parse_tokens(std::string_view flag, std::string_view text, std::int64_t least = 1);

// The command line that means the job: "cpsim plan --model llama-3.1-8b --nodes 2".
std::string plan_command(const proto::PlanLayouts& job);

}  // namespace cp::cli
