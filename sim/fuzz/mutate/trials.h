// Trials of mutants: who notices that a set of plans is damaged?
//
// A subject is a right set of plans, together with what they compute. Its mutants are judged in this order,
// and the first judge that objects has caught the mutant:
//
//   check    check() over all ranks' plans. What it refuses never runs.
//   fabric   a mismatch, a deadlock, or whatever else a run on the simulated fabric throws
//   ledger   what was asked for and what was done; bytes; mask cells; peak memory
//   result   the data, against the index sets or against one device in float64, under each of several orders
//            of the ranks (and for a redistribution under other data, too)
//
// A mutant to which nobody objects is `equivalent` if its outputs are bit for bit those of the right plans in
// all these orders. It is `rearranged` if its outputs differ by the order of a sum alone: they are within the
// bound of rounding, and the ledger has proved that each output is made of all its cells, each once. All
// others are survivors.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/fuzz/mutate/plan_mutations.h"
#include "traces/fuzz_case.pb.h"

namespace cp::sim {

enum class Outcome : std::uint8_t { check, fabric, ledger, result, equivalent, rearranged, survivor };
inline constexpr std::array kOutcomes = {Outcome::check,   Outcome::fabric,     Outcome::ledger,
                                         Outcome::result,  Outcome::equivalent, Outcome::rearranged,
                                         Outcome::survivor};
std::string_view name(Outcome outcome);  // "check"

struct MutantJudgement {
  Outcome outcome = Outcome::survivor;
  std::string explanation;  // the objection, or how a survivor's result differs
};

struct TrialOptions {
  // The number of orders of the ranks under which a mutant must run to count as equivalent. Chosen: each of
  // the three kinds of order, and one of them a second time (subjects.h).
  int schedules = 4;
  // Judges that are not asked, so that a test can see a survivor. Never `check`, which keeps the others from
  // harm.
  std::set<Outcome> absent = {};
};

// A right set of plans that can judge mutants of it. Only one thread at a time may use it.
class Subject {
 public:
  virtual ~Subject() = default;
  Subject(const Subject&) = delete;
  Subject& operator=(const Subject&) = delete;

  // Words for tables: "ring", "ring backward", "redistribute all_gather"; and "host", "sm90".
  virtual std::string strategy(bool backward) const = 0;
  virtual std::string target() const = 0;
  // The right plans, by rank. Empty if there is no such pass.
  virtual const std::vector<Plan>& plans(bool backward) const = 0;
  // Judges these plans in place of the right ones.
  virtual MutantJudgement judge(bool backward, const std::vector<Plan>& plans,
                                const TrialOptions& options) = 0;

 protected:
  Subject() = default;
};

// The subject of a case's job, which must be a redistribution or attention with one strategy. The case's
// order and faults are not looked at. Throws InvalidInput for another job and for one that cannot be planned,
// and CheckFailure if the unharmed plans do not hold.
std::unique_ptr<Subject> make_subject(const proto::FuzzCase& job);

struct MutantTrial {
  Mutation mutation;
  MutantJudgement judgement;
};

// Damages a copy of the subject's plans and judges it. Returns nothing if the plans have no place for the
// mutation.
std::optional<MutantTrial> attempt(Subject& subject, const proto::PlanMutation& mutation,
                                   const TrialOptions& options = {});

// Applies the mutation of a case to plans that somebody else has made from its job. Returns what was changed
// where. Throws InvalidInput for a kind that does not exist, for a negative place, and if the plans have no
// place for it.
std::string apply_mutation(std::vector<Plan>& plans, const proto::PlanMutation& mutation);

// Who catches the mutation of a case, as a finding: its property is, for example, "mutant: ledger", and its
// message what was changed and what the judge said of it. Returns nothing if the mutant is equivalent or
// rearranged, or survives. Throws as make_subject() and apply_mutation() do.
std::optional<proto::Finding> find_mutant(const proto::FuzzCase& fuzz_case);

}  // namespace cp::sim
