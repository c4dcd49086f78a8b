#include "sim/planner/search/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/units.h"
#include "shared/plan/temporaries.h"
#include "shared/transformer/flops.h"
#include "shared/transformer/group_axis.h"
#include "shared/transformer/rank_groups.h"
#include "sim/cost/serving/steady_state.h"
#include "sim/planner/search/part_key.h"

namespace cp::sim {
// In the order of their first appearance.
struct Evaluator::Parts {
  std::vector<std::pair<TimePart, double>> ns;
  double nvlink_bytes = 0, nic_bytes = 0;
  RateTimes path;
  std::optional<double> ttft_us;

  void add(TimePart part, double value) {
    for (auto& [known, sum] : ns) {
      if (known == part) {
        sum += value;
        return;
      }
    }
    ns.emplace_back(part, value);
  }
  void add(const StepClock& clock, double times) {
    add(TimePart::attention, times * clock.attention_ns);
    add(TimePart::products, times * clock.product_ns);
    add(TimePart::other_kernels, times * clock.other_kernel_ns);
    add(TimePart::host, times * clock.host_ns);
    add(TimePart::exposed_offload, times * clock.offload_ns);
    for (const StepClock::Exposed& exposed : clock.exposed)
      add(sim::exposed(axis_of_group(exposed.group)), times * exposed.ns);
    nvlink_bytes += times * clock.nvlink_bytes, nic_bytes += times * clock.nic_bytes;
    path.add(clock.path, times);
  }
  double time_ns() const {
    return std::accumulate(ns.begin(), ns.end(), 0.0,
                           [](double sum, const auto& part) { return sum + part.second; });
  }
};

Evaluator::Evaluator(const PlanQuestion& question, const RateFactors& factors,
                     std::shared_ptr<KnownParts> known)
    : question_(question), factors_(factors), rules_(memory_rules(question)), known_(std::move(known)) {}

StepClock Evaluator::replay(const Plan& plan) const {
  return replay_rank(plan, question_.cluster, question_.software, {false, {}, factors_});
}

// Gives places to a layout's plans, and reads what they declare, once it is asked for the memory. By then
// many layouts have turned out to be too slow, and places take as long to find as a replay takes.
class Evaluator::LateReading {
 public:
  // All must outlive this.
  LateReading(Evaluator& evaluator, const StepRequest& request, const MemoryRules& rules)
      : evaluator_(evaluator), request_(request), reading_(request, rules) {}

  // `made` is the plan of the part, where somebody has made it.
  void add(StepPart part, int stage, Rank self, std::optional<UnplacedPlan> made) {
    if (const auto known = evaluator_.known_memory(request_, part, stage, self)) {
      reading_.add(part, stage, *known);
    } else {
      unread_.push_back({part, stage, self, std::move(made)});
    }
  }

  Memory memory() {
    for (Unread& one : unread_)
      reading_.add(one.part, one.stage,
                   evaluator_.memory_of(request_, one.part, one.stage, one.self, std::move(one.made)));
    unread_.clear();
    return reading_.memory();
  }

 private:
  struct Unread {
    StepPart part;
    int stage;
    Rank self;
    std::optional<UnplacedPlan> made;
  };

