// A layout of which some keys are given, with the others as the search finds them: what --explain, --baseline
// and --compare look at.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/planner/search/answer.h"
#include "sim/planner/search/question.h"
#include "sim/planner/search/search.h"

namespace cp::sim {

// Keys that are fixed in a question, and those of a layout: where the layout gives one of the degrees, or one
// of the strategy's keys, these are its alone, since degrees (and the keys of a strategy) belong together.
Fixed merged(const Fixed& question, const Fixed& given);

struct Completion {
  enum class Kind {
    rejected,   // no layout with these keys is legal, or (in decode) reads its prompt in time
    too_large,  // none fits; the one that lacks least memory is timed
    fits,
  };
  Kind kind = Kind::rejected;
  std::optional<Candidate> candidate;  // the fastest with the given keys; none where it is rejected
  std::string reason;                  // rejected, too large
  std::string
      found;  // the keys that were not given: "strategy=all_gather,balance=head_tail"; empty: all were
  // What would work, and was tried: "tp=4,cp=8"; empty where no other value of one key does.
  std::string works;
  // The layout with the defaults for all other keys, where that is another one; `as_written_fails` says why
  // it cannot run.
  std::optional<Candidate> as_written;
  std::string as_written_fails;
  std::vector<std::string> lost;  // what the question's frameworks have no word for in it
};
// Throws nothing but what the search throws when it is stopped.
Completion complete(const PlanQuestion& question, const PartialLayout& asked,
                    const SearchOptions& options = {});

// ---- the nearest that works ----

struct NearestKey {
  std::string key, value;  // "tp", "4"
};
// Another value of one of the keys of `changeable`, all of which the question fixes, with which something is
// legal and fits: the nearest value of the key for which it is nearest.
std::optional<NearestKey> nearest_key(const PlanQuestion& question, const Fixed& changeable);

// The text of a layout with the nearest key that works in place of its own: "tp=4,cp=8" for "tp=8,cp=8". The
// question fixes `given`, which is what the text gives. Empty if no other value of one key works.
std::string nearest_layout(const PlanQuestion& question, std::string_view text, const Fixed& given);

}  // namespace cp::sim
