#include "shared/transformer/memory_reading.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/context_parallel/sharding.h"
#include "shared/plan/host_place.h"
#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/rank_groups.h"
#include "shared/transformer/sizes.h"
#include "shared/transformer/step_order.h"

namespace cp {
namespace {

// Transfers between stages, which come behind these, have the buffers of passes and nothing else.
constexpr std::size_t kParts = 7;
static_assert(static_cast<std::size_t>(StepPart::recv_forward) == kParts);
std::size_t index_of(StepPart part) { return static_cast<std::size_t>(part); }

// Of "activations/x" it is "activations".
std::string_view term_of(std::string_view name) { return name.substr(0, name.find('/')); }

constexpr std::string_view kKeptTerm = "activations", kLogitsTerm = "logits", kWorkingTerm = "working";
// Sines and cosines: all micro-batches and stages of a rank read the same.
constexpr std::string_view kPositions = "activations/positions";

// What routers add to their scores: the passes read it, and no update declares it.
bool is_correction(std::string_view name) { return name == kScoreCorrectionBuffer; }

// Where the caller's buffers of a term count that last as long as the step; of ids, labels and losses
// ("working/...") and of activations, nowhere.
std::int64_t* owned_term(Memory& memory, std::string_view term) {
  return term == "parameters"  ? &memory.parameters
         : term == "master"    ? &memory.master
         : term == "gradients" ? &memory.gradients
         : term == "optimizer" ? &memory.optimizer
         : term == "unsharded" ? &memory.gathered
         : term == "kv_cache"  ? &memory.kv_cache
                               : nullptr;
}

// Of the caller's buffers but for the positions.
std::int64_t bytes_of(const PlanMemory& part, std::string_view term) {
  std::int64_t bytes = 0;
  for (const PlanMemory::Callers& buffer : part.callers) {
    if (term_of(buffer.name) == term && buffer.name != kPositions) bytes += buffer.bytes;
  }
  return bytes;
}

}  // namespace

PlanMemory memory_of_plan(const Plan& plan) {
  using Moment = PlanMemory::Moment;
  PlanMemory read;
  // By how many bytes each sum of a Moment changes at a step.
  std::vector<Moment> changes(steps_of(plan).size() + 1);
  for (const Buffer& buffer : plan.buffers) {
    if (lies_on_host(buffer)) continue;
    if (buffer.kind != BufferKind::temporary) {
      read.callers.push_back({buffer.name, buffer.bytes()});
      continue;
    }
    if (buffer.first_use < 0) continue;
    const std::string_view term = term_of(buffer.name);
    const auto of = [&](Moment& moment) -> std::int64_t& {
      return term == kKeptTerm     ? moment.activations
             : term == "unsharded" ? moment.unsharded
             : term == "attention" ? moment.attention
             : term == kLogitsTerm ? moment.logits
                                   : moment.working;
    };
    of(changes[idx(buffer.first_use)]) += buffer.bytes();
    of(changes[idx(buffer.last_use) + 1]) -= buffer.bytes();
  }
  Moment alive;
  for (const Moment& change : changes) {
    alive.activations += change.activations, alive.unsharded += change.unsharded;
    alive.working += change.working, alive.attention += change.attention, alive.logits += change.logits;
    Moment& fullest = alive.logits > 0 ? read.loss : read.layers;
    if (alive.sum() > fullest.sum()) fullest = alive;
  }
  read.loss.logits = read.loss.sum() - read.loss.activations;
  read.loss.unsharded = read.loss.working = read.loss.attention = 0;
  const std::int64_t holes =
      plan.arena_bytes + plan.symmetric_bytes - std::max(read.layers.sum(), read.loss.sum());
  (read.loss.sum() > read.layers.sum() ? read.loss.logits : read.layers.working) += holes;
  return read;
}

MemoryReading::MemoryReading(const StepRequest& request, const MemoryRules& rules)
    : request_(request),
      rules_(rules),
      training_(request.workload.phase == Phase::training),
      alike_(first_alike(request.model, request.workload, request.layout)),
      stages_(alike_.size(), Stage(kParts)) {}

void MemoryReading::add(StepPart part, int stage, PlanMemory declared) {
  stages_[idx(alike_[idx(stage)])][index_of(part)] = std::move(declared);
}

bool MemoryReading::has(StepPart part, int stage) const {
  return stages_[idx(alike_[idx(stage)])][index_of(part)].has_value();
}

// What the implementation's loss has beside the logits and their gradient: its f32 copies, of which the
// gradient takes the place of one that is as wide.
std::int64_t MemoryReading::loss_copies() const {
  const LocalSizes sizes = local_sizes(request_.model, request_.workload, request_.layout);
  const double more = rules_.loss_f32_copies * static_cast<double>(size_bytes(DType::f32)) -
                      static_cast<double>(size_bytes(request_.workload.dtype));
  return std::llround(std::max(0.0, more) * static_cast<double>(sizes.chunk_tokens * sizes.vocab));
}

std::int64_t MemoryReading::counted(const PlanMemory::Callers& buffer) const {
  const Workload& workload = request_.workload;
  const std::string_view term = term_of(buffer.name);
  // States of recurrences, and what their convolutions saw, stay in the formats that plans have them in.
  const bool of_keys =
      !buffer.name.starts_with("kv_cache/state") && !buffer.name.starts_with("kv_cache/convolved");
  if (term == "kv_cache" && of_keys && rules_.cached_bytes > 0)
    return buffer.bytes / size_bytes(workload.kv_dtype) * rules_.cached_bytes;
  if (training_ || term != "parameters" || is_correction(buffer.name)) return buffer.bytes;
  if (buffer.name.ends_with("/embedding") || buffer.name.ends_with("/head")) return buffer.bytes;
  const std::int64_t parameters = buffer.bytes / size_bytes(workload.dtype);
  return std::llround(static_cast<double>(parameters) * rules_.served_layer_bytes);
}

PlanMemory::Moment MemoryReading::loss_of(const PlanMemory& part) const {
  PlanMemory::Moment loss = part.loss;
  // Of whoever serves, the last logits exist when they are needed, in f32.
  if (!training_)
    loss.logits += bytes_of(part, kLogitsTerm) / size_bytes(request_.workload.dtype) * size_bytes(DType::f32);
  if (training_ && loss.logits > 0) loss.logits += loss_copies();
  return loss;
}

MemoryReading::OfStage MemoryReading::of_stage(const Stage& stage) const {
  OfStage result;
  const std::int64_t leaving =
      training_ ? std::min<std::int64_t>(kLeavingGradients, accumulation(request_.workload, request_.layout))
                : 0;
  std::map<std::string_view, PlanMemory::Callers> shared;  // parts share buffers by name
  for (std::size_t part = 0; part < kParts; ++part) {
    if (!stage[part]) continue;
    const bool has_owned = !training_ || part == index_of(StepPart::update);
    for (const PlanMemory::Callers& buffer : stage[part]->callers) {
      const bool is_owned = owned_term(result.owned, term_of(buffer.name)) != nullptr;
      if (!has_owned && is_owned && !is_correction(buffer.name)) continue;
      PlanMemory::Callers& known = shared.try_emplace(buffer.name, buffer).first->second;
      known.bytes = std::max(known.bytes, buffer.bytes);
    }
  }
  for (const auto& [name, buffer] : shared) {
    if (std::int64_t* const term = owned_term(result.owned, term_of(name))) *term += counted(buffer);
    if (term_of(name) == kWorkingTerm)
      result.owned.working += buffer.bytes * (holds_leaving_gradients(name) ? leaving : 1);
    if (name == kPositions)
      result.owned.activations = buffer.bytes;
    else if (term_of(name) == kKeptTerm)
      result.slot[name] = buffer.bytes;
  }
  return result;
}

Memory MemoryReading::of_rank(int rank, const std::vector<OfStage>& stages) const {
  const ParallelLayout& layout = request_.layout;
  std::vector<std::size_t> own;  // the first stages that its own ones are like
  for (int stage = rank; stage < static_cast<int>(alike_.size()); stage += layout.pp)
    own.push_back(idx(alike_[idx(stage)]));
  Memory memory;
  std::int64_t positions = 0, ids = 0;
  std::map<std::string_view, std::int64_t> slot;
  for (const std::size_t stage : own) {
    const Memory& owned = stages[stage].owned;
    memory.parameters += owned.parameters, memory.master += owned.master;
    memory.gradients += owned.gradients, memory.optimizer += owned.optimizer;
    memory.gathered += owned.gathered, memory.kv_cache += owned.kv_cache;
    positions = std::max(positions, owned.activations), ids = std::max(ids, owned.working);
    for (const auto& [name, bytes] : stages[stage].slot) {
      std::int64_t& most = slot[name];
      most = std::max(most, bytes);
    }
  }
  std::int64_t kept = 0;
  if (!slot.empty()) {
    const std::int64_t micro_batches = accumulation(request_.workload, layout),
                       passes = in_flight(rank, layout.pp, layout.virtual_stages, micro_batches),
                       rows = slots_of_rows(rank, layout.pp, layout.virtual_stages, micro_batches);
    for (const auto& [name, bytes] : slot) kept += bytes * (holds_rows(name) ? rows : passes);
  }
  PlanMemory::Moment layers, loss;  // the fullest
  for (const std::size_t stage : own) {
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::optional<PlanMemory>& declared = stages_[stage][part];
      if (!declared) continue;
      // The slots are there, too, when gradients are reduced and the optimizer runs.
      const std::int64_t activations = positions + kept;
      PlanMemory::Moment of_layers = declared->layers, of_loss = loss_of(*declared);
      of_layers.activations += activations, of_layers.working += ids;
      if (of_layers.sum() > layers.sum()) layers = of_layers;
      if (of_loss.logits == 0) continue;
      of_loss.activations += activations, of_loss.logits += ids;
      if (of_loss.sum() > loss.sum()) loss = of_loss;
    }
  }
  // Terms are those of the fuller one of the two moments; of the other one what is left.
  memory.activations = (loss.sum() > layers.sum() ? loss : layers).activations;
  const std::int64_t at_work = std::max<std::int64_t>(0, layers.sum() - memory.activations);
  memory.unsharded = std::min(layers.unsharded, at_work);
  memory.attention = std::min(layers.attention, at_work - memory.unsharded);
  memory.working = at_work - memory.unsharded - memory.attention;
  memory.logits = std::max<std::int64_t>(0, loss.sum() - memory.activations);
  memory.communicators = communicator_bytes(request_.workload, layout, rules_);
  memory.context = rules_.context_bytes;
  memory.slack =
      static_cast<std::int64_t>(std::llround(rules_.slack * static_cast<double>(memory.allocated())));
  return memory;
}