  Evaluator& evaluator_;
  const StepRequest& request_;
  MemoryReading reading_;
  std::vector<Unread> unread_;
};

// What comes once a step is as much on all ranks of a stage, whichever of them attention keeps busiest, so
// that layouts with other strategies have the same: the first rank stands for its stage.
Rank Evaluator::rank_of(const StepRequest& request, StepPart part, int stage) {
  if (is_of_update(part)) return RankGroups(request.layout, 0).on_pipeline_rank(stage % request.layout.pp);
  return busiest_rank(request, stage);
}

StepClock Evaluator::clock_of(const StepRequest& request, StepPart part, int stage, LateReading* reading) {
  return clock_of(request, part, stage, rank_of(request, part, stage), reading);
}

StepClock Evaluator::clock_of(const StepRequest& request, StepPart part, int stage, Rank self,
                              LateReading* reading) {
  std::optional<UnplacedPlan> made;  // where the clock is not known
  const auto replayed = [&] {
    made = unplaced_step_plan(request, part, stage, self, mixer_plans_);
    return replay(made->plan);
  };
  std::shared_ptr<const StepClock> clock;
  if (may_be_shared(part)) {
    const Digest key = clock_key(request, part, stage, self, question_.cluster);
    clock = known_->clocks(part).find(key);
    if (clock == nullptr) clock = known_->clocks(part).keep(key, replayed());
  } else {
    clock = std::make_shared<const StepClock>(replayed());
  }
  if (reading != nullptr) reading->add(part, stage, self, std::move(made));
  return *clock;
}

std::shared_ptr<const StepClock> Evaluator::known_clock(const StepRequest& request, StepPart part, int stage,
                                                        Rank self) const {
  return known_->clocks(part).find(clock_key(request, part, stage, self, question_.cluster));
}

std::shared_ptr<const PlanMemory> Evaluator::known_memory(const StepRequest& request, StepPart part,
                                                          int stage, Rank self) const {
  if (!may_be_shared(part)) return nullptr;
  return known_->memories.find(memory_key(request, part, stage, self));
}

PlanMemory Evaluator::memory_of(const StepRequest& request, StepPart part, int stage, Rank self,
                                std::optional<UnplacedPlan> made) {
  const auto read = [&] {
    if (!made) made = unplaced_step_plan(request, part, stage, self, mixer_plans_);
    return memory_of_plan(placed(*std::move(made)));
  };
  if (!may_be_shared(part)) return read();
  const Digest key = memory_key(request, part, stage, self);
  if (const auto known = known_->memories.find(key)) return *known;
  return *known_->memories.keep(key, read());
}

Plan Evaluator::plan_of(const ParallelLayout& layout, StepPart part, int stage) {
  const StepRequest request{question_.model, question_.workload, layout};
  return step_plan(request, part, stage, rank_of(request, part, stage), &mixer_plans_);
}

PipelineTimes Evaluator::schedule(const ParallelLayout& layout) {
  PipelineTimes times;
  pipelined({question_.model, question_.workload, layout}, kNever, {}, nullptr, &times);
  return times;
}

Evaluator::Parts Evaluator::whole_step(const StepRequest& request, LateReading* reading) {
  Parts parts;
  const auto times = static_cast<double>(accumulation(request.workload, request.layout));
  parts.add(clock_of(request, StepPart::micro_batch, 0, reading), times);
  parts.add(clock_of(request, StepPart::update, 0, reading), 1);
  return parts;
}

// A step that writes, in the middle of what each request writes; and one prompt alone on the same GPUs.
Evaluator::Parts Evaluator::aggregated(StepRequest request) {
  ServingLoad load{request.layout.micro_batch, std::max<std::int64_t>(1, request.workload.cached),
                   std::max<std::int64_t>(1, request.workload.new_tokens), *question_.aggregated};
  // A step that writes reads all seq_len keys.
  request.workload.new_tokens = std::max<std::int64_t>(1, load.new_tokens / 2);
  request.workload.seq_len = load.prompt_tokens + request.workload.new_tokens;
  request.workload.cached = load.prompt_tokens;
  Parts parts, prompt;
  for (int stage = 0; stage < request.layout.pp; ++stage)
    parts.add(clock_of(request, StepPart::decode, stage), 1);
  ServingStep step;
  step.decode_us = parts.time_ns() / kNsPerUs;
  for (const auto& [part, ns] : parts.ns)
    step.decode_attention_us += part == TimePart::attention ? ns / kNsPerUs : 0;
  request.workload.phase = Phase::prefill;
  request.workload.seq_len = load.prompt_tokens;
  request.workload.cached = request.workload.new_tokens = 0;
  request.layout.micro_batch = 1;
  request.workload.global_batch = request.layout.dp();
  for (int stage = 0; stage < request.layout.pp; ++stage)
    prompt.add(clock_of(request, StepPart::prefill, stage), 1);
  step.prompt_us = prompt.time_ns() / kNsPerUs;
  const ServingTimes times = steady_state(load, step, question_.software);
  const double host_ns = times.host_us * kNsPerUs, prompts_ns = times.prompts_us * kNsPerUs;
  parts.add(TimePart::host_between_steps, host_ns);
  parts.path[Rate::host] += host_ns;
  parts.add(TimePart::prompts_of_others, prompts_ns);
  parts.path.add(prompt.path, prompts_ns / prompt.path.sum());
  parts.ttft_us = times.ttft_us;
  return parts;
}

Evaluator::Parts Evaluator::served(const StepRequest& request, LateReading* reading) {
  Parts parts;
  const StepPart part = request.workload.phase == Phase::prefill ? StepPart::prefill : StepPart::decode;
  // Steps in the middle of what requests write are timed, and the last ones need most memory.
  const bool in_the_middle = question_.aggregated && part == StepPart::decode;
  for (int stage = 0; stage < request.layout.pp; ++stage)
    parts.add(clock_of(request, part, stage, reading), 1);
  return in_the_middle ? aggregated(request) : parts;
}

// Clocks of a pipeline's stages. Those with layers of the same kinds and the same ends take the same time;
// what one waits for its neighbours is the schedule's business.
class Evaluator::Stages {
 public:
  Stages(Evaluator& evaluator, const StepRequest& request, LateReading* reading)
      : evaluator_(evaluator),
        request_(request),
        reading_(reading),
        alike_(first_alike(request.model, request.workload, request.layout)),
        busiest_(alike_.size()),
        clocks_(alike_.size()) {}

