// LayoutChoices: what a layout takes on the timeline, with the choices that it leaves open: latent rows or
// heads, scans of recurrences, cores and balances of layers of their own (AttentionTimer::best_mixers), and
// pieces and slots (overlap.h). Whatever a sharper bound rules out is not replayed.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "shared/base/digest.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/marks.h"
#include "sim/planner/search/search_tools.h"

namespace cp::sim {

// What came of one layout.
struct ReplayedLayout {
  std::optional<Candidate> best;  // the fastest choice that fits
  double prompt_us = 0;           // until the first token, where that has a limit
  // Choices whose plans need more memory than there is, and what the one of them needs that needs least.
  std::vector<ParallelLayout> too_large;
  std::optional<ParallelLayout> leanest;
  Memory least;
};

class LayoutChoices {
 public:
  // `tools` and `marks` must outlive this. An `exhaustive` search replays every choice that may fit
  // and that AttentionTimer::best_mixers() has.
  LayoutChoices(SearchTools& tools, const Marks& marks, bool exhaustive, int threads);

  // In training: what the update of all members of a family takes; 0 where every choice is replayed anyway.
  // This and replay() may be called by several threads, each of which has a number of its own.
  double update_ns(const ParallelLayout& family, std::size_t thread);
  ReplayedLayout replay(const ParallelLayout& layout, double update_ns, std::size_t thread);
  // Keeps what was found of a layout of which no choice fits, for those that differ in attention alone. While
  // no thread replays.
  void remember_too_large(const ParallelLayout& layout, const ReplayedLayout& replayed);

  double most_prompt_us() const { return most_prompt_us_; }

 private:
  void replay_way(const ParallelLayout& way, double update_ns, ReplayedLayout& found, std::size_t thread);
  void replay_choices(const ParallelLayout& asked, double update_ns, ReplayedLayout& found,
                      std::size_t thread);
  bool another_attention_may_fit(const ParallelLayout& layout, Memory memory) const;
  bool may_fit(const ParallelLayout& choice, const ReplayedLayout& found) const;
  double least_ns(const ParallelLayout& layout, double update_ns, double most_ns) const;

  SearchTools& tools_;
  const Marks& marks_;
  const bool exhaustive_, sharper_;     // sharper: replays of parts of a step sharpen bounds
  std::vector<Evaluator> evaluators_;   // by thread
  std::optional<PlanQuestion> prompt_;  // decode under a limit: reading the prompts
  std::vector<Evaluator> prompts_;      // by thread
  double most_prompt_us_ = kNever;
  std::map<Digest, Memory> too_large_;  // whatever the attention, by but_for_attention()
};

}  // namespace cp::sim