Memory MemoryReading::memory() const {
  std::vector<OfStage> stages(stages_.size());
  for (int stage = 0; stage < static_cast<int>(stages_.size()); ++stage) {
    if (alike_[idx(stage)] != stage) continue;
    for (const StepPart part : parts_of(request_))
      CP_INVARIANT(has(part, stage), name(part), " of stage ", stage, " was not read");
    stages[idx(stage)] = of_stage(stages_[idx(stage)]);
  }
  Memory most;
  for (int rank = 0; rank < request_.layout.pp; ++rank) {
    const Memory memory = of_rank(rank, stages);
    if (memory.used() > most.used()) most = memory;
  }
  return most;
}

namespace {

// Of the plans of one rank of each stage.
template <class RankOfStage>
Memory read_plans(const StepRequest& request, const MemoryRules& rules, const ReadPlan& read,
                  const RankOfStage& rank_of) {
  MemoryReading reading(request, rules);
  const std::vector<int> alike = first_alike(request.model, request.workload, request.layout);
  for (int stage = 0; stage < static_cast<int>(alike.size()); ++stage) {
    if (alike[idx(stage)] != stage) continue;
    for (const StepPart part : parts_of(request)) reading.add(part, stage, read(part, stage, rank_of(stage)));
  }
  return reading.memory();
}

std::vector<Rank> cp_ranks_of(const StepRequest& request, int stage) {
  const Rank first = RankGroups(request.layout, 0).on_pipeline_rank(stage % request.layout.pp);
  return RankGroups(request.layout, first).cp_group();
}

// Places in the cp group.
std::vector<int> fuller_ranks(const StepRequest& request) {
  const ParallelLayout& layout = request.layout;
  if (layout.cp == 1) return {};
  const std::vector<Rank> ranks = cp_ranks_of(request, 0);
  const auto busiest =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), busiest_rank(request, 0)) - ranks.begin());
  const AttentionProblem problem =
      attention_problem(request.model, request.workload, layout, first_attention(request.model));
  const AttentionSharding sharding(problem, layout.cp, strategy_of(layout, problem));
  std::vector<int> fuller;
  const auto add = [&](int index) {
    if (index != busiest && std::find(fuller.begin(), fuller.end(), index) == fuller.end())
      fuller.push_back(index);
  };
  int most = busiest, most_cached = busiest;
  for (int index = 0; index < layout.cp; ++index) {
    if (sharding.home_q(index).num_rows() > sharding.home_q(most).num_rows()) most = index;
    if (sharding.home_kv(index).num_rows() > sharding.home_kv(most_cached).num_rows()) most_cached = index;
  }
  add(most), add(most_cached);
  // States and rows before chunks come in to a rank in the middle, and go on; served ones are cached with the
  // first row, which legal balances give the first rank.
  const auto& mixers = mixers_beside_attention();
  const bool passes_on = std::any_of(mixers.begin(), mixers.end(), [&](const MixerFacts* facts) {
    return facts->is_described(request.model);
  });
  if (passes_on) add(request.workload.phase == Phase::training ? layout.cp / 2 : 0);
  return fuller;
}

}  // namespace

Memory with_fuller_ranks(const Memory& of_busiest, const StepRequest& request, const MemoryRules& rules,
                         const ReadPlan& read) {
  Memory most = of_busiest;
  for (const int index : fuller_ranks(request)) {
    const Memory memory =
        read_plans(request, rules, read, [&](int stage) { return cp_ranks_of(request, stage)[idx(index)]; });
    if (memory.used() > most.used()) most = memory;
  }
  return most;
}

Memory memory_of(const StepRequest& request, const MemoryRules& rules, MixerPlanCache* cache) {
  MixerPlanCache own(16);
  MixerPlanCache* const kept = cache == nullptr ? &own : cache;
  const ReadPlan read = [&](StepPart part, int stage, Rank self) {
    return memory_of_plan(step_plan(request, part, stage, self, kept));
  };
  const Memory of_busiest =
      read_plans(request, rules, read, [&](int stage) { return busiest_rank(request, stage); });
  return with_fuller_ranks(of_busiest, request, rules, read);
}

}  // namespace cp
