// The two kinds of subjects. For sim/fuzz/mutate only; trials.h has the contract.
#pragma once

#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/check.h"
#include "sim/fabric/fabric.h"
#include "sim/fuzz/mutate/trials.h"

namespace cp::sim {

std::unique_ptr<Subject> make_redistribute_subject(const proto::Redistribute& job);
std::unique_ptr<Subject> make_attention_subject(const proto::Attention& job);

// Runs the work. Returns the message of what it throws, or nothing.
template <class Work>
std::optional<std::string> complaint_of(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::nullopt;
}

// The orders of the ranks under which mutants run, by number: the first takes turns at random, the second by
// random priorities (pct), the third in turn, and so on again. The number is the seed, too.
inline FabricOptions fabric_options(std::uint64_t schedule) {
  using Kind = BatonOrder::Kind;
  constexpr Kind kKinds[] = {Kind::random, Kind::pct, Kind::round_robin};
  FabricOptions options{.schedule = Schedule::baton, .seed = schedule};
  options.order.kind = kKinds[schedule % std::size(kKinds)];
  return options;
}

// Whether this judge is asked.
inline bool asked(const TrialOptions& options, Outcome judge) { return !options.absent.contains(judge); }

}  // namespace cp::sim
