// Marks: what a layout may take at most to be in the answer of a search. Each layout that was replayed may
// move them, and whatever takes longer by its bound is not looked at.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "shared/base/units.h"
#include "sim/planner/search/answer.h"
#include "sim/planner/search/ranking.h"

namespace cp::sim {

class Marks {
 public:
  // `kinds`: how many of the best layouts of different kinds are certain to be in the answer. No layout that
  // takes longer than `most_ns` is. Where nothing is `limited`, every layout is needed.
  Marks(std::size_t kinds, double most_ns, bool limited)
      : wanted_(kinds), most_ns_(most_ns), limited_(limited) {}

  // What a layout may take at most to be among the best, or the best of its class, ties among them.
  double limit_ns(const ParallelLayout& layout) const;
  bool needed(double bound_ns, const ParallelLayout& layout) const { return bound_ns <= limit_ns(layout); }
  // Whether a layout of its class has been added.
  bool knows_class_of(const ParallelLayout& layout) const { return of_class_ns_.contains(class_of(layout)); }

  // One that was replayed. It sets the mark of its class; the other one stays where it is until move().
  void add(const Candidate& candidate);
  void move();

  double best_ns() const;  // of all that were added; kNever: of none

 private:
  const std::size_t wanted_;
  const double most_ns_;
  const bool limited_;
  std::map<LayoutKind, double> kinds_;         // best time of each
  std::map<std::string, double> of_class_ns_;  // the same
  double mark_ns_ = kNever;                    // what the best ones take at most
};

}  // namespace cp::sim
