// Whole training steps on the NCCL device and on the simulated fabric leave identical traces, and as good as
// the same loss, parameters and states of the optimizer.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/nccl/nccl_device.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/execute.h"
#include "shared/plan/session.h"
#include "shared/transformer/step_buffers.h"
#include "sim/fabric/fabric.h"
#include "sim/planner/models/read_model.h"
#include "sim/present/traces/trace_compare_report.h"
#include "sim/proof/reference/reference_parameters.h"
#include "sim/proof/run/error_sizes.h"
#include "sim/proof/run/tensor_tolerance.h"
#include "sim/proof/step/prove_step.h"
#include "sim/proof/step/scale_down.h"
#include "sim/proof/step/step_tolerance.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/transformer/step_requests.h"
#include "traces/compare.h"

namespace cp {
namespace {

using runtime::NcclDevice;

constexpr double kLearningRate = 1e-3;

// What a rank has behind a step.
struct RankStep {
  RankTrace trace;
  double loss = 0;
  struct Value {
    std::string tensor;
    int role = 0;  // 0: the parameter, then the optimizer's states
    double value = 0;
  };
  std::vector<Value> values;  // of the elements that the rank owns
};

// A step, its plans and its data, and what the fabric made of it.
class StepCase {
 public:
  StepCase(const Transformer& model, const std::string& layout, DType dtype, const Optimizer& optimizer)
      : name_(str(model.name, " in ", cp::name(dtype), " with ", layout, ", ", to_string(optimizer))),
        request_(sim::proof_request(model, parse_parallel_layout(layout), {13, dtype})) {
    request_.workload.optimizer = optimizer;
    MixerPlanCache cache;
    for (int stage = 0; stage < request_.layout.pp * request_.layout.virtual_stages; ++stage) {
      std::vector<StepPart> parts = parts_of(request_);
      const std::vector<StepPart> transfers = transfers_of(request_, stage);
      parts.insert(parts.end(), transfers.begin(), transfers.end());
      for (const StepPart part : parts) {
        for (Plan& plan : step_plans(request_, part, stage, &cache)) {
          const Rank rank = plan.self;
          plans_.insert_or_assign({part, stage, rank}, std::move(plan));
        }
      }
    }
    const Workload& workload = request_.workload;
    values_.parameters = sim::draw_parameters(model, 1, workload.dtype);
    values_.state = sim::begin_optimizer(workload.optimizer, values_.parameters);
    sim::BatchOptions batch;
    batch.vocab = model.vocab, batch.sequences = workload.global_batch, batch.seq_len = workload.seq_len;
    batch.ignored = 0.1;
    values_.batch = sim::draw_batch(batch);
    expectation_ = std::make_unique<sim::StepExpectation>(request_, values_, sim::reference_rules(model),
                                                          sim::optimizer_rules(workload, kLearningRate));
    sim::Fabric fabric(request_.layout.world());
    simulated_.resize(idx(request_.layout.world()));
    fabric.run([&](Rank rank, Device& device) {
      simulated_[idx(rank)] = run(rank, [&](const Plan& plan, const Bindings& bindings) {
        execute(plan, device, bindings, &fabric.traces()[idx(rank)]);
      });
    });
    for (std::size_t rank = 0; rank < simulated_.size(); ++rank)
      simulated_[rank].trace = fabric.traces()[rank];
  }

  int world() const { return request_.layout.world(); }

  // Runs the device's rank's part. Returns what differs, in words.
  std::string run_on(runtime::ProcessDevice& device) const {
    RankTrace trace;
    trace.rank = device.rank();
    RankStep step = run(device.rank(), [&](const Plan& plan, const Bindings& bindings) {
      run_on_host_buffers(device, plan, {bindings, device.host_memory()}, {.trace = &trace});
      // A plan's collectives are numbered from 0 on, and follow those of the plans before.
      const auto earlier = static_cast<std::ptrdiff_t>(trace.observed.size());
      for (OpRecord& record : device.take_observed()) {
        record.sequence += std::count_if(trace.observed.begin(), trace.observed.begin() + earlier,
                                         [&](const OpRecord& other) { return other.group == record.group; });
        trace.observed.push_back(std::move(record));
      }
    });
    step.trace = std::move(trace);
    std::string wrong = differing(step, simulated_[idx(device.rank())]);
    return wrong.empty() ? "" : str("\n", name_, ": ", wrong);
  }

 private:
  RankStep run(Rank rank, const RunPlan& run_plan) const {
    StepBuffers buffers(request_, rank, sim::values_of(values_.parameters));
    buffers.begin_step({values_.batch.tokens, values_.batch.labels, kLearningRate, values_.state.steps + 1});
    run_step(
        [&](StepPart part, int stage, std::int64_t) -> const Plan& {
          return plans_.at({part, stage, rank});
        },
        run_plan, buffers);
    RankStep step;
    buffers.for_each_loss([&](const StepBuffers::RowLoss& row) { step.loss += row.loss; });
    for (const int stage : buffers.stages()) {
      buffers.for_each_owned(stage, [&](const StepBuffers::Owned& owned) {
        for (int role = 0; role <= std::ssize(owned.states); ++role) {
          for (std::int64_t i = 0; i < owned.run.count; ++i)
            step.values.push_back({owned.run.block.tensor, role, owned.value(role, i)});
        }
      });
    }
    return step;
  }

