#include "sim/search/nothing_fits.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/mesh/mesh.h"

namespace cp::sim {
namespace {

[[noreturn]] void throw_too_slow(const PlanQuestion& question, const NearestMisses& misses) {
  const double enough_ms = std::ceil(misses.fastest_prompt_us / 1e3);
  throw Infeasible(str("no layout that fits reads the prompt of ", question.workload.cached, " tokens in ",
                       *question.max_ttft_ms, " ms; the fastest, ", to_string(*misses.fastest_prompt),
                       ", takes ", enough_ms, " ms: use --ttft-max ", enough_ms, ", or more --nodes"));
}

[[noreturn]] void throw_none_legal(const PlanQuestion& question, const SearchCounts& counts,
                                   const NearestMisses& misses) {
  std::vector<std::string> reasons;
  for (const auto& [reason, number] : counts.rejected) reasons.push_back(str(reason, ": ", number));
  const auto refusal =
      misses.refused ? refuse(question.model, question.workload, *misses.refused) : std::nullopt;
  throw InvalidInput(str("none of ", counts.enumerated, " layouts is legal (", join(reasons, "; "),
                         "). The first one, ", misses.refused ? to_string(*misses.refused) : "", ": ",
                         refusal ? refusal->reason : ""));
}

// What would make a layout fit that needs so many times the memory.
std::string remedy(const PlanQuestion& question, double ratio) {
  const double nodes =
      std::max<double>(std::ceil(question.cluster.nodes * ratio), question.cluster.nodes + 1);
  const bool could_grow = nodes * question.cluster.node.gpus <= Mesh::kMaxRanks;
  const auto length = static_cast<std::int64_t>(static_cast<double>(question.workload.seq_len) / ratio);
  const bool could_offload =
      question.workload.phase == Phase::training && !question.workload.optimizer.offload;
  return str("; try ", could_grow ? str("--nodes ", static_cast<std::int64_t>(nodes), ", ") : "",
             "--seq-len ", length / 1024 * 1024, could_offload ? ", or --optimizer adamw:offload" : "");
}

[[noreturn]] void throw_too_large(const PlanQuestion& question, const SearchCounts& counts,
                                  const NearestMisses& misses) {
  const std::int64_t usable = usable_bytes(question);
  const Memory memory = memory_of(question.model, question.workload, *misses.leanest, memory_rules(question));
  const std::int64_t needed = memory.used() - memory.context;
  const auto all_terms = terms(memory);
  const auto largest = std::max_element(all_terms.begin(), all_terms.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  throw Infeasible(str("none of ", counts.enumerated, " layouts fits into ", human_bytes(usable),
                       " a GPU on ", question.cluster.num_gpus(), " GPUs of ", question.cluster.name,
                       ". The nearest is ", to_string(*misses.leanest), " with ", human_bytes(needed),
                       ", of which ", largest->first, " take ", human_bytes(largest->second),
                       remedy(question, static_cast<double>(needed) / static_cast<double>(usable))));
}

}  // namespace

void NearestMisses::too_large(const ParallelLayout& layout, std::int64_t bytes) {
  if (!leanest || bytes < leanest_bytes) leanest = layout, leanest_bytes = bytes;
}

void NearestMisses::too_slow(const ParallelLayout& layout, double prompt_us) {
  if (!fastest_prompt || prompt_us < fastest_prompt_us)
    fastest_prompt = layout, fastest_prompt_us = prompt_us;
}

void throw_nothing_fits(const PlanQuestion& question, const SearchCounts& counts,
                        const NearestMisses& misses) {
  if (misses.fastest_prompt) throw_too_slow(question, misses);
  if (!misses.leanest) throw_none_legal(question, counts, misses);
  throw_too_large(question, counts, misses);
}

}  // namespace cp::sim
