#include "shared/plan/temporaries.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "shared/plan/arena.h"
#include "shared/plan/lives.h"
#include "shared/plan/operations.h"

namespace cp {
namespace {

// The places of symmetric temporaries follow from their sizes and order alone, which are those of all ranks;
// lives are not. The segment ends where pages do.
std::int64_t place_symmetric(Plan& plan) {
  std::int64_t end = 0;
  for (Buffer& buffer : plan.buffers) {
    if (!buffer.symmetric) continue;
    buffer.offset_bytes = align_up(end, std::max(plan.target.alignment_bytes, kSymmetricAlignmentBytes));
    end = buffer.offset_bytes + buffer.bytes();
  }
  return align_up(end, kSymmetricSegmentBytes);
}

}  // namespace

void place_temporaries(Plan& plan, std::span<const Anchor> anchors, const Order& order) {
  const Lives lives(plan, order);
  plan.symmetric_bytes = place_symmetric(plan);
  std::vector<BufferId> ids;
  std::vector<Block> blocks;
  plan.arena_bytes = 0;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    Buffer& buffer = plan.buffers[i];
    const auto id = static_cast<BufferId>(i);
    if (buffer.kind != BufferKind::temporary) continue;
    buffer.first_use = lives.first_use(id), buffer.last_use = lives.last_use(id);
    if (buffer.symmetric) continue;
    if (!lives.used(id)) {  // no step uses it, so it may share its bytes with all others
      plan.arena_bytes = std::max(plan.arena_bytes, buffer.bytes());
      continue;
    }
    ids.push_back(id);
    blocks.push_back(lives.block(id));
    blocks.back().size_bytes = buffer.bytes();
    blocks.back().alignment = std::max(plan.target.alignment_bytes, size_bytes(buffer.dtype));
    blocks.back().anchor = anchors[i];
  }
  const Packing packing = pack(blocks, [&](std::size_t earlier, std::size_t later, Turn turn) {
    return lives.ordered(ids[earlier], ids[later], turn);
  });
  for (std::size_t i = 0; i < ids.size(); ++i) {
    plan.buffers[static_cast<std::size_t>(ids[i])].offset_bytes = plan.symmetric_bytes + packing.offsets[i];
  }
  plan.arena_bytes = plan.symmetric_bytes + std::max(plan.arena_bytes, packing.size_bytes);
}

Plan placed(UnplacedPlan unplaced) {
  place_temporaries(unplaced.plan, unplaced.anchors, unplaced.order);
  return std::move(unplaced.plan);
}

}  // namespace cp
