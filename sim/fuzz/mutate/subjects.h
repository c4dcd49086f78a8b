// The two kinds of subjects. For sim/fuzz/mutate alone; the contract is in trials.h.
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

// The orders of the ranks that mutants run under, by number: by turns that are drawn, by priorities that are
// drawn, in turn, and so on.
inline FabricOptions fabric_options(std::uint64_t schedule) {
  using Kind = BatonOrder::Kind;
  constexpr Kind kKinds[] = {Kind::random, Kind::pct, Kind::round_robin};
  FabricOptions options{.schedule = Schedule::baton, .seed = schedule};
  options.order.kind = kKinds[schedule % std::size(kKinds)];
  return options;
}

inline bool asked(const TrialOptions& options, Outcome judge) { return !options.absent.contains(judge); }

}  // namespace cp::sim
