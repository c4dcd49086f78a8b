// The right cases whose plans are damaged: small jobs, drawn from a seed.
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/base/numbers.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

// Attention with every strategy that cpsim run knows, on 2 to 6 ranks, of at most 24 queries and keys: masks,
// documents, kv heads, offsets, gradients, dtypes and formats, for the host and for GPUs. Redistributions of
// at most a few hundred elements between layouts of any placements and splits, on one mesh of at most 8 ranks
// or between two; gradients among them. A job that is drawn may be one that nobody can plan: then the next
// one counts.
proto::FuzzCase draw_base_case(Numbers& draws);
proto::Attention draw_base_attention(Numbers& draws, std::string_view strategy);
proto::Redistribute draw_base_redistribution(Numbers& draws);

}  // namespace cp::sim
