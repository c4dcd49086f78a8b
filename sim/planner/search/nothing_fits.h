// Why a search found nothing, and the nearest thing that works.
#pragma once

#include <cstdint>
#include <optional>

#include "shared/base/error.h"
#include "sim/planner/search/answer.h"

namespace cp::sim {

// The layouts that came nearest to working, of all that a search looked at.
struct NearestMisses {
  std::optional<ParallelLayout> refused;  // the first one that is not legal
  std::optional<ParallelLayout> leanest;  // of those that are legal but do not fit, the one of least memory
  std::int64_t leanest_bytes = 0;
  // Of those that fit but read the prompt too slowly, the fastest.
  std::optional<ParallelLayout> fastest_prompt;
  double fastest_prompt_us = 0;

  // Both keep the given layout if it is nearer than the one they have.
  void too_large(const ParallelLayout& layout, std::int64_t bytes);
  void too_slow(const ParallelLayout& layout, double prompt_us);
};

// Throws Infeasible where layouts are legal, with what the nearest lacks and what would make it fit; else
// InvalidInput.
[[noreturn]] void throw_nothing_fits(const PlanQuestion& question, const SearchCounts& counts,
                                     const NearestMisses& misses, int threads);

// What is fixed leaves no layout at all: throws InvalidInput with the error's words and the nearest value of
// a key that works.
[[noreturn]] void throw_with_nearest(const PlanQuestion& question, const InvalidInput& error, int threads);

}  // namespace cp::sim
