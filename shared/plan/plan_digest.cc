#include <algorithm>

#include "shared/base/text.h"
#include "shared/plan/canonical.h"
#include "shared/plan/operations.h"
#include "shared/plan/plan.h"

namespace cp {
namespace {

// One overload for each type of field; enumerations by their text names or declared numbers, never by address
// or size.
void hash(Hasher& hasher, std::int32_t value) { hasher.add(value); }
void hash(Hasher& hasher, std::int64_t value) { hasher.add(value); }
void hash(Hasher& hasher, double value) { hasher.add(value); }
void hash(Hasher& hasher, bool value) { hasher.add(value); }
void hash(Hasher& hasher, ReduceOp op) { hasher.add(name(op)); }
void hash(Hasher& hasher, RowOperation operation) { hasher.add(name(operation)); }
void hash(Hasher& hasher, AttentionEngine engine) { hasher.add(static_cast<int>(engine)); }
void hash(Hasher& hasher, ActivationFunction function) { hasher.add(static_cast<int>(function)); }
void hash(Hasher& hasher, RecurrenceRule rule) { hasher.add(static_cast<int>(rule)); }
void hash(Hasher& hasher, const Digest& digest) { hasher.add(digest); }
void hash(Hasher& hasher, const View& view) {
  hasher.add(view.buffer).add(view.offset).add_all(view.shape).add_all(view.strides);
  hasher.add(view.advance.stride).add(view.advance.period).add(view.advance.phase);
}
void hash(Hasher& hasher, const Transfer& transfer) {
  hasher.add(transfer.peer);
  hash(hasher, transfer.view);
  // This, and what else copy engines add, only where it is: plans without them keep their digests.
  if (!is_absent(transfer.there)) hasher.add(std::string_view("there")), hash(hasher, transfer.there);
}
void hash(Hasher& hasher, const MaskSlice& slice) {
  hasher.add(slice.q_begin).add(slice.q_len).add(slice.k_begin).add(slice.k_len);
  hasher.add(static_cast<int>(slice.kind)).add(slice.diagonal).add(slice.window);
}
void hash(Hasher& hasher, const IndexSet& set) {
  hasher.add(set.size());
  for (const Run& run : set) hasher.add(run.begin).add(run.run).add(run.stride).add(run.count);
}
void hash(Hasher& hasher, const AttentionDropout& dropout) {
  hasher.add(dropout.probability).add(dropout.layer).add(dropout.first_batch).add(dropout.first_head);
  hasher.add(dropout.heads);
  hash(hasher, dropout.queries), hash(hasher, dropout.keys);
}
void hash(Hasher& hasher, const Buffer& buffer) {
  hasher.add(static_cast<int>(buffer.kind)).add(name(buffer.dtype)).add(buffer.numel);
  hasher.add(buffer.offset_bytes).add(buffer.first_use).add(buffer.last_use);
  if (buffer.symmetric) hasher.add(std::string_view("symmetric"));
}
void hash(Hasher& hasher, const Group& group) {
  hasher.add(std::string_view(group.name)).add_all(group.ranks);
  if (group.copy_engine) hasher.add(std::string_view("copy_engine"));
}
void hash(Hasher& hasher, const Step& step);
void hash(Hasher& hasher, const ColumnMove& move);
void hash(Hasher& hasher, const ConvolvedRun& run);
void hash(Hasher& hasher, const RowRule& rule);

template <class T>
void hash(Hasher& hasher, const std::vector<T>& values) {
  hasher.add(values.size());
  for (const T& value : values) hash(hasher, value);
}

// With its name if it may be left out, so that plans without it keep their digests.
template <class Op, class Field>
void hash_field(Hasher& hasher, std::string_view field_name, const Field& field) {
  if (may_be_left_out<Op>(field_name)) {
    if (field == Field{}) return;
    hasher.add(field_name);
  }
  hash(hasher, field);
}

void hash(Hasher& hasher, const ColumnMove& move) {
  visit_rule_fields(move, [&](std::string_view, const auto& field) { hash(hasher, field); });
}
void hash(Hasher& hasher, const ConvolvedRun& run) {
  visit_rule_fields(run, [&](std::string_view, const auto& field) { hash(hasher, field); });
}
void hash(Hasher& hasher, const RowRule& rule) {
  hasher.add(kRowRules[rule.index()]);
  std::visit(
      [&]<class Rule>(const Rule& chosen) {
        visit_rule_fields(chosen, [&]<class Field>(std::string_view field_name, const Field& field) {
          hash_field<Rule>(hasher, field_name, field);
        });
      },
      rule);
}

void hash(Hasher& hasher, const Step& step) {
  hasher.add(step.stream).add(operation_name(step.work));
  visit_operation(step.work, [&]<class Op>(const Op& op) {
    visit_fields(op, [&]<class Field>(std::string_view field_name, const Field& field) {
      hash_field<Op>(hasher, field_name, field);
    });
  });
  hasher.add(step.after.size());
  for (const Edge& edge : step.after) hasher.add(edge.step).add(edge.iterations_back);
}

// What all members of the group must agree on. An Exchange's dtypes are those of each pair's transfers, which
// a third member cannot know.
void hash_canonical(Hasher& hasher, const Plan& plan, const Collective& collective) {
  const auto add_data = [&](const View& view) {
    hasher.add(name(plan.buffers[static_cast<std::size_t>(view.buffer)].dtype)).add(view.numel());
  };
  hasher.add(operation_name(collective));
  std::visit(Overloaded{[&](const AllGather& op) { add_data(op.in); },
                        [&](const ReduceScatter& op) { add_data(op.out), hash(hasher, op.op); },
                        [&](const AllReduce& op) { add_data(op.out), hash(hasher, op.op); },
                        [&](const AllToAll& op) { add_data(op.in); },
                        [&](const Broadcast& op) { add_data(op.out), hasher.add(op.root); },
                        [&](const Exchange& op) { hasher.add(op.counts); }},
             collective);
}

}  // namespace

Digest counts_digest(std::vector<Count> counts) {
  std::sort(counts.begin(), counts.end());
  std::vector<Count> entries;
  for (const Count& count : counts) {
    if (count.numel == 0) continue;
    if (!entries.empty() && entries.back().from == count.from && entries.back().to == count.to) {
      entries.back().numel += count.numel;
    } else {
      entries.push_back(count);
    }
  }
  Hasher hasher;
  hasher.add(entries.size());
  for (const Count& entry : entries) hasher.add(entry.from).add(entry.to).add(entry.numel);
  return hasher.digest();
}

Digest digest(const Plan& plan) {
  Hasher hasher;
  hasher.add(std::string_view("plan")).add(plan.self);
  hash(hasher, plan.target);
  hash(hasher, plan.groups);
  hash(hasher, plan.buffers);
  hasher.add(plan.streams.size()).add(plan.arena_bytes).add(plan.inputs).add(plan.segments.size());
  if (plan.symmetric_bytes > 0) hasher.add(std::string_view("symmetric")).add(plan.symmetric_bytes);
  for (const Segment& segment : plan.segments) {
    std::visit(Overloaded{[&](const Step& step) { hasher.add(std::string_view("step")), hash(hasher, step); },
                          [&](const Repeat& repeat) {
                            hasher.add(std::string_view("repeat")).add(repeat.count);
                            hash(hasher, repeat.steps);
                          }},
               segment);
  }
  return hasher.digest();
}

std::string canonical_name(const Group& group) { return str(group.name, "[", join(group.ranks), "]"); }

Digest canonical_digest(const Plan& plan, const Collective& collective) {
  Hasher hasher;
  hash_canonical(hasher, plan, collective);
  return hasher.digest();
}

Digest collective_digest(const Plan& plan, GroupId group) {
  const auto on_group = [&](const Step& step) {
    const Collective* collective = std::get_if<Collective>(&step.work);
    return collective != nullptr && group_of(*collective) == group ? collective : nullptr;
  };
  Hasher hasher;
  hash(hasher, plan.groups.at(static_cast<std::size_t>(group)));
  for (const Segment& segment : plan.segments) {
    if (const Step* step = std::get_if<Step>(&segment)) {
      if (const Collective* collective = on_group(*step)) hash_canonical(hasher, plan, *collective);
      continue;
    }
    // A Repeat without collectives on the group is not seen by the group.
    const Repeat& repeat = std::get<Repeat>(segment);
    if (std::none_of(repeat.steps.begin(), repeat.steps.end(), on_group)) continue;
    hasher.add(std::string_view("repeat")).add(repeat.count);
    for (const Step& step : repeat.steps) {
      if (const Collective* collective = on_group(step)) hash_canonical(hasher, plan, *collective);
    }
    hasher.add(std::string_view("end"));
  }
  return hasher.digest();
}

}  // namespace cp
