// The two kinds of subjects. For sim/mutate alone; the contract is in trials.h.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/check.h"
#include "sim/mutate/trials.h"

namespace cp::sim {

std::unique_ptr<Subject> make_redistribute_subject(const proto::Redistribute& job);
std::unique_ptr<Subject> make_attention_subject(const proto::Attention& job);

// What the work throws, in words.
template <class Work>
std::optional<std::string> complaint_of(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::nullopt;
}

inline bool asked(const TrialOptions& options, Outcome judge) { return !options.absent.contains(judge); }

}  // namespace cp::sim
