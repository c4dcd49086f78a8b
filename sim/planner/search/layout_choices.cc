#include "sim/planner/search/layout_choices.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "sim/planner/search/first_token.h"
#include "sim/planner/search/known_parts.h"
#include "sim/planner/search/ranking.h"

namespace cp::sim {
namespace {

// What needs the same memory but for attention: layouts that differ in nothing but its core, what this moves
// in how many pieces, and scans.
Digest but_for_attention(ParallelLayout layout) {
  Strategy other;
  other.ulysses_degree = layout.strategy.ulysses_degree, other.balance = layout.strategy.balance;
  layout.strategy = other;
  layout.window_core.reset(), layout.window_balance.reset(), layout.scan_balance.reset();
  layout.scan = {};
  Hasher hasher;
  return hash(hasher, layout).digest();
}

}  // namespace

LayoutChoices::LayoutChoices(SearchTools& tools, const Marks& marks, bool exhaustive, int threads)
    : tools_(tools),
      marks_(marks),
      exhaustive_(exhaustive),
      sharper_(tools.question.workload.phase == Phase::training && !exhaustive) {
  const PlanQuestion& question = tools.question;
  const auto known = std::make_shared<KnownParts>();
  for (int thread = 0; thread < threads; ++thread) evaluators_.emplace_back(question, RateFactors{}, known);
  if (question.workload.phase != Phase::decode || !question.max_ttft_ms) return;
  most_prompt_us_ = *question.max_ttft_ms * 1e3;
  prompt_ = prompt_question(question);
  if (!prompt_) return;
  for (int thread = 0; thread < threads; ++thread) prompts_.emplace_back(*prompt_);
}

double LayoutChoices::update_ns(const ParallelLayout& family, std::size_t thread) {
  return sharper_ ? evaluators_[thread].update_ns(family) : 0;
}

ReplayedLayout LayoutChoices::replay(const ParallelLayout& heads, double update_ns, std::size_t thread) {
  ReplayedLayout found;
  // Latent rows first where they are fewer bytes: heads come in their place only where they are faster.
  const std::optional<ParallelLayout> rows = with_rows(tools_.space, tools_.attention, heads);
  // What is known is of layouts with heads.
  const auto known = too_large_.find(but_for_attention(heads));
  if (known != too_large_.end() && !rows) {
    found.leanest = heads, found.least = known->second;
    return found;
  }
  if (rows && tools_.fits(*rows)) replay_way(*rows, update_ns, found, thread);
  if (!rows || tools_.fits(heads) || tools_.fits(tools_.overlap.in_most_pieces(heads)))
    replay_way(heads, update_ns, found, thread);
  if (!found.best) return found;
  if (found.prompt_us > 0) found.best->ttft_us = found.prompt_us;
  found.prompt_us = found.best->ttft_us.value_or(0);
  return found;
}

void LayoutChoices::remember_too_large(const ParallelLayout& layout, const ReplayedLayout& replayed) {
  // With latent rows other things are kept: what is known is of layouts with heads.
  if (!another_attention_may_fit(*replayed.leanest, replayed.least) && replayed.leanest->keys == layout.keys)
    too_large_.try_emplace(but_for_attention(layout), replayed.least);
}

// Chooses again without a choice whose plans need too much memory, until one fits, none is left, or no
// attention would be lean enough.
void LayoutChoices::replay_way(const ParallelLayout& way, double update_ns, ReplayedLayout& found,
                               std::size_t thread) {
  std::size_t known = 0;
  do {
    known = found.too_large.size();
    const auto fitting = [&](const ParallelLayout& choice) { return may_fit(choice, found); };
    for (const ParallelLayout& mixers : tools_.attention.best_mixers(way, fitting, tools_.space.runs_plans()))
      replay_choices(mixers, update_ns, found, thread);
  } while (found.too_large.size() > known && another_attention_may_fit(way, found.least));
}

// Another scan may keep less of the states that come in to two chunks and go on, of each layer, for all
// passes in flight. An exhaustive search asks each choice itself.
bool LayoutChoices::another_attention_may_fit(const ParallelLayout& layout, Memory memory) const {
  if (exhaustive_) return true;
  const PlanQuestion& question = tools_.question;
  memory.attention = 0;
  if (question.model.recurrence && layout.cp > 1 && !question.fixed.scan) {
    const RecurrenceProblem problem = recurrence_problem(question.model, question.workload, layout);
    const std::int64_t passes =
        layout.pp == 1 || question.workload.phase != Phase::training
            ? 1
            : in_flight(0, layout.pp, layout.virtual_stages, accumulation(question.workload, layout));
    memory.activations -= 2 * (problem.state_numel() + problem.transition_numel()) * size_bytes(DType::f32) *
                          question.model.layers * passes;
  }
  return tools_.fits(memory);
}

bool LayoutChoices::may_fit(const ParallelLayout& choice, const ReplayedLayout& found) const {
  // Recurrences have more at work than attention: whatever attention does, their scan needs too much.
  const bool by_scan = tools_.question.model.recurrence && !exhaustive_;
  const auto is_known = [&](const ParallelLayout& known) {
    return by_scan ? known.scan == choice.scan && known.scan_balance == choice.scan_balance : known == choice;
  };
  return std::none_of(found.too_large.begin(), found.too_large.end(), is_known) && tools_.fits(choice);
}

void LayoutChoices::replay_choices(const ParallelLayout& asked, double update_ns, ReplayedLayout& found,
                                   std::size_t thread) {
  AttentionTimer& attention = tools_.attention;
  const auto fitting = [&](const ParallelLayout& choice) { return may_fit(choice, found); };
  // A choice comes in the place of another one only where it is faster than what counts as a tie.
  const auto limit_ns = [&](const ParallelLayout& choice) {
    const double needed_ns = marks_.limit_ns(choice);
    if (!sharper_ || !found.best) return needed_ns;
    return std::min(needed_ns, found.best->step_us * kNsPerUs / (1 + kTie));
  };
  const auto matters = [&](const ParallelLayout& choice, const AttentionTimes& least) {
    if (!sharper_) return true;
    const double most_ns = limit_ns(choice);
    return tools_.bound.ns(choice, least, update_ns, most_ns) <= most_ns;
  };
  if (sharper_ && least_ns(asked, update_ns, limit_ns(asked)) > limit_ns(asked)) return;
  for (const ParallelLayout& layout :
       tools_.overlap.best_of(asked, tools_.bound.ns(asked), {fitting, matters})) {
    if (!fitting(layout)) continue;
    if (sharper_ && !matters(layout, attention.least(layout))) continue;
    // Fewer tokens than ranks are read in no time that a limit could be meant for.
    if (prompt_ && !refuse(prompt_->model, prompt_->workload, layout))
      found.prompt_us = prompts_[thread].evaluate(layout).step_us;
    if (found.prompt_us > most_prompt_us_) return;
    PipelineBound least;
    if (sharper_ && layout.pp > 1) least = tools_.bound.pipeline(layout, attention.least(layout), update_ns);
    std::optional<Candidate> one = evaluators_[thread].evaluate(layout, limit_ns(layout), least);
    if (!one) continue;
    if (!tools_.fits(one->memory)) {
      found.too_large.push_back(layout);
      if (!found.leanest || one->memory.used() < found.least.used())
        found.leanest = layout, found.least = one->memory;
      if (!another_attention_may_fit(layout, one->memory)) return;
    } else if (!found.best || one->step_us * (1 + kTie) < found.best->step_us) {
      found.best = std::move(one);
    }
  }
}

// A bound of the layout with any pieces and slots, by its attention alone without them (overlap.h).
double LayoutChoices::least_ns(const ParallelLayout& layout, double update_ns, double most_ns) const {
  const ParallelLayout cut = tools_.overlap.in_most_pieces(layout);
  const AttentionTimes least = OverlapChoice::least_times(layout, tools_.attention.least(layout), cut);
  return tools_.bound.ns(cut, least, update_ns, most_ns);
}

}  // namespace cp::sim
