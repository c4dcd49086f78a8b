// Fused attention against its definition in float64, in every form, within bounds derived from how fused
// kernels compute: products of 16-bit numbers summed in f32; weights and their gradients rounded to 16 bits
// before they are multiplied again; dk and dv of each query head rounded before heads are added up.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/fused_kernels.h"
#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/packed_lse.h"
#include "runtime/cuda/step_kernels.h"
#include "runtime/nccl/nccl_device.h"
#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/fused_attention.h"
#include "shared/plan/step_rules.h"
#include "tests/gpu/kernel_run.h"
#include "tests/support/attention_definition.h"
#include "tests/support/values.h"

namespace cp {
namespace {

using testing::AttentionInputs;
using testing::AttentionOutputs;
using testing::KernelRun;
using Kind = MaskSlice::Kind;
using Values = std::vector<double>;

constexpr double kF32 = 0x1p-24;  // rounding of one operation

struct Case {
  const char* name;
  testing::AttentionShape shape;
  std::vector<MaskSlice> slices;
  bool heads_outside = false;   // [batch, heads, seq, dim] in memory
  std::int64_t other_keys = 0;  // of the same rows, in another call: backward gets the lse and out of all
  std::int64_t gap = 0;         // elements between rows, as where another batch's rows lie there
};
std::ostream& operator<<(std::ostream& out, const Case& tested) { return out << tested.name; }

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"Full", {2, 130, 200, 4, 4, 64, 64}, {{0, 130, 0, 200, Kind::full, 0, 0}}},
      {"FullOfManyKeys", {1, 64, 128, 4, 2, 64, 64}, {{0, 64, 0, 128, Kind::full, 0, 0}}, false, 100},
      {"CausalSquare", {1, 257, 257, 4, 2, 128, 128}, {{0, 257, 0, 257, Kind::causal, 0, 0}}},
      {"CausalBottomRight", {2, 100, 229, 4, 1, 64, 64}, {{0, 100, 0, 229, Kind::causal, 129, 0}}, true},
      {"CausalTopLeft", {1, 229, 100, 4, 2, 64, 64}, {{0, 229, 0, 100, Kind::causal, 0, 0}}},
      {"Window", {1, 300, 300, 4, 2, 64, 64}, {{0, 300, 0, 300, Kind::window, 0, 70}}},
      {"WindowBottomRight", {1, 150, 300, 2, 2, 128, 64}, {{0, 150, 0, 300, Kind::window, 150, 33}}},
      {"WindowOfOneKey", {1, 65, 65, 2, 2, 64, 64}, {{0, 65, 0, 65, Kind::window, 0, 1}}},
      // What queries see of the keys before them: 120 rows fewer and fewer of 130; 40 rows all, and further
      // rows fewer of 100; a document of more queries than keys.
      {"WindowTail", {1, 120, 130, 4, 2, 64, 64}, {{0, 120, 0, 130, Kind::window, 129, 130}}, false, 50},
      {"WindowTailOfRowsThatSeeAll",
       {1, 100, 100, 2, 2, 128, 64},
       {{0, 100, 0, 100, Kind::window, 99, 139}},
       true},
      {"WindowTailOfTwoKeys", {1, 2, 2, 2, 1, 64, 64}, {{0, 2, 0, 2, Kind::window, 1, 2}}},
      {"DocumentsOfWindowTails",
       {1, 110, 170, 4, 2, 64, 64},
       {{0, 40, 0, 140, Kind::window, 139, 190}, {40, 70, 140, 30, Kind::window, 29, 80}}},
      {"OneQuery", {1, 1, 333, 8, 2, 64, 64}, {{0, 1, 0, 333, Kind::full, 0, 0}}},
      {"OddDims", {1, 129, 129, 2, 1, 72, 40}, {{0, 129, 0, 129, Kind::causal, 0, 0}}},
      {"Documents",
       {1, 200, 200, 4, 2, 64, 64},
       {{0, 60, 0, 60, Kind::causal, 0, 0},
        {60, 1, 60, 1, Kind::full, 0, 0},
        {61, 139, 61, 139, Kind::causal, 0, 0}}},
      // More than a bucket of few has room for, some of them of one query, with keys that no other has.
      {"ManyDocuments",
       {1, 99, 99, 4, 2, 64, 64},
       {{0, 1, 0, 1, Kind::full, 0, 0},
        {1, 2, 1, 2, Kind::causal, 0, 0},
        {3, 3, 3, 3, Kind::causal, 0, 0},
        {6, 1, 6, 1, Kind::full, 0, 0},
        {7, 5, 7, 5, Kind::causal, 0, 0},
        {12, 7, 12, 7, Kind::causal, 0, 0},
        {19, 1, 19, 1, Kind::full, 0, 0},
        {20, 30, 20, 30, Kind::causal, 0, 0},
        {50, 9, 50, 9, Kind::causal, 0, 0},
        {59, 40, 59, 40, Kind::causal, 0, 0}}},
      {"DocumentsBottomRight",
       {1, 110, 260, 4, 4, 128, 128},
       {{0, 40, 0, 100, Kind::window, 60, 50}, {40, 70, 100, 160, Kind::window, 90, 50}}},
      {"DocumentsFull",
       {1, 110, 170, 4, 1, 64, 64},
       {{0, 40, 0, 100, Kind::full, 0, 0}, {40, 70, 100, 70, Kind::full, 0, 0}}},
      {"CausalWithGaps", {1, 257, 257, 4, 2, 128, 128}, {{0, 257, 0, 257, Kind::causal, 0, 0}}, false, 0, 64},
      {"DocumentsWithGaps",
       {1, 200, 200, 4, 2, 64, 64},
       {{0, 61, 0, 61, Kind::causal, 0, 0}, {61, 139, 61, 139, Kind::causal, 0, 0}},
       false,
       0,
       64},
      {"SmallDocuments",
       {1, 13, 13, 3, 1, 16, 16},
       {{0, 11, 0, 11, Kind::causal, 0, 0}, {11, 2, 11, 2, Kind::causal, 0, 0}}},
      {"SmallDocumentsWithGaps",
       {1, 13, 13, 3, 1, 16, 16},
       {{0, 11, 0, 11, Kind::causal, 0, 0}, {11, 2, 11, 2, Kind::causal, 0, 0}},
       false,
       0,
       16},
      {"DocumentsSomeOfOneQuery",
       {1, 4, 10, 6, 3, 16, 16},
       {{0, 1, 0, 6, Kind::full, 0, 0}, {1, 3, 6, 4, Kind::full, 0, 0}}},
  };
  return all;
}

