// K and V come at once, straight from their homes; dK and dV go straight back.
#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "shared/base/text.h"
#include "shared/context_parallel/core.h"
#include "shared/context_parallel/gathered.h"
#include "shared/context_parallel/mask_slices.h"
#include "shared/placement/runs.h"

namespace cp::detail {
namespace {

Routing kv_routing(AttentionWriter& writer) {
  const AttentionContext& context = writer.context();
  std::vector<Routing::Member> members;
  for (int r = 0; r < writer.sharding().ring_size(); ++r) {
    Routing::Member member{context.kv_rows(r), std::nullopt};
    if (writer.strategy().core == Core::need_only)
      member.wanted = needed_keys(writer.problem(), context.q_rows(r));
    members.push_back(std::move(member));
  }
  return {writer, writer.ring_team(), writer.ring_index(), std::move(members)};
}

// dK or dV, where it is asked for: an operand of each step, and the way home.
struct KeyGradient {
  const char* name;
  Tensor target;
  Gradient* operand;
  Routing::Transport way;
};

// The arrived rows that are computed on in one step.
struct Block {
  IndexSet rows;
  Range range;
};

// All at once; or, where the ring's blocks are gathered, one by one from the rank's own on, as they would
// have come round.
std::vector<Block> blocks_of(const AttentionWriter& writer, const IndexSet& arriving) {
  if (writer.strategy().core != Core::ring) return {{arriving, {0, size(arriving)}}};
  std::vector<Block> blocks;
  std::int64_t begin = 0;
  const int n = writer.sharding().ring_size(), self = writer.ring_index();
  for (int r = 0; r < n; ++r) {
    const IndexSet& rows = writer.context().kv_rows(r);
    blocks.push_back({rows, {begin, size(rows)}});
    begin += size(rows);
  }
  std::rotate(blocks.begin(), blocks.begin() + self + 1, blocks.end());
  std::reverse(blocks.begin(), blocks.end());  // self, self-1, ...
  return blocks;
}

Tensor part(const Tensor& tensor, Range rows) {
  if (tensor.is_absent()) return tensor;
  Tensor result = tensor;
  result.rows = rows.len;
  result.offset += rows.begin * tensor.row_stride();
  return result;
}

}  // namespace

bool comes_gathered(const AttentionWriter& writer) {
  const Strategy& strategy = writer.strategy();
  const CoreFacts& core = facts(strategy.core);
  return writer.sharding().ring_size() > 1 &&
         (core.rotates == Rotates::nothing ||
          (core.has_rotation && strategy.rotation == Strategy::Rotation::all_gather));
}

Gathered gather_kv(AttentionWriter& writer, const Tensor& k, const Tensor& v) {
  Routing routing = kv_routing(writer);
  const std::int64_t rows = size(routing.arriving());
  const auto transport = [&](const Tensor& home, const char* name) {
    return Routing::Transport{
        home, writer.reached(name, home.dtype, Order::rows_outermost, rows, home.heads, home.dim),
        routing.all_heads(home.heads)};
  };
  if (v.is_absent()) {
    Gathered latent{routing, transport(k, "all latent"), {}};
    latent.routing.gather({latent.k}, "gather latent");
    return latent;
  }
  Gathered gathered{routing, transport(k, "all k"), transport(v, "all v")};
  gathered.routing.gather({gathered.k, gathered.v}, "gather k, v");
  return gathered;
}

void write_gathered(AttentionWriter& writer, const ForwardTensors& t) {
  if (writer.sharding().ring_size() > 1) return write_gathered(writer, t, gather_kv(writer, t.k, t.v));
  PartialOutputs outputs(writer, t.out, t.lse, 1);
  outputs.add({t.q, t.k, t.v},
              writer.masks(writer.context().q_rows(writer.ring_index()), writer.context().kv_rows(0)),
              "attention");
  outputs.finish();
}

void write_gathered(AttentionWriter& writer, const ForwardTensors& t, const Gathered& all) {
  const IndexSet& q_rows = writer.context().q_rows(writer.ring_index());
  std::vector<Block> blocks = blocks_of(writer, all.routing.arriving());
  // Blocks that no query of this rank sees are gathered, since AllGather has equal counts, but not computed.
  std::erase_if(blocks, [&](const Block& block) { return !writer.context().any_pair(q_rows, block.rows); });
  PartialOutputs outputs(writer, t.out, t.lse, static_cast<int>(blocks.size()));
  for (const Block& block : blocks) {
    outputs.add({t.q, part(all.k.user, block.range), part(all.v.user, block.range)},
                writer.masks(q_rows, block.rows), "attention");
  }
  outputs.finish();
}

void write_gathered(AttentionWriter& writer, const BackwardTensors& t) {
  if (writer.sharding().ring_size() > 1)
    return write_gathered(writer, t, [&] { return gather_kv(writer, t.k, t.v); })();
  RowDelta delta = writer.delta_of(t.out, t.dout);
  writer.begin(delta);
  writer.attend_backward(
      {t.q, t.k, t.v, t.dout, t.lse, &delta, {t.dq}, {t.dk}, {t.dv}},
      writer.masks(writer.context().q_rows(writer.ring_index()), writer.context().kv_rows(0)),
      "attention backward");
}

Routing::Arrival write_gathered(AttentionWriter& writer, const BackwardTensors& t,
                                const std::function<Gathered()>& gather) {
  const IndexSet& q_rows = writer.context().q_rows(writer.ring_index());
  RowDelta delta = writer.delta_of(t.out, t.dout);
  writer.begin(delta);
  BackwardOperands operands{t.q, t.k, t.v, t.dout, t.lse, &delta, {t.dq}, {t.dk}, {t.dv}};
  const auto all = std::make_shared<Gathered>(gather());
  std::vector<KeyGradient> of_keys;
  const auto add = [&](const Routing::Transport& value, const Tensor& target, Gradient& operand,
                       const char* name) {
    if (target.is_absent()) return;
    of_keys.push_back(
        {name, target, &operand,
         Routing::Transport{writer.accumulator(str(name, " sum"), DType::f32, target),
                            writer.temporary_like(str("all ", name), writer.gradient_dtype(), value.user),
                            value.heads}});
  };
  add(all->k, t.dk, operands.dk, "dk"), add(all->v, t.dv, operands.dv, "dv");
  const std::vector<Block> blocks = blocks_of(writer, all->routing.arriving());
  std::optional<PartialGradient> dq;
  // A single block writes the whole dq at once; the results of several are added up in f32.
  if (blocks.size() != 1)
    dq.emplace(writer, "dq", t.dq, PartialGradient::Of::queries, static_cast<int>(blocks.size()));
  for (const Block& block : blocks) {
    operands.k = part(all->k.user, block.range), operands.v = part(all->v.user, block.range);
    for (const KeyGradient& gradient : of_keys) *gradient.operand = {part(gradient.way.user, block.range)};
    // dk and dv are written for each gathered row once, by its own block, so only dq is a sum over blocks.
    // The sums over ranks are made at home, behind give_back().
    if (dq) operands.dq = dq->next();
    writer.attend_backward(operands, writer.masks(q_rows, block.rows), "attention backward");
  }
  if (dq) dq->finish("dq");
  if (of_keys.empty()) return [] {};
  std::vector<Routing::Transport> ways;
  for (const KeyGradient& gradient : of_keys) ways.push_back(gradient.way);
  const Routing::Arrival arrival = all->routing.send_back(ways, true, "dk, dv");
  return [&writer, all, of_keys, arrival] {
    arrival();
    for (const KeyGradient& gradient : of_keys)
      writer.finish(gradient.way.home, gradient.target, gradient.name);
  };
}

// ---- what others know of them ----

namespace {

// All keys and values of a piece, and backward their gradients.
std::int64_t gathered_workspace(const Strategy& strategy, const CoreSizes& of) {
  return of.ring * of.kv / strategy.pieces * (of.size_bytes + (of.backward ? size_bytes(DType::f32) : 0));
}
LeastTraffic all_are_gathered(const Strategy&, int, double, double kv_bytes) {
  return {.gathered_bytes = kv_bytes};
}
// The mask may spare any row.
LeastTraffic none_need_be_gathered(const Strategy&, int, double, double) { return {}; }

constexpr Balance::Kind kBalancesOfGathered[] = {Balance::Kind::head_tail, Balance::Kind::contiguous};

constexpr CoreVariant kComparedAllGather[] = {
    {CoreVariant::Place::alone, {Balance::Kind::contiguous}},
    {CoreVariant::Place::alone, {Balance::Kind::head_tail}},
    {CoreVariant::Place::alone, {Balance::Kind::head_tail_exchange}},
    {CoreVariant::Place::hybrid, {Balance::Kind::contiguous}},
};
constexpr CoreVariant kSearchedAllGather[] = {
    {CoreVariant::Place::any_degree, {Balance::Kind::contiguous}},
    {CoreVariant::Place::any_degree, {Balance::Kind::head_tail}},
    {CoreVariant::Place::alone, {Balance::Kind::head_tail_exchange}},
};

constexpr CoreVariant kComparedNeedOnly[] = {
    {CoreVariant::Place::alone, {Balance::Kind::contiguous}},
    {CoreVariant::Place::alone, {Balance::Kind::cost}},
};
constexpr CoreVariant kSearchedNeedOnly[] = {{CoreVariant::Place::alone, {Balance::Kind::contiguous}}};

}  // namespace

constinit const CoreFacts kAllGatherCore = {
    .core = Core::all_gather,
    .name = "all_gather",
    .compared = kComparedAllGather,
    .searched = kSearchedAllGather,
    .balances = kBalancesOfGathered,
    .forward = write_gathered,
    .backward = write_gathered,
    .least_workspace_bytes = gathered_workspace,
    .least_traffic = all_are_gathered,
};

constinit const CoreFacts kNeedOnlyCore = {
    .core = Core::need_only,
    .name = "need_only",
    .compared = kComparedNeedOnly,
    .searched = kSearchedNeedOnly,
    .balances = kBalancesOfGathered,
    .instead = CoreInstead{Core::all_gather, "brings every rank all keys and values instead"},
    .forward = write_gathered,
    .backward = write_gathered,
    .least_traffic = none_need_be_gathered,
    .is_least_alone = false,
};

}  // namespace cp::detail
