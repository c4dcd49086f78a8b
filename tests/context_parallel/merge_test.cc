// Results that are made of many parts: merged by kernels, a few at once, and by plans in which more wait than
// one step takes.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "shared/context_parallel/cores.h"
#include "shared/kernels/host_kernels.h"
#include "shared/plan/execute.h"
#include "sim/fabric/fabric.h"
#include "sim/proof/run/attention_run.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/context_parallel/run_findings.h"
#include "tests/plan/plan_writer.h"
#include "tests/support/any_case.h"
#include "tests/support/attention_definition.h"
#include "tests/support/values.h"

namespace cp::testing {
namespace {

// ---- kernels ----

// On one rank; `memory` is that of the plan's buffers.
void run_alone(const Plan& plan, std::vector<std::vector<std::byte>>& memory) {
  Bindings bindings;
  for (std::size_t i = 0; i < memory.size(); ++i)
    bindings.push_back(
        {static_cast<BufferId>(i), memory[i].data(), static_cast<std::int64_t>(memory[i].size())});
  sim::Fabric fabric(1);
  fabric.run([&](Rank, Device& device) { execute(plan, device, bindings); });
}

// Attention over all keys, and over each of some disjoint ranges of them, one after the other; which may be
// empty.
struct Parts {
  AttentionInputs all;
  std::vector<std::int64_t> ends;  // of the ranges
  int at_once = 1;                 // merged in one step

