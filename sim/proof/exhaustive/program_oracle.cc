#include "sim/proof/exhaustive/program_oracle.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "sim/proof/exhaustive/program_steps.h"

namespace cp::sim {
namespace {

using namespace program;
using Refusal = std::optional<std::string>;

// ---- sets ----

class Set {
 public:
  explicit Set(std::size_t size = 0) : words_((size + 63) / 64) {}
  void add(std::size_t i) { words_[i / 64] |= std::uint64_t{1} << i % 64; }
  bool has(std::size_t i) const { return (words_[i / 64] >> i % 64 & 1) != 0; }
  void add_all(const Set& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  bool meets(const Set& other) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if ((words_[i] & other.words_[i]) != 0) return true;
    }
    return false;
  }

 private:
  std::vector<std::uint64_t> words_;
};

// The bytes of a rank: buffer after buffer; temporaries lie in the arena, which comes last.
struct Memory {
  std::vector<std::int64_t> begin;  // by BufferId
  std::int64_t size = 0;
};
Memory memory_of(const Plan& plan, bool each_apart) {
  Memory memory;
  for (const Buffer& buffer : plan.buffers) {
    memory.begin.push_back(memory.size);
    if (each_apart || buffer.kind != BufferKind::temporary) memory.size += buffer.bytes();
  }
  if (each_apart) return memory;
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    if (plan.buffers[b].kind == BufferKind::temporary)
      memory.begin[b] = memory.size + plan.buffers[b].offset_bytes;
  }
  memory.size += plan.arena_bytes;
  return memory;
}

// Calls f with each byte of the view.
template <class F>
void for_bytes(const Plan& plan, const Memory& memory, const View& view, std::int64_t iteration, const F& f) {
  const std::int64_t size = size_bytes(plan.buffers[idx(view.buffer)].dtype);
  for (const std::int64_t element : elements(view, iteration)) {
    for (std::int64_t byte = 0; byte < size; ++byte)
      f(idx(memory.begin[idx(view.buffer)] + element * size + byte));
  }
}

// Nodes with what each of them touches and what happens before it.
struct History {
  std::vector<Node> nodes;
  std::vector<Set> read, written;      // bytes
  std::vector<Set> before;             // nodes
  std::vector<std::int64_t> previous;  // on the same stream; -1: none

  explicit History(const Plan& plan) : nodes(unroll(plan)) {
    const Memory memory = memory_of(plan, false);
    std::vector<std::int64_t> last(plan.streams.size(), -1);
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      const Node& node = nodes[n];
      read.emplace_back(idx(memory.size));
      written.emplace_back(idx(memory.size));
      for (const Touch& touch : touches(node.step->work, index_of(plan, node.step->work))) {
        for_bytes(plan, memory, *touch.view, node.iteration, [&](std::size_t byte) {
          if (touch.reads) read[n].add(byte);
          if (touch.writes) written[n].add(byte);
        });
      }
      before.emplace_back(nodes.size());
      previous.push_back(std::exchange(last[idx(node.step->stream)], static_cast<std::int64_t>(n)));
    }
  }

  void happens_after(std::size_t n, std::int64_t earlier) {
    if (earlier < 0) return;
    before[n].add(idx(earlier));
    before[n].add_all(before[idx(earlier)]);
  }
  // Edges name nodes that were issued earlier: in issue order all that comes before is known.
  void close(std::size_t n) {
    happens_after(n, previous[n]);
    for (const Edge& edge : nodes[n].step->after) happens_after(n, awaited(nodes, nodes[n], edge));
  }
  bool conflict(std::size_t a, std::size_t b) const {
    return written[a].meets(written[b]) || written[a].meets(read[b]) || read[a].meets(written[b]);
  }
};

std::string text(const Plan& plan, const Node& node) {
  return str("rank ", plan.self, " step ", node.id, " ", operation_name(node.step->work),
             node.count > 1 ? str(" (iteration ", node.iteration, ")") : "");
}

// ---- single steps ----

class StepRules {
 public:
  StepRules(const Plan& plan, const Step& step, std::int64_t count)
      : plan_(plan), step_(step), count_(count) {}

