#include "sim/planner/search/nothing_fits.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/base/units.h"
#include "shared/mesh/mesh.h"
#include "shared/transformer/memory_reading.h"
#include "sim/base/number_text.h"
#include "sim/planner/search/completion.h"
#include "sim/planner/search/feasible.h"
#include "sim/planner/search/inverse.h"

namespace cp::sim {
namespace {

[[noreturn]] void throw_too_slow(const PlanQuestion& question, const NearestMisses& misses) {
  const auto enough_ms = static_cast<std::int64_t>(std::ceil(misses.fastest_prompt_us / kUsPerMs));
  throw Infeasible(
      str("no layout that fits ",
          question.aggregated ? "has the first token after a prompt of " : "reads the prompt of ",
          question.workload.cached, " tokens in ", human_us(*question.max_ttft_ms * kUsPerMs),
          "; the fastest, ", to_string(*misses.fastest_prompt), ", takes ",
          human_us(misses.fastest_prompt_us), "; use --ttft-max ", enough_ms));
}

[[noreturn]] void throw_none_legal(const PlanQuestion& question, const SearchCounts& counts,
                                   const NearestMisses& misses, int threads) {
  std::vector<std::string> reasons;
  for (const auto& [reason, number] : counts.rejected) reasons.push_back(str(reason, ": ", number));
  const auto refusal =
      misses.refused ? refuse(question.model, question.workload, *misses.refused) : std::nullopt;
  const auto nearest = nearest_key(question, question.fixed, threads);
  throw InvalidInput(
      str("none of ", counts.enumerated, " layouts is legal (", join(reasons, "; "), "). The first one, ",
          misses.refused ? to_string(*misses.refused) : "", ": ", refusal ? refusal->reason : "",
          nearest ? str("; use ", nearest->key, "=", nearest->value)
          : refusal && !refusal->advice.empty() && question.fixed == Fixed{} ? str("; ", refusal->advice)
                                                                             : ""));
}

// Whether a few plans are enough to find something that fits: a remedy that is not found in time is none.
bool something_fits(const PlanQuestion& question, int threads) {
  constexpr std::int64_t kMostPlans = 64;  // chosen: those whose families need least
  try {
    return feasible(question, {threads, kMostPlans}).has_value();
  } catch (const InvalidInput&) {  // the degrees that are fixed do not divide the GPUs
    return false;
  }
}

// More GPUs with which something fits, as a flag: a few counts from where memory would be enough are tried.
std::string more_gpus(PlanQuestion question, double ratio, int threads) {
  constexpr int kTries = 6;  // chosen: each is a search for a layout that fits
  const std::int64_t of_node = question.cluster.node.gpus;
  std::int64_t nodes = question.cluster.nodes;
  if (!question.part_of_a_node)
    nodes = std::max<std::int64_t>(
        nodes, static_cast<std::int64_t>(std::ceil(static_cast<double>(nodes) * ratio)) - 1);
  for (int i = 0; i < kTries; ++i) {
    nodes = question.part_of_a_node || i >= kTries / 2 ? 2 * nodes : nodes + 1;
    if (nodes * of_node > Mesh::kMaxRanks) break;
    question.cluster.nodes = static_cast<int>(nodes);
    if (something_fits(question, threads))
      return question.part_of_a_node ? str("--gpus ", nodes * of_node) : str("--nodes ", nodes);
  }
  return "";
}

std::string shorter(const PlanQuestion& question, double ratio, int threads) {
  constexpr std::int64_t kGrain = 1024;
  auto length =
      static_cast<std::int64_t>(static_cast<double>(question.workload.seq_len) / ratio) / kGrain * kGrain;
  for (; length >= kGrain; length = length / 2 / kGrain * kGrain) {
    if (question.workload.phase == Phase::decode && length <= question.workload.new_tokens) break;
    if (something_fits(at_seq_len(question, length), threads)) return str("--seq-len ", length);
  }
  return "";
}

std::string offloaded(PlanQuestion question, int threads) {
  Optimizer& optimizer = question.workload.optimizer;
  if (question.workload.phase != Phase::training || optimizer.offload) return "";
  optimizer.offload = true;
  return something_fits(question, threads) ? str("--optimizer ", to_string(optimizer)) : "";
}

// Pieces of an MLP and activations in host memory, where they are not looked at anyway.
std::string saved(PlanQuestion question, int threads) {
  Fixed& fixed = question.fixed;
  if (question.workload.phase != Phase::training || !question.frameworks.empty()) return "";
  if (fixed.host_activations || fixed.mlp_chunks) return "";
  fixed.host_activations = true;
  if (something_fits(question, threads)) return "--fix activations=host";
  if (question.model.experts) return "";
  fixed.mlp_chunks = 16;
  return something_fits(question, threads) ? "--fix activations=host,mlp_chunks=16" : "";
}

// What would make something fit where the nearest layout needs so many times the memory: each was tried.
std::string remedy(const PlanQuestion& question, double ratio, int threads) {
  std::vector<std::string> works;
  for (std::string flag : {more_gpus(question, ratio, threads), shorter(question, ratio, threads),
                           offloaded(question, threads), saved(question, threads)}) {
    if (!flag.empty()) works.push_back(std::move(flag));
  }
  return works.empty() ? "" : str("; try ", join(works, ", or "));
}

[[noreturn]] void throw_too_large(const PlanQuestion& question, const SearchCounts& counts,
                                  const NearestMisses& misses, int threads) {
  const std::int64_t usable = usable_bytes(question);
  const Memory memory =
      memory_of({question.model, question.workload, *misses.leanest}, memory_rules(question));
  const std::int64_t needed = memory.used() - memory.context;
  const auto all_terms = terms(memory);
  const auto largest = std::max_element(all_terms.begin(), all_terms.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  throw Infeasible(str("none of ", counts.enumerated, " layouts fits into the ", human_bytes(usable),
                       " of each of the ", question.cluster.num_gpus(), " GPUs of ", question.cluster.name,
                       ". The nearest is ", to_string(*misses.leanest), ", which needs ", human_bytes(needed),
                       ", of which ", largest->first, " take ", human_bytes(largest->second),
                       remedy(question, static_cast<double>(needed) / static_cast<double>(usable), threads)));
}

}  // namespace

void NearestMisses::too_large(const ParallelLayout& layout, std::int64_t bytes) {
  if (!leanest || bytes < leanest_bytes) leanest = layout, leanest_bytes = bytes;
}

void NearestMisses::too_slow(const ParallelLayout& layout, double prompt_us) {
  if (!fastest_prompt || prompt_us < fastest_prompt_us)
    fastest_prompt = layout, fastest_prompt_us = prompt_us;
}

void throw_nothing_fits(const PlanQuestion& question, const SearchCounts& counts, const NearestMisses& misses,
                        int threads) {
  if (misses.fastest_prompt) throw_too_slow(question, misses);
  if (!misses.leanest) throw_none_legal(question, counts, misses, threads);
  throw_too_large(question, counts, misses, threads);
}

void throw_with_nearest(const PlanQuestion& question, const InvalidInput& error, int threads) {
  const auto nearest = nearest_key(question, question.fixed, threads);
  throw InvalidInput(
      str(error.what(), nearest ? str("; for example, ", nearest->key, "=", nearest->value, " works") : ""));
}

}  // namespace cp::sim
