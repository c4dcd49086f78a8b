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
  for_each_node(rings, keys, t.k, t.v, [&](int home_node, int, Rotation rotation) {
    for (int step = 0; step < rings.inner().size; ++step) {
      if (step + 1 < rings.inner().size) rotation.bring(step + 1);
      const int block = rings.block_at(home_node, rings.inner().block(step));
      if (!rings.meets(block)) continue;
      outputs.add(
          {t.q, keys.k_in(rotation.buffer(kK, step), block), keys.v_in(rotation.buffer(kV, step), block)},
          writer.masks(q_rows, writer.context().kv_rows(block)), str("attention of step ", step));
    }
  });
  outputs.finish();
}

}  // namespace cp::detail