  Refusal refuse() {
    if (step_.stream < 0 || idx(step_.stream) >= plan_.streams.size())
      return "its stream is none of the plan's";
    const Collective* collective = std::get_if<Collective>(&step_.work);
    if (collective != nullptr) {
      const GroupId group = group_of(*collective);
      if (group < 0 || idx(group) >= plan_.groups.size()) return "its group is none of the plan's";
      members_ = static_cast<std::int64_t>(plan_.groups[idx(group)].ranks.size());
      index_ = place_in(plan_.groups[idx(group)], plan_.self);
      if (index_ < 0) return "the rank is no member of its group";
    }
    const std::vector<Touch> all = touches(step_.work, index_);
    for (const Touch& touch : all) {
      if (Refusal refusal = refuse_view(*touch.view, touch.writes)) return refusal;
    }
    if (Refusal refusal = collective != nullptr ? refuse_collective(*collective) : refuse_kernel())
      return refusal;
    if (in_place_) return std::nullopt;
    for (std::size_t a = 0; a < all.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        if (!(all[a].writes || all[b].writes) || !share(*all[a].view, *all[b].view)) continue;
        shares_memory_ = true;
        return "what it writes is memory that it uses otherwise";
      }
    }
    return std::nullopt;
  }
  bool shares_memory() const { return shares_memory_; }  // why it was refused

 private:
  DType dtype(const View& view) const { return plan_.buffers[idx(view.buffer)].dtype; }

  Refusal refuse_view(const View& view, bool written) const {
    if (view.buffer < 0 || idx(view.buffer) >= plan_.buffers.size()) return "a view of no buffer";
    const Buffer& buffer = plan_.buffers[idx(view.buffer)];
    if (written && buffer.kind == BufferKind::input) return "it writes an input";
    if (view.shape.size() != view.strides.size()) return "a view with other strides than sizes";
    for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
      if (view.shape[dim] < 0 || view.strides[dim] < 0) return "a view with a negative size or stride";
    }
    if (view.advance.period < 0 || view.advance.phase < 0) return "a view with a negative period or phase";
    if (view.numel() == 0) return std::nullopt;
    for (std::int64_t iteration = 0; iteration < count_; ++iteration) {
      for (const std::int64_t element : elements(view, iteration)) {
        if (element < 0 || element >= buffer.numel) return str("a view that leaves ", buffer.name);
      }
    }
    return written ? refuse_overlapping_dims(view) : std::nullopt;
  }

  // Not only that no element comes twice: each stride exceeds what the smaller ones reach, which is what
  // check() asks for.
  static Refusal refuse_overlapping_dims(const View& view) {
    std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, size
    for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
      if (view.shape[dim] != 1) dims.emplace_back(view.strides[dim], view.shape[dim]);
    }
    std::sort(dims.begin(), dims.end());
    std::int64_t reach = 0;
    for (const auto& [stride, size] : dims) {
      if (stride <= reach) return "a written view whose dimensions overlap";
      reach += (size - 1) * stride;
    }
    return std::nullopt;
  }

  bool share(const View& a, const View& b) const {
    if (a.buffer != b.buffer) return false;
    for (std::int64_t iteration = 0; iteration < count_; ++iteration) {
      const Numbers in_a = elements(a, iteration);
      for (const std::int64_t element : elements(b, iteration)) {
        if (std::find(in_a.begin(), in_a.end(), element) != in_a.end()) return true;
      }
    }
    return false;
  }

  bool widens(const View& in, const View& out) const {
    return dtype(out) == DType::f32 && (dtype(in) == DType::f16 || dtype(in) == DType::bf16);
  }

  Refusal refuse_kernel() const {
    const Kernel& kernel = std::get<Kernel>(step_.work);
    if (const auto* copy = std::get_if<Copy>(&kernel)) {
      if (dtype(copy->in) != dtype(copy->out)) return "a copy between types";
      if (copy->in.numel() != copy->out.numel()) return "a copy between sizes";
    } else if (const auto* cast = std::get_if<Cast>(&kernel)) {
      if (cast->in.numel() != cast->out.numel()) return "a cast between sizes";
    } else if (const auto* add = std::get_if<Accumulate>(&kernel)) {
      if (add->op == ReduceOp::avg) return "a mean of two";
      if (dtype(add->in) != dtype(add->out) && !widens(add->in, add->out)) return "a sum of types";
      if (add->in.numel() != add->out.numel()) return "a sum of sizes";
    } else if (const auto* scale = std::get_if<Scale>(&kernel)) {
      if (!is_floating(dtype(scale->data))) return "a scaled integer";
    } else if (const auto* product = std::get_if<MatMul>(&kernel)) {
      const View &a = product->a, &b = product->b, &out = product->out;
      if (dtype(a) != dtype(b) || (dtype(a) != dtype(out) && !widens(a, out))) return "a product of types";
      if (a.shape.size() != 2 || b.shape.size() != 2 || out.shape.size() != 2)
        return "a product of no matrices";
      if (a.shape[1] != b.shape[0] || out.shape[0] != a.shape[0] || out.shape[1] != b.shape[1])
        return "a product of sizes";
    }
    return std::nullopt;
  }

  // `part` is exactly the elements of `whole` from `start` on, in every iteration.
  bool is_part(const View& part, const View& whole, std::int64_t start) const {
    return part.buffer == whole.buffer && part.offset == whole.offset + start &&
           part.advance == whole.advance;
  }

  Refusal refuse_collective(const Collective& collective) {
    for (const Touch& touch : touches(step_.work, index_)) {
      if (!is_one_run(*touch.view)) return "a collective of a view that is not contiguous";
    }
    const auto pair = [&](const auto& op, std::int64_t in_blocks, std::int64_t out_blocks) -> Refusal {
      if (dtype(op.in) != dtype(op.out)) return "a collective between types";
      if (op.in.numel() * out_blocks != op.out.numel() * in_blocks) return "a collective of other sizes";
      return std::nullopt;
    };
    if (const auto* gather = std::get_if<AllGather>(&collective)) {
      in_place_ = is_part(gather->in, gather->out, index_ * gather->in.numel());
      return pair(*gather, 1, members_);
    }
    if (const auto* scatter = std::get_if<ReduceScatter>(&collective)) {
      in_place_ = is_part(scatter->out, scatter->in, index_ * scatter->out.numel());
      if (scatter->op == ReduceOp::avg && !is_floating(dtype(scatter->out))) return "a mean of integers";
      return pair(*scatter, members_, 1);
    }
    if (const auto* reduce = std::get_if<AllReduce>(&collective)) {
      in_place_ = is_part(reduce->in, reduce->out, 0);
      if (reduce->op == ReduceOp::avg && !is_floating(dtype(reduce->out))) return "a mean of integers";
      return pair(*reduce, 1, 1);
    }
    if (const auto* all = std::get_if<AllToAll>(&collective)) {
      if (all->in.numel() % members_ != 0) return "blocks of no equal size";
      return pair(*all, 1, 1);
    }
    if (const auto* broadcast = std::get_if<Broadcast>(&collective)) {
      if (broadcast->root < 0 || broadcast->root >= members_) return "a root that is no member";
      if (index_ != broadcast->root) return std::nullopt;
      in_place_ = is_part(broadcast->in, broadcast->out, 0);
      return pair(*broadcast, 1, 1);
    }
    const Exchange& exchange = std::get<Exchange>(collective);
    for (const std::vector<Transfer>* side : {&exchange.sends, &exchange.recvs}) {
      for (const Transfer& transfer : *side) {
        if (transfer.peer < 0 || transfer.peer >= members_ || transfer.peer == index_)
          return "a peer that is none";
        if (transfer.view.numel() == 0) return "an empty transfer";
      }
    }
    return std::nullopt;
  }

  const Plan& plan_;
  const Step& step_;
  const std::int64_t count_;
  std::int64_t members_ = 1;
  std::int32_t index_ = 0;
  bool in_place_ = false, shares_memory_ = false;
};

