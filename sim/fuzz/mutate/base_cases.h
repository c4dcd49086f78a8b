// The right cases whose plans are damaged: small jobs, drawn from a seed. A job that is drawn may be one that
// nobody can plan; the caller then draws the next one.
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/base/numbers.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

// Draws a case with one of the two kinds of job below.
proto::FuzzCase draw_base_case(Numbers& draws);

// Attention with the given strategy, which is one of those that cpsim run knows: on 2 to 6 ranks, with at
// most 24 queries and keys; with masks, documents, kv heads, offsets, gradients, dtypes and formats; for the
// host and for GPUs.
proto::Attention draw_base_attention(Numbers& draws, std::string_view strategy);

// A redistribution of at most a few hundred elements between layouts of any placements and splits, on one
// mesh of at most 8 ranks or between two meshes; some are gradients.
proto::Redistribute draw_base_redistribution(Numbers& draws);

}  // namespace cp::sim
