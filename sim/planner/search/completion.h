// complete(): takes a layout of which some keys are given, and lets the search choose the others. --explain,
// --baseline and --compare look at its result.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/planner/search/answer.h"
#include "sim/planner/search/question.h"
#include "sim/planner/search/search.h"

namespace cp::sim {

// Joins the keys that a question fixes with those that a layout gives. Degrees belong together, and so do the
// keys of a strategy: if the layout gives any degree, all degrees of the question are dropped, and likewise
// for the keys of the strategy.
Fixed merged(const Fixed& question, const Fixed& given);

struct Completion {
  enum class Kind {
    rejected,   // no layout with these keys is legal or, in decode, reads its prompt in time
    too_large,  // none fits into memory; `candidate` is the one that lacks least
    fits,
  };
  Kind kind = Kind::rejected;
  std::optional<Candidate> candidate;  // the fastest with the given keys; absent if rejected
  std::string reason;                  // why it is rejected, or too large
  // The keys that were not given, with what the search chose: "strategy=all_gather,balance=head_tail". Empty
  // if all keys were given.
  std::string found;
  // Another value of one key with which it works, and which was tried: "tp=4,cp=8". Empty if there is none.
  std::string works;
  // The layout with the defaults for all other keys, if that differs from `candidate`. If it cannot run,
  // `as_written_fails` says why.
  std::optional<Candidate> as_written;
  std::string as_written_fails;
  std::vector<std::string> lost;  // what of it the question's frameworks cannot express
};
// Completes the layout. A layout that does not work is no error but a Kind; only what the search throws when
// it is stopped comes through.
Completion complete(const PlanQuestion& question, const PartialLayout& asked,
                    const SearchOptions& options = {});

// ---- the nearest that works ----

struct NearestKey {
  std::string key, value;  // "tp", "4"
};
// Finds the smallest change of one key after which some layout is legal and fits. Only keys that are set in
// `changeable` may change; the question fixes all of them. Of the keys that help, the one whose new value is
// nearest to its old one is returned; nothing if none helps.
std::optional<NearestKey> nearest_key(const PlanQuestion& question, const Fixed& changeable, int threads = 0);

// The text of a layout with the nearest key that works in place of its own: "tp=4,cp=8" for "tp=8,cp=8". The
// question fixes `given`, which is what the text gives. Empty if no other value of one key works.
std::string nearest_layout(const PlanQuestion& question, std::string_view text, const Fixed& given,
                           int threads = 0);

}  // namespace cp::sim
