// Over which ranks fully sharded parameters are spread: those of the dp_shard axis, or those of dp_shard x
// cp. Ranks along cp hold the same parameters, so that sharding over them, too, saves memory (torchtitan does
// so).
#pragma once

#include <cstdint>

namespace cp {

enum class ShardingGroup : std::uint8_t { dp_shard, dp_shard_cp };

}  // namespace cp