  int size() const { return static_cast<int>(alike_.size()); }
  const StepClock& forward(int stage) const { return clocks_[like(stage)].forward; }
  const StepClock& backward(int stage) const { return clocks_[like(stage)].backward; }
  // What the rank that has the head does once a step, for each of its stages.
  std::vector<StepClock> updates() {
    std::vector<StepClock> clocks;
    for (int stage = size() - 1; stage >= 0; stage -= request_.layout.pp) {
      for (const StepPart part : update_parts())
        clocks.push_back(evaluator_.clock_of(request_, part, alike_[idx(stage)], reading_));
    }
    return clocks;
  }
  // Of updates that are not timed the memory counts, too.
  void read_updates() {
    for (int stage = 0; stage < size(); ++stage) {
      if (alike_[idx(stage)] != stage) continue;
      for (const StepPart part : update_parts())
        reading_->add(part, stage, rank_of(request_, part, stage), std::nullopt);
    }
  }

  // False, and ends early, where what is known by then takes longer than the limit: those that most are like
  // are replayed first, and of as many those that take longest by their bounds.
  bool replay(double limit_ns, const PipelineBound& least) {
    std::map<std::size_t, int> kinds;
    for (int stage = 0; stage < size(); ++stage) ++kinds[like(stage)];
    std::vector<std::tuple<int, double, std::size_t>> order;
    for (const auto& [first, count] : kinds) {
      const double ns =
          least.stages.empty() ? 0 : least.stages[first].forward_ns + least.stages[first].backward_ns;
      order.emplace_back(-count, -ns, first);
    }
    std::sort(order.begin(), order.end());
    sends_ = {transfer(StepPart::send_forward, 0), transfer(StepPart::send_backward, size() - 1)};
    // What other layouts have shown of these passes comes first: mostly it is enough.
    if (take_known() && is_beyond(limit_ns, least)) return false;
    for (const auto& [count, ns, first] : order) {
      // The longer pass first.
      const auto stage = static_cast<int>(first);
      clocks_[first].backward = pass(StepPart::backward, stage);
      clocks_[first].knows_backward = true;
      if (is_beyond(limit_ns, least)) return false;
      clocks_[first].forward = pass(StepPart::forward, stage);
      clocks_[first].knows_forward = true;
      if (is_beyond(limit_ns, least)) return false;
    }
    return true;
  }

  // Nothing for those that are not replayed yet.
  std::vector<StageTimes> times() const {
    std::vector<StageTimes> times;
    for (int stage = 0; stage < size(); ++stage) {
      times.push_back(
          {forward(stage).time_ns, backward(stage).time_ns, sends_.forward.time_ns, sends_.backward.time_ns});
    }
    return times;
  }

  std::int64_t micro_batches() const { return accumulation(request_.workload, request_.layout); }

  // What stages hand to one another, to the next one and to the one before. All have as many rows; the first
  // stage and the last one stand for all.
  struct Sends {
    StepClock forward, backward;
  };
  const Sends& sends() const { return sends_; }

 private:
  struct Clocks {
    StepClock forward, backward;
    bool knows_forward = false, knows_backward = false;
  };

  std::vector<StepPart> update_parts() const {
    if (request_.layout.virtual_stages == 1) return {StepPart::update};
    return {StepPart::reduce, StepPart::update};
  }
  StepClock pass(StepPart part, int stage) {
    return evaluator_.clock_of(request_, part, stage, busiest_of(stage), reading_);
  }
  Rank busiest_of(int stage) {
    std::optional<Rank>& self = busiest_[idx(stage)];
    if (!self) self = busiest_rank(request_, stage);
    return *self;
  }