// A value and how far a correct kernel may be from it.
struct Bounded {
  Values value, error;
  explicit Bounded(std::int64_t size)
      : value(static_cast<std::size_t>(size)), error(static_cast<std::size_t>(size)) {}
  void add(std::size_t at, double term, double term_error) { value[at] += term, error[at] += term_error; }
};

struct Expected {
  Bounded out, lse, dq, dk, dv;
};

double unit(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : 0x1p-11; }
double smallest(DType dtype) {
  return dtype == DType::bf16 ? 0 : 0x1p-25;
}  // half the distance of subnormals

// Straight from the definition. `all` are the outputs of whole rows, which backward is given in the call's
// dtypes. Products of two errors are below a hundredth of each: kSecondOrder.
class Definition {
 public:
  Definition(const AttentionInputs& inputs, const AttentionOutputs& forward, const AttentionOutputs& all,
             const Values& dout, DType dtype)
      : in_(inputs),
        shape_(inputs.shape),
        forward_(forward),
        all_(all),
        dout_(dout),
        u_(unit(dtype)),
        tiny_(smallest(dtype)) {}

  Expected compute() {
    Expected made{Bounded(shape_.out_numel()), Bounded(shape_.lse_numel()), Bounded(shape_.q_numel()),
                  Bounded(shape_.k_numel()), Bounded(shape_.v_numel())};
    for (std::int64_t b = 0; b < shape_.batch; ++b)
      for (std::int64_t h = 0; h < shape_.q_heads; ++h)
        for (std::int64_t i = 0; i < shape_.q_len; ++i) row(made, b, h, i);
    for (Bounded* part : {&made.out, &made.dq, &made.dk, &made.dv})
      for (std::size_t n = 0; n < part->value.size(); ++n)
        part->error[n] = kSecondOrder * (part->error[n] + u_ * std::abs(part->value[n]) + tiny_);
    return made;
  }

 private:
  static constexpr double kSecondOrder = 1.02;