  // Both worlds' results are held to one device's in f64 within the movement by roundings of the dtype
  // (step_tolerance.h) and, as in prove_step.cc, three roundings of f32: so they differ by twice that.
  double allowed(const std::string& tensor, int role) const {
    const sim::StepExpectation::Of of =
        role == 0 ? expectation_->parameter(tensor) : expectation_->state(tensor, role - 1);
    double size = 0;
    for (const double value : of.expected->values) size = std::max(size, std::abs(value));
    return 2 * (sim::kGrowth * of.movement.largest + 3 * sim::roundoff(DType::f32) * size);
  }

  std::string differing(const RankStep& step, const RankStep& simulated) const {
    const TraceComparison traces = compare_traces({simulated.trace}, {step.trace});
    if (!traces.identical) return sim::compare_text({"the simulated fabric", "the device", {}, {}, traces});
    const auto labelled = static_cast<double>(expectation_->step().pass.loss.labelled);
    const double loss = 2 * (sim::kGrowth * expectation_->loss_movement() +
                             sim::roundoff(DType::f32) * expectation_->step().pass.loss.loss());
    if (!(std::abs(step.loss - simulated.loss) / labelled <= loss))
      return str("the losses are ", step.loss, " and ", simulated.loss, ", more than ", loss, " x ", labelled,
                 " apart");
    if (step.values.size() != simulated.values.size() || step.values.empty())
      return str(step.values.size(), " and ", simulated.values.size(), " values");
    std::map<std::pair<std::string, int>, double> bounds;
    for (std::size_t i = 0; i < step.values.size(); ++i) {
      const RankStep::Value &own = step.values[i], &other = simulated.values[i];
      const auto [bound, is_new] = bounds.try_emplace({own.tensor, own.role});
      if (is_new) bound->second = allowed(own.tensor, own.role);
      if (!(std::abs(own.value - other.value) <= bound->second))
        return str(own.tensor, own.role == 0 ? "" : str(", state ", own.role), ": ", own.value,
                   " where the fabric has ", other.value, ", more than ", bound->second, " apart");
    }
    return "";
  }

  std::string name_;
  StepRequest request_;
  std::map<std::tuple<StepPart, int, Rank>, Plan> plans_;
  sim::StepValues values_;
  std::unique_ptr<sim::StepExpectation> expectation_;
  std::vector<RankStep> simulated_;
};

Transformer dense_model() {
  Transformer model = testing::small_model();
  model.name = "a dense model", model.layers = 2, model.hidden = 16, model.intermediate = 24;
  return model;
}
// Norms of heads, biases, gates and a cap: what dense models have beside.
Transformer rich_model() {
  Transformer model = dense_model();
  model.name = "a model of many parts", model.qk_norm = model.qkv_bias = model.gated_attention = true;
  model.tied_embeddings = model.norms_behind = true;
  model.numerics.logit_softcap = 3, model.numerics.norm_unit_offset = true;
  model.numerics.activation = ActivationFunction::gelu_tanh;
  return model;
}
// Published models in small, with layers that recur: gated delta nets beside experts, and Mamba-2.
Transformer scaled_down_model(const char* preset) { return sim::scaled_down(sim::find_model(preset).model); }
Transformer expert_model() {
  Transformer model = dense_model();
  model.name = "experts", model.experts = Experts{4, 2, 12, 10};
  return model;
}

std::vector<std::unique_ptr<StepCase>> cases(int ranks) {
  std::vector<std::unique_ptr<StepCase>> all;
  const auto add = [&](const Transformer& model, const char* layout, DType dtype = DType::f32,
                       const char* optimizer = "adamw") {
    all.push_back(std::make_unique<StepCase>(model, layout, dtype, parse_optimizer(optimizer)));
  };
  if (ranks == 1) {
    add(dense_model(), "tp=1"), add(dense_model(), "tp=1", DType::bf16);
    add(scaled_down_model("nemotron-h-8b"), "tp=1", DType::bf16);
    return all;
  }
  add(dense_model(), "tp=2"), add(dense_model(), "dp_shard=2,recompute=full");
  add(dense_model(), "pp=2"), add(dense_model(), "cp=2,strategy=ring,balance=head_tail");
  add(rich_model(), "tp=2"), add(expert_model(), "dp_shard=2,ep=2");
  add(dense_model(), "dp_shard=2", DType::f32, "adamw:offload"),
      add(dense_model(), "tp=2", DType::f32, "sgd");
  // The rows before a chunk come from the other rank: a halo.
  add(scaled_down_model("qwen3-next-80b-a3b"), "cp=2,strategy=ring,balance=head_tail");
  add(scaled_down_model("nemotron-h-8b"), "cp=2,strategy=ring"),
      add(scaled_down_model("nemotron-h-8b"), "tp=2");
  return all;
}

class NcclStep : public ::testing::TestWithParam<int> {};

TEST_P(NcclStep, WholeStepsAreThoseOfTheSimulatedFabric) {
  CP_REQUIRE_GPU();
  const std::vector<std::unique_ptr<StepCase>> all = cases(GetParam());
  const testing::GpuJob job(GetParam());
  const auto said = testing::run_gpu_ranks(GetParam(), [&](Rank rank) -> std::string {
    NcclDevice device(job.options(rank));
    for (const std::unique_ptr<StepCase>& one : all) {
      if (std::string wrong = one->run_on(device); !wrong.empty()) return wrong;
    }
    return "";
  });
  for (std::size_t rank = 0; rank < said.size(); ++rank)
    EXPECT_TRUE(said[rank].empty()) << "rank " << rank << said[rank];
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclStep, ::testing::Values(1, 2), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace cp
