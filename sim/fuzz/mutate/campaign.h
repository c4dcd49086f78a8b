// A campaign tries many mutants of many plans, and makes the table of who catches what.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "sim/fuzz/mutate/trials.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

struct MutateOptions {
  std::int64_t cases = 10'000;  // mutants; chosen: some seconds of work (docs/mutants.md)
  std::uint64_t seed = 1;
  int jobs = 1;  // threads; what is found does not depend on their number
  // Mutants of one set of plans, before the next set is drawn. Chosen: about one and a half for each kind.
  std::int64_t per_subject = 50;
  TrialOptions trial = {};
  std::set<Outcome> listed = {};            // mutants that end like this are listed, with a line for each
  const std::atomic<bool>* stop = nullptr;  // ends the campaign soon after it is set
  // Called from any thread, by one at a time.
  std::function<void(std::int64_t done, std::int64_t survivors)> progress;
};

// How many mutants ended in which way.
struct Tally {
  std::array<std::int64_t, kOutcomes.size()> of{};  // by Outcome
  std::int64_t tried() const;
  std::int64_t count(Outcome outcome) const { return of[static_cast<std::size_t>(outcome)]; }
  void add(const Tally& other);
};

struct Survivor {
  proto::FuzzCase job;  // with its mutation, and what is known of it as the finding
  std::string text;     // the same in one line
};

struct MutateResult {
  // By mutation, strategy and target.
  std::map<std::tuple<MutationKind, std::string, std::string>, Tally> tallies;
  std::int64_t subjects = 0;
  std::vector<Survivor> survivors;  // in the order of the cases
  std::vector<std::string> listed;  // also in this order
  std::vector<std::string> broken;  // subjects whose unharmed plans do not hold: defects of the project
  bool stopped = false;

  Tally total() const;
  // True if more than kMostSurvivors of the mutants survive, or a subject is broken.
  bool fails() const;
};
// The part of all mutants that may survive. Chosen: docs/mutants.md measured far fewer, so a judge that no
// longer works shows.
inline constexpr double kMostSurvivors = 0.005;

// Runs a campaign in `jobs` threads. The results do not depend on their number.
MutateResult run_mutants(const MutateOptions& options);

}  // namespace cp::sim