  void row(Expected& made, std::int64_t b, std::int64_t h, std::int64_t i) {
    const std::int64_t g = h / (shape_.q_heads / shape_.kv_heads), d = shape_.head_dim,
                       dv = shape_.v_head_dim;
    const std::int64_t rows = shape_.q_len * shape_.q_heads / shape_.kv_heads;
    const auto at = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    const std::size_t q0 = at(((b * shape_.q_len + i) * shape_.q_heads + h) * d),
                      o0 = at(((b * shape_.q_len + i) * shape_.q_heads + h) * dv),
                      l0 = at((b * shape_.q_heads + h) * shape_.q_len + i);
    double delta = 0, delta_error = 0;
    for (std::size_t c = 0; c < at(dv); ++c) {
      const double term = dout_[o0 + c] * all_.out[o0 + c];
      delta += term;
      delta_error +=
          std::abs(term) * (u_ + static_cast<double>(dv + 2) * kF32) + std::abs(dout_[o0 + c]) * tiny_;
    }
    double worst_score = 0;
    for (std::int64_t j = 0; j < shape_.kv_len; ++j) {
      if (!in_.mask(i, j)) continue;
      const std::size_t k0 = at(((b * shape_.kv_len + j) * shape_.kv_heads + g) * d),
                        v0 = at(((b * shape_.kv_len + j) * shape_.kv_heads + g) * dv);
      double dot = 0, size = 0, dp = 0, dp_size = 0;
      for (std::size_t c = 0; c < at(d); ++c) {
        dot += in_.q[q0 + c] * in_.k[k0 + c];
        size += std::abs(in_.q[q0 + c] * in_.k[k0 + c]);
      }
      for (std::size_t c = 0; c < at(dv); ++c) {
        dp += dout_[o0 + c] * in_.v[v0 + c];
        dp_size += std::abs(dout_[o0 + c] * in_.v[v0 + c]);
      }
      const double score = in_.softmax_scale * dot,
                   score_error = in_.softmax_scale * size * static_cast<double>(d + 4) * kF32;
      worst_score = std::max(worst_score, score_error);
      // Two scores and their difference, the hardware's exponential (2 units in the last place), and the
      // row's sum.
      const double p_error = 2 * score_error + 4 * std::abs(score) * kF32 + 4 * kF32 +
                             2 * static_cast<double>(shape_.kv_len + 2) * kF32;
      const double p = std::exp(score - forward_.lse[l0]);
      for (std::size_t c = 0; c < at(dv); ++c) {
        const double v = std::abs(in_.v[v0 + c]);
        made.out.add(o0 + c, p * in_.v[v0 + c], p * v * (u_ + 2 * p_error) + v * tiny_);
      }

      const double weight = std::exp(score - all_.lse[l0]),
                   weight_error = p_error + 4 * std::abs(all_.lse[l0]) * kF32;
      for (std::size_t c = 0; c < at(dv); ++c) {
        const double term = std::abs(dout_[o0 + c]);
        made.dv.add(v0 + c, weight * dout_[o0 + c],
                    weight * term * (2 * u_ + weight_error + static_cast<double>(rows + 2) * kF32) +
                        2 * term * tiny_);
      }
      const double ds = weight * (dp - delta);
      const double ds_error = std::abs(ds) * weight_error +
                              weight * (dp_size * static_cast<double>(dv + 2) * kF32 + delta_error +
                                        (std::abs(dp) + std::abs(delta)) * 2 * kF32) +
                              std::abs(ds) * u_ + tiny_;
      const double scale = in_.softmax_scale;
      for (std::size_t c = 0; c < at(d); ++c) {
        const double q = std::abs(in_.q[q0 + c]), k = std::abs(in_.k[k0 + c]);
        made.dq.add(q0 + c, scale * ds * in_.k[k0 + c],
                    scale * k * (ds_error + std::abs(ds) * static_cast<double>(shape_.kv_len + 2) * kF32));
        made.dk.add(
            k0 + c, scale * ds * in_.q[q0 + c],
            scale * q * (ds_error + std::abs(ds) * (u_ + static_cast<double>(rows + 2) * kF32)) + tiny_);
      }
    }
    made.lse.value[l0] = forward_.lse[l0];
    made.lse.error[l0] = kSecondOrder * (worst_score + 4 * std::abs(forward_.lse[l0]) * kF32 +
                                         static_cast<double>(shape_.kv_len + 8) * kF32);
  }

