#include "sim/present/plan/headline.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "shared/base/text.h"
#include "shared/context_parallel/strategy.h"

namespace cp::sim {
namespace {

std::string with_commas(std::int64_t number) {
  std::string digits = str(number);
  for (auto i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > (number < 0 ? 1 : 0); i -= 3) {
    digits.insert(static_cast<std::size_t>(i), 1, ',');
  }
  return digits;
}

// Three digits: "3.21 s", "45.1 ms", "812 us".
std::string short_time(double us) {
  const char* unit = us >= 1e6 ? "s" : us >= 1e3 ? "ms" : "us";
  const double value = us >= 1e6 ? us / 1e6 : us >= 1e3 ? us / 1e3 : us;
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f %s", decimals, value, unit);
  return text.data();
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

// What is above 1, in the order in which people name it.
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
  return str(asked, ": ", short_layout(best.layout), ", ", short_time(best.step_us), " ",
             per_what(question.workload.phase));
}

}  // namespace cp::sim
