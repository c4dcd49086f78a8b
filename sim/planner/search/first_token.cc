#include "sim/planner/search/first_token.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "sim/base/parallel_for.h"
#include "sim/planner/search/evaluate.h"

namespace cp::sim {
namespace {
constexpr std::size_t kRowsOfThePage = 15;  // of the ranking, before somebody asks for more
}  // namespace

std::optional<PlanQuestion> prompt_question(const PlanQuestion& question) {
  if (question.workload.phase != Phase::decode || question.workload.cached < 1 || question.aggregated)
    return std::nullopt;
  PlanQuestion prompt = question;
  prompt.workload.phase = Phase::prefill;
  prompt.workload.seq_len = question.workload.cached;
  prompt.workload.cached = prompt.workload.new_tokens = 0;
  return prompt;
}

void add_first_tokens(PlanAnswer& answer, int threads) {
  const std::optional<PlanQuestion> prompt = prompt_question(answer.question);
  if (!prompt) return;
  std::vector<Candidate*> shown;
  for (Candidate& candidate : answer.best) shown.push_back(&candidate);
  for (ClassBest& of_class : answer.classes) {
    if (of_class.candidate) shown.push_back(&*of_class.candidate);
  }
  for (std::size_t i = 0; i < std::min(kRowsOfThePage, answer.all.size()); ++i)
    shown.push_back(&answer.all[i]);
  // The best of a class is often among the best of all: each layout is timed once.
  std::vector<Candidate*> timed;
  const auto timed_as = [&](const Candidate& candidate) {
    return std::find_if(timed.begin(), timed.end(),
                        [&](const Candidate* other) { return other->layout == candidate.layout; });
  };
  for (Candidate* candidate : shown) {
    if (timed_as(*candidate) == timed.end()) timed.push_back(candidate);
  }
  std::vector<Evaluator> evaluators;
  for (int thread = 0; thread < std::max(1, threads); ++thread) evaluators.emplace_back(*prompt);
  parallel_for(timed.size(), static_cast<int>(evaluators.size()), [&](std::size_t i, std::size_t thread) {
    Candidate& candidate = *timed[i];
    if (candidate.ttft_us || refuse(prompt->model, prompt->workload, candidate.layout)) return;
    candidate.ttft_us = evaluators[thread].evaluate(candidate.layout).step_us;
  });
  for (Candidate& candidate : answer.all) shown.push_back(&candidate);
  for (Candidate* candidate : shown) {
    if (const auto same = timed_as(*candidate); same != timed.end()) candidate->ttft_us = (*same)->ttft_us;
  }
}

}  // namespace cp::sim