  const AttentionInputs& in_;
  const testing::AttentionShape& shape_;
  const AttentionOutputs &forward_, &all_;
  const Values& dout_;
  const double u_, tiny_;
};

// The sizes of small packed calls too, whose rows and columns are less than a tile.
TEST(PackedLse, IsTransposed) {
  CP_SKIP_WITHOUT_GPU();
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                      {2, 6},
                                      {6, 2},
                                      {3, 13},
                                      {13, 3},
                                      {200, 4},
                                      {64, 65},
                                      {129, 64}}) {
    std::vector<float> in(static_cast<std::size_t>(rows * columns)), out(in.size(), -1);
    std::iota(in.begin(), in.end(), 0.0F);
    const runtime::GpuBytes from(std::as_bytes(std::span(in))), to(std::as_bytes(std::span(out)));
    runtime::transpose_f32(nullptr, reinterpret_cast<const float*>(from.data()),
                           reinterpret_cast<float*>(to.data()), rows, columns);
    CP_CUDA(cudaMemcpy(out.data(), to.data(), out.size() * sizeof(float), cudaMemcpyDeviceToHost));
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < columns; ++c)
        ASSERT_EQ(out[static_cast<std::size_t>(c * rows + r)], in[static_cast<std::size_t>(r * columns + c)])
            << rows << " x " << columns << " at " << r << ", " << c;
  }
}

class FusedAttentionTest : public ::testing::TestWithParam<std::tuple<Case, DType>> {
 protected:
  const Case& tested() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }

  // With a row of NaNs before and behind, and NaNs in the gaps: what lies there neither shows in results nor
  // changes.
  View place(const Values& values, std::int64_t seq, std::int64_t heads, std::int64_t dim, std::int64_t gap) {
    const std::int64_t batch = tested().shape.batch, row = heads * dim;
    View view = dense_view(0, row, {batch, seq, heads, dim});
    Values placed = values;
    if (gap > 0) {
      view.strides[1] += gap, view.strides[0] = seq * view.strides[1];
      placed.assign(static_cast<std::size_t>(batch * view.strides[0]), std::nan(""));
      for (std::size_t i = 0; i < values.size(); ++i)
        placed[i / static_cast<std::size_t>(row) * static_cast<std::size_t>(view.strides[1]) +
               i % static_cast<std::size_t>(row)] = values[i];
    }
    if (tested().heads_outside) {
      view.strides = {seq * heads * dim, dim, seq * dim, 1};
      std::size_t from = 0;
      for (std::int64_t b = 0; b < batch; ++b)
        for (std::int64_t s = 0; s < seq; ++s)
          for (std::int64_t h = 0; h < heads; ++h)
            for (std::int64_t c = 0; c < dim; ++c)
              placed[static_cast<std::size_t>(b * view.strides[0] + s * dim + h * view.strides[2] + c)] =
                  values[from++];
    }
    const Values nans(static_cast<std::size_t>(row), std::nan(""));
    placed.insert(placed.begin(), nans.begin(), nans.end());
    placed.insert(placed.end(), nans.begin(), nans.end());
    view.buffer = run_.add(dtype(), placed);
    return view;
  }
  View unwritten(const View& like) {
    return place(Values(static_cast<std::size_t>(like.numel()), std::nan("")), like.shape[1], like.shape[2],
                 like.shape[3], 0);
  }
  View rows(const Values& values) {
    const testing::AttentionShape& shape = tested().shape;
    return dense_view(run_.add(DType::f32, values), 0, {shape.batch, shape.q_heads, shape.q_len});
  }
  View workspace(const FusedAttention& library, FusedShape shape) {
    const auto bytes = static_cast<std::size_t>(workspace_bytes(library, shape));
    const BufferId buffer = run_.add(DType::f32, std::vector<std::byte>(bytes, std::byte{0xFB}));
    return flat_view(buffer, 0, static_cast<std::int64_t>(bytes) / 4);
  }

  template <class Op>
  void launch(const Op& op) {
    Plan plan = run_.plan();
    plan.target = runtime::gpu_target_of(0);
    plan.streams = {"compute"};
    Step step;
    step.work = Kernel(op);
    step.label = tested().name;
    plan.segments.emplace_back(step);
    const Step& planned = std::get<Step>(plan.segments[0]);
    validate_step(plan, planned, 1);
    run_.run_on_gpu([&](const runtime::CudaMemory& memory) {
      runtime::LibraryKernels libraries;
      runtime::StepKernels kernels(plan, testing::identity_streams(plan), memory, libraries);
      for (int times = 0; times < 2; ++times)  // the second finds a workspace that was used
        kernels.launch(steps_of(plan)[0], 0, nullptr);
      CP_CUDA(cudaDeviceSynchronize());
    });
  }

  void expect_within(const View& view, const Bounded& expected, const char* what) {
    const Values actual = run_.gpu_values(view);
    ASSERT_EQ(actual.size(), expected.value.size()) << what;
    for (std::size_t i = 0; i < actual.size(); ++i)
      ASSERT_LE(std::abs(actual[i] - expected.value[i]), expected.error[i])
          << what << "[" << i << "] is " << actual[i] << ", not " << expected.value[i];
    const Values all = run_.gpu_values(view.buffer);
    const auto before = static_cast<std::size_t>(view.offset);
    for (std::size_t i = 0; i < before; ++i)
      ASSERT_TRUE(std::isnan(all[i]) && std::isnan(all[all.size() - 1 - i])) << what << " has a neighbour";
    ASSERT_EQ(std::ranges::count_if(all, [](double value) { return std::isnan(value); }),
              static_cast<std::ptrdiff_t>(all.size() - actual.size()))
        << what << " has something in its gaps";
  }

  KernelRun run_;
};

