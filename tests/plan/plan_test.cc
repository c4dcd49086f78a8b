#include "shared/plan/plan.h"

#include <map>
#include <optional>
#include <span>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/fused_attention.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/operations.h"

namespace cp {
namespace {

TEST(View, FlatAndDense) {
  EXPECT_EQ(dense_view(1, 5, {2, 3, 4}), (View{1, 5, {2, 3, 4}, {12, 4, 1}, {}}));
  EXPECT_EQ(dense_view(1, 5, {}), (View{1, 5, {}, {}, {}}));
  EXPECT_EQ(flat_view(1, 5, 7), dense_view(1, 5, {7}));
}

TEST(View, ContiguousMeansRowMajorWithoutGaps) {
  const auto contiguous = [](Shape shape, Shape strides) {
    return is_contiguous(View{0, 0, shape, strides, {}});
  };
  EXPECT_TRUE(contiguous({}, {}));
  EXPECT_TRUE(contiguous({2, 3}, {3, 1}));
  EXPECT_TRUE(contiguous({2, 1, 3}, {3, 99, 1}));  // one element has no stride
  EXPECT_TRUE(contiguous({2, 0}, {7, 7}));
  EXPECT_FALSE(contiguous({2, 3}, {4, 1}));
  EXPECT_FALSE(contiguous({2, 3}, {1, 2}));
  EXPECT_FALSE(contiguous({3}, {0}));
}

TEST(View, AdvancesThroughSlotsOrAlongAStack) {
  const auto offsets = [](Advance advance) {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < 5; ++i) all.push_back(offset_at(flat_view(0, 100, 1, advance), i));
    return all;
  };
  EXPECT_EQ(offsets({}), (std::vector<std::int64_t>{100, 100, 100, 100, 100}));
  EXPECT_EQ(offsets({10, 2, 0}), (std::vector<std::int64_t>{100, 110, 100, 110, 100}));
  EXPECT_EQ(offsets({10, 3, 2}), (std::vector<std::int64_t>{120, 100, 110, 120, 100}));
  EXPECT_EQ(offsets({10, 0, 1}), (std::vector<std::int64_t>{110, 120, 130, 140, 150}));
  EXPECT_EQ(offsets({-10, 0, 0}), (std::vector<std::int64_t>{100, 90, 80, 70, 60}));
}

TEST(MaskSlice, Kinds) {
  const auto row = [](MaskSlice slice, std::int64_t q) {
    std::string text;
    for (std::int64_t k = 0; k < 8; ++k) text += allows(slice, q, k) ? '1' : '0';
    return text;
  };
  MaskSlice slice{2, 3, 1, 6, MaskSlice::Kind::full, 0, 0};  // queries 2..4, keys 1..6
  EXPECT_EQ(row(slice, 1), "00000000");
  EXPECT_EQ(row(slice, 2), "01111110");
  EXPECT_EQ(row(slice, 5), "00000000");
  slice.kind = MaskSlice::Kind::causal;
  EXPECT_EQ(row(slice, 2), "01000000");
  EXPECT_EQ(row(slice, 4), "01110000");
  slice.diagonal = 2;
  EXPECT_EQ(row(slice, 2), "01110000");
  slice.diagonal = -2;
  EXPECT_EQ(row(slice, 3), "00000000");
  EXPECT_EQ(row(slice, 4), "01000000");
  slice.kind = MaskSlice::Kind::window;
  slice.diagonal = 2, slice.window = 2;
  EXPECT_EQ(row(slice, 2), "00110000");
  EXPECT_EQ(row(slice, 4), "00001100");
}

Plan example(Rank self) {
  Plan plan;
  plan.self = self;
  plan.groups = {{"g", {4, 5, 6}}};
  plan.buffers = {{"x", BufferKind::inout, DType::bf16, 90}, {"t", BufferKind::temporary, DType::f32, 8}};
  plan.arena_bytes = 32;
  return plan;
}

TEST(Volume, IsWhatPeersGet) {
  const auto of = [](Rank self, const Collective& collective) { return volume(collective, example(self)); };
  const View a = flat_view(0, 0, 9), b = flat_view(0, 30, 27);
  const Volume ends{{18, 0, 18}, {18, 0, 18}};
  EXPECT_EQ(of(5, AllGather{0, a, b}), ends);
  EXPECT_EQ(of(5, ReduceScatter{0, ReduceOp::sum, b, a}), ends);
  EXPECT_EQ(of(5, AllReduce{0, ReduceOp::sum, a, a}), ends);
  EXPECT_EQ(of(5, AllToAll{0, b, flat_view(0, 60, 27)}), ends);
  EXPECT_EQ(of(5, Broadcast{0, 1, a, a}), (Volume{{18, 0, 18}, {0, 0, 0}}));
  EXPECT_EQ(of(6, Broadcast{0, 1, View{}, a}), (Volume{{0, 0, 0}, {0, 18, 0}}));
  const Exchange exchange{0, {{2, a}, {2, flat_view(1, 0, 1)}}, {{0, b}}, {}};
  EXPECT_EQ(of(5, exchange), (Volume{{0, 0, 22}, {54, 0, 0}}));
  EXPECT_THROW(of(3, exchange), InvalidInput);
}

TEST(Plan, StepsCountARepeatOnce) {
  Plan plan = example(4);
  const Step step{0, Kernel(Fill{flat_view(0, 0, 1), 0}), {}, {}};
  plan.segments = {step, Repeat{7, {step, step}}, step};
  const std::vector<StepRef> steps = steps_of(plan);
  ASSERT_EQ(steps.size(), 4U);
  const std::int64_t counts[] = {1, 7, 7, 1};
  const std::int32_t segments[] = {0, 1, 1, 2};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(steps[i].id, static_cast<StepId>(i));
    EXPECT_EQ(steps[i].count, counts[i]);
    EXPECT_EQ(steps[i].segment, segments[i]);
  }
  EXPECT_EQ(peak_bytes(plan), 32 + 180);
}

