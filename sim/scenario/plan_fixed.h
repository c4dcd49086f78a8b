// What --fix says: the parts of a layout that a search must not vary.
#pragma once

#include <string>
#include <vector>

#include "sim/planner/search/question.h"

namespace cp::sim {

// The keys of each text, also in short (shared/transformer/short_layout.h), the last one where a key comes in
// several: {"tp=8,cp=2", "tp=4"}. What dp says is dp_shard afterwards, or dp_replicate where serving has no
// shards; -1 fixes nothing, since a search fills the GPUs anyway. Throws InvalidInput that lists the keys, or
// names the nearest one.
sim::Fixed parse_fixed(const std::vector<std::string>& texts, Phase phase = Phase::training);

// "tp=8,cp=2,balance=head_tail": parse_fixed gives the same again; empty when nothing is fixed.
std::string fixed_text(const sim::Fixed& fixed);

}  // namespace cp::sim