// Softmax over the call's keys and over the others too, which lie after them.
AttentionOutputs whole_rows(const AttentionInputs& call, std::int64_t other_keys) {
  AttentionInputs all = call;
  all.shape.kv_len += other_keys;
  const auto longer = [&](const Values& values, std::int64_t dim, unsigned seed) {
    Values made = values;
    const Values more = testing::small_fractions(other_keys * call.shape.kv_heads * dim, seed);
    made.insert(made.end(), more.begin(), more.end());
    return made;
  };
  all.k = longer(call.k, call.shape.head_dim, 5);
  all.v = longer(call.v, call.shape.v_head_dim, 6);
  return testing::reference_forward(all);
}

TEST_P(FusedAttentionTest, IsTheDefinition) {
  CP_SKIP_WITHOUT_GPU();
  const testing::AttentionShape& shape = tested().shape;
  const FusedAttention& library = *runtime::gpu_target_of(0).fused_attention;
  std::optional<FusedShape> form = fused_form(tested().slices, shape.q_len, shape.kv_len);
  ASSERT_TRUE(form);
  form->dtype = dtype(), form->batch = shape.batch;
  form->q_heads = shape.q_heads, form->kv_heads = shape.kv_heads;
  form->head_dim = shape.head_dim, form->v_head_dim = shape.v_head_dim;
  if (const auto why = refuse(library, *form)) GTEST_SKIP() << *why;

  const AttentionInputs inputs{shape,
                               1 / std::sqrt(static_cast<double>(shape.head_dim)),
                               [&](std::int64_t q, std::int64_t k) {
                                 for (const MaskSlice& slice : tested().slices)
                                   if (allows(slice, q, k)) return true;
                                 return k >= shape.kv_len;
                               },
                               testing::small_fractions(shape.q_numel(), 1),
                               testing::small_fractions(shape.k_numel(), 2),
                               testing::small_fractions(shape.v_numel(), 3)};
  const Values dout = testing::small_fractions(shape.out_numel(), 4);
  const AttentionOutputs forward = testing::reference_forward(inputs);
  const AttentionOutputs all = tested().other_keys > 0 ? whole_rows(inputs, tested().other_keys) : forward;
  const Expected expected = Definition(inputs, forward, all, dout, dtype()).compute();

  const View q = place(inputs.q, shape.q_len, shape.q_heads, shape.head_dim, tested().gap),
             k = place(inputs.k, shape.kv_len, shape.kv_heads, shape.head_dim, tested().gap),
             v = place(inputs.v, shape.kv_len, shape.kv_heads, shape.v_head_dim, tested().gap);
  AttentionForward step;
  step.q = q, step.k = k, step.v = v;
  step.out = place(Values(forward.out.size(), std::nan("")), shape.q_len, shape.q_heads, shape.v_head_dim,
                   tested().gap);
  step.lse = rows(Values(forward.lse.size(), std::nan("")));
  step.softmax_scale = inputs.softmax_scale;
  step.slices = tested().slices;
  step.engine = AttentionEngine::fused;
  step.workspace = workspace(library, *form);
  launch(step);
  expect_within(step.out, expected.out, "out");
  expect_within(step.lse, expected.lse, "lse");

  form->backward = true;
  if (const auto why = refuse(library, *form)) GTEST_SKIP() << "forward alone: " << *why;
  if (const auto why = refuse_operand(*form, q, false)) GTEST_SKIP() << "forward alone: " << *why;
  AttentionBackward back;
  back.q = q, back.k = k, back.v = v;
  back.out = place(all.out, shape.q_len, shape.q_heads, shape.v_head_dim, tested().gap);
  back.dout = place(dout, shape.q_len, shape.q_heads, shape.v_head_dim, tested().gap);
  back.lse = rows(all.lse);
  back.dq = unwritten(q), back.dk = unwritten(k), back.dv = unwritten(v);
  back.softmax_scale = inputs.softmax_scale;
  back.slices = tested().slices;
  back.engine = AttentionEngine::fused;
  back.workspace = workspace(library, *form);
  launch(back);
  expect_within(back.dq, expected.dq, "dq");
  expect_within(back.dk, expected.dk, "dk");
  expect_within(back.dv, expected.dv, "dv");
}