  AttentionOutputs part(std::size_t i) const {
    AttentionInputs inputs = all;
    const std::int64_t begin = i == 0 ? 0 : ends[i - 1], end = ends[i];
    inputs.mask = [=, mask = all.mask](std::int64_t q, std::int64_t k) {
      return begin <= k && k < end && mask(q, k);
    };
    return reference_forward(inputs);
  }
};

void showValue(const Parts& parts, std::ostream& out) {
  const AttentionShape& shape = parts.all.shape;
  out << shape.q_len << " queries and " << shape.kv_len << " keys of " << shape.batch << " sequences, "
      << shape.q_heads << " heads (" << shape.kv_heads << " kv) x " << shape.head_dim << " and "
      << shape.v_head_dim << ", keys in parts that end at " << join(parts.ends) << ", " << parts.at_once
      << " merged at once";
}

rc::Gen<Parts> any_parts() {
  return rc::gen::exec([] {
    Parts parts;
    AttentionShape& shape = parts.all.shape;
    shape.batch = *rc::gen::inRange(1, 3), shape.q_len = *rc::gen::inRange(1, 6);
    shape.kv_len = *rc::gen::inRange(1, 30), shape.kv_heads = *rc::gen::inRange(1, 3);
    shape.q_heads = shape.kv_heads * *rc::gen::inRange(1, 3);
    shape.head_dim = *rc::gen::inRange(1, 5), shape.v_head_dim = *rc::gen::inRange(1, 6);
    parts.all.softmax_scale = 1.5;
    const bool causal = *rc::gen::arbitrary<
        bool>();  // early queries see nothing of late parts, and the first few nothing at all
    parts.all.mask = [causal](std::int64_t q, std::int64_t k) { return !causal || k + 2 <= q; };
    const auto seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
    parts.all.q = small_fractions(shape.q_numel(), seed),
    parts.all.k = small_fractions(shape.k_numel(), seed + 1);
    parts.all.v = small_fractions(shape.v_numel(), seed + 2);
    // Scores far apart, so that a part's share may be all or nothing.
    for (double& value : parts.all.q) value *= 16;
    const int count = *rc::gen::inRange(2, 13);
    for (int i = 1; i < count; ++i)
      parts.ends.push_back(*rc::gen::inRange<std::int64_t>(0, shape.kv_len + 1));
    parts.ends.push_back(shape.kv_len);
    std::sort(parts.ends.begin(), parts.ends.end());
    parts.at_once = *rc::gen::inRange(1, static_cast<int>(kMostMerged) + 1);
    return parts;
  });
}

RC_GTEST_PROP(ManyParts, MergedAreAttentionOverAllKeys, ()) {
  const Parts parts = *any_parts();
  const AttentionShape& shape = parts.all.shape;
  const Shape out_shape = {shape.batch, shape.q_len, shape.q_heads, shape.v_head_dim},
              lse_shape = {shape.batch, shape.q_heads, shape.q_len};
  PlanWriter writer(0);
  std::vector<std::vector<std::byte>> memory;
  std::vector<View> outs, lses;
  for (std::size_t i = 0; i < parts.ends.size(); ++i) {
    const AttentionOutputs part = parts.part(i);
    outs.push_back(dense_view(writer.inout("out", shape.out_numel()), 0, out_shape));
    lses.push_back(dense_view(writer.inout("lse", shape.lse_numel()), 0, lse_shape));
    memory.push_back(encode(DType::f32, part.out)), memory.push_back(encode(DType::f32, part.lse));
  }
  // The first one takes all others.
  for (std::size_t next = 1; next < outs.size();) {
    AttentionMerge merge{outs[next], lses[next], outs[0], lses[0]};
    ++next;
    for (int more = 1; more < parts.at_once && next < outs.size(); ++more, ++next) {
      merge.more.push_back(outs[next]);
      merge.more_lse.push_back(lses[next]);
    }
    writer.add(0, Kernel(std::move(merge)));
  }
  run_alone(std::move(writer).finish(), memory);

  const AttentionOutputs expected = reference_forward(parts.all);
  const std::vector<double> out = decode(DType::f32, memory[0]), lse = decode(DType::f32, memory[1]);
  // No score is larger than 16 x 4 x 1.5, so an lse is below 2^7 and rounded by at most 2^-18. The i-th merge
  // takes an lse that i roundings are in, so its weights are off by i x 2^-17 of themselves at most, and by
  // as much again for exponential and quotient; no value is larger than 1. There are at most twelve.
  const double tolerance = 12 * 13 / 2 * std::ldexp(1, -16);
  for (std::size_t i = 0; i < out.size(); ++i) RC_ASSERT(std::abs(out[i] - expected.out[i]) <= tolerance);
  for (std::size_t i = 0; i < lse.size(); ++i) {
    const bool nothing = expected.lse[i] == -std::numeric_limits<double>::infinity();
    RC_ASSERT((nothing ? lse[i] == expected.lse[i] : std::abs(lse[i] - expected.lse[i]) <= tolerance));
  }
}

// Without lse the parts are added.
RC_GTEST_PROP(ManyParts, AddedAreTheirSum, ()) {
  const auto count = pick("count", rc::gen::inRange<std::size_t>(2, 13));
  const auto at_once = pick("at_once", rc::gen::inRange<std::size_t>(1, kMostMerged + 1));
  RC_LOG() << count << " parts, " << at_once << " at once\n";
  const Shape shape = {2, 3, 2, 5};
  PlanWriter writer(0);
  std::vector<std::vector<std::byte>> memory;
  std::vector<View> parts;
  std::vector<double> expected(static_cast<std::size_t>(numel(shape)));
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<double> values = small_integers(numel(shape), i, 1000);  // whose sums are exact
    for (std::size_t j = 0; j < values.size(); ++j) expected[j] += values[j];
    parts.push_back(dense_view(writer.inout("part", numel(shape)), 0, shape));
    memory.push_back(encode(DType::f32, values));
  }
  for (std::size_t next = 1; next < count;) {
    AttentionMerge merge{parts[next], View{}, parts[0], View{}};
    for (++next; merge.more.size() + 1 < at_once && next < count; ++next) merge.more.push_back(parts[next]);
    writer.add(0, Kernel(std::move(merge)));
  }
  run_alone(std::move(writer).finish(), memory);
  RC_ASSERT(decode(DType::f32, memory[0]) == expected);
}

// ---- plans ----

std::size_t most_merged(const std::vector<Plan>& plans) {
  std::size_t most = 0;
  for (const Plan& plan : plans) {
    for (const StepRef& ref : steps_of(plan)) {
      const auto* kernel = std::get_if<Kernel>(&ref.step->work);
      const auto* merge = kernel == nullptr ? nullptr : std::get_if<AttentionMerge>(kernel);
      if (merge != nullptr) most = std::max(most, 1 + merge->more.size());
    }
  }
  return most;
}

// From two parts to more than twice as many as one step takes: below, at and above each number that plans
// treat in another way.
TEST(ManyParts, OfPlansAreOneDevices) {
  std::size_t most = 0;
  for (int cp = 2; cp <= 9; ++cp) {
    std::vector<Rank> ranks(static_cast<std::size_t>(cp));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (const DType dtype : {DType::bf16, DType::f32}) {
      AttentionProblem problem;
      problem.q_len = problem.kv_len = 8 * cp;
      problem.q_heads = 4, problem.kv_heads = 2, problem.head_dim = problem.v_head_dim = 8;
      problem.dtype = dtype;
      const sim::AttentionTestData data(problem, 1);
      for (const CoreFacts* core : all_cores()) {
        for (const bool narrow : {false, true}) {
          for (const char* target : {"", "sm90"}) {
            AttentionRequest request{problem, ranks, {}, true};
            request.strategy.core = core->core, request.strategy.balance = parse_balance("head_tail");
            request.strategy.input_dtype_merge = request.strategy.input_dtype_gradients = narrow;
            sim::AttentionRunOptions options;
            options.backward = true;
            if (*target != '\0') options.target = gpu_target(target);
            EXPECT_EQ(findings(sim::run_attention(data, request, options)), "")
                << to_string(problem) << " on " << cp << " by " << to_string(request.strategy) << " for "
                << options.target.name;
            most =
                std::max(most, most_merged(attention_plans(request, AttentionPass::forward, options.target)));
          }
        }
      }
    }
  }
  EXPECT_EQ(most, kMostMerged);
}

}  // namespace
}  // namespace cp::testing