TEST(Plan, AccessesOfEveryOperation) {
  const auto text = [](const Work& work, std::int32_t index = 0) {
    std::string all;
    for (const Access& access : accesses(work, index)) {
      all +=
          str(all.empty() ? "" : " ", access.view->buffer, access.reads ? "r" : "", access.writes ? "w" : "");
    }
    return all;
  };
  const auto v = [](BufferId id) { return flat_view(id, 0, 1); };
  EXPECT_EQ(text(Collective(AllGather{0, v(1), v(2)})), "1r 2w");
  EXPECT_EQ(text(Collective(ReduceScatter{0, ReduceOp::sum, v(1), v(2)})), "1r 2w");
  EXPECT_EQ(text(Collective(AllReduce{0, ReduceOp::sum, v(1), v(2)})), "1r 2w");
  EXPECT_EQ(text(Collective(AllToAll{0, v(1), v(2)})), "1r 2w");
  EXPECT_EQ(text(Collective(Broadcast{0, 1, v(1), v(2)}), 1), "1r 2w");
  EXPECT_EQ(text(Collective(Broadcast{0, 1, v(1), v(2)}), 0), "2w");
  EXPECT_EQ(text(Collective(Exchange{0, {{1, v(1)}, {2, v(2)}}, {{1, v(3)}}, {}})), "1r 2r 3w");
  EXPECT_EQ(text(Kernel(Copy{v(1), v(2)})), "1r 2w");
  EXPECT_EQ(text(Kernel(Cast{v(1), v(2)})), "1r 2w");
  EXPECT_EQ(text(Kernel(Fill{v(1), 0})), "1w");
  EXPECT_EQ(text(Kernel(Accumulate{ReduceOp::sum, v(1), v(2)})), "1r 2rw");
  EXPECT_EQ(text(Kernel(Scale{v(1), 2})), "1rw");
  EXPECT_EQ(text(Kernel(MatMul{v(1), v(2), v(3), false})), "1r 2r 3w");
  EXPECT_EQ(text(Kernel(MatMul{v(1), v(2), v(3), true})), "1r 2r 3rw");
  EXPECT_EQ(text(Kernel(AttentionForward{v(1), v(2), v(3), v(4), v(5), 1, {}})), "1r 2r 3r 4w 5w");
  AttentionBackward backward{v(1), v(2), v(3), v(4), v(5), v(6), v(7), v(8), v(9), 1, {}, false, false};
  EXPECT_EQ(text(Kernel(backward)), "1r 2r 3r 4r 5r 6r 7w 8w 9w");
  backward.accumulate_dq = true;
  EXPECT_EQ(text(Kernel(backward)), "1r 2r 3r 4r 5r 6r 7rw 8w 9w");
  backward.accumulate_dkv = true;
  EXPECT_EQ(text(Kernel(backward)), "1r 2r 3r 4r 5r 6r 7rw 8rw 9rw");
  backward.accumulate_dq = false;
  EXPECT_EQ(text(Kernel(backward)), "1r 2r 3r 4r 5r 6r 7w 8rw 9rw");
  backward.engine = AttentionEngine::fused;
  backward.accumulate_dkv = false, backward.delta = View{}, backward.out = v(6), backward.workspace = v(0);
  EXPECT_EQ(text(Kernel(backward)), "1r 2r 3r 4r 5r 6r 7w 8w 9w 0w");
  EXPECT_EQ(text(Kernel(AttentionForward{v(1), v(2), v(3), v(4), v(5), 1, {}, AttentionEngine::fused, v(6)})),
            "1r 2r 3r 4w 5w 6w");
  EXPECT_EQ(text(Kernel(AttentionDelta{v(1), v(2), v(3)})), "1r 2r 3w");
  EXPECT_EQ(text(Kernel(AttentionMerge{v(1), v(2), v(3), v(4)})), "1r 2r 3rw 4rw");
  EXPECT_EQ(text(Kernel(RecurrenceForward{v(1), v(2), v(3), v(4), v(5), v(6), v(7), {}})),
            "1r 2r 3r 4r 5r 6r 7w");
  EXPECT_EQ(text(Kernel(RecurrenceForward{v(1), v(2), v(3), v(4), v(5), View{}, v(7), {}})),
            "1r 2r 3r 4r 5r 7w");
  RecurrenceForward serving{v(1), v(2), v(3), v(4), v(5), v(6), v(7), {}};
  serving.final_state = v(8);
  EXPECT_EQ(text(Kernel(serving)), "1r 2r 3r 4r 5r 6r 7w 8w");
  serving.final_state = v(6);  // in place
  EXPECT_EQ(text(Kernel(serving)), "1r 2r 3r 4r 5r 7w 6rw");
  EXPECT_EQ(text(Kernel(RecurrenceSummary{v(1), v(2), v(3), v(4), v(5), v(6)})), "1r 2r 3r 4r 5w 6w");
  EXPECT_EQ(text(Kernel(RecurrenceSummaryGradient{v(1), v(2), v(3), v(4), v(5), v(6)})), "1r 2r 3r 4r 5r 6w");
  EXPECT_EQ(text(Kernel(RecurrenceJoin{v(1), v(2), v(3), false})), "1r 2r 3w");
  EXPECT_EQ(text(Kernel(RecurrenceJoin{v(1), v(2), v(3), true})), "1r 2r 3rw");
  EXPECT_EQ(text(Kernel(RecurrenceBackward{
                v(1), v(2), v(3), v(4), v(5), View{}, v(6), v(7), v(8), v(9), v(0), v(1), v(2), v(3), {}})),
            "1r 2r 3r 4r 5r 6r 7r 8w 9w 0w 1w 2w 3w");
  EXPECT_EQ(text(Kernel(RowKernel{RowOperation::rotary, {v(1), v(2)}, {v(3)}, {v(4), v(5)}})),
            "1r 2r 3w 4rw 5rw");
}