INSTANTIATE_TEST_SUITE_P(, FusedAttentionTest,
                         ::testing::Combine(::testing::ValuesIn(cases()),
                                            ::testing::Values(DType::f16, DType::bf16)),
                         [](const auto& made) {
                           return std::string(std::get<0>(made.param).name) + "_" +
                                  std::string(name(std::get<1>(made.param)));
                         });

// A plan of one fused step over two heads of 64.
struct OneStep {
  Plan plan;

  template <class Op>
  explicit OneStep(Op op, const std::vector<FusedShape::Document>& documents, std::int64_t workspace_floats) {
    plan.target = runtime::gpu_target_of(0);
    plan.streams = {"compute"};
    std::int64_t rows = 0;
    for (const auto& document : documents) {
      op.slices.push_back(
          {rows, document.q_len, rows, document.k_len, Kind::causal, document.k_len - document.q_len, 0});
      rows += document.q_len;
    }
    const auto view = [&](const Shape& shape, DType dtype) {
      plan.buffers.push_back({str("b", plan.buffers.size()), BufferKind::inout, dtype, numel(shape)});
      return dense_view(static_cast<BufferId>(plan.buffers.size() - 1), 0, shape);
    };
    for (View* made : views(op)) *made = view({1, rows, 2, 64}, DType::bf16);
    op.lse = view({1, 2, rows}, DType::f32);
    op.workspace = view({workspace_floats}, DType::f32);
    op.engine = AttentionEngine::fused;
    Step step;
    step.work = Kernel(op);
    step.label = "layer 7";
    plan.segments.emplace_back(step);
  }

 private:
  static std::vector<View*> views(AttentionForward& op) { return {&op.q, &op.k, &op.v, &op.out}; }
  static std::vector<View*> views(AttentionBackward& op) {
    return {&op.q, &op.k, &op.v, &op.out, &op.dout, &op.dq, &op.dk, &op.dv};
  }
};

TEST(FusedKernels, TakeTheWorkspaceThatAPlanLacksBesideIt) {
  CP_SKIP_WITHOUT_GPU();
  OneStep made(AttentionBackward{}, {{512, 512}}, 64);
  std::vector<std::string> notes;
  runtime::FusedKernels fused({.on_note = [&](const std::string& note) { notes.push_back(note); }});
  const runtime::CudaMemory memory(made.plan, {});
  const auto& op = std::get<AttentionBackward>(std::get<Kernel>(std::get<Step>(made.plan.segments[0]).work));
  const runtime::FusedStep step{"step 0 (attention_backward \"layer 7\")", 0, &op};
  runtime::FusedPlan plan = fused.prepare({&step, 1}, memory);
  if (plan.kernels.empty()) GTEST_SKIP() << "a build without cuDNN";
  ASSERT_EQ(plan.shortfalls.size(), 1U);
  EXPECT_EQ(plan.shortfalls[0].declared_bytes, 256);
  // At least dq in f32.
  EXPECT_GE(plan.shortfalls[0].needed_bytes, 512 * 2 * 64 * 4);
  EXPECT_GE(plan.bytes_beside, plan.shortfalls[0].needed_bytes);
  ASSERT_EQ(notes.size(), 1U);
  for (const char* part : {"step 0 (attention_backward \"layer 7\")", "declares 256"})
    EXPECT_THAT(notes[0], ::testing::HasSubstr(part));
  plan.kernels[0](0, nullptr);
  CP_CUDA(cudaDeviceSynchronize());
}

