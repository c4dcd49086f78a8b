// Makes a question for the planner from the texts of flags and scenarios.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sim/planner/search/question.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

// Makes the question. Every default that the job leaves open is among the question's assumptions. Throws
// InvalidInput that names the flag at fault, quotes its text and says what would work.
//
// `emitted` is the framework for which the layout will be written. The search keeps to layouts that this
// framework can express, and also the framework that the software's profile names. If a framework runs
// something else than the workload asks for, that is planned, and the assumptions say so.
sim::PlanQuestion make_plan_question(const proto::PlanLayouts& job,
                                     std::optional<sim::Framework> emitted = std::nullopt);

// Reads a layout of which only some keys are given. Throws InvalidInput if no layout on the question's GPUs
// has them.
sim::PartialLayout parse_partial_layout(const sim::PlanQuestion& question, std::string_view flag,
                                        std::string_view text);

// Reads a layout over all of the question's GPUs, as its software runs it. The ranks that the degrees leave
// over form dp_shard, or dp_replicate in serving. Micro-batch and recomputation are the question's, where the
// question fixes them and the text does not give them. The layout may be one that refuse() refuses. Throws
// InvalidInput.
ParallelLayout parse_layout_of(const sim::PlanQuestion& question, std::string_view flag,
                               std::string_view text);

// Reads a number of tokens: "131072", "128K", "128Ki", "1M". K is 1024 and M is 1024 K. Throws InvalidInput
// for another text, and for less than `least`.
std::int64_t parse_tokens(std::string_view flag, std::string_view text, std::int64_t least = 1);

// The text as a shell takes it.
std::string quoted(const std::string& text);

// Returns the command line that means the job: "cpsim plan --model llama-3.1-8b --nodes 2".
std::string plan_command(const proto::PlanLayouts& job);

}  // namespace cp::cli
