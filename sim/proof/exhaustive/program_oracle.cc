#include "sim/proof/exhaustive/program_oracle.h"

#include <algorithm>
#include <map>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "sim/proof/exhaustive/program_steps.h"

namespace cp::sim {
namespace {

using namespace program;

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

}  // namespace

std::optional<Unwritten> find_unwritten(const Plan& plan) { return first_unwritten(plan, true); }

Refusal refuse_alone(std::span<const Plan> plans) {
  for (const Plan& plan : plans) {
    if (plan.inputs != plans.front().inputs) return str("rank ", plan.self, "'s plan has other inputs");
    if (const Refusal refusal = refuse_structure(plan)) return refusal;
    if (const Refusal refusal = refuse_memory(plan)) return refusal;
  }
  return std::nullopt;
}

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
