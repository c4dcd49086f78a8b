// Reductions, sums, scales and masks.
#include <array>
#include <cmath>

#include "shared/base/index.h"
#include "sim/fuzz/mutate/mutation_sites.h"

namespace cp::sim {
namespace {

constexpr std::array kReductions = {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max,
                                    ReduceOp::product};

ReduceOp other_reduction(ReduceOp op, Numbers& draws) {
  return kReductions[(static_cast<std::size_t>(op) + 1 + draws.below(kReductions.size() - 1)) %
                     kReductions.size()];
}

void change_reduction(Sites& sites, const Spot& spot) {
  for_each_field<ReduceOp>(*spot.step, [&](std::string_view field, ReduceOp& op) {
    sites.offer(spot, !is_collective(*spot.step), [field, &op](Numbers& draws) {
      const ReduceOp before = op;
      op = other_reduction(op, draws);
      return str(field, ": ", name(before), " -> ", name(op));
    });
  });
}

void change_reductions(Sites& sites) {
  for (const GroupMeeting& meeting : meetings(sites.plans)) {
    const Spot first = meeting.first();
    for_each_field<ReduceOp>(*first.step, [&](std::string_view field, ReduceOp& op) {
      sites.offer(first, true, [meeting, field, &op](Numbers& draws) {
        const ReduceOp before = op, after = other_reduction(op, draws);
        for (const Spot& spot : meeting.members) {
          if (spot.step == nullptr) continue;
          for_each_field<ReduceOp>(*spot.step, [&](std::string_view, ReduceOp& each) { each = after; });
        }
        return str("on all ranks, ", field, ": ", name(before), " -> ", name(after));
      });
    });
  }
}

void overwrite_sum(Sites& sites, const Spot& spot) {
  const Accumulate* sum = operation_of<Accumulate>(*spot.step);
  if (sum == nullptr || sum->in.numel() == 0) return;
  sites.offer(spot, true, [spot, sum](Numbers&) {
    const View in = sum->in, out = sum->out;
    const auto dtype = [&](const View& view) { return spot.plan->buffers[idx(view.buffer)].dtype; };
    spot.step->work = dtype(in) == dtype(out) ? Kernel{Copy{in, out}} : Kernel{Cast{in, out}};
    return str("accumulate -> ", operation_name(spot.step->work));
  });
}

void flip_accumulate(Sites& sites, const Spot& spot) {
  const AttentionBackward* backward = operation_of<AttentionBackward>(*spot.step);
  for_each_field<bool>(*spot.step, [&](std::string_view field, bool& flag) {
    if (backward != nullptr) {
      const bool is_dq = field == "accumulate_dq";
      if ((is_dq ? backward->dq.numel() : backward->dk.numel() + backward->dv.numel()) == 0) return;
    }
    sites.offer(spot, true, [field, &flag](Numbers&) {
      flag = !flag;
      return str(field, ": ", flag ? "false -> true" : "true -> false");
    });
  });
}

void drop_operand(Sites& sites, const Spot& spot) {
  AttentionMerge* merge = operation_of<AttentionMerge>(*spot.step);
  if (merge == nullptr) return;
  for (std::size_t i = 0; i < merge->more.size(); ++i) {
    sites.offer(spot, true, [spot, merge, i](Numbers&) {
      const std::string dropped = text(*spot.plan, merge->more[i]);
      merge->more.erase(merge->more.begin() + static_cast<std::ptrdiff_t>(i));
      if (!merge->more_lse.empty())
        merge->more_lse.erase(merge->more_lse.begin() + static_cast<std::ptrdiff_t>(i));
      return str("more ", i, ", ", dropped, ": dropped");
    });
  }
}

// Forgotten, taken twice or taken back; twice or half as much, or of the other sign.
void change_scale(Sites& sites, const Spot& spot) {
  for_each_field<double>(*spot.step, [&](std::string_view field, double& value) {
    sites.offer(spot, true, [field, &value](Numbers& draws) {
      const double before = value;
      std::vector<double> others;
      for (const double other : {1.0, 0.0, before * before, 1 / before, 2 * before, before / 2, -before}) {
        if (std::isfinite(other) && other != before) others.push_back(other);
      }
      value = draws.of(others);
      return str(field, ": ", before, " -> ", value);
    });
  });
}

// ---- masks ----

std::string slice_text(const MaskSlice& slice) {
  const char* kind = slice.kind == MaskSlice::Kind::full     ? "full"
                     : slice.kind == MaskSlice::Kind::causal ? "causal"
                                                             : "window";
  return str(kind, " q[", slice.q_begin, ", +", slice.q_len, ") k[", slice.k_begin, ", +", slice.k_len,
             ") diagonal ", slice.diagonal, " window ", slice.window);
}

template <class Offer>
void each_slice(Sites& sites, const Offer& offer) {
  sites.for_each_step([&](const Spot& spot) {
    for_each_field<std::vector<MaskSlice>>(*spot.step, [&](std::string_view, std::vector<MaskSlice>& slices) {
      for (std::size_t i = 0; i < slices.size(); ++i) offer(spot, slices, i);
    });
  });
}

void change_range(MaskSlice& slice, Numbers& draws) {
  using Field = std::int64_t MaskSlice::*;
  const Field field =
      draws.of<Field>({&MaskSlice::q_begin, &MaskSlice::q_len, &MaskSlice::k_begin, &MaskSlice::k_len});
  const std::int64_t by = draws.of<std::int64_t>({1, -1});
  slice.*field += by;
  // Half of the times the other end stays where it is.
  if (!draws.one_in(2)) return;
  if (field == &MaskSlice::q_begin) slice.q_len -= by;
  if (field == &MaskSlice::k_begin) slice.k_len -= by;
}

void change_rule(MaskSlice& slice, Numbers& draws) {
  using Rule = MaskSlice::Kind;
  if (draws.one_in(2)) {
    const Rule other =
        static_cast<Rule>((static_cast<int>(slice.kind) + static_cast<int>(draws.in(1, 2))) % 3);
    slice.kind = other;
    if (other == Rule::window && slice.window == 0) slice.window = draws.in(1, 4);
  } else if (slice.kind == Rule::full) {
    slice.kind = Rule::causal;
  } else if (slice.kind == Rule::window && draws.one_in(2)) {
    slice.window += draws.of<std::int64_t>({1, -1});
  } else {
    slice.diagonal += draws.of<std::int64_t>({1, -1});
  }
}

void change_slices(Sites& sites, void (*change)(MaskSlice&, Numbers&)) {
  each_slice(sites, [&](const Spot& spot, std::vector<MaskSlice>& slices, std::size_t i) {
    sites.offer(spot, true, [change, &slices, i](Numbers& draws) {
      const std::string before = slice_text(slices[i]);
      change(slices[i], draws);
      return str("slice ", i, ": ", before, " -> ", slice_text(slices[i]));
    });
  });
}

void drop_slice(Sites& sites) {
  each_slice(sites, [&](const Spot& spot, std::vector<MaskSlice>& slices, std::size_t i) {
    sites.offer(spot, true, [&slices, i](Numbers&) {
      const std::string before = slice_text(slices[i]);
      slices.erase(slices.begin() + static_cast<std::ptrdiff_t>(i));
      return str("slice ", i, ", ", before, ": dropped");
    });
  });
}

void repeat_slice(Sites& sites) {
  each_slice(sites, [&](const Spot& spot, std::vector<MaskSlice>& slices, std::size_t i) {
    sites.offer(spot, true, [&slices, i](Numbers&) {
      slices.push_back(MaskSlice(slices[i]));
      return str("slice ", i, ", ", slice_text(slices[i]), ": taken twice");
    });
  });
}

}  // namespace

void arithmetic_sites(Sites& sites, MutationKind kind) {
  const auto each = [&](void (*offer)(Sites&, const Spot&)) {
    sites.for_each_step([&](const Spot& spot) {
      if (has_work(*spot.step)) offer(sites, spot);
    });
  };
  switch (kind) {
    case MutationKind::change_reduction:
      return each(change_reduction);
    case MutationKind::change_reduction_everywhere:
      return change_reductions(sites);
    case MutationKind::overwrite_sum:
      return each(overwrite_sum);
    case MutationKind::flip_accumulate:
      return each(flip_accumulate);
    case MutationKind::drop_operand:
      return each(drop_operand);
    case MutationKind::change_scale:
      return each(change_scale);
    case MutationKind::change_mask_range:
      return change_slices(sites, change_range);
    case MutationKind::change_mask_rule:
      return change_slices(sites, change_rule);
    case MutationKind::drop_slice:
      return drop_slice(sites);
    case MutationKind::repeat_slice:
      return repeat_slice(sites);
    default:
      return;
  }
}

}  // namespace cp::sim