// ---- one rank ----

Refusal refuse_structure(const Plan& plan) {
  for (const Group& group : plan.groups) {
    if (place_in(group, plan.self) < 0) return str("rank ", plan.self, " is no member of group ", group.name);
  }
  const std::vector<Node> nodes = unroll(plan);
  StepId steps = 0;
  for (const Node& node : nodes) steps = std::max(steps, node.id + 1);
  std::map<GroupId, StreamId> stream_of;
  for (const Node& node : nodes) {
    if (node.iteration > 0) continue;
    if (const auto refusal = refuse_step(plan, *node.step, node.count))
      return str(text(plan, node), ": ", refusal->text);
    for (const Edge& edge : node.step->after) {
      if (edge.step < 0 || edge.step >= steps) return str(text(plan, node), " waits for no step");
      const auto& other =
          *std::find_if(nodes.begin(), nodes.end(), [&](const Node& n) { return n.id == edge.step; });
      const bool same_repeat = other.segment == node.segment && node.in_repeat;
      if (edge.iterations_back < 0 || (edge.iterations_back > 0 && !same_repeat))
        return str(text(plan, node), " waits for an iteration of no common Repeat");
      if (edge.iterations_back == 0 && edge.step >= node.id)
        return str(text(plan, node), " waits for what is issued no earlier");
    }
    if (const Collective* collective = std::get_if<Collective>(&node.step->work)) {
      const auto [known, first] = stream_of.emplace(group_of(*collective), node.step->stream);
      if (!first && known->second != node.step->stream)
        return str(text(plan, node), ": its group has two streams");
    }
  }
  return std::nullopt;
}

