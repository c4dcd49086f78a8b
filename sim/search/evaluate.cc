#include "sim/search/evaluate.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "shared/base/error.h"
#include "shared/transformer/flops.h"
#include "sim/timeline/estimate.h"

namespace cp::sim {
namespace {

constexpr double kNsPerUs = 1e3;
constexpr std::string_view kAxes[] = {"tp", "cp", "ep", "fsdp", "dp", "pp"};

// How wrong each part may be: by what the cluster's numbers for it rest on.
double uncertainty_of(std::string_view part, const Cluster& cluster) {
  if (part == "attention") return uncertainty(cluster, true, false);
  if (part == "products") return product_uncertainty(cluster);
  if (part.starts_with("exposed ")) return uncertainty(cluster, false, true);
  return uncertainty(cluster, false, false);
}

std::string bound_of(std::string_view part) {
  if (part == "attention") return "attention kernels";
  if (part == "products") return "matrix products";
  if (part == "other kernels") return "memory-bound kernels";
  if (part == "bubble") return "pipeline bubble";
  if (part == "exposed tp") return "tensor-parallel transfers";
  if (part == "exposed cp") return "context-parallel transfers";
  if (part == "exposed fsdp") return "transfers of parameters and gradients";
  if (part == "exposed ep") return "expert-parallel transfers";
  if (part == "exposed pp") return "transfers between stages";
  return std::string(part);
}

}  // namespace

// Attention names its own groups, and sums of norms are of the shards.
std::string axis_of_group(const std::string& group) {
  if (group.starts_with("norm")) return "fsdp";
  for (const std::string_view axis : kAxes) {
    if (group == axis || group.starts_with(std::string(axis) + "_")) return std::string(axis);
  }
  return "cp";
}

// In the order of their first appearance.
struct Evaluator::Parts {
  std::vector<std::pair<std::string, double>> ns;
  double nvlink_bytes = 0, nic_bytes = 0;

