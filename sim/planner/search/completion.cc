#include "sim/planner/search/completion.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/transformer/short_layout.h"
#include "sim/base/stop.h"
#include "sim/planner/search/doubt.h"
#include "sim/planner/search/feasible.h"

namespace cp::sim {
namespace {

using Kind = Completion::Kind;

bool gives_degrees(const Fixed& f) {
  return f.tp || f.cp || f.pp || f.ep || f.dp_shard || f.dp_replicate || f.virtual_stages;
}
bool gives_strategy(const Fixed& f) {
  return f.strategy || f.ulysses_degree || f.inner_ring || f.ulysses_inner || f.rotation || f.balance ||
         f.slots || f.pieces || f.merges || f.scan || f.window_core || f.window_balance || f.scan_balance ||
         f.keys;
}

// Of degrees: dp is another name of dp_shard.
bool gives(std::string_view text, std::string_view key) {
  const std::string whole = with_layout_keys(text);
  for (const std::string_view part : split(whole, ',')) {
    const std::string_view given = trim(part.substr(0, part.find('=')));
    if (given == key || (given == "dp" && key == "dp_shard")) return true;
  }
  return false;
}

// With the choices that a layout's text leaves unsaid because they are the defaults.
std::string keys_found(const PlanQuestion& question, const PartialLayout& asked,
                       const ParallelLayout& layout) {
  std::vector<std::string> found;
  for (const LayoutItem& item : items_of(layout)) {
    const bool implied = item.key == "micro_batch" && question.workload.phase != Phase::training;
    if (!gives(asked.text, item.key) && !implied) found.push_back(str(item));
  }
  const bool training = question.workload.phase == Phase::training;
  if (training && layout.recompute.kind == Recompute::Kind::none && !gives(asked.text, "recompute"))
    found.emplace_back("recompute=none");
  return join(found);
}

std::string too_large(const PlanQuestion& question, const Memory& memory) {
  const std::int64_t usable = usable_bytes(question), counted = counted_bytes(memory);
  return str("does not fit: ", human_bytes(counted), " of ", human_bytes(usable), " a GPU");
}

// The same text with another value of a key. The text may say "dp" for dp_shard or, in serving, dp_replicate.
std::string with_key(std::string_view text, const NearestKey& nearest) {
  std::vector<std::string> parts;
  const std::string whole = with_layout_keys(text);
  const std::vector<std::string_view> given = split(whole, ',');
  const auto key_of = [](std::string_view part) { return trim(part.substr(0, part.find('='))); };
  const bool by_its_name =
      std::any_of(given.begin(), given.end(), [&](auto part) { return key_of(part) == nearest.key; });
  const std::string_view written =
      !by_its_name && nearest.key.starts_with("dp_") ? "dp" : std::string_view(nearest.key);
  for (const std::string_view part : given) {
    parts.push_back(key_of(part) == written ? str(nearest.key, "=", nearest.value) : std::string(trim(part)));
  }
  return join(parts);
}

// ---- keys that are numbers ----

struct NumberKey {
  const char* name;
  std::optional<int> Fixed::*member;
};
constexpr NumberKey kNumbers[] = {
    {"tp", &Fixed::tp},
    {"cp", &Fixed::cp},
    {"pp", &Fixed::pp},
    {"ep", &Fixed::ep},
    {"dp_shard", &Fixed::dp_shard},
    {"dp_replicate", &Fixed::dp_replicate},
    {"virtual_stages", &Fixed::virtual_stages},
    {"ulysses_degree", &Fixed::ulysses_degree},
    {"inner_ring", &Fixed::inner_ring},
    {"pieces", &Fixed::pieces},
    {"loss_chunks", &Fixed::loss_chunks},
    {"mlp_chunks", &Fixed::mlp_chunks},
};

std::optional<ParallelLayout> any_feasible(PlanQuestion question, const Fixed& fixed, int threads) {
  question.fixed = fixed;
  try {
    return feasible(question, {threads});
  } catch (const InvalidInput&) {  // these degrees do not fit the GPUs
    return std::nullopt;
  }
}

// Values that may work, the nearest in doublings first; the smaller of two that are as near.
std::vector<int> values_near(int value, int most) {
  std::vector<int> values;
  for (int other = 1; other <= most; ++other) {
    if (other != value && (most % other == 0 || other <= 16)) values.push_back(other);
  }
  const auto distance = [&](int other) { return std::abs(std::log2(static_cast<double>(other) / value)); };
  std::stable_sort(values.begin(), values.end(), [&](int a, int b) { return distance(a) < distance(b); });
  return values;
}

}  // namespace

Fixed merged(const Fixed& question, const Fixed& given) {
  Fixed all = question;
  if (gives_degrees(given)) {
    all.tp = given.tp, all.cp = given.cp, all.pp = given.pp, all.ep = given.ep;
    all.dp_shard = given.dp_shard, all.dp_replicate = given.dp_replicate;
    all.virtual_stages = given.virtual_stages;
  }
  if (gives_strategy(given)) {
    all.strategy = given.strategy, all.ulysses_degree = given.ulysses_degree;
    all.inner_ring = given.inner_ring, all.ulysses_inner = given.ulysses_inner;
    all.rotation = given.rotation, all.balance = given.balance;
    all.slots = given.slots, all.pieces = given.pieces, all.merges = given.merges;
    all.scan = given.scan, all.window_core = given.window_core, all.keys = given.keys;
    all.window_balance = given.window_balance, all.scan_balance = given.scan_balance;
  }
  const auto take = [](auto& into, const auto& from) {
    if (from) into = from;
  };
  take(all.loss_chunks, given.loss_chunks), take(all.micro_batch, given.micro_batch);
  take(all.zero, given.zero), take(all.reshard, given.reshard), take(all.sync_once, given.sync_once);
  take(all.prefetch, given.prefetch);
  take(all.bucket, given.bucket), take(all.threshold, given.threshold);
  take(all.sequence_parallel, given.sequence_parallel);
  take(all.mlp_chunks, given.mlp_chunks), take(all.host_activations, given.host_activations);
  take(all.recompute, given.recompute), take(all.sharding, given.sharding), take(all.order, given.order);
  return all;
}

std::optional<NearestKey> nearest_key(const PlanQuestion& question, const Fixed& changeable, int threads) {
  const Fixed& fixed = question.fixed;
  const int most = question.cluster.num_gpus();
  std::optional<NearestKey> nearest;
  double best = std::numeric_limits<double>::infinity();
  for (const NumberKey& key : kNumbers) {
    if (!(changeable.*key.member)) continue;
    const int value = *(fixed.*key.member);
    Fixed freed = fixed;
    freed.*key.member = std::nullopt;
    if (!any_feasible(question, freed, threads)) continue;
    for (const int other : values_near(value, most)) {
      look_at_stop();
      const double distance = std::abs(std::log2(static_cast<double>(other) / value));
      if (distance >= best) break;
      freed.*key.member = other;
      if (!any_feasible(question, freed, threads)) continue;
      best = distance, nearest = {key.name, str(other)};
      break;
    }
  }
  if (nearest) return nearest;
  const auto without = [&](const char* key, auto member, const auto& value_of) {
    if (nearest || !(changeable.*member)) return;
    Fixed freed = fixed;
    freed.*member = std::nullopt;
    if (const auto layout = any_feasible(question, freed, threads)) nearest = {key, value_of(*layout)};
  };
  without("recompute", &Fixed::recompute, [](const ParallelLayout& l) { return to_string(l.recompute); });
  without("micro_batch", &Fixed::micro_batch, [](const ParallelLayout& l) { return str(l.micro_batch); });
  without("order", &Fixed::order, [](const ParallelLayout& l) { return to_string(l.order); });
  return nearest;
}

std::string nearest_layout(const PlanQuestion& question, std::string_view text, const Fixed& given,
                           int threads) {
  const auto nearest = nearest_key(question, given, threads);
  return nearest ? with_key(text, *nearest) : "";
}

Completion complete(const PlanQuestion& question, const PartialLayout& asked, const SearchOptions& options) {
  PlanQuestion of_keys = question;
  of_keys.baseline.reset();
  of_keys.fixed = merged(question.fixed, asked.given);
  of_keys.top = 1;
  NearestMisses misses;
  SearchOptions search = options;
  search.misses = &misses, search.progress = nullptr;
  Completion completion;
  const auto ask = [&] {
    misses = {};
    try {
      const PlanAnswer answer = search_layouts(of_keys, search);
      if (answer.best.empty()) throw Stopped();  // stopped before anything was replayed
      completion.kind = Kind::fits;
      completion.candidate = answer.best.front();
    } catch (const Infeasible& error) {
      completion.reason = error.what();
      if (misses.fastest_prompt) return;  // it fits, and is too slow: there is no memory to tell of
      completion.kind = Kind::too_large;
      completion.candidate = weighed(question, *misses.leanest);
      completion.reason = too_large(question, completion.candidate->memory);
    } catch (const InvalidInput& error) {
      completion.reason = error.what();
      if (!misses.refused) return;
      if (const auto refusal = refuse(question.model, question.workload, *misses.refused))
        completion.reason = refusal->reason;
    }
  };
  ask();
  if (!completion.candidate && !of_keys.frameworks.empty()) {  // what they have no word for can be timed
    of_keys.frameworks.clear();
    // Nobody asked for what no framework has.
    if (!of_keys.fixed.pieces) of_keys.fixed.pieces = 1;
    if (!of_keys.fixed.slots) of_keys.fixed.slots = kLeastSlots;
    ask();
  }
  if (completion.candidate) {
    completion.found = keys_found(question, asked, completion.candidate->layout);
    for (const Framework framework : question.frameworks) {
      FrameworkCase said{question.model, question.workload, completion.candidate->layout,
                         fp8_products(question)};
      for (std::string& lost : express(framework, std::move(said)).lost)
        completion.lost.push_back(std::move(lost));
    }
  }
  // Another value of one key is searched by what is legal and fits alone, so it cannot help a prompt that is
  // read too slowly.
  if (completion.kind != Kind::fits && !misses.fastest_prompt) {
    completion.works = nearest_layout(of_keys, asked.text, asked.given, options.threads);
  }
  if (!asked.as_written ||
      (completion.candidate && to_string(completion.candidate->layout) == to_string(*asked.as_written)))
    return completion;
  if (const auto refusal = refuse(question.model, question.workload, *asked.as_written)) {
    completion.as_written_fails = refusal->reason;
    return completion;
  }
  completion.as_written = weighed(question, *asked.as_written);
  if (!completion.as_written->fits())
    completion.as_written_fails = too_large(question, completion.as_written->memory);
  return completion;
}

}  // namespace cp::sim
