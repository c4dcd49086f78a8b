#include "tests/support/hand_plans.h"

#include <cmath>

#include "shared/base/text.h"
#include "shared/kernels/host_kernels.h"
#include "shared/plan/builder.h"
#include "shared/plan/session.h"
#include "tests/support/values.h"

namespace cp::testing {

std::vector<PlanCase> hand_plans(int ranks) {
  std::vector<PlanCase> all = {ring_backward(ranks, DType::f32), ring_backward(ranks, DType::bf16),
                               prefetched_blocks(ranks, 2), prefetched_blocks(ranks, 6)};
  for (const UnevenReduce form : {UnevenReduce::reduce_scatter, UnevenReduce::exchange}) {
    for (const std::int64_t rows : {13, 12, 3, 1, 0})
      all.push_back(uneven_reduce(ranks, rows, form, DType::f32));
    all.push_back(uneven_reduce(ranks, 13, form, DType::f16));
    all.push_back(uneven_reduce(ranks, 13, form, DType::i64));
  }
  return all;
}

BufferValues run_plan_case(const PlanCase& plan_case, Rank rank, Device& device, RankTrace* trace) {
  const Plan& plan = plan_case.plans[static_cast<std::size_t>(rank)];
  const BufferValues& inputs = plan_case.inputs[static_cast<std::size_t>(rank)];
  PlanSession session(device, plan);
  for (const BufferId id : session.inputs()) {
    const Buffer& buffer = plan.buffers[static_cast<std::size_t>(id)];
    session.upload(id, encode(buffer.dtype, inputs.at(buffer.name)));
  }
  session.run({.trace = trace});
  BufferValues outputs;
  for (const BufferId id : session.outputs()) {
    const Buffer& buffer = plan.buffers[static_cast<std::size_t>(id)];
    outputs[buffer.name] = decode(buffer.dtype, session.download(id));
  }
  return outputs;
}

std::string compare_outputs(const PlanCase& plan_case, Rank rank, const BufferValues& outputs) {
  for (const auto& [buffer, expected] : plan_case.expected[static_cast<std::size_t>(rank)]) {
    const auto found = outputs.find(buffer);
    if (found == outputs.end()) return str("no output ", buffer);
    const std::vector<double>& actual = found->second;
    if (actual.size() != expected.size())
      return str(buffer, " has ", actual.size(), " elements, not ", expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (std::abs(actual[i] - expected[i]) <= plan_case.tolerance) continue;  // false for a NaN
      return str(plan_case.name, ", rank ", rank, ": ", buffer, "[", i, "] is ", actual[i], ", not ",
                 expected[i]);
    }
  }
  return "";
}

Plan all_reduce_plan(Rank self, std::vector<Rank> ranks) {
  PlanBuilder b(self, host_target());
  const BufferId x = b.inout("x", DType::f32, 4);
  b.add(b.stream("main"),
        AllReduce{b.group("all", std::move(ranks)), ReduceOp::sum, flat_view(x, 0, 4), flat_view(x, 0, 4)});
  return std::move(b).build({});
}

}  // namespace cp::testing
