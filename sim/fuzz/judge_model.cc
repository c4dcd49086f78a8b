// Steps of small models: the plans of all ranks pass check(), memory is what plans declare and no less than
// its least, and no step is faster on the timeline than its bound.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shared/plan/check.h"
#include "shared/plan/plan_text.h"
#include "shared/transformer/least_memory.h"
#include "shared/transformer/memory_reading.h"
#include "shared/transformer/step_order.h"
#include "shared/transformer/step_plan.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/fuzz/draw.h"
#include "sim/fuzz/laws.h"
#include "sim/fuzz/timeline_law.h"
#include "sim/planner/search/bound.h"
#include "sim/planner/search/evaluate.h"
#include "sim/scenario/model_step.h"
#include "traces/plan_proto.h"

namespace cp::sim {
namespace {

// The largest case, by its tokens. Chosen: plans and pairs grow with them.
constexpr std::int64_t kMostTokens = 1 << 16;
// Bounds and the timeline add up the same times in different orders, thousands of doubles: 1e4 * 2^-53 is
// 1e-12, and this is far above it.
constexpr double kBoundRounding = 1e-9;

// Whatever the kind of a buffer.
std::int64_t bytes_of(const Plan& plan, std::string_view term) {
  std::int64_t bytes = 0;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.name.starts_with(term) && buffer.name.substr(term.size()).starts_with("/"))
      bytes += buffer.bytes();
  }
  return bytes;
}

void texts(const Plan& plan, const Trial& trial) {
  trial.property("texts", [&] {
    trial.require(parse_plan(to_text(plan)) == plan, "texts", "the plan of rank ", plan.self,
                  " does not come back from its text");
    trial.require(parse_plan_bytes(serialize_plan(plan)) == plan, "texts", "the plan of rank ", plan.self,
                  " does not come back from its bytes");
  });
}

// Nothing is padded: every size divides by every degree that splits it.
bool is_even(const StepRequest& request) {
  const Transformer& model = request.model;
  const ParallelLayout& layout = request.layout;
  const std::int64_t ranks = std::int64_t{4} * layout.sharding_size() * layout.dp_replicate * layout.tp;
  const std::int64_t rows = std::int64_t{2} * layout.cp * layout.tp * layout.cp;
  const bool even_sinks = !model.sinks || model.q_heads / layout.tp % layout.sharding_size() == 0;
  return even_sinks && model.hidden % ranks == 0 && model.kv_heads % layout.tp == 0 &&
         model.head_dim % 8 == 0 && request.workload.cu_seqlens.empty() &&
         request.workload.seq_len % rows == 0 && layout.cp != 3 && model.vocab % ranks == 0;
}

// Of what implementations add, nothing.
MemoryRules plain_rules(const Workload& workload) {
  MemoryRules rules;
  rules.loss_f32_copies = 0;
  rules.served_layer_bytes = static_cast<double>(size_bytes(workload.dtype));
  return rules;
}

// What is in closed form to the byte.
void closed_terms(const StepRequest& request, const Memory& least, const Trial& trial) {
  const Rank busiest = busiest_rank(request, 0);
  const Plan step = step_plan(request, StepPart::micro_batch, 0, busiest);
  const Plan update = step_plan(request, StepPart::update, 0, busiest);
  const auto require = [&](const char* term, std::int64_t closed, std::int64_t declared) {
    trial.require(closed == declared, "memory", term, ": ", closed, " bytes in closed form, ", declared,
                  " in plans of ", to_string(request.layout));
  };
  // What whole parameters are gathered from is the update's; of whole gradients that several ranks have, it
  // makes shards itself.
  const ParallelLayout& layout = request.layout;
  const bool whole = layout.sharding_size() > 1 && layout.keeps_whole_gradients();
  // What routers add to their scores the update has where it moves it.
  const auto corrections = [](const Plan& plan) {
    const auto own = std::find_if(plan.buffers.begin(), plan.buffers.end(),
                                  [](const Buffer& buffer) { return buffer.name == kScoreCorrectionBuffer; });
    return own == plan.buffers.end() ? 0 : own->bytes();
  };
  require("parameters", least.parameters,
          layout.keeps_whole_parameters()
              ? bytes_of(update, "parameters") - corrections(update) + corrections(step)
              : bytes_of(step, "parameters"));
  if (!whole) require("gradients", least.gradients, bytes_of(step, "gradients"));
  require("master", least.master, bytes_of(update, "master"));
  require("optimizer", least.optimizer, bytes_of(update, "optimizer"));
  // States that come in are counted of a rank that need not be this one.
  if (request.model.recurrence && layout.cp > 1) return;
  // The last layer's output is the loss's; in slots it has the place of an input.
  const std::int64_t x = layout.host_activations ? 0
                                                 : layout.micro_batch * request.workload.seq_len / layout.cp /
                                                       layout.row_ranks() * request.model.hidden *
                                                       size_bytes(request.workload.dtype);
  // Prediction layers keep theirs while a loss is at work, where the closed form counts it.
  Transformer without = request.model;
  without.prediction_layers = 0;
  const std::int64_t logits =
      least_memory_of(without, request.workload, layout, plain_rules(request.workload)).logits;
  // Of the few rows of halos nothing is claimed: ranks differ in them.
  std::int64_t halos = 0;
  for (const Buffer& buffer : step.buffers)
    halos += buffer.name.starts_with("activations/convolution_halo") ? buffer.bytes() : 0;
  require("activations", least.activations + least.logits - logits,
          bytes_of(step, "activations") - x - halos);
}

