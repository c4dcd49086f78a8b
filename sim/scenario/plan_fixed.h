// Reads what --fix says: the parts of a layout that a search must not vary.
#pragma once

#include <string>
#include <vector>

#include "sim/planner/search/question.h"

namespace cp::sim {

// Reads the keys of each text, also in short form (shared/transformer/short_layout.h). If a key comes in
// several texts, the last one counts: {"tp=8,cp=2", "tp=4"} fixes tp=4 and cp=2. dp becomes dp_shard, or
// dp_replicate in serving, which has no shards. A degree of -1 fixes nothing, since a search fills the GPUs
// anyway. Throws InvalidInput that lists the keys, or names the nearest one.
sim::Fixed parse_fixed(const std::vector<std::string>& texts, Phase phase = Phase::training);

// Writes what is fixed: "tp=8,cp=2,balance=head_tail". parse_fixed() reads the same again. The text is empty
// if nothing is fixed.
std::string fixed_text(const sim::Fixed& fixed);

}  // namespace cp::sim
