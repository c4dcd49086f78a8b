// The moves that may follow a layout. Internal to shared/redistribute. To add a kind of move: enumerate it
// here, say in traffic.cc who sends what, charge it in move_cost.cc, write its steps in lower.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/redistribute/redistribution.h"
#include "shared/redistribute/traffic.h"

namespace cp::detail {

// Which of them.
enum class Breadth : std::uint8_t {
  // Every one between layouts that the space holds.
  all,
  // Those that the two layouts suggest: each dimension changes towards its axes in the target or is gathered;
  // axes that are free, or partial, are also taken all together or one by one, to spread the work of what
  // follows. They are some hundred, where all of them would be millions, and do not always hold the best
  // chain.
  towards_target,
};

// All layouts of a side are looked at where there are at most this many: a pass over them lasts some tens of
// milliseconds. Three axes and three dimensions of plain chunks make 106, or 685 with four axes. Where there
// are more, dimensions that neither source nor target shard are left out: detours through them can only pay
// under tight memory bounds.
inline constexpr double kTriedLayouts = 4000;

// About how many layouts of a side there are.
double count_layouts(const StateSpace& space, int side);

// Appends to `out` the candidates from `state`, in the order in which redistribution.h lists the kinds.
// Moves that end in a layout equal to `state` are left out.
void list_candidates(StateSpace& space, const State& state, Breadth breadth, std::vector<StateMove>& out);

}  // namespace cp::detail
