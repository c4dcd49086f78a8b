#include "sim/fuzz/mutate/trials.h"

#include "shared/base/error.h"
#include "sim/fuzz/mutate/subjects.h"

namespace cp::sim {

std::string_view name(Outcome outcome) {
  switch (outcome) {
    case Outcome::check:
      return "check";
    case Outcome::fabric:
      return "fabric";
    case Outcome::ledger:
      return "ledger";
    case Outcome::result:
      return "result";
    case Outcome::equivalent:
      return "equivalent";
    case Outcome::rearranged:
      return "rearranged";
    case Outcome::survivor:
      return "survivor";
  }
  return "";
}

std::unique_ptr<Subject> make_subject(const proto::FuzzCase& job) {
  std::unique_ptr<Subject> subject;
  switch (job.job_case()) {
    case proto::FuzzCase::kRedistribute:
      subject = make_redistribute_subject(job.redistribute());
      break;
    case proto::FuzzCase::kAttention:
      subject = make_attention_subject(job.attention());
      break;
    default:
      throw InvalidInput("a case without data has no plans to damage; use redistribute or attention");
  }
  for (const bool backward : {false, true}) {
    if (subject->plans(backward).empty()) continue;
    const MutantJudgement judgement = subject->judge(backward, subject->plans(backward), {});
    if (judgement.outcome == Outcome::equivalent) continue;
    throw CheckFailure(str("the unharmed plans of ", subject->strategy(backward), " on ", subject->target(),
                           " do not hold: ", name(judgement.outcome), ": ", judgement.explanation));
  }
  return subject;
}

std::string apply_mutation(std::vector<Plan>& plans, const proto::PlanMutation& mutation) {
  const MutationKind kind = parse_mutation_kind(mutation.kind());
  if (mutation.place() < 0)
    throw InvalidInput(str("mutation ", mutation.kind(), " at place ", mutation.place(),
                           " is out of range; places count from 0"));
  const std::optional<Mutation> done = mutate(plans, kind, mutation.place(), mutation.seed());
  if (!done) {
    throw InvalidInput(str("the plans have no place for the mutation ", mutation.kind(),
                           "; use another kind, for example drop_step"));
  }
  return done->text;
}

std::optional<proto::Finding> find_mutant(const proto::FuzzCase& fuzz_case) {
  const std::unique_ptr<Subject> subject = make_subject(fuzz_case);
  const bool backward = fuzz_case.mutation().backward();
  std::vector<Plan> plans = subject->plans(backward);
  const std::string text = apply_mutation(plans, fuzz_case.mutation());
  const MutantJudgement judgement = subject->judge(backward, plans, {});
  switch (judgement.outcome) {
    case Outcome::equivalent:
    case Outcome::rearranged:
    case Outcome::survivor:
      return std::nullopt;
    default:
      break;
  }
  proto::Finding finding;
  finding.set_property(str("mutant: ", name(judgement.outcome)));
  finding.set_message(str(text, ": ", judgement.explanation));
  return finding;
}

std::optional<MutantTrial> attempt(Subject& subject, const proto::PlanMutation& mutation,
                                   const TrialOptions& options) {
  std::vector<Plan> plans = subject.plans(mutation.backward());
  const std::optional<Mutation> done =
      mutate(plans, parse_mutation_kind(mutation.kind()), mutation.place(), mutation.seed());
  if (!done) return std::nullopt;
  return MutantTrial{*done, subject.judge(mutation.backward(), plans, options)};
}

}  // namespace cp::sim