void memory(const StepRequest& request, const Trial& trial) {
  const MemoryRules rules = plain_rules(request.workload);
  const Memory least = least_memory_of(request.model, request.workload, request.layout, rules);
  const Memory memory = trial.property("memory", [&] { return memory_of(request, rules); });
  // Where rows do not divide, it is not one rank that has most of all: some rows of few.
  const bool even = request.workload.seq_len % (std::int64_t{2} * request.layout.cp) == 0 &&
                    !request.layout.strategy.balance.per_document;
  trial.require(!even || least.allocated() <= memory.allocated(), "memory", to_string(request.layout),
                " needs ", memory.allocated(), " bytes by its plans, and ", least.allocated(), " at least");
  if (request.workload.phase != Phase::training || request.layout.pp > 1) return;
  MemoryReading reading(request, rules);
  std::vector<Plan> parts;
  for (const StepPart part : parts_of(request)) {
    parts.push_back(step_plan(request, part, 0, busiest_rank(request, 0)));
    reading.add(part, 0, memory_of_plan(parts.back()));
  }
  check_declared(reading.memory(), parts, trial);
  if (is_even(request)) closed_terms(request, least, trial);
}

void bound(const StepRequest& request, const std::string& cluster, const Trial& trial) {
  PlanQuestion question;
  question.model = request.model;
  question.workload = request.workload;
  const Cluster node = find_cluster(cluster.empty() ? "dgx-h100" : cluster, 1);
  question.cluster = find_cluster(cluster.empty() ? "dgx-h100" : cluster,
                                  (request.layout.world() + node.node.gpus - 1) / node.node.gpus);
  question.software = find_software("cprun");
  trial.property("bound", [&] {
    Evaluator evaluator(question);
    const double step_ns = evaluator.evaluate(request.layout).step_us * 1e3;
    const double bound_ns = StepBound(question).ns(request.layout);
    trial.require(bound_ns <= step_ns * (1 + kBoundRounding), "bound", to_string(request.layout), " takes ",
                  step_ns, " ns on the timeline, less than its bound of ", bound_ns);
    trial.require(evaluator.evaluate(request.layout).step_us * 1e3 == step_ns, "bound",
                  "the second time it takes another time");
  });
}

// Of one stage after the other they come, where the timeline takes them by rank.
void timeline(std::vector<Plan> plans, const std::string& cluster, const Trial& trial) {
  std::sort(plans.begin(), plans.end(), [](const Plan& a, const Plan& b) { return a.self < b.self; });
  check_timeline(plans, cluster.empty() ? "dgx-h100" : cluster, trial);
}

}  // namespace

void judge_model(const proto::ModelStep& job, Trial& trial) {
  const StepRequest request = make_step_request(job);
  if (request.layout.world() > kMostModelRanks || request.workload.tokens() > kMostTokens) {
    throw InvalidInput(str("the case has ", request.workload.tokens(), " tokens on ", request.layout.world(),
                           " ranks, of ", kMostTokens, " on ", kMostModelRanks, " at most"));
  }
  if (const auto refusal = refuse(request.model, request.workload, request.layout))
    throw InvalidInput(refusal->text());
  for (const StepPart part : parts_of(request)) {
    // With several stages a rank the reductions of the first ones meet those of others' second ones.
    const bool meet = part != StepPart::reduce;
    const std::vector<Plan> plans =
        trial.property("planning", [&] { return plans_of_all_ranks(request, part); });
    for (const Plan& plan : plans) trial.hasher().add(digest(plan));
    if (meet) trial.property("plan check", [&] { check(plans); });
    if (trial.asks("texts")) texts(plans[digest(plans.front()).low % plans.size()], trial);
    if (trial.asks("timeline") && meet) timeline(plans, job.cluster(), trial);
  }
  if (request.layout.pp > 1 && request.workload.phase == Phase::training)
    trial.property("step order", [&] { check_step_order(request); });
  trial.require(parse_parallel_layout(to_string(request.layout)) == request.layout, "texts", "layout ",
                to_string(request.layout), " reads as another one");
  if (trial.asks("layout_texts")) check_layout_texts(request, trial);
  if (trial.asks("pairs")) check_pairs(request, trial);
  if (trial.asks("pipeline")) check_pipeline(request, job.cluster(), trial);
  if (trial.asks("memory")) memory(request, trial);
  // The rank that is replayed stands for all where each has rows.
  const Workload& workload = request.workload;
  const std::int64_t rows = workload.phase == Phase::decode ? 1 : workload.seq_len - workload.cached;
  const bool all_have_rows =
      request.layout.cp == 1 || rows >= std::int64_t{2} * request.layout.cp * request.layout.row_ranks();
  if (trial.asks("bound") && all_have_rows) bound(request, job.cluster(), trial);
  if (trial.asks("operations")) check_slow_machine(request, job.cluster(), trial);
}

}  // namespace cp::sim
