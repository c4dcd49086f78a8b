// Drawing cases: every case is a pure function of a seed and its number, legal, and within stated sizes.
//
// Edges are favoured: lengths 0, 1, n k and n k +- 1 for the n that splits them, primes, fewer elements than
// ranks, axes of one rank, one kv head, documents of one token or none, padding, ranks in any order and with
// gaps, offsets beyond 2^31, meshes of up to 12 axes and 1,024 ranks (planned alone).
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/base/numbers.h"
#include "sim/fuzz/swarm.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

// Of a model's layout: no larger one is drawn, and the judge refuses one, since each rank has plans of its
// own.
inline constexpr int kMostModelRanks = 64;

enum class FuzzTarget : std::uint8_t { redistribute, attention, model, programs, all };
std::string_view name(FuzzTarget target);  // "redistribute", "attention", "plan", "programs", "all"
FuzzTarget parse_fuzz_target(std::string_view text);  // throws InvalidInput that lists them

// Cases that share the weights of their choices.
constexpr std::uint64_t kCasesOfABatch = 64;

// The case of that number. Of all: redistributions and attention for about as long as each other, some steps
// and some programs.
proto::FuzzCase draw_case(FuzzTarget target, std::uint64_t seed, std::uint64_t number);

// The parts of a case, each in a file of its own.
proto::Redistribute draw_redistribution(Numbers& numbers, const Swarm& swarm);
// One that the exhaustive search knows (sim/proof/exhaustive/exhaustive.h): chunks of one or two dimensions
// over two to four ranks, one reduction, links of any speed.
proto::Redistribute draw_searched_redistribution(Numbers& numbers);
proto::Attention draw_attention(Numbers& numbers, const Swarm& swarm);
proto::ModelStep draw_model(Numbers& numbers, const Swarm& swarm);
proto::Flows draw_flows(Numbers& numbers, const Swarm& swarm);
proto::Program draw_program(Numbers& numbers, const Swarm& swarm);

}  // namespace cp::sim