TEST(Target, TheHostHasEveryOperationAndShapesHaveThoseWithoutARule) {
  const auto names = []<class... Ops>(std::type_identity<std::variant<Ops...>>) {
    std::set<std::string> found;
    (found.emplace(operation_name(std::variant<Ops...>(Ops{}))), ...);
    return found;
  };
  std::set<std::string> kernels = names(std::type_identity<Kernel>());
  EXPECT_EQ(kernels.erase("rms_norm"), 1U);
  EXPECT_EQ(kernels.size(), 16U);
  EXPECT_EQ(host_target().collectives, names(std::type_identity<Collective>()));
  EXPECT_EQ(host_target().collectives.size(), 6U);
  for (int i = 0; i <= static_cast<int>(RowOperation::group_bias_backward); ++i) {
    const std::string_view name = operation_name(Kernel(RowKernel{static_cast<RowOperation>(i), {}, {}, {}}));
    EXPECT_TRUE(kernels.emplace(name).second) << name;
  }
  EXPECT_EQ(host_target().kernels, kernels);
  EXPECT_EQ(common_target().kernels, kernels);
  EXPECT_EQ(gpu_target("sm90").kernels, kernels);
  const Work turn = Kernel(RowKernel{RowOperation::rotary, {}, {}, {}}),
             turn_by_rule = Kernel(RowKernel{RowOperation::rotary, {}, {}, {}, RotaryRule{}}),
             gate = Kernel(RowKernel{RowOperation::output_gate, {}, {}, {}});
  EXPECT_FALSE(has_operation(host_target(), turn));
  EXPECT_EQ(operation_words(turn), "rotary without a rule");
  EXPECT_TRUE(has_operation(host_target(), turn_by_rule));
  EXPECT_EQ(operation_words(turn_by_rule), "rotary");
  EXPECT_TRUE(has_operation(host_target(), gate));
  EXPECT_TRUE(has_operation(shape_target(), turn));
  kernels.emplace(kShapesOnly);
  EXPECT_EQ(shape_target().kernels, kernels);
  EXPECT_EQ(shape_target().collectives, host_target().collectives);
  EXPECT_EQ(shape_target().dtypes, host_target().dtypes);
}