Refusal refuse_memory(const Plan& plan) {
  const auto placed = [](const Buffer& buffer) {
    return buffer.kind == BufferKind::temporary && buffer.numel > 0;
  };
  for (const Buffer& buffer : plan.buffers) {
    if (!placed(buffer)) continue;
    if (buffer.offset_bytes < 0 || buffer.offset_bytes + buffer.bytes() > plan.arena_bytes)
      return str("rank ", plan.self, ": ", buffer.name, " leaves the arena");
    if (buffer.offset_bytes % std::max(plan.target.alignment_bytes, size_bytes(buffer.dtype)) != 0)
      return str("rank ", plan.self, ": ", buffer.name, " is not aligned");
  }
  for (const Node& node : unroll(plan)) {
    for (const Touch& touch : touches(node.step->work, index_of(plan, node.step->work))) {
      const Buffer& buffer = plan.buffers[idx(touch.view->buffer)];
      if (placed(buffer) && (buffer.first_use < 0 || node.id < buffer.first_use || node.id > buffer.last_use))
        return str(text(plan, node), " uses ", buffer.name, " outside of its declared uses");
    }
  }
  for (const Buffer& a : plan.buffers) {
    for (const Buffer& b : plan.buffers) {
      if (&a == &b || !placed(a) || !placed(b) || a.first_use < 0 || b.first_use < 0) continue;
      const bool at_once = a.first_use <= b.last_use && b.first_use <= a.last_use;
      const bool in_common =
          a.offset_bytes < b.offset_bytes + b.bytes() && b.offset_bytes < a.offset_bytes + a.bytes();
      if (at_once && in_common)
        return str("rank ", plan.self, ": ", a.name, " and ", b.name, " share bytes while both are in use");
    }
  }
  return std::nullopt;
}

Refusal refuse_order(const Plan& plan) {
  History history(plan);
  for (std::size_t n = 0; n < history.nodes.size(); ++n) {
    history.close(n);
    for (std::size_t m = 0; m < n; ++m) {
      if (!history.before[n].has(m) && history.conflict(m, n))
        return str(text(plan, history.nodes[m]), " and ", text(plan, history.nodes[n]),
                   " touch a common byte, and nothing orders them");
    }
  }
  return std::nullopt;
}

