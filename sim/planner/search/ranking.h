// Order among candidates: their ranks, the best of each kind and of each class, and what sets two apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "sim/planner/search/answer.h"

namespace cp::sim {

// What makes layouts different enough to stand beside each other among the best; of each, the fastest does.
using LayoutKind = std::tuple<int, int, int, int, int, int, Core, int>;
LayoutKind kind_of(const ParallelLayout& layout);

// "pure CP", "TP + CP", "with PP", "without CP": the class that a layout counts for.
std::string class_of(const ParallelLayout& layout);

// Times in steps of this from the fastest on are ties: no measurement of a step tells them apart, and the
// freer one comes first.
constexpr double kTie = 0.005;
// Memory in twentieths of what can be used: of ties, what takes a twentieth less comes first, then the faster
// one.
std::int64_t memory_step(const Memory& memory, std::int64_t usable_bytes);

// Sorts them, the fastest first, ties by their memory, and sets their ranks.
void rank_candidates(std::vector<Candidate>& candidates);

// Of ranked ones: the fastest of each kind, `most` of them at most.
std::vector<Candidate> best_of_kinds(const std::vector<Candidate>& ranked, std::size_t most);
// The fastest of each class, and how far it is from the first.
std::vector<ClassBest> best_of_classes(const std::vector<Candidate>& ranked);

// What sets two candidates apart, part by part, the largest first: "+12.1 ms exposed cp, -3 ms products".
std::string difference(const Candidate& candidate, const Candidate& best);

}  // namespace cp::sim