TEST(Target, GpusHaveTheHostsOperationsAndFusedAttention) {
  for (const std::string_view name : {"sm80", "sm90", "sm100", "sm120"}) {
    const Target& target = target_by_name(name);
    EXPECT_EQ(&target, &gpu_target(name));
    EXPECT_EQ(target.name, name);
    EXPECT_EQ(target.alignment_bytes, 256);
    EXPECT_EQ(*target.fused_attention, cudnn_attention(name));
    Target host = target;
    host.name = "host", host.alignment_bytes = 1, host.fused_attention.reset();
    EXPECT_EQ(host, host_target());
  }
  EXPECT_EQ(&target_by_name("host"), &host_target());
  const auto error = [](const auto& action) {
    try {
      action();
    } catch (const InvalidInput& found) {
      return std::string(found.what());
    }
    return std::string();
  };
  EXPECT_EQ(error([] { target_by_name("sm91"); }),
            "target 'sm91' is unknown; use one of host, sm80, sm90, sm100, sm120");
  EXPECT_EQ(error([] { gpu_target("host"); }),
            "there is no target for GPUs of host; use one of sm80, sm90, sm100, sm120");
  EXPECT_EQ(
      error([] { gpu_target("sm130"); }),
      "there is no target for GPUs of sm130; use one of sm80, sm90, sm100, sm120; the nearest is sm120");
  EXPECT_THAT(error([] { gpu_target("sm110"); }), ::testing::HasSubstr("the nearest is sm100"));
  EXPECT_THAT(error([] { gpu_target("sm75"); }), ::testing::HasSubstr("the nearest is sm80"));
}

// A10 and A40, Orin, L4 and L40S; Thor as it was called first, B300; GB10.
TEST(Target, GpusOfOneMajorVersionHaveOneTarget) {
  const std::map<std::string, std::string> generations = {
      {"sm80", "sm80"},   {"sm86", "sm80"},   {"sm87", "sm80"},   {"sm89", "sm80"},   {"sm90", "sm90"},
      {"sm100", "sm100"}, {"sm101", "sm100"}, {"sm103", "sm100"}, {"sm120", "sm120"}, {"sm121", "sm120"}};
  for (const auto& [gpu, generation] : generations) {
    EXPECT_EQ(&gpu_target(gpu), &gpu_target(generation));
    EXPECT_EQ(&target_by_name(gpu), &gpu_target(generation));
  }
}

