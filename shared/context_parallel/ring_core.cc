// Ring attention, forward: K and V blocks rotate.
#include "shared/base/text.h"
#include "shared/context_parallel/core.h"
#include "shared/context_parallel/rings.h"

namespace cp::detail {

void write_ring(AttentionWriter& writer, const ForwardTensors& t) {
  if (writer.sharding().ring_size() == 1 || writer.strategy().rotation == Strategy::Rotation::all_gather) {
    return write_gathered(writer, t);
  }
  const Rings rings(writer);
  const KeyRings keys(writer, rings, t.k, t.v);
  PartialOutputs outputs(writer, t.out, t.lse, rings.blocks_met());
  const IndexSet& q_rows = writer.context().q_rows(writer.ring_index());
  for_each_node(rings, keys, [&](int home_node, int, Rotation rotation) {
    for (int step = 0; step < rings.inner().size; ++step) {
      if (step + 1 < rings.inner().size) rotation.bring(step + 1);
      const int block = rings.block_at(home_node, rings.inner().block(step));
      if (!rings.meets(block)) continue;
      const auto [k, v] = keys.at(rotation, step, block);
      outputs.add({t.q, k, v}, writer.masks(q_rows, writer.context().kv_rows(block)),
                  str("attention of step ", step));
    }
  });
  outputs.finish();
}

// ---- what others know of it ----

namespace {

// Under a causal mask the first block goes as far as the last rank. Of gathered blocks, and of rings within
// rings, nothing is claimed.
LeastTraffic blocks_go_round(const Strategy& strategy, int ring, double, double kv_bytes) {
  if (strategy.inner_ring > 1 || strategy.rotation != Strategy::Rotation::exchange) return {};
  return {.hops = ring - 1, .hop_bytes = kv_bytes};
}

constexpr CoreVariant kComparedRing[] = {
    {CoreVariant::Place::alone, {Balance::Kind::contiguous}},
    {CoreVariant::Place::alone, {Balance::Kind::head_tail}},
    {CoreVariant::Place::alone, {Balance::Kind::striped}},
    {CoreVariant::Place::alone, {Balance::Kind::head_tail}, Strategy::Rotation::all_gather},
    {CoreVariant::Place::alone, {Balance::Kind::head_tail, 1, true}},
    {CoreVariant::Place::inner_rings, {Balance::Kind::head_tail}},
    {CoreVariant::Place::hybrid, {Balance::Kind::head_tail}},
    {CoreVariant::Place::hybrid, {Balance::Kind::head_tail}, Strategy::Rotation::exchange, false},
};
constexpr CoreVariant kSearchedRing[] = {
    {CoreVariant::Place::any_degree, {Balance::Kind::head_tail}},
    {CoreVariant::Place::any_degree, {Balance::Kind::striped}},
    {CoreVariant::Place::hybrid, {Balance::Kind::head_tail}, Strategy::Rotation::exchange, false},
    {CoreVariant::Place::alone, {Balance::Kind::contiguous}},
    {CoreVariant::Place::alone, {Balance::Kind::head_tail}, Strategy::Rotation::all_gather},
    {CoreVariant::Place::inner_rings, {Balance::Kind::head_tail}},
};
constexpr Balance::Kind kBalancesOfRing[] = {Balance::Kind::head_tail, Balance::Kind::contiguous,
                                             Balance::Kind::striped};

}  // namespace

constinit const CoreFacts kRingCore = {
    .core = Core::ring,
    .name = "ring",
    .name_of_inner_rings = "double_ring",
    .rotates = Rotates::keys,
    .has_rotation = true,
    .compared = kComparedRing,
    .searched = kSearchedRing,
    .balances = kBalancesOfRing,
    .forward = write_ring,
    .backward = write_ring,
    .least_traffic = blocks_go_round,
};

}  // namespace cp::detail