// Bytes of a temporary are written when it was written itself: what another one left there means nothing.
std::optional<Unwritten> first_unwritten(const Plan& plan, bool each_apart) {
  const Memory memory = memory_of(plan, each_apart);
  std::vector<BufferId> owner(idx(memory.size), -1);
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    const Buffer& buffer = plan.buffers[b];
    if (buffer.kind != BufferKind::input && buffer.kind != BufferKind::inout) continue;
    for (std::int64_t i = 0; i < buffer.bytes(); ++i)
      owner[idx(memory.begin[b] + i)] = static_cast<BufferId>(b);
  }
  for (const Node& node : unroll(plan)) {
    const std::vector<Touch> all = touches(node.step->work, index_of(plan, node.step->work));
    for (const Touch& touch : all) {
      bool written = true;
      if (touch.reads)
        for_bytes(plan, memory, *touch.view, node.iteration,
                  [&](std::size_t byte) { written = written && owner[byte] == touch.view->buffer; });
      if (!written) return Unwritten{node.id, touch.view->buffer};
    }
    for (const Touch& touch : all) {
      if (touch.writes)
        for_bytes(plan, memory, *touch.view, node.iteration,
                  [&](std::size_t byte) { owner[byte] = touch.view->buffer; });
    }
  }
  for (std::size_t b = 0; b < plan.buffers.size(); ++b) {
    if (plan.buffers[b].kind != BufferKind::output) continue;
    for (std::int64_t i = 0; i < plan.buffers[b].bytes(); ++i) {
      if (owner[idx(memory.begin[b] + i)] < 0) return Unwritten{-1, static_cast<BufferId>(b)};
    }
  }
  return std::nullopt;
}

// ---- all ranks ----

// What members of a collective agree on, as numbers.
Numbers agreement(const Call& call) {
  const auto of = [&](const View& view, std::int64_t more) -> Numbers {
    const DType dtype = call.plan->buffers[idx(view.buffer)].dtype;
    return {static_cast<std::int64_t>(dtype), view.numel(), more};
  };
  Numbers all = std::visit(
      Overloaded{[&](const AllGather& op) { return of(op.in, 0); },
                 [&](const ReduceScatter& op) { return of(op.out, static_cast<std::int64_t>(op.op)); },
                 [&](const AllReduce& op) { return of(op.out, static_cast<std::int64_t>(op.op)); },
                 [&](const AllToAll& op) { return of(op.out, 0); },
                 [&](const Broadcast& op) { return of(op.out, op.root); },
                 [&](const Exchange&) { return Numbers{}; }},
      *call.work);
  all.push_back(static_cast<std::int64_t>(call.work->index()));
  all.push_back(call.node->count);
  all.push_back(call.repeat);
  return all;
}

// (sender, receiver, which of theirs, elements, dtype) of both sides.
Refusal refuse_exchange(const std::vector<const Call*>& members) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::pair<std::int64_t, DType>>> sent, received;
  std::vector<Count> counts;
  for (const Call* call : members) {
    const Exchange& op = std::get<Exchange>(*call->work);
    const auto dtype = [&](const View& view) { return call->plan->buffers[idx(view.buffer)].dtype; };
    for (const Transfer& t : op.sends) {
      sent[{call->index, t.peer}].emplace_back(t.view.numel(), dtype(t.view));
      counts.push_back({call->index, t.peer, t.view.numel()});
    }
    for (const Transfer& t : op.recvs)
      received[{t.peer, call->index}].emplace_back(t.view.numel(), dtype(t.view));
  }
  if (sent != received) return "sends and receives that do not match";
  const Digest digest = counts_digest(counts);
  for (const Call* call : members) {
    if (std::get<Exchange>(*call->work).counts != digest) return "a digest of other counts";
  }
  return std::nullopt;
}

