// Many mutants of many plans: the table of who catches what.
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
  std::int64_t cases = 10'000;  // mutants
  std::uint64_t seed = 1;
  int jobs = 1;                   // threads; what is found does not depend on it
  std::int64_t per_subject = 50;  // mutants of one set of plans
  TrialOptions trial = {};
  std::set<Outcome> listed = {};            // mutants that end so are listed, a line each
  const std::atomic<bool>* stop = nullptr;  // ends the campaign soon after it is set
  // From any thread, one at a time.
  std::function<void(std::int64_t done, std::int64_t survivors)> progress;
};

struct Tally {
  std::array<std::int64_t, kOutcomes.size()> of{};  // by Outcome
  std::int64_t tried() const;
  std::int64_t count(Outcome outcome) const { return of[static_cast<std::size_t>(outcome)]; }
  void add(const Tally& other);
};

struct Survivor {
  proto::FuzzCase job;  // with the mutation, and what is known of it as the finding
  std::string text;     // in a line
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
  // More than 0.5 % survive, or a subject is broken.
  bool fails() const;
};
inline constexpr double kMostSurvivors = 0.005;  // of all mutants

MutateResult run_mutants(const MutateOptions& options);

}  // namespace cp::sim
