#include "sim/fuzz/mutate/campaign.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "shared/base/error.h"
#include "sim/base/parallel_for.h"
#include "sim/fuzz/mutate/base_cases.h"
#include "traces/fuzz_case.h"

namespace cp::sim {
namespace {

// One subject and its mutants.
class Batch {
 public:
  Batch(const MutateOptions& options, std::uint64_t number)
      : options_(options), draws_(Numbers::combine(options.seed, number)) {}

  MutateResult run(std::int64_t cases, const std::function<void(bool survived)>& on_case) {
    make();
    for (std::int64_t i = 0; i < cases && !stopped(); ++i) {
      const proto::PlanMutation mutation = draw(i);
      const std::optional<MutantTrial> trial = attempt(*subject_, mutation, options_.trial);
      CP_INVARIANT(trial.has_value(), "no place for ", mutation.kind());
      add(mutation, *trial);
      on_case(trial->judgement.outcome == Outcome::survivor);
    }
    return std::move(result_);
  }

 private:
  bool stopped() const { return options_.stop != nullptr && options_.stop->load(); }

  // The first job drawn that can be planned, and whose plans can be damaged.
  void make() {
    do {
      case_ = draw_base_case(draws_);
      try {
        subject_ = make_subject(case_);
      } catch (const CheckFailure& failure) {
        result_.broken.push_back(str(failure.what(), "\n", write_case_text(case_)));
        continue;
      } catch (const Error&) {  // InvalidInput, Infeasible: nobody can plan it
        continue;
      }
      for (const bool backward : {false, true}) {
        kinds_[backward].clear();
        if (subject_->plans(backward).empty()) continue;
        for (const MutationInfo& info : all_mutations()) {
          const std::int64_t places = mutation_places(subject_->plans(backward), info.kind);
          if (places > 0) kinds_[backward].push_back({info.kind, places});
        }
      }
    } while (kinds_[0].empty() && kinds_[1].empty());
    ++result_.subjects;
    first_ = static_cast<std::int64_t>(draws_.below(all_mutations().size()));
  }

  // Kinds take turns, so that all are tried about as often as they can be.
  proto::PlanMutation draw(std::int64_t number) {
    const bool backward = kinds_[0].empty() || (!kinds_[1].empty() && draws_.one_in(2));
    const std::vector<Places>& kinds = kinds_[backward];
    const Places& places = kinds[static_cast<std::size_t>(first_ + number) % kinds.size()];
    proto::PlanMutation mutation;
    mutation.set_kind(std::string(name(places.kind)));
    mutation.set_place(static_cast<std::int32_t>(draws_.in(0, places.count - 1)));
    mutation.set_seed(draws_.next() >> 32);
    mutation.set_backward(backward);
    return mutation;
  }

  void add(const proto::PlanMutation& mutation, const MutantTrial& trial) {
    const Outcome outcome = trial.judgement.outcome;
    const std::string strategy = subject_->strategy(mutation.backward());
    ++result_.tallies[{trial.mutation.kind, strategy, subject_->target()}]
          .of[static_cast<std::size_t>(outcome)];
    const std::string text =
        str(mutation.kind(), " in ", strategy, ", ", subject_->target(), ": ", trial.mutation.text,
            trial.judgement.explanation.empty() ? "" : ": ", trial.judgement.explanation);
    if (options_.listed.contains(outcome)) result_.listed.push_back(str(name(outcome), ": ", text));
    if (outcome != Outcome::survivor) return;
    Survivor survivor{case_, text};
    *survivor.job.mutable_mutation() = mutation;
    survivor.job.mutable_finding()->set_property("mutant survives");
    survivor.job.mutable_finding()->set_message(trial.mutation.text);
    survivor.job.mutable_finding()->set_got(trial.judgement.explanation);
    result_.survivors.push_back(std::move(survivor));
  }

  struct Places {
    MutationKind kind;
    std::int64_t count;
  };

  const MutateOptions& options_;
  Numbers draws_;
  proto::FuzzCase case_;
  std::unique_ptr<Subject> subject_;
  std::vector<Places> kinds_[2];  // forward, backward
  std::int64_t first_ = 0;
  MutateResult result_;
};

void add(MutateResult& all, MutateResult&& part) {
  for (const auto& [key, tally] : part.tallies) all.tallies[key].add(tally);
  all.subjects += part.subjects;
  std::move(part.survivors.begin(), part.survivors.end(), std::back_inserter(all.survivors));
  std::move(part.listed.begin(), part.listed.end(), std::back_inserter(all.listed));
  std::move(part.broken.begin(), part.broken.end(), std::back_inserter(all.broken));
}

}  // namespace

std::int64_t Tally::tried() const {
  std::int64_t sum = 0;
  for (const std::int64_t count : of) sum += count;
  return sum;
}

void Tally::add(const Tally& other) {
  for (std::size_t i = 0; i < of.size(); ++i) of[i] += other.of[i];
}

Tally MutateResult::total() const {
  Tally total;
  for (const auto& [key, tally] : tallies) total.add(tally);
  return total;
}

bool MutateResult::fails() const {
  const Tally all = total();
  return !broken.empty() || static_cast<double>(all.count(Outcome::survivor)) >
                                kMostSurvivors * static_cast<double>(all.tried());
}

MutateResult run_mutants(const MutateOptions& options) {
  const std::int64_t per_subject = std::max<std::int64_t>(1, options.per_subject);
  const auto batches = static_cast<std::size_t>((options.cases + per_subject - 1) / per_subject);
  std::vector<MutateResult> results(batches);
  std::mutex mutex;
  std::int64_t done = 0, survivors = 0;
  parallel_for(batches, options.jobs, [&](std::size_t number, std::size_t) {
    if (options.stop != nullptr && options.stop->load()) return;
    const std::int64_t first = static_cast<std::int64_t>(number) * per_subject;
    results[number] =
        Batch(options, number).run(std::min(per_subject, options.cases - first), [&](bool survived) {
          const std::lock_guard lock(mutex);
          ++done;
          survivors += survived ? 1 : 0;
          if (options.progress) options.progress(done, survivors);
        });
  });
  MutateResult all;
  for (MutateResult& result : results) add(all, std::move(result));
  all.stopped = done < options.cases;
  return all;
}

}  // namespace cp::sim
