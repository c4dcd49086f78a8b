#include "shared/redistribute/direct_exchange.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "shared/redistribute/move_cost.h"

namespace cp {

std::optional<DirectExchange> direct_exchange(const Layout& source, const Layout& target,
                                              const RedistributeOptions& options) {
  validate_redistribution(source, target, options);
  const DType travel = options.travel_dtype.value_or(target.dtype);
  detail::LayoutSpace space(source, target, travel);
  if (space.source().partial != space.target().partial) return std::nullopt;
  if (space.source().side != space.target().side && space.source().partial != 0) return std::nullopt;
  if (space.equivalent(space.source(), space.target())) return std::nullopt;

  const bool casts_before = source.dtype != travel, casts_after = target.dtype != travel;
  detail::StateMove move{MoveKind::exchange, {}, space.source(), space.target()};
  if (move.from.side == move.to.side) move.axes = space.axes(move.from.side);
  detail::MoveCoster coster(space, options.cost, travel);
  detail::MoveCost cost;
  coster.evaluate(move, {!casts_before, !casts_after}, cost);
  const std::vector<double> cast_us = coster.cast_us(casts_before, casts_after);

  const std::int64_t widest =
      std::max({size_bytes(source.dtype), size_bytes(target.dtype), size_bytes(travel)});
  DirectExchange direct;
  std::int64_t largest_shard = 0, temporaries = 0;
  for (std::int32_t p = 0; p < space.num_ranks(); ++p) {
    const auto at = static_cast<std::size_t>(p);
    const std::int64_t before = space.numel(move.from, p), after = space.numel(move.to, p);
    const std::int64_t ends = before * size_bytes(source.dtype) + after * size_bytes(target.dtype);
    largest_shard = std::max(largest_shard, std::max(before, after) * widest);
    temporaries = std::max(temporaries, cost.temporary_bytes[at]);
    direct.time_us = std::max(direct.time_us, cost.time_us[at] + cast_us[at]);
    direct.bytes_received_max = std::max(direct.bytes_received_max, cost.bytes_received[at]);
    direct.peak_bytes = std::max(direct.peak_bytes, ends + cost.temporary_bytes[at]);
  }
  direct.keeps_bound =
      static_cast<double>(temporaries) <= options.max_memory_factor * 2 * static_cast<double>(largest_shard);
  return direct;
}

}  // namespace cp
