// The checker of plans that ranks run one after the other. check() (check.h) proves what the plans of one
// part of the work promise; this proves that ranks which run many of them, each rank those of its own list,
// meet in the collectives of all of them and never wait for ever.
//
// Ranks are run as the strictest device would: a rank does one collective after the other, in the order in
// which it issues them, and each collective, a transfer between two ranks among them, ends when all members
// of its group have come to it. Whatever a device does beside one another waits for less.
#pragma once

#include <span>
#include <vector>

#include "shared/plan/plan.h"

namespace cp {

// What a rank runs, in order; a plan may come again and again. All are of one rank.
using PlanSequence = std::vector<const Plan*>;

// Throws CollectiveMismatch where members of a group come to collectives that differ in operation, type,
// counts, reduction or root, and Deadlock with the cycle where ranks wait for one another, or for a rank that
// has done all that it had. Each sequence must have a plan at least. Takes time in proportion to the number
// of collectives, those of all iterations of Repeats.
void check_sequences(std::span<const PlanSequence> ranks);

}  // namespace cp
