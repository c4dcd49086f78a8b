#include "shared/redistribute/rounds.h"

#include <algorithm>
#include <array>
#include <limits>

namespace cp::detail {

RoundLives lives_in_rounds(const RankTraffic& rank) {
  constexpr std::int64_t kBefore = -1, kOwnPart = 0, kForever = std::numeric_limits<std::int64_t>::max();
  const auto pack = [](std::int32_t round) { return std::int64_t{3} * round + 1; };
  const auto exchange = [&](std::int32_t round) { return pack(round) + 1; };
  const auto accumulate = [&](std::int32_t round) { return pack(round) + 2; };
  RoundLives lives;
  lives.old_shard = {kBefore, kBefore};
  if (rank.self_numel > 0) lives.old_shard.end = kOwnPart;
  if (rank.last_pack >= 0) lives.old_shard.end = std::max(lives.old_shard.end, pack(rank.last_pack));
  if (rank.last_direct_send >= 0)
    lives.old_shard.end = std::max(lives.old_shard.end, exchange(rank.last_direct_send));
  if (rank.first_pack >= 0) lives.packed = {pack(rank.first_pack), exchange(rank.last_pack)};
  if (rank.first_arrival >= 0) lives.received = {exchange(rank.first_arrival), accumulate(rank.last_arrival)};
  const bool begins_with_own = rank.self_numel > 0 || rank.first_arrival < 0;
  lives.new_shard = {begins_with_own ? kOwnPart : accumulate(rank.first_arrival), kForever};
  return lives;
}

std::int64_t live_in_rounds(const RankTraffic& rank, std::int64_t old_numel, std::int64_t new_numel) {
  struct Held {
    Life life;
    std::int64_t numel;
  };
  const RoundLives lives = lives_in_rounds(rank);
  const std::array<Held, 4> all = {{{lives.old_shard, old_numel},
                                    {lives.packed, rank.send_numel},
                                    {lives.received, rank.recv_numel},
                                    {lives.new_shard, new_numel}}};
  std::int64_t most = 0;
  for (const Held& begins : all) {
    std::int64_t alive = 0;
    for (const Held& other : all) {
      if (other.life.at(begins.life.begin)) alive += other.numel;
    }
    most = std::max(most, alive);
  }
  return most;
}

RoundAnchors anchors_in_rounds(const RoundLives& lives, Anchor old_shard) {
  const Anchor here = old_shard, there = old_shard == Anchor::low ? Anchor::high : Anchor::low;
  const auto& [old, packed, received, made] = lives;
  // The old shard is gone before the new one begins. Then the packed staging is, too, and the received one
  // lives with both.
  if (!old.meets(made)) {
    if (received.meets(old)) return {here, there, here};
    return {there, here, there};
  }
  // The new shard begins while the packed staging is alive: all four live together then, and it must not lie
  // behind it.
  if (packed.begin < made.begin && packed.meets(made)) return {here, here, there};
  return {there, here, there};
}

}  // namespace cp::detail