  void add(std::string_view name, double value) {
    for (auto& [known, sum] : ns) {
      if (known == name) {
        sum += value;
        return;
      }
    }
    ns.emplace_back(name, value);
  }
  void add(const StepClock& clock, double times) {
    add("attention", times * clock.attention_ns);
    add("products", times * clock.product_ns);
    add("other kernels", times * clock.other_kernel_ns);
    for (const StepClock::Exposed& exposed : clock.exposed)
      add("exposed " + axis_of_group(exposed.group), times * exposed.ns);
    nvlink_bytes += times * clock.nvlink_bytes, nic_bytes += times * clock.nic_bytes;
  }
  double time_ns() const {
    return std::accumulate(ns.begin(), ns.end(), 0.0,
                           [](double sum, const auto& part) { return sum + part.second; });
  }
};

Evaluator::Evaluator(const PlanQuestion& question) : question_(question) {}

StepClock Evaluator::clock_of(const StepRequest& request, StepPart part, int stage) {
  const Plan plan = step_plan(request, part, stage, busiest_rank(request, stage), &attention_plans_);
  return replay_rank(plan, question_.cluster, question_.software);
}

Plan Evaluator::plan_of(const ParallelLayout& layout, StepPart part, int stage) {
  const StepRequest request{question_.model, question_.workload, layout};
  return step_plan(request, part, stage, busiest_rank(request, stage), &attention_plans_);
}

PipelineTimes Evaluator::schedule(const ParallelLayout& layout) {
  PipelineTimes times;
  pipelined({question_.model, question_.workload, layout}, &times);
  return times;
}

Evaluator::Parts Evaluator::whole_step(const StepRequest& request) {
  Parts parts;
  const auto times = static_cast<double>(accumulation(request.workload, request.layout));
  parts.add(clock_of(request, StepPart::micro_batch, 0), times);
  parts.add(clock_of(request, StepPart::update, 0), 1);
  return parts;
}

Evaluator::Parts Evaluator::served(const StepRequest& request) {
  Parts parts;
  const StepPart part = request.workload.phase == Phase::prefill ? StepPart::prefill : StepPart::decode;
  for (int stage = 0; stage < request.layout.pp; ++stage) parts.add(clock_of(request, part, stage), 1);
  return parts;
}

// Stages with as many layers and the same ends take the same time. What a stage waits for its neighbours is the schedule's business.
Evaluator::Parts Evaluator::pipelined(const StepRequest& request, PipelineTimes* times) {
  const ParallelLayout& layout = request.layout;
  const std::vector<std::int64_t> layers = stage_layers(request.model, layout);
  const int stages = static_cast<int>(layers.size());
  struct Clocks {
    StepClock forward, backward;
    std::optional<StepClock> update;
  };
  std::map<std::tuple<std::int64_t, bool, bool>, Clocks> known;
  const auto clocks_of = [&](int stage) -> Clocks& {
    return known.at({layers[static_cast<std::size_t>(stage)], stage == 0, stage == stages - 1});
  };
  std::vector<const Clocks*> clocks;
  for (int stage = 0; stage < stages; ++stage) {
    const auto [found, made] =
        known.try_emplace({layers[static_cast<std::size_t>(stage)], stage == 0, stage == stages - 1});
    if (made) {
      found->second = {
          clock_of(request, StepPart::forward, stage), clock_of(request, StepPart::backward, stage), {}};
    }
    clocks.push_back(&found->second);
  }
  const auto waited = [](const StepClock& clock) {
    double ns = 0;
    for (const auto& exposed : clock.exposed) ns += axis_of_group(exposed.group) == "pp" ? exposed.ns : 0;
    return ns;
  };
  const double send_forward = waited(clocks.front()->forward),
               send_backward = waited(clocks.back()->backward);
  std::vector<StageTimes> of_stages;
  for (const Clocks* clock : clocks) {
    of_stages.push_back({clock->forward.time_ns - waited(clock->forward),
                         clock->backward.time_ns - waited(clock->backward), send_forward, send_backward});
  }
  const std::int64_t micro_batches = accumulation(request.workload, layout);
  const PipelineTimes run = run_pipeline(of_stages, layout.pp, micro_batches, times != nullptr);
  const auto busiest = std::min_element(run.idle_ns.begin(), run.idle_ns.end()) - run.idle_ns.begin();

  Parts parts;
  for (int stage = static_cast<int>(busiest); stage < stages; stage += layout.pp) {
    for (StepClock clock : {clocks[static_cast<std::size_t>(stage)]->forward,
                            clocks[static_cast<std::size_t>(stage)]->backward}) {
      std::erase_if(clock.exposed, [](const auto& exposed) { return axis_of_group(exposed.group) == "pp"; });
      parts.add(clock, static_cast<double>(micro_batches));
    }
  }
  parts.add("bubble", run.time_ns - parts.time_ns());
  // The rank that has the head.
  for (int stage = stages - 1; stage >= 0; stage -= layout.pp) {
    auto& update = clocks_of(stage).update;
    if (!update) update = clock_of(request, StepPart::update, stage);
    parts.add(*update, 1);
  }
  if (times != nullptr) *times = run;
  return parts;
}

std::vector<TimePart> Evaluator::list(const Parts& parts) const {
  std::vector<TimePart> list;
  for (const auto& [name, ns] : parts.ns) {
    if (ns > 0) list.push_back({name, ns / kNsPerUs});
  }
  return list;
}

Candidate Evaluator::evaluate(const ParallelLayout& layout) {
  const StepRequest request{question_.model, question_.workload, layout};
  const Phase phase = question_.workload.phase;
  const Parts parts = phase != Phase::training ? served(request)
                      : layout.pp == 1         ? whole_step(request)
                                               : pipelined(request);
  Candidate candidate;
  candidate.layout = layout;
  candidate.parts = list(parts);
  const Cluster& cluster = question_.cluster;
  double largest = 0;
  for (const TimePart& part : candidate.parts) {
    const double share = uncertainty_of(part.name, cluster);
    candidate.step_us += part.us, candidate.low_us += part.us * (1 - share),
        candidate.high_us += part.us * (1 + share);
    if (part.name.starts_with("exposed ")) candidate.exposed_us += part.us;
    if (part.us > largest) largest = part.us, candidate.bound = bound_of(part.name);
  }
  const Workload& workload = question_.workload;
  const std::int64_t rows = phase == Phase::decode ? 1 : workload.seq_len - workload.cached;
  candidate.tokens_per_s_per_gpu =
      static_cast<double>(rows * workload.global_batch) / (candidate.step_us * 1e-6) / cluster.num_gpus();
  candidate.mfu = model_flops_utilisation(question_, candidate.step_us);
  candidate.memory = memory_of(question_.model, workload, layout, memory_rules(question_));
  candidate.usable_bytes = usable_bytes(question_);
  const double step_ns = candidate.step_us * kNsPerUs;
  const double nvlink = cluster.node.nvlink_gbps > 0 ? cluster.node.nvlink_gbps : cluster.node.pcie_gbps;
  candidate.nvlink_utilisation = parts.nvlink_bytes / (nvlink * step_ns);
  candidate.nic_utilisation =
      parts.nic_bytes / (cluster.network.nic_gbps / cluster.network.gpus_per_nic * step_ns);
  candidate.runnable = layout.pp == 1;
  return candidate;
}

double model_flops_utilisation(const PlanQuestion& question, double step_us) {
  const Gpu& gpu = question.cluster.gpu;
  const bool fp8 = question.software.linear_precision == LinearPrecision::fp8 && gpu.tflops_fp8 > 0;
  const double peak = (fp8 ? gpu.tflops_fp8 : gpu.tflops_16) * 1e6;  // flops a microsecond
  return model_flops(question.model, question.workload).total() /
         (peak * question.cluster.num_gpus() * step_us);
}

}  // namespace cp::sim
