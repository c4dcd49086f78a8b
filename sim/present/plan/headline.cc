#include "sim/present/plan/headline.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "shared/base/text.h"
#include "shared/context_parallel/strategy.h"
#include "sim/base/number_text.h"

namespace cp::sim {
namespace {

std::string with_commas(std::int64_t number) {
  std::string digits = str(number);
  for (auto i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > (number < 0 ? 1 : 0); i -= 3) {
    digits.insert(static_cast<std::size_t>(i), 1, ',');
  }
  return digits;
}

std::string_view per_what(Phase phase) {
  switch (phase) {
    case Phase::training:
      return "a step";
    case Phase::prefill:
      return "to the first token";
    case Phase::decode:
      return "between tokens";
  }
  return "";
}

// ", 12.1 s to the first": in decode it follows the time between tokens.
std::string to_the_first(Phase phase, const Candidate& candidate) {
  return phase == Phase::decode && candidate.ttft_us
             ? str(", ", human_us(*candidate.ttft_us), " to the first")
             : "";
}

// The degrees above 1, in the order in which people name them.
std::string short_layout(const ParallelLayout& l) {
  std::string out;
  const auto add = [&](const char* axis, int degree) {
    if (degree > 1) out += str(out.empty() ? "" : ", ", axis, "=", degree);
  };
  add("dp_replicate", l.dp_replicate);
  add("dp_shard", l.dp_shard);
  add("tp", l.tp);
  add("cp", l.cp);
  if (l.cp > 1) out += str(" ", to_string(l.strategy, l.cp));
  add("pp", l.pp);
  add("ep", l.ep);
  return out.empty() ? "one GPU" : out;
}

}  // namespace

std::string headline(const PlanAnswer& answer) {
  const PlanQuestion& question = answer.question;
  const int gpus = question.cluster.num_gpus();
  const std::string asked =
      str(question.model.name, ", ", with_commas(question.workload.seq_len), " tokens, ", with_commas(gpus),
          gpus == 1 ? " GPU of " : " GPUs of ", question.cluster.name);
  if (answer.best.empty()) return str(asked, ": nothing fits");
  const Candidate& best = answer.best.front();
  const Phase phase = question.workload.phase;
  return str(asked, ": ", short_layout(best.layout), ", ", human_us(best.step_us), " ", per_what(phase),
             to_the_first(phase, best));
}

std::string prediction(Phase phase, const Candidate& candidate) {
  return str(human_us(candidate.step_us), " ", per_what(phase), " (",
             human_interval(candidate.low_us, candidate.high_us), ")", to_the_first(phase, candidate));
}

}  // namespace cp::sim
