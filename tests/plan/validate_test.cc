#include <limits>

#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/plan/fused_attention.h"
#include "shared/plan/step_rules.h"

namespace cp {
namespace {

// Buffers by dtype, of 64 elements each; rank 5 has index 1 in a group of four.
struct World {
  World() {
    plan.self = 5;
    plan.target = host_target();
    plan.streams = {"s"};
    plan.groups = {{"g", {4, 5, 6, 7}}, {"strangers", {0, 1}}};
    plan.buffers = {{"in", BufferKind::input, DType::f32, 64},
                    {"x", BufferKind::inout, DType::f32, 64},
                    {"y", BufferKind::temporary, DType::f32, 64},
                    {"h", BufferKind::inout, DType::bf16, 64},
                    {"i", BufferKind::inout, DType::i32, 64}};
  }
  std::string error(Work work, std::int64_t count = 1, StreamId stream = 0) const {
    try {
      validate_step(plan, Step{stream, std::move(work), {}, ""}, count);
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "";
  }
  Plan plan;
};
constexpr BufferId kIn = 0, kX = 1, kY = 2, kH = 3, kI = 4;
View x(std::int64_t offset, std::int64_t numel) { return flat_view(kX, offset, numel); }
View y(std::int64_t offset, std::int64_t numel) { return flat_view(kY, offset, numel); }
Work kernel(Kernel work) { return work; }
Work collective(Collective work) { return work; }

struct Case {
  Work work;
  std::string error;  // after "step <name> of rank 5: "; empty: valid
  std::int64_t count = 1;
};

void expect(const std::vector<Case>& cases) {
  const World world;
  for (const Case& each : cases) {
    const std::string prefix = str("step ", operation_name(each.work), " of rank 5: ");
    EXPECT_EQ(world.error(each.work, each.count), each.error.empty() ? "" : prefix + each.error);
  }
}

TEST(ValidateStep, ViewsLieInTheirBuffers) {
  const auto fill = [](View view) { return kernel(Fill{std::move(view), 0}); };
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  expect({
      {fill(x(0, 64)), ""},
      {fill(x(64, 0)), ""},
      {fill(x(1000, 0)), ""},  // touches nothing
      {fill(View{kX, 63, {}, {}, {}}), ""},
      {fill(x(1, 64)), "the view x+1[64] leaves its buffer of 64 elements; it covers [1, 65)"},
      {fill(x(-1, 4)), "the view x+-1[4] leaves its buffer of 64 elements; it covers [-1, 3)"},
      {fill(View{kX, 0, {8, 4}, {9, 1}, {}}),
       "the view x+0[8x4 strides 9x1] leaves its buffer of 64 elements"},
      {fill(View{kX, 0, {huge, 2}, {1, 1}, {}}),
       str("a view of x has the shape ", huge, "x2 of more than 2^60 elements")},
      {fill(View{kX, huge, {4}, {1}, {}}), str("the view x+", huge, "[4] leaves its buffer of 64 elements")},
      {fill(View{kX, 0, {2}, {huge}, {}}),
       str("the view x+0[2 strides ", huge, "] leaves its buffer of 64 elements")},
      {fill(View{9, 0, {4}, {1}, {}}), "buffer 9 is not one of the plan's 5 buffers"},
      {fill(View{kX, 0, {4}, {}, {}}), "a view of x has 1 dimensions but 0 strides"},
      {fill(View{kX, 8, {2}, {-1}, {}}),
       "a view of x has size 2 and stride -1 in dimension 0; neither may be negative"},
  });
}

TEST(ValidateStep, InEveryIteration) {
  const auto fill = [](std::int64_t offset, Advance advance) {
    return kernel(Fill{flat_view(kX, offset, 8, advance), 0});
  };
  expect({
      {fill(0, {8, 0, 0}), "", 8},
      {fill(0, {8, 0, 0}),
       "the view x+0[8] that advances by 8 in each of 9 iterations (period 0, phase 0) leaves its buffer of "
       "64 elements; it "
       "covers [0, 72)",
       9},
      {fill(0, {8, 0, 1}),
       "the view x+0[8] that advances by 8 in each of 8 iterations (period 0, phase 1) leaves its buffer of "
       "64 elements; it "
       "covers [8, 72)",
       8},
      {fill(56, {-8, 0, 0}), "", 8},
      {fill(56, {-8, 0, 0}),
       "the view x+56[8] that advances by -8 in each of 9 iterations (period 0, phase 0) leaves its buffer "
       "of 64 elements; it "
       "covers [-8, 64)",
       9},
      {fill(0, {32, 2, 1}), "", std::int64_t{1} << 31},
      {fill(48, {16, 2, 0}),
       "the view x+48[8] that advances by 16 in each of 2 iterations (period 2, phase 0) leaves its buffer "
       "of 64 elements; it "
       "covers [48, 72)",
       2},
      {fill(48, {16, 2, 2}), "", 1},  // never comes to the second slot
      {fill(0, {8, -1, 0}), "a view of x advances with period -1 and phase 0; use 0 to 2^31", 2},
      {fill(0, {0, 0, 0}), "the Repeat has 0 iterations; use 1 to 2^31", 0},
  });
}

TEST(ValidateStep, WhatIsWrittenIsWrittenOnce) {
  const auto fill = [](Shape shape, Shape strides) {
    return kernel(Fill{View{kX, 0, shape, strides, {}}, 0});
  };
  const std::string overlap =
      ", whose dimensions overlap; make each stride larger than the reach of the smaller ones";
  expect({
      {fill({4, 1, 8}, {8, 0, 1}), ""},
      {fill({8, 4}, {1, 8}), ""},
      {fill({2, 2, 2}, {1, 2, 4}), ""},
      {fill({4, 8}, {0, 1}), "writes the view x+0[4x8 strides 0x1], whose stride 0 repeats elements"},
      {fill({4, 8}, {7, 1}), "writes the view x+0[4x8 strides 7x1]" + overlap},
      {fill({4, 4}, {1, 1}), "writes the view x+0[4x4 strides 1x1]" + overlap},
      {fill({2, 3, 2}, {4, 2, 9}), "writes the view x+0[2x3x2 strides 4x2x9]" + overlap},
      {kernel(Copy{View{kX, 0, {4, 8}, {0, 1}, {}}, y(0, 32)}), ""},  // reading may repeat
      {kernel(Fill{flat_view(kIn, 0, 4), 0}), "writes in, which is an input; make it an inout"},
  });
}

TEST(ValidateStep, Kernels) {
  const auto dense = [](BufferId buffer, Shape shape, std::int64_t offset = 0) {
    return dense_view(buffer, offset, shape);
  };
  expect({
      {kernel(Copy{x(0, 8), dense(kY, {2, 4})}), ""},
      {kernel(Copy{x(0, 8), y(0, 9)}), "x+0[8] has 8 elements but y+0[9] has 9"},
      {kernel(Copy{x(0, 8), flat_view(kH, 0, 8)}), "x+0[8] is f32 but h+0[8] is bf16; use a cast"},
      {kernel(Copy{x(0, 8), x(7, 8)}), "x+0[8] and x+7[8] share memory; a kernel's output is its own"},
      {kernel(Copy{x(0, 8), x(0, 8)}), "x+0[8] and x+0[8] share memory; a kernel's output is its own"},
      {kernel(Copy{x(0, 8), x(8, 8)}), ""},
      {kernel(Cast{x(0, 8), flat_view(kI, 0, 8)}), ""},
      {kernel(Cast{x(0, 8), flat_view(kI, 0, 7)}), "x+0[8] has 8 elements but i+0[7] has 7"},
      {kernel(Accumulate{ReduceOp::avg, x(0, 8), y(0, 8)}), "accumulates with avg; use sum, then scale"},
      {kernel(Accumulate{ReduceOp::sum, flat_view(kH, 0, 8), y(0, 8)}), ""},  // 16 bits to f32, no others
      {kernel(Accumulate{ReduceOp::sum, x(0, 8), flat_view(kH, 0, 8)}),
       "x+0[8] is f32 but h+0[8] is bf16; use a cast"},
      {kernel(Accumulate{ReduceOp::sum, flat_view(kI, 0, 8), y(0, 8)}),
       "i+0[8] is i32 but y+0[8] is f32; use a cast"},
      {kernel(Accumulate{ReduceOp::sum, x(0, 8), x(0, 8)}),
       "x+0[8] and x+0[8] share memory; a kernel's output is its own"},
      {kernel(Scale{flat_view(kI, 0, 8), 2}), "i+0[8] is i32; a floating type is needed"},
      {kernel(MatMul{dense(kX, {2, 3}), dense(kIn, {3, 4}), dense(kY, {2, 4}), true}), ""},
      {kernel(MatMul{dense(kX, {2, 2, 1}), dense(kIn, {2, 1, 3}), dense(kY, {2, 2, 3}), true}), ""},
      {kernel(MatMul{dense(kX, {2, 2, 1}), dense(kIn, {1, 1, 3}), dense(kY, {2, 2, 3})}),
       "b is in+0[1x1x3], but the shape 2x1x3 is needed"},
      {kernel(MatMul{dense(kX, {2, 2, 1}), dense(kIn, {1, 3}), dense(kY, {2, 2, 3})}),
       "in+0[1x3] is not several matrices; give it three dimensions, as the result has them"},
      {kernel(MatMul{dense(kX, {2, 3}), dense(kX, {3, 4}), dense(kY, {2, 4})}), ""},  // both are read
      {kernel(MatMul{dense(kX, {2, 3}), dense(kIn, {4, 3}), dense(kY, {2, 4})}),
       "b is in+0[4x3], but the shape 3x3 is needed"},
      {kernel(MatMul{dense(kX, {2, 3}), dense(kIn, {3, 4}), dense(kY, {4, 2})}),
       "out is y+0[4x2], but the shape 2x4 is needed"},
      {kernel(MatMul{x(0, 6), dense(kIn, {3, 4}), dense(kY, {2, 4})}),
       "x+0[6] is not a matrix; give it two dimensions"},
      // Products of 16-bit matrices may stay in f32, no others.
      {kernel(MatMul{dense(kH, {2, 3}), dense(kH, {3, 4}), dense(kY, {2, 4}), true}), ""},
      {kernel(MatMul{dense(kX, {2, 3}), dense(kIn, {3, 4}), dense(kH, {2, 4})}),
       "x+0[2x3] is f32 but h+0[2x4] is bf16; use a cast"},
      {kernel(MatMul{dense(kI, {2, 3}), dense(kI, {3, 4}), dense(kY, {2, 4})}),
       "i+0[2x3] is i32 but y+0[2x4] is f32; use a cast"},
      // Slots that are apart in each iteration, and slots that are not.
      {kernel(Copy{flat_view(kX, 0, 8, {8, 2, 0}), flat_view(kX, 0, 8, {8, 2, 1})}), "", 4},
      {kernel(Copy{flat_view(kX, 0, 8, {8, 2, 0}), flat_view(kX, 0, 8, {8, 3, 1})}),
       "x+0[8] and x+0[8] share memory; a kernel's output is its own", 6},
  });
}

TEST(ValidateStep, Attention) {
  const View q = dense_view(kIn, 0, {1, 3, 4, 2}), k = dense_view(kX, 0, {1, 5, 2, 2}),
             v = dense_view(kX, 20, {1, 5, 2, 1});
  const View out = dense_view(kY, 0, {1, 3, 4, 1}), lse = dense_view(kY, 12, {1, 4, 3});
  const auto slices = [](std::int64_t q_len, std::int64_t k_len, std::int64_t window = 1) {
    return std::vector<MaskSlice>{{0, q_len, 0, k_len, MaskSlice::Kind::window, 0, window}};
  };
  const auto forward = [&](auto change) {
    AttentionForward op{q, k, v, out, lse, 1, slices(3, 5)};
    change(op);
    return kernel(op);
  };
  const View dq = dense_view(kY, 0, {1, 3, 4, 2}), dk = dense_view(kY, 24, {1, 5, 2, 2}),
             dv = dense_view(kY, 44, {1, 5, 2, 1});
  const View dout = dense_view(kIn, 24, {1, 3, 4, 1}), rows = dense_view(kX, 30, {1, 4, 3}),
             rows2 = dense_view(kX, 42, {1, 4, 3});
  const auto backward = [&](auto change) {
    AttentionBackward op{q, k, v, dout, rows, rows2, dq, dk, dv, 1, slices(3, 5), false, false};
    change(op);
    return kernel(op);
  };
  expect({
      {forward([](auto&) {}), ""},
      {forward([](auto& op) { op.q.shape[2] = 3; }), "kv_heads=2 does not divide q_heads=3"},
      {forward([](auto& op) { op.k.shape[3] = 1; }),
       "k is x+0[1x5x2x1 strides 20x4x2x1], but the shape 1x5x2x2 is needed"},
      {forward([](auto& op) { op.v.shape[1] = 4; }), "v is x+20[1x4x2x1], but the shape 1x5x2x1 is needed"},
      {forward([](auto& op) { op.q = x(0, 24); }), "x+0[24] is not [batch, seq, heads, head_dim]"},
      {forward([](auto& op) { op.q.buffer = kH; }),
       "h+0[1x3x4x2] is bf16 but x+0[1x5x2x2] is f32; use a cast"},
      {forward([](auto& op) { op.out.shape[1] = 2; }),
       "out is y+0[1x2x4x1], but the shape 1x3x4x1 is needed"},
      {forward([](auto& op) { op.out.buffer = kH; }), ""},  // partial results may be wider or narrower
      {forward([](auto& op) { op.lse.buffer = kH; }), "lse is bf16; it is always f32"},
      {forward([](auto& op) {
         op.lse = dense_view(kY, 12, {1, 3, 4});
       }),
       "lse is y+12[1x3x4], but the shape 1x4x3 is needed"},
      {forward([](auto& op) { op.lse.offset = 11; }),
       "y+0[1x3x4x1] and y+11[1x4x3] share memory; a kernel's output is its own"},
      {forward([&](auto& op) { op.slices = slices(4, 5); }),
       "mask slice of queries [0, +4) and keys [0, +5) leaves the 3 queries and 5 keys"},
      {forward([&](auto& op) { op.slices = slices(3, 6); }),
       "mask slice of queries [0, +3) and keys [0, +6) leaves the 3 queries and 5 keys"},
      {forward([&](auto& op) { op.slices = slices(3, 5, 0); }),
       "mask slice with window 0; a window holds at least one key"},
      {forward([](auto& op) { op.softcap = -1; }),
       "softcap -1 bounds no score; use a positive number, or 0 for none"},
      {forward([](auto& op) { op.dropout.layer = 1; }),
       "has a seed or numbers of rows for dropout, and no probability; leave them out"},
      {forward([](auto& op) { op.dropout.probability = 0.5; }),
       "has dropout and no seed; give it a view of one i64, or of 3"},
      {forward([](auto& op) { op.dropout.probability = 1, op.seed = flat_view(kI, 0, 1); }),
       "dropout 1 is not a probability below 1"},
      {forward([](auto& op) { op.dropout.probability = 0.5, op.seed = flat_view(kI, 0, 1); }),
       "seed i+0[1] of i32 is neither one i64 nor a row of 3"},
      {forward([](auto& op) { op.dropout.probability = 0.5, op.seed = flat_view(kI, 0, 2); }),
       "seed i+0[2] of i32 is neither one i64 nor a row of 3"},
      {kernel(AttentionSinkGradient{x(0, 4), rows, dout, dout, dense_view(kY, 0, {4})}), ""},
      {kernel(AttentionSinkGradient{x(0, 3), rows, dout, dout, dense_view(kY, 0, {4})}),
       "sinks is x+0[3], but the shape 4 is needed"},
      {backward([](auto&) {}), ""},
      {backward([](auto& op) { op.dk.shape[1] = 4; }),
       "dk is y+24[1x4x2x2], but the shape 1x5x2x2 is needed"},
      {backward([](auto& op) { op.delta.shape[2] = 2; }),
       "delta is x+42[1x4x2 strides 12x3x1], but the shape 1x4x3 is needed"},
      {backward([](auto& op) { op.dv.buffer = kI; }), "i+44[1x5x2x1] is i32; a floating type is needed"},
      {backward([](auto& op) { op.dk = op.dv = View{}; }), ""},  // k and v are frozen
      {backward([](auto& op) { op.dq = op.dv = View{}; }), ""},
      {backward([](auto& op) { op.dq = op.dk = op.dv = View{}; }),
       "has neither dq nor dk nor dv; leave it out"},
      {kernel(AttentionDelta{dout, dense_view(kX, 0, {1, 3, 4, 1}), lse}), ""},
      {kernel(AttentionDelta{dout, dense_view(kX, 0, {1, 3, 4, 2}), lse}),
       "dout is x+0[1x3x4x2], but the shape 1x3x4x1 is needed"},
      {kernel(AttentionMerge{dout, rows, out, lse}), ""},
      {kernel(AttentionMerge{dout, dense_view(kX, 0, {1, 4, 2}), out, lse}),
       "in_lse is x+0[1x4x2], but the shape 1x4x3 is needed"},
      {kernel(AttentionMerge{dout, rows, out, lse, {dout, dout}, {rows, rows}}), ""},
      {kernel(AttentionMerge{dout, View{}, out, View{}, {dout}, {}}), ""},
      {kernel(AttentionMerge{dout, rows, out, lse, {dout, dout, dout}, {rows, rows, rows}}),
       "merges 4 results into out; at most 3 at once"},
      {kernel(AttentionMerge{dout, rows, out, lse, {dout}, {}}),
       "merges results of which some lack their lse"},
      {kernel(AttentionMerge{dout, View{}, out, lse}), "buffer -1 is not one of the plan's 5 buffers"},
      {kernel(AttentionMerge{dout, rows, out, View{}}), "adds results, and some have an lse"},
      {kernel(AttentionMerge{dout, View{}, out, View{}, {rows}, {}}),
       "more is x+30[1x4x3], but the shape 1x3x4x1 is needed"},
  });
}

// Accumulators may be wider than what they sum, results narrower; a rank may hold no queries or no keys.
TEST(ValidateStep, AttentionOfMixedTypesAndOfNothing) {
  const Shape q_shape{1, 3, 4, 2}, k_shape{1, 3, 2, 2}, v_shape{1, 3, 2, 1}, out_shape{1, 3, 4, 1};
  const View lse = dense_view(kX, 0, {1, 4, 3}), delta = dense_view(kX, 12, {1, 4, 3});
  const View new_lse = dense_view(kY, 52, {1, 4, 3});
  const std::vector<MaskSlice> slices = {{0, 3, 0, 3, MaskSlice::Kind::causal, 0, 0}};
  const View q = dense_view(kH, 0, q_shape), k = dense_view(kH, 24, k_shape), v = dense_view(kH, 36, v_shape);
  const View out = dense_view(kH, 42, out_shape), dout = dense_view(kH, 0, out_shape);
  const View wide_out = dense_view(kY, 0, out_shape), in = dense_view(kIn, 0, out_shape);
  const View dq = dense_view(kY, 0, q_shape), dk = dense_view(kY, 24, k_shape),
             dv = dense_view(kY, 36, v_shape);
  expect({
      {kernel(AttentionForward{q, k, v, wide_out, new_lse, 1, slices}), ""},
      {kernel(AttentionForward{q, k, v, out, new_lse, 1, {}}), ""},
      {kernel(AttentionBackward{q, k, v, out, lse, delta, dq, dk, dv, 1, slices, true, false}), ""},
      {kernel(AttentionBackward{q, k, v, out, lse, delta, dq, dk, dv, 1, {}, false, true}), ""},
      {kernel(AttentionDelta{out, dout, new_lse}), ""},
      {kernel(AttentionDelta{in, dout, new_lse}), ""},
      {kernel(AttentionMerge{in, lse, wide_out, new_lse}), ""},
      {kernel(AttentionMerge{dout, lse, out, new_lse}), ""},
  });
  const auto rows = [](const View& view, std::int64_t count) {
    return dense_view(view.buffer, 0, {1, count, view.shape[2], view.shape[3]});
  };
  const View no_lse = dense_view(kX, 0, {1, 4, 0});
  const View no_q = rows(q, 0), no_k = rows(k, 0), no_v = rows(v, 0), no_out = rows(out, 0);
  expect({
      {kernel(AttentionForward{no_q, k, v, no_out, no_lse, 1, {}}), ""},
      {kernel(AttentionForward{q, no_k, no_v, wide_out, new_lse, 1, {}}), ""},
      {kernel(AttentionForward{q, no_k, no_v, wide_out, new_lse, 1, slices}),
       "mask slice of queries [0, +3) and keys [0, +3) leaves the 3 queries and 0 keys"},
      {kernel(AttentionBackward{no_q, k, v, no_out, no_lse, no_lse, rows(dq, 0), dk, dv, 1, {}, true, true}),
       ""},
      {kernel(AttentionBackward{q, no_k, no_v, out, lse, delta, dq, rows(dk, 0), rows(dv, 0), 1, {}}), ""},
      {kernel(AttentionDelta{no_out, no_out, no_lse}), ""},
      {kernel(AttentionMerge{no_out, no_lse, no_out, no_lse}), ""},
  });
}

// By the rules of shared/plan/fused_attention.h, which has tests of its own.
TEST(ValidateStep, FusedAttention) {
  World world;
  world.plan.target.name = "gpu";
  world.plan.target.fused_attention = cudnn_attention("sm90");
  world.plan.buffers.push_back({"w", BufferKind::temporary, DType::f32, 1 << 20});
  const Shape rows{1, 2, 1, 8};
  const auto h = [&](std::int64_t offset) { return dense_view(kH, offset, rows); };
  world.plan.buffers[kH].numel = 1024;
  const View lse = dense_view(kY, 0, {1, 1, 2}), delta = dense_view(kX, 0, {1, 1, 2});
  const View workspace = flat_view(5, 0, 1 << 20);
  const std::vector<MaskSlice> causal = {{0, 2, 0, 2, MaskSlice::Kind::causal, 0, 0}};
  constexpr AttentionEngine kFused = AttentionEngine::fused;
  const AttentionForward forward{h(0), h(16), h(32), h(48), lse, 1, causal, kFused, workspace};
  const AttentionBackward backward{h(0),  h(16), h(32),  h(48), delta, View{}, h(64),  h(80),
                                   h(96), 1,     causal, false, false, h(112), kFused, workspace};
  const auto error = [&]<class Op>(Op op, auto change) {
    change(op);
    return world.error(kernel(op));
  };
  const auto nothing = [](auto&) {};
  EXPECT_EQ(error(forward, nothing), "");
  EXPECT_EQ(error(backward, nothing), "");
  const std::string f = "step attention_forward of rank 5: ", b = "step attention_backward of rank 5: ";
  EXPECT_EQ(error(forward, [&](auto& op) { op.out = dense_view(kX, 0, rows); }),
            f + "h+0[1x2x1x8] is bf16 but x+0[1x2x1x8] is f32; use a cast");
  EXPECT_EQ(error(forward, [&](auto& op) { op.lse.strides[2] = 2; }),
            f + "fused attention cannot use y+0[1x1x2 strides 2x2x2]: lse has strides [2,2,2] of a "
                "view [1,1,2] (batch, heads, seq), which is not contiguous; copy it");
  EXPECT_EQ(error(backward, [&](auto& op) { op.lse.offset = 2; }),
            "step attention_backward of rank 5: fused attention cannot use x+2[1x1x2]: lse begins at "
            "element 2 and "
            "advances by 0; both must be multiples of 16 bytes: copy it");
  EXPECT_EQ(error(forward, [&](auto& op) { op.slices[0].diagonal = 1; }), "");  // sees all
  EXPECT_EQ(error(forward, [&](auto& op) { op.slices[0].diagonal = -1; }),
            f + "its 1 mask slices over 2 queries and 2 keys have no form that fused attention supports; cut "
                "the views, or use the exact engine");
  EXPECT_EQ(error(forward,
                  [&](auto& op) {
                    for (View* view : {&op.q, &op.k}) view->shape[3] = 4;
                  }),
            f + "the fused attention of target gpu does not support this call: head_dim 4 is not a multiple "
                "of 8; use the exact engine");
  FusedShape shape;
  shape.q_len = shape.k_len = 2, shape.q_heads = shape.kv_heads = 1, shape.head_dim = shape.v_head_dim = 8;
  shape.mask = FusedShape::Mask::causal;
  const std::int64_t needed = workspace_bytes(*world.plan.target.fused_attention, shape);
  EXPECT_EQ(error(forward, [&](auto& op) { op.workspace = View{}; }),
            str(f, "is fused and has no workspace; it needs ", needed, " bytes"));
  EXPECT_EQ(error(forward, [&](auto& op) { op.workspace.shape[0] = needed / 4 - 1; }),
            str(f, "its workspace is w+0[", needed / 4 - 1, "], but it needs ", needed, " bytes"));
  EXPECT_EQ(error(forward, [&](auto& op) { op.workspace.shape[0] = needed / 4; }), "");
  EXPECT_EQ(error(forward, [&](auto& op) { op.engine = AttentionEngine::exact; }),
            f + "is exact and has a workspace; only a fused one has");
  EXPECT_EQ(error(backward, [&](auto& op) { op.delta = delta; }),
            b + "is fused and has delta; it makes its own from out");
  EXPECT_EQ(error(backward, [&](auto& op) { op.out = View{}; }),
            b + "is fused and lacks out, which it makes delta from");
  EXPECT_EQ(error(backward, [&](auto& op) { op.engine = AttentionEngine::exact; }),
            b + "is exact and lacks delta; add an attention_delta");
  EXPECT_EQ(error(backward, [&](auto& op) { op.engine = AttentionEngine::exact, op.delta = delta; }),
            b + "is exact and has out; it reads delta instead");
  for (bool AttentionBackward::*flag :
       {&AttentionBackward::accumulate_dq, &AttentionBackward::accumulate_dkv}) {
    EXPECT_EQ(error(backward, [&](auto& op) { op.*flag = true; }),
              b + "is fused and accumulates; let it write a temporary, and accumulate that");
  }
  for (View AttentionBackward::*view :
       {&AttentionBackward::dq, &AttentionBackward::dk, &AttentionBackward::dv}) {
    EXPECT_EQ(error(backward, [&](auto& op) { op.*view = dense_view(kX, 8, rows); }),
              b + "h+0[1x2x1x8] is bf16 but x+8[1x2x1x8] is f32; use a cast");
  }
  EXPECT_EQ(error(backward, [&](auto& op) { op.dk = View{}; }),
            b + "is fused and lacks dk; its kernel writes all three: give it a temporary");
  world.plan.target.fused_attention.reset();
  EXPECT_EQ(error(forward, nothing), f + "target gpu has no fused attention; use the exact engine");
}

TEST(ValidateStep, Collectives) {
  const View columns{kX, 0, {4, 2}, {8, 1}, {}};
  const std::string copy_it = " is not contiguous; collectives need that: copy it first";
  expect({
      {collective(AllGather{0, x(0, 8), y(0, 32)}), ""},
      {collective(AllGather{0, x(0, 8), y(0, 31)}), "out has 31 elements; 4 members with 8 each make 32"},
      {collective(AllGather{0, columns, y(0, 32)}), "the view x+0[4x2 strides 8x1]" + copy_it},
      {collective(AllGather{0, flat_view(kH, 0, 8), y(0, 32)}),
       "h+0[8] is bf16 but y+0[32] is f32; use a cast"},
      {collective(ReduceScatter{0, ReduceOp::sum, x(0, 32), y(0, 8)}), ""},
      {collective(ReduceScatter{0, ReduceOp::sum, x(0, 32), y(0, 9)}),
       "in has 32 elements; 4 members with 9 each need 36"},
      {collective(AllReduce{0, ReduceOp::avg, x(0, 8), y(0, 8)}), ""},
      {collective(AllReduce{0, ReduceOp::avg, flat_view(kI, 0, 8), flat_view(kI, 0, 8)}),
       "i+0[8] is i32; a floating type is needed"},
      {collective(AllReduce{0, ReduceOp::sum, x(0, 8), y(0, 7)}), "x+0[8] has 8 elements but y+0[7] has 7"},
      {collective(AllToAll{0, x(0, 8), y(0, 8)}), ""},
      {collective(AllToAll{0, x(0, 6), y(0, 6)}),
       "in has 6 elements, not a multiple of the 4 members; pad it, or use an exchange"},
      {collective(Broadcast{0, 0, View{}, y(0, 8)}), ""},  // the root alone reads
      {collective(Broadcast{0, 1, x(0, 8), y(0, 8)}), ""},
      {collective(Broadcast{0, 1, x(0, 7), y(0, 8)}), "x+0[7] has 7 elements but y+0[8] has 8"},
      {collective(Broadcast{0, 4, x(0, 8), y(0, 8)}), "root 4 is not an index in a group of 4"},
  });
  const World world;
  EXPECT_EQ(world.error(collective(AllReduce{1, ReduceOp::sum, x(0, 8), y(0, 8)})),
            "rank 5 is not a member of group strangers[0,1]; only members take part in its collectives");
  EXPECT_EQ(world.error(collective(AllReduce{2, ReduceOp::sum, x(0, 8), y(0, 8)})),
            "group 2 is not one of the plan's 2 groups");
  EXPECT_EQ(world.error(kernel(Fill{x(0, 8), 0}), 1, 1),
            "step fill of rank 5: stream 1 is not one of the plan's 1 streams");
}

// NCCL's in-place forms, and nothing near them.
TEST(ValidateStep, InPlaceForms) {
  const auto share = [](const std::string& a, const std::string& b, const std::string& advice) {
    return a + " and " + b + " share memory; " + advice;
  };
  expect({
      {collective(AllGather{0, x(8, 8), x(0, 32)}), ""},
      {collective(AllGather{0, x(0, 8), x(0, 32)}),
       share("x+0[8]", "x+0[32]", "in place, in is block 1 of out")},
      {collective(AllGather{0, x(9, 8), x(0, 32)}),
       share("x+9[8]", "x+0[32]", "in place, in is block 1 of out")},
      {collective(ReduceScatter{0, ReduceOp::sum, x(0, 32), x(8, 8)}), ""},
      {collective(ReduceScatter{0, ReduceOp::sum, x(0, 32), x(16, 8)}),
       share("x+0[32]", "x+16[8]", "in place, out is block 1 of in")},
      {collective(AllReduce{0, ReduceOp::sum, x(4, 8), x(4, 8)}), ""},
      {collective(AllReduce{0, ReduceOp::sum, x(4, 8), x(5, 8)}),
       share("x+4[8]", "x+5[8]", "in place, in and out are the same")},
      {collective(
           AllReduce{0, ReduceOp::sum, flat_view(kX, 0, 8, {8, 2, 0}), flat_view(kX, 0, 8, {8, 2, 0})}),
       "", 4},
      {collective(AllReduce{0, ReduceOp::sum, flat_view(kX, 0, 8, {8, 2, 0}), flat_view(kX, 0, 8)}),
       share("x+0[8]", "x+0[8]", "in place, in and out are the same"), 4},
      {collective(Broadcast{0, 1, x(4, 8), x(4, 8)}), ""},
      {collective(Broadcast{0, 1, x(4, 8), x(8, 8)}),
       share("x+4[8]", "x+8[8]", "in place, in and out are the same")},
      {collective(AllToAll{0, x(0, 8), x(0, 8)}),
       share("x+0[8]", "x+0[8]", "all_to_all has no in-place form")},
  });
}

TEST(ValidateStep, Exchanges) {
  const auto exchange = [](std::vector<Transfer> sends, std::vector<Transfer> recvs) {
    return collective(Exchange{0, std::move(sends), std::move(recvs), {}});
  };
  const std::string advice = " share memory; an exchange has no in-place form";
  expect({
      {exchange({}, {}), ""},
      {exchange({{0, x(0, 8)}, {2, x(4, 8)}, {0, flat_view(kH, 0, 8)}}, {{0, y(0, 8)}, {3, y(8, 2)}}), ""},
      {exchange({{4, x(0, 8)}}, {}), "peer 4 is not an index in a group of 4"},
      {exchange({{-1, x(0, 8)}}, {}), "peer -1 is not an index in a group of 4"},
      {exchange({{1, x(0, 8)}}, {}), "peer 1 is the rank itself; use a copy"},
      {exchange({}, {{2, x(0, 0)}}), "an empty transfer with peer 2; leave it out"},
      {exchange({{0, View{kX, 0, {4, 2}, {8, 1}, {}}}}, {}),
       "the view x+0[4x2 strides 8x1] is not contiguous; collectives need that: copy it first"},
      {exchange({{0, x(0, 8)}}, {{0, x(7, 8)}}), "x+0[8] and x+7[8]" + advice},
      {exchange({}, {{0, x(0, 8)}, {2, x(4, 8)}}), "x+0[8] and x+4[8]" + advice},
      // The overlap is with the one that reaches farthest, not with the one just before.
      {exchange({{0, x(0, 40)}, {2, x(4, 2)}}, {{0, x(30, 4)}}), "x+0[40] and x+30[4]" + advice},
      {exchange({{0, x(50, 8)}}, {{0, x(0, 40)}, {2, y(0, 4)}, {3, x(40, 10)}}), ""},
      {exchange({{0, flat_view(kX, 0, 8, {8, 2, 0})}}, {{0, flat_view(kX, 0, 8, {8, 2, 1})}}), "", 4},
      {exchange({{0, flat_view(kX, 0, 8, {8, 2, 0})}}, {{0, flat_view(kX, 0, 8, {8, 2, 2})}}),
       "x+0[8] and x+0[8]" + advice, 4},
  });
}

TEST(ValidateStep, RowKernels) {
  World world;
  world.plan.target = shape_target();
  const auto row = [](std::vector<View> reads, std::vector<View> writes, std::vector<View> updates) {
    return kernel(
        RowKernel{RowOperation::gated_norm, std::move(reads), std::move(writes), std::move(updates)});
  };
  const std::string prefix = "step gated_norm of rank 5: ";
  EXPECT_EQ(world.error(row({flat_view(kIn, 0, 64), x(0, 3)}, {flat_view(kH, 0, 64)}, {})), "");
  EXPECT_EQ(world.error(row({}, {}, {x(0, 64)})), "");
  EXPECT_EQ(world.error(row({x(0, 64)}, {}, {})), prefix + "writes nothing; leave it out");
  EXPECT_EQ(world.error(row({x(1, 64)}, {y(0, 1)}, {})),
            prefix + "the view x+1[64] leaves its buffer of 64 elements; it covers [1, 65)");
  EXPECT_EQ(world.error(row({}, {}, {flat_view(kIn, 0, 64)})),
            prefix + "writes in, which is an input; make it an inout");
  EXPECT_EQ(world.error(row({x(0, 8)}, {x(7, 8)}, {})),
            prefix + "x+0[8] and x+7[8] share memory; a kernel's output is its own");
  EXPECT_EQ(World().error(row({}, {x(0, 8)}, {})),
            prefix + "target host has no kernel gated_norm without a rule; it has " +
                join(host_target().kernels, ", "));
}

TEST(ValidateStep, NamesTheLabel) {
  World world;
  try {
    validate_step(world.plan, Step{0, Kernel(Scale{flat_view(kI, 0, 8), 2}), {}, "halve dk"}, 1);
    FAIL();
  } catch (const InvalidInput& error) {
    EXPECT_STREQ(error.what(), "step scale \"halve dk\" of rank 5: i+0[8] is i32; a floating type is needed");
  }
}

}  // namespace
}  // namespace cp
