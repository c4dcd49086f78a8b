// Over which ranks fully sharded parameters are spread.
#pragma once

#include <cstdint>

namespace cp {

enum class ShardingGroup : std::uint8_t { dp_shard, dp_shard_cp };

}  // namespace cp
