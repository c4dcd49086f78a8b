// Draws cases. Each case is a pure function of a seed and its number; it is legal, and no larger than stated.
//
// Edges are favoured: lengths of 0, 1, n k and n k +- 1 for the n that splits them; primes; fewer elements
// than ranks; axes of one rank; one kv head; documents of one token or none; padding; ranks in any order and
// with gaps; offsets beyond 2^31; meshes of up to 12 axes and 1,024 ranks (which are planned, but not run).
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/base/numbers.h"
#include "sim/fuzz/swarm.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

// The most ranks of a model's layout. No larger layout is drawn, and the judge refuses one, since each rank
// has plans of its own. Chosen, so that a case stays short.
inline constexpr int kMostModelRanks = 64;
// And of a step that runs with data.
inline constexpr int kMostProvedRanks = 16;

enum class FuzzTarget : std::uint8_t { redistribute, attention, recurrence, model, prove, programs, all };
std::string_view name(FuzzTarget target);  // "redistribute", "attention", "recurrence", "plan", ...
FuzzTarget parse_fuzz_target(std::string_view text);  // throws InvalidInput that lists them

// How many cases in a row share the weights of their choices (swarm.h). Chosen: enough for the rare choices
// of a batch to meet, and few enough that a short run sees many batches.
constexpr std::uint64_t kCasesOfABatch = 64;

// The case with this number. With FuzzTarget::all, redistributions and attention get about the same time, and
// some recurrences, steps of models, planned and proved, and programs come with them.
proto::FuzzCase draw_case(FuzzTarget target, std::uint64_t seed, std::uint64_t number);

// The parts of a case. Each of these functions has a source file of its own.
proto::Redistribute draw_redistribution(Numbers& numbers, const Swarm& swarm);
// A redistribution that the exhaustive search knows (sim/proof/exhaustive/exhaustive.h): a tensor in chunks
// of one or two dimensions, over two to four ranks, with one reduction and links of any speed.
proto::Redistribute draw_searched_redistribution(Numbers& numbers);
proto::Attention draw_attention(Numbers& numbers, const Swarm& swarm);
proto::Recurrence draw_recurrence(Numbers& numbers, const Swarm& swarm);
proto::ModelStep draw_model(Numbers& numbers, const Swarm& swarm);
proto::Proof draw_proof(Numbers& numbers, const Swarm& swarm);
proto::Flows draw_flows(Numbers& numbers, const Swarm& swarm);
proto::Program draw_program(Numbers& numbers, const Swarm& swarm);

}  // namespace cp::sim