  // Whether there is anything known.
  bool take_known() {
    bool any = false;
    for (int stage = 0; stage < size(); ++stage) {
      if (alike_[idx(stage)] != stage) continue;
      Clocks& clocks = clocks_[idx(stage)];
      const auto take = [&](StepPart part, StepClock& clock, bool& knows) {
        const auto known = evaluator_.known_clock(request_, part, stage, busiest_of(stage));
        if (known != nullptr) clock = *known, knows = any = true;
      };
      take(StepPart::forward, clocks.forward, clocks.knows_forward);
      take(StepPart::backward, clocks.backward, clocks.knows_backward);
    }
    return any;
  }

  // By what is known, and the least of what is not.
  bool is_beyond(double limit_ns, const PipelineBound& least) const {
    if (limit_ns == kNever) return false;
    std::vector<StageTimes> times = this->times();
    for (std::size_t stage = 0; stage < least.stages.size(); ++stage) {
      const Clocks& clocks = clocks_[like(static_cast<int>(stage))];
      if (!clocks.knows_forward) times[stage].forward_ns = least.stages[stage].forward_ns;
      if (!clocks.knows_backward) times[stage].backward_ns = least.stages[stage].backward_ns;
    }
    const double passes_ns = limit_ns - least.update_ns;
    const int ranks = request_.layout.pp;
    return pipeline_bound_ns(times, ranks, micro_batches()) > passes_ns ||
           (!least.stages.empty() && is_quick(times.size(), micro_batches()) &&
            pipeline_ns(times, ranks, micro_batches(), passes_ns) > passes_ns);
  }

  std::size_t like(int stage) const { return idx(alike_[idx(stage)]); }

  // Of memory a transfer has nothing of its own. The time before it is issued passes beside a pass.
  StepClock transfer(StepPart part, int stage) {
    StepClock clock = evaluator_.clock_of(request_, part, stage, busiest_of(stage), nullptr);
    clock.time_ns -= clock.host_ns;
    return clock;
  }