// A prepared call of other documents needs no other graph, and runs with its own tables.
TEST(FusedKernels, OneGraphServesOtherDocuments) {
  CP_SKIP_WITHOUT_GPU();
  const Target& target = runtime::gpu_target_of(0);
  runtime::FusedKernels fused({.graph_folder = ""});
  for (const bool backward : {false, true}) {
    const std::size_t before = fused.graphs_made();
    for (const std::int64_t first : {300, 129, 500, 511}) {
      const std::vector<FusedShape::Document> documents = {
          {first, first}, {1, 1}, {600 - first, 600 - first}};
      const OneStep made = backward ? OneStep(AttentionBackward{}, documents, 1 << 20)
                                    : OneStep(AttentionForward{}, documents, 1 << 20);
      const Kernel& kernel = std::get<Kernel>(std::get<Step>(made.plan.segments[0]).work);
      runtime::FusedStep step{"a step", 0, {}};
      if (backward)
        step.work = &std::get<AttentionBackward>(kernel);
      else
        step.work = &std::get<AttentionForward>(kernel);
      if (!target.fused_attention->packed) {
        GTEST_SKIP() << "no packed calls";
      }
      const runtime::CudaMemory memory(made.plan, {});
      if (fused.prepare({&step, 1}, memory).kernels.empty()) GTEST_SKIP() << "a build without cuDNN";
    }
    EXPECT_EQ(fused.graphs_made(), before + 1);
  }
}

TEST(FusedKernels, RefuseAnAddressOutOfLineWhenItIsBound) {
  CP_SKIP_WITHOUT_GPU();
  const OneStep made(AttentionForward{}, {{512, 512}}, 1 << 16);
  runtime::CudaMemory memory(made.plan, {});
  const std::int64_t size = memory.size_bytes(0);
  void* data = nullptr;
  CP_CUDA(cudaMalloc(&data, static_cast<std::size_t>(size) + 16));
  const auto bound = [&](std::int64_t offset) {
    return Bindings{{0, static_cast<std::byte*>(data) + offset, size}};
  };
  const auto expect_refused = [&](const auto& bind) {
    try {
      bind();
      FAIL() << "8 bytes behind a multiple of 16 are taken";
    } catch (const InvalidInput& error) {
      for (const char* part : {"buffer b0", "8", " 8 bytes behind a multiple of 16", "exact engine"})
        EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
    }
  };
  expect_refused([&] { memory.bind(made.plan, bound(8)); });
  expect_refused([&] { const runtime::CudaMemory other(made.plan, bound(8)); });
  EXPECT_NO_THROW(memory.bind(made.plan, bound(16)));
  Plan exact = made.plan;
  std::get<AttentionForward>(std::get<Kernel>(std::get<Step>(exact.segments[0]).work)).engine =
      AttentionEngine::exact;
  EXPECT_NO_THROW(runtime::CudaMemory(exact, bound(8)));
  CP_CUDA(cudaFree(data));
}

// The reference's gradients are those of the test's own definition.
TEST(FusedAttentionDefinition, IsTheReference) {
  const Case& tested = cases()[3];
  const AttentionInputs inputs{tested.shape,
                               0.125,
                               [&](std::int64_t q, std::int64_t k) { return allows(tested.slices[0], q, k); },
                               testing::small_fractions(tested.shape.q_numel(), 1),
                               testing::small_fractions(tested.shape.k_numel(), 2),
                               testing::small_fractions(tested.shape.v_numel(), 3)};
  const Values dout = testing::small_fractions(tested.shape.out_numel(), 4);
  const AttentionOutputs forward = testing::reference_forward(inputs);
  const auto gradients = testing::reference_backward(inputs, dout);
  const Expected made = Definition(inputs, forward, forward, dout, DType::f16).compute();
  const auto expect_near = [](const Values& actual, const Values& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 1e-10);
  };
  expect_near(made.out.value, forward.out);
  expect_near(made.dq.value, gradients.dq);
  expect_near(made.dk.value, gradients.dk);
  expect_near(made.dv.value, gradients.dv);
}

}  // namespace
}  // namespace cp
