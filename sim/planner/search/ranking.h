// The order of candidates: their ranks, the best of each kind and of each class, and what makes the
// difference between two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "sim/planner/search/answer.h"

namespace cp::sim {

// Two layouts are of one kind if these numbers are equal. Of each kind, only the fastest layout stands among
// the best of an answer, so that the list shows real alternatives.
using LayoutKind = std::tuple<int, int, int, int, int, int, Core, int>;
LayoutKind kind_of(const ParallelLayout& layout);

// "pure CP", "TP + CP", "with PP", "without CP": the class that a layout counts for.
std::string class_of(const ParallelLayout& layout);

// Times are ties if they fall into the same step of this share, counted from the fastest time on; then the
// layout with more free memory comes first. Chosen: half a percent, less than a measurement of a step can
// tell apart. A larger value lets memory decide more often.
constexpr double kTie = 0.005;
// The memory of a layout in twentieths of what can be used, rounded down. Among ties, the layout that takes
// fewer twentieths comes first; if these are equal too, the faster one. The twentieth is chosen: a difference
// of less than that counts as none.
std::int64_t memory_step(const Memory& memory, std::int64_t usable_bytes);

// Sorts candidates, the fastest first and ties by memory, and sets their ranks.
void rank_candidates(std::vector<Candidate>& candidates);

// Returns the fastest candidate of each kind, at most `most` of them. `ranked` must be in order.
std::vector<Candidate> best_of_kinds(const std::vector<Candidate>& ranked, std::size_t most);
// The fastest of each class, and how far it is from the first.
std::vector<ClassBest> best_of_classes(const std::vector<Candidate>& ranked);

// What sets two candidates apart, part by part, the largest first: "+12.1 ms exposed cp, -3 ms products".
std::string difference(const Candidate& candidate, const Candidate& best);

}  // namespace cp::sim
