// Where rows lie between tokens and experts: the formulas of SlotsRule (row_operations.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "shared/base/index.h"
#include "shared/plan/row_operations.h"

namespace cp {

class ExpertSlots {
 public:
  // `capacity`: how many slots a rank has in all.
  ExpertSlots(const SlotsRule& rule, std::int64_t capacity)
      : ranks_(rule.ranks),
        experts_(rule.experts / rule.ranks),
        capacity_(capacity),
        each_((capacity + experts_ - 1) / experts_) {}

  // Of an expert of the layer: the first slot of its rows, and the one behind its last.
  struct Slots {
    std::int64_t begin = 0, end = 0;
  };
  std::vector<Slots> of_experts() const {
    std::vector<Slots> all;
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      std::int64_t begin = rank * block();
      for (std::int64_t e = 0; e < experts_; ++e) {
        all.push_back({begin, begin + of_source(e)});
        begin = all.back().end;
      }
    }
    return all;
  }

  // Calls f(choice, slot) for each choice in `chosen`, by row and place; slot -1: it was dropped.
  template <class F>
  void for_choices(const std::vector<std::int32_t>& chosen, const F& f) const {
    std::vector<Slots> free = of_experts();
    for (std::size_t choice = 0; choice < chosen.size(); ++choice) {
      Slots& slots = free[idx(chosen[choice])];
      f(choice, slots.begin < slots.end ? slots.begin++ : std::int64_t{-1});
    }
  }

  // Calls f(arrived, sorted) for each row that a source rank may have filled: where it is among what arrived,
  // and where among the experts' rows.
  template <class F>
  void for_arrived(const F& f) const {
    for (std::int64_t source = 0; source < ranks_; ++source) {
      std::int64_t arrived = source * block();
      for (std::int64_t e = 0; e < experts_; ++e) {
        for (std::int64_t i = 0; i < of_source(e); ++i) f(arrived++, region(e) + source * of_source(e) + i);
      }
    }
  }

 private:
  std::int64_t block() const { return capacity_ / ranks_; }
  // Of the rank's expert e: the first of its rows, and how many a source rank fills.
  std::int64_t region(std::int64_t e) const { return std::min(capacity_, e * each_); }
  std::int64_t of_source(std::int64_t e) const { return (region(e + 1) - region(e)) / ranks_; }

  std::int64_t ranks_, experts_, capacity_, each_;
};

}  // namespace cp