// ---- memory ----

TEST(HostMemory, PlacesBuffersAndFillsFreshMemory) {
  Plan plan = example(4);
  plan.buffers[1].offset_bytes = 0;
  std::vector<std::byte> bound(180);
  const HostMemory memory(plan, {{0, bound.data(), 180}});
  EXPECT_EQ(memory.bytes(0).data(), bound.data());
  EXPECT_EQ(memory.at(flat_view(0, 3, 1, {10, 2, 0}), 1), bound.data() + 26);
  EXPECT_EQ(memory.at(flat_view(0, 1000, 0), 0), bound.data());  // empty: anywhere, so here
  EXPECT_EQ(memory.dtype(flat_view(0, 0, 1)), DType::bf16);
  ASSERT_EQ(memory.bytes(1).size(), 32U);
  for (const std::byte byte : memory.bytes(1)) EXPECT_EQ(byte, std::byte{0xFB});
  const HostMemory unbound(plan, {});
  for (const std::byte byte : unbound.bytes(0)) EXPECT_EQ(byte, std::byte{0xFB});
}

// A device prepares the same plan at each run, and others in between.
TEST(HostMemory, TakesWhatAPlanBeforeHasAllocated) {
  Plan large = example(4), small = example(4);
  small.buffers[0].numel = 30;
  large.arena_bytes = 4096;
  std::optional<HostMemory> memory(std::in_place, large, Bindings{});
  const std::byte* arena = memory->bytes(1).data() - large.buffers[1].offset_bytes;
  const std::byte* x = memory->bytes(0).data();
  memory->bytes(0)[3] = std::byte{7};
  const auto prepare = [&](const Plan& plan) {
    std::optional<HostMemory> before = std::move(memory);
    memory.emplace(plan, Bindings{}, std::move(before));
  };
  prepare(large);
  EXPECT_EQ(memory->bytes(1).data(), arena + large.buffers[1].offset_bytes);
  EXPECT_EQ(memory->bytes(0).data(), x);
  EXPECT_EQ(memory->bytes(0)[3], std::byte{7});
  prepare(small);  // of a smaller arena, and a buffer of another size
  EXPECT_EQ(memory->bytes(1).data(), arena + small.buffers[1].offset_bytes);
  ASSERT_EQ(memory->bytes(0).size(), 60U);
  for (const std::byte byte : memory->bytes(0)) EXPECT_EQ(byte, std::byte{0xFB});
  prepare(large);
  EXPECT_EQ(memory->bytes(1).data(), arena + large.buffers[1].offset_bytes);
  large.arena_bytes = 8192;
  prepare(large);  // and the whole of it is there
  const std::span<std::byte> t = memory->bytes(1);
  for (const std::byte byte : t) EXPECT_EQ(byte, std::byte{0xFB});
}

TEST(HostMemory, RefusesBindingsThatDoNotFit) {
  Plan plan = example(4);
  std::vector<std::byte> bound(200);
  const auto error = [&](const Bindings& bindings) -> std::string {
    try {
      HostMemory(plan, bindings);
    } catch (const InvalidInput& found) {
      return found.what();
    }
    return "no error";
  };
  EXPECT_EQ(error({{0, bound.data(), 90}}),
            "a binding has 90 bytes, but its buffer x has 180 bytes (90 x bf16)");
  EXPECT_EQ(error({{0, nullptr, 180}}), "a binding has 0 bytes, but its buffer x has 180 bytes (90 x bf16)");
  EXPECT_EQ(error({{1, bound.data(), 32}}),
            "a binding is for the temporary t; bind only inputs, outputs and inouts");
  EXPECT_EQ(error({{2, bound.data(), 32}}), "a binding is for buffer 2, but the plan has 2 buffers");
  EXPECT_EQ(error({{0, bound.data(), 180}, {0, bound.data(), 180}}),
            "buffer x has two bindings; give it one");
  plan.arena_bytes = 31;
  EXPECT_EQ(error({}),
            "temporary t [0, 32) lies outside of the arena of 31 bytes; PlanBuilder::build() places it");
}

}  // namespace
}  // namespace cp