Refusal refuse_together(std::span<const Plan> plans) {
  std::vector<std::vector<Node>> nodes;
  for (const Plan& plan : plans) nodes.push_back(unroll(plan));
  const std::vector<std::vector<Call>> calls = calls_of(plans, nodes);
  std::map<std::pair<std::string, std::vector<Rank>>, std::map<std::int32_t, std::vector<const Call*>>>
      by_group;
  for (std::size_t p = 0; p < plans.size(); ++p) {
    for (const Group& group : plans[p].groups)
      by_group[{group.name, group.ranks}][place_in(group, plans[p].self)];
    for (const Call& call : calls[p])
      by_group[{call.group->name, call.group->ranks}][call.index].push_back(&call);
  }
  for (const auto& [group, members] : by_group) {
    if (members.size() != group.second.size())
      return str("group ", group.first, " is not known to all its members");
    const std::vector<const Call*>& first = members.begin()->second;
    for (const auto& [index, all] : members) {
      if (all.size() != first.size())
        return str("members of ", group.first, " call it a different number of times");
    }
    for (std::size_t k = 0; k < first.size(); ++k) {
      std::vector<const Call*> meeting;
      for (const auto& [index, all] : members) {
        if (agreement(*all[k]) != agreement(*first[k]))
          return str("collective ", k, " of ", group.first, " differs");
        meeting.push_back(all[k]);
      }
      if (!std::holds_alternative<Exchange>(*first[k]->work)) continue;
      if (const Refusal refusal = refuse_exchange(meeting))
        return str("exchange ", k, " of ", group.first, ": ", *refusal);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<StepRefusal> refuse_step(const Plan& plan, const Step& step, std::int64_t count) {
  StepRules rules(plan, step, count);
  Refusal refusal = rules.refuse();
  if (!refusal) return std::nullopt;
  return StepRefusal{*std::move(refusal), rules.shares_memory()};
}

std::optional<Unwritten> find_unwritten(const Plan& plan) { return first_unwritten(plan, true); }

Refusal refuse_alone(std::span<const Plan> plans) {
  for (const Plan& plan : plans) {
    if (plan.inputs != plans.front().inputs) return str("rank ", plan.self, "'s plan has other inputs");
    if (const Refusal refusal = refuse_structure(plan)) return refusal;
    if (const Refusal refusal = refuse_memory(plan)) return refusal;
  }
  return std::nullopt;
}

Refusal refuse_meetings(std::span<const Plan> plans) { return refuse_together(plans); }

Refusal refuse_program(std::span<const Plan> plans) {
  if (const Refusal refusal = refuse_alone(plans)) return refusal;
  if (const Refusal refusal = refuse_meetings(plans)) return refusal;
  std::vector<std::vector<Node>> nodes;
  for (const Plan& plan : plans) nodes.push_back(unroll(plan));
  if (!meet(plans, calls_of(plans, nodes), [](const auto&, const auto&) {}))
    return "collectives that wait for each other in a circle";
  for (const Plan& plan : plans) {
    if (const Refusal refusal = refuse_order(plan)) return refusal;
    if (const auto unwritten = first_unwritten(plan, false)) {
      const std::string& name = plan.buffers[idx(unwritten->buffer)].name;
      if (unwritten->step < 0) return str("rank ", plan.self, ": output ", name, " is not all written");
      return str("rank ", plan.self, " step ", unwritten->step, " reads of ", name,
                 " what nothing has written");
    }
  }
  return std::nullopt;
}

void order_conflicts(Plan& plan) {
  std::vector<Step*> steps;  // by StepId
  for (Segment& segment : plan.segments) {
    if (Step* step = std::get_if<Step>(&segment)) steps.push_back(step);
    if (Repeat* repeat = std::get_if<Repeat>(&segment))
      for (Step& step : repeat->steps) steps.push_back(&step);
  }
  for (Step* step : steps) step->after.clear();
  History history(plan);
  for (std::size_t n = 0; n < history.nodes.size(); ++n) {
    history.close(n);
    const Node& node = history.nodes[n];
    // The latest first: they imply most of the others.
    for (std::size_t m = n; m-- > 0;) {
      if (history.before[n].has(m) || !history.conflict(m, n)) continue;
      const Node& other = history.nodes[m];
      const bool same_repeat = other.segment == node.segment;
      steps[idx(node.id)]->after.push_back(
          {other.id, same_repeat ? static_cast<std::int32_t>(node.iteration - other.iteration) : 0});
      history.close(n);
    }
  }
}

}  // namespace cp::sim