  Evaluator& evaluator_;
  const StepRequest& request_;
  LateReading* const reading_;
  const std::vector<int> alike_;              // of each stage
  std::vector<std::optional<Rank>> busiest_;  // likewise, where it is known
  std::vector<Clocks> clocks_;                // by the first stage of those that are alike
  Sends sends_;
};

double Evaluator::update_ns(const ParallelLayout& layout) {
  const StepRequest request{question_.model, question_.workload, layout};
  Parts parts;
  for (const StepClock& clock : Stages(*this, request, nullptr).updates()) parts.add(clock, 1);
  return parts.time_ns();
}

std::optional<Evaluator::Parts> Evaluator::pipelined(const StepRequest& request, double limit_ns,
                                                     const PipelineBound& least, LateReading* reading,
                                                     PipelineTimes* times) {
  Stages stages(*this, request, reading);
  if (!stages.replay(limit_ns, least)) return std::nullopt;
  const int ranks = request.layout.pp;
  const PipelineTimes run =
      run_pipeline(stages.times(), ranks, stages.micro_batches(), /*keep_chunks=*/times != nullptr);
  const auto busiest = std::min_element(run.idle_ns.begin(), run.idle_ns.end()) - run.idle_ns.begin();
  Parts parts;
  const auto each = static_cast<double>(stages.micro_batches());
  // A rank has part in the transfers on both sides of a stage, and sends one of each two.
  const auto transfer = [&](const StepClock& clock, double sends, double receives) {
    parts.path.add(clock.path, sends + receives);
    parts.nvlink_bytes += sends * clock.nvlink_bytes, parts.nic_bytes += sends * clock.nic_bytes;
  };
  for (int stage = static_cast<int>(busiest); stage < stages.size(); stage += ranks) {
    parts.add(stages.forward(stage), each), parts.add(stages.backward(stage), each);
    const double before = stage > 0 ? each : 0, behind = stage + 1 < stages.size() ? each : 0;
    transfer(stages.sends().forward, behind, before);
    transfer(stages.sends().backward, before, behind);
  }
  parts.add(TimePart::bubble, run.time_ns - parts.time_ns());
  // A pipeline is filled and drained by passes like those of its busiest rank.
  if (const double busy_ns = parts.path.sum(); busy_ns > 0) {
    RateTimes whole;
    whole.add(parts.path, run.time_ns / busy_ns);
    parts.path = whole;
  }
  for (const StepClock& clock : stages.updates()) parts.add(clock, 1);
  if (times != nullptr) *times = run;
  if (reading != nullptr) stages.read_updates();
  return parts;
}

std::vector<PartTime> Evaluator::list(const Parts& parts) const {
  std::vector<PartTime> list;
  for (const auto& [part, ns] : parts.ns) {
    if (ns > 0) list.push_back({part, ns / kNsPerUs});
  }
  return list;
}

Candidate Evaluator::evaluate(const ParallelLayout& layout) { return *evaluate(layout, kNever); }

std::optional<Evaluator::Parts> Evaluator::parts_of(const StepRequest& request, double limit_ns,
                                                    const PipelineBound& least, LateReading* reading) {
  if (request.workload.phase != Phase::training) return served(request, reading);
  if (request.layout.pp == 1) return whole_step(request, reading);
  return pipelined(request, limit_ns, least, reading);
}

std::optional<Candidate> Evaluator::evaluate(const ParallelLayout& layout, double limit_ns,
                                             const PipelineBound& least) {
  const StepRequest request{question_.model, question_.workload, layout};
  LateReading reading(*this, request, rules_);
  const std::optional<Parts> parts = parts_of(request, limit_ns, least, &reading);
  if (!parts) return std::nullopt;
  Memory memory = reading.memory();
  const bool may_fit = counted_bytes(memory) <= usable_bytes(question_);
  if (may_fit || limit_ns == kNever) {
    memory = with_fuller_ranks(memory, request, rules_, [&](StepPart part, int stage, Rank self) {
      return memory_of(request, part, stage, self, std::nullopt);
    });
  }
  return summary(layout, *parts, memory);
}

RateTimes Evaluator::chain(const ParallelLayout& layout) {
  return chain_of(*parts_of({question_.model, question_.workload, layout}, kNever, {}, nullptr));
}

RateTimes Evaluator::chain_of(const Parts& parts) const {
  RateTimes chain;
  for (std::size_t rate = 0; rate < kNumRates; ++rate)
    chain.of[rate] = parts.path.of[rate] / factors_.of[rate] / kNsPerUs;
  return chain;
}

Candidate Evaluator::summary(const ParallelLayout& layout, const Parts& parts, const Memory& memory) const {
  Candidate candidate;
  candidate.layout = layout;
  candidate.parts = list(parts);
  candidate.ttft_us = parts.ttft_us;
  candidate.chains = {chain_of(parts)};
  const Cluster& cluster = question_.cluster;
  double largest = 0;
  for (const auto& [part, us] : candidate.parts) {
    candidate.step_us += us;
    if (is_exposed(part)) candidate.exposed_us += us;
    if (us > largest) largest = us, candidate.bound = part;
  }
  const Workload& workload = question_.workload;
  candidate.tokens_per_s_per_gpu =
      static_cast<double>(tokens_of_step(workload)) / (candidate.step_us * 1e-6) / cluster.num_gpus();
  candidate.mfu = model_flops_utilisation(question_, candidate.step_us);
  candidate.memory = memory;
  candidate.usable_bytes = usable_bytes(question_);
  const auto counted = static_cast<double>(counted_bytes(candidate.memory));
  candidate.memory_low_bytes = std::llround(counted * question_.memory_width.low);
  candidate.memory_high_bytes = std::llround(counted * question_.memory_width.high);
  const double step_ns = candidate.step_us * kNsPerUs;
  const double nvlink = cluster.node.nvlink_gbps > 0 ? cluster.node.nvlink_gbps : cluster.node.pcie_gbps;
  candidate.nvlink_utilisation = parts.nvlink_bytes / (nvlink * step_ns);
  candidate.nic_utilisation =
      parts.nic_bytes / (cluster.network.nic_gbps / cluster.network.gpus_per_nic * step_ns);
  return candidate;
}

std::int64_t tokens_of_step(const Workload& workload) {
  const std::int64_t rows = workload.phase == Phase::decode ? 1 : workload.seq_len - workload.cached;
  return rows * workload.global_batch;
}

double model_flops_utilisation(const PlanQuestion& question, double step_us) {
  const Gpu& gpu = question.cluster.gpu;
  const double peak = (fp8_products(question) ? gpu.tflops_fp8 : gpu.tflops_16) * 1e6;  // flops a microsecond
  return model_flops(question.model, question.workload).total() /
         (peak * question.cluster.num_gpus() * step_us);
}

}  // namespace cp::sim
