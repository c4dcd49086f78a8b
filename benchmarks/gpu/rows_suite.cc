// Rows: kernels of rows beside cudaMemcpyAsync from the GPU to itself, of as many bytes as they read and
// write. Sizes are those of 8192 tokens of a model with 4096 columns of bf16, so that a matrix of rows has
// 64 MiB; logits are of a quarter of its vocabulary, and rows of experts those that two choices of each token
// fill.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/gpu/measure.h"
#include "benchmarks/gpu/suites.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"

namespace cp::benchmarks {
namespace {

constexpr std::int64_t kTokens = 8192, kColumns = 4096, kVocabulary = 32'768, kLogitRows = 1024;
constexpr std::int32_t kExperts = 8;
constexpr std::int64_t kChosen = 2, kSlots = kTokens * kChosen;

struct RowCase {
  const char* name = "";
  std::function<void(PlanBuilder&)> add;
  std::int32_t integers = 1;  // what its indices are below
};

// Operands of a kernel, each in a buffer of its own.
class Operands {
 public:
  explicit Operands(PlanBuilder& b) : b_(b) {}

  View in(const Shape& shape, DType dtype = DType::bf16) {
    return dense_view(b_.input(next(), dtype, numel(shape)), 0, shape);
  }
  View out(const Shape& shape, DType dtype = DType::bf16) {
    return dense_view(b_.output(next(), dtype, numel(shape)), 0, shape);
  }
  View inout(const Shape& shape, DType dtype = DType::bf16) {
    return dense_view(b_.inout(next(), dtype, numel(shape)), 0, shape);
  }
  void add(RowKernel kernel) { b_.add(b_.stream("s"), std::move(kernel)); }

 private:
  std::string next() { return str("operand ", count_++); }
  PlanBuilder& b_;
  int count_ = 0;
};

RotaryRule rotary_rule() {
  // Queries and keys of 24 heads and 4 of 128, and as many values as keys.
  constexpr std::int64_t kHeads = 24, kKvHeads = 4, kDim = 128;
  static_assert((kHeads + 2 * kKvHeads) * kDim == kColumns);
  RotaryRule rule;
  rule.positions = index_range(0, kTokens);
  rule.moves = {{0, 0, kDim, 0, 0, kDim, kHeads, kDim, true},
                {0, kHeads * kDim, kDim, 1, 0, kDim, kKvHeads, kDim, true},
                {0, (kHeads + kKvHeads) * kDim, kDim, 2, 0, kDim, kKvHeads, kDim, false}};
  return rule;
}

std::vector<RowCase> row_cases() {
  const Shape rows = {kTokens, kColumns}, half = {kTokens, kColumns / 2}, wide = {kColumns};
  const Shape logits = {kLogitRows, kVocabulary}, of_logits = {kLogitRows, 1}, sums = {kLogitRows, 2};
  NormRule norm;
  norm.width = kColumns;
  VocabularyRule vocabulary;
  vocabulary.count = kVocabulary;
  const Shape q = {kTokens, std::int64_t{24} * 128}, kv = {kTokens, std::int64_t{4} * 128},
              table = {kTokens, 128};
  const SlotsRule slots{kExperts, 1};
  // A recurrent layer of 8 heads of keys and 16 of values of 128, of a rank behind another one. Norms and
  // gates are of wider values, and decays of more heads than such a layer has, so that they fill matrices
  // too.
  constexpr std::int64_t kHeadDim = 128, kKeyHeads = 8, kValueHeads = 16, kTaps = 4;
  static_assert((2 * kKeyHeads + kValueHeads) * kHeadDim == kColumns);
  const Shape keys = {kTokens, kKeyHeads * kHeadDim}, values = {kTokens, kValueHeads * kHeadDim},
              taps = {kColumns * kTaps}, halo = {kTaps - 1, kColumns}, head = {kHeadDim},
              skips = {kColumns / kHeadDim};
  ConvolutionRule convolution;
  convolution.taps = kTaps, convolution.normalized = kHeadDim;
  convolution.runs = {{0, kTaps - 1, true, true}, {0, kTokens, false, false}};
  const GatedNormRule gated_norm{kHeadDim}, gated_row{kColumns};
  const auto row = [](RowOperation operation, std::vector<View> reads, std::vector<View> writes,
                      std::vector<View> updates, RowRule rule) {
    return RowKernel{operation, std::move(reads), std::move(writes), std::move(updates), std::move(rule)};
  };
  const auto with = [](auto write) {
    return [write](PlanBuilder& b) {
      Operands operands(b);
      operands.add(write(operands));
    };
  };
  return {
      {"rms_norm", with([=](Operands& o) {
         return row(RowOperation::rms_norm, {o.in(rows), o.in(wide)}, {o.out(rows)}, {}, norm);
       })},
      {"rms_norm_backward", with([=](Operands& o) {
         return row(RowOperation::rms_norm_backward, {o.in(rows), o.in(wide), o.in(rows)}, {o.out(rows)},
                    {o.inout(wide, DType::f32)}, norm);
       })},
      {"rotary", with([=](Operands& o) {
         return row(RowOperation::rotary, {o.in(rows), o.in(table, DType::f32)},
                    {o.out(q), o.out(kv), o.out(kv)}, {}, rotary_rule());
       })},
      {"rotary_backward", with([=](Operands& o) {
         return row(RowOperation::rotary_backward, {o.in(q), o.in(kv), o.in(kv), o.in(table, DType::f32)},
                    {o.out(rows)}, {}, rotary_rule());
       })},
      {"gated_activation", with([=](Operands& o) {
         return row(RowOperation::gated_activation, {o.in(rows)}, {o.out(half)}, {}, ActivationRule{});
       })},
      {"gated_activation_backward", with([=](Operands& o) {
         return row(RowOperation::gated_activation_backward, {o.in(rows), o.in(half)}, {o.out(rows)}, {},
                    ActivationRule{});
       })},
      {"output_gate", with([=](Operands& o) {
         return row(RowOperation::output_gate, {o.in(rows), o.in(rows)}, {o.out(rows)}, {}, {});
       })},
      {"output_gate_backward", with([=](Operands& o) {
         return row(RowOperation::output_gate_backward, {o.in(rows), o.in(rows), o.in(rows)},
                    {o.out(rows), o.out(rows)}, {}, {});
       })},
      {"add_bias",
       with([=](Operands& o) { return row(RowOperation::add_bias, {o.in(wide)}, {}, {o.inout(rows)}, {}); })},
      {"add_bias_backward", with([=](Operands& o) {
         return row(RowOperation::add_bias, {o.in(rows)}, {}, {o.inout(wide, DType::f32)}, {});
       })},
      {"short_convolution", with([=](Operands& o) {
         return row(RowOperation::short_convolution, {o.in(rows), o.in(taps), o.in(halo)},
                    {o.out(keys), o.out(keys), o.out(values)}, {}, convolution);
       })},
      {"short_convolution_backward", with([=](Operands& o) {
         return row(RowOperation::short_convolution_backward,
                    {o.in(rows), o.in(taps), o.in(halo), o.in(keys), o.in(keys), o.in(values)},
                    {o.out(rows), o.out(halo)}, {o.inout(taps, DType::f32)}, convolution);
       })},
      {"decay_and_beta", with([=](Operands& o) {
         return row(RowOperation::decay_and_beta, {o.in(rows), o.in(wide)},
                    {o.out(half, DType::f32), o.out(half, DType::f32)}, {}, {});
       })},
      {"decay_and_beta_backward", with([=](Operands& o) {
         return row(RowOperation::decay_and_beta_backward,
                    {o.in(rows), o.in(wide), o.in(half, DType::f32), o.in(half, DType::f32)}, {o.out(rows)},
                    {o.inout(wide, DType::f32)}, {});
       })},
      {"gated_norm", with([=](Operands& o) {
         return row(RowOperation::gated_norm, {o.in(rows), o.in(rows), o.in(head)}, {o.out(rows)}, {},
                    gated_norm);
       })},
      {"gated_norm_backward", with([=](Operands& o) {
         return row(RowOperation::gated_norm_backward, {o.in(rows), o.in(rows), o.in(rows), o.in(head)},
                    {o.out(rows), o.out(rows)}, {o.inout(head, DType::f32)}, gated_norm);
       })},
      {"gated_norm_with_skip", with([=](Operands& o) {
         return row(RowOperation::gated_norm, {o.in(rows), o.in(rows), o.in(rows), o.in(wide), o.in(skips)},
                    {o.out(rows)}, {}, gated_row);
       })},
      {"gated_norm_with_skip_backward", with([=](Operands& o) {
         return row(RowOperation::gated_norm_backward,
                    {o.in(rows), o.in(rows), o.in(rows), o.in(rows), o.in(wide), o.in(skips)},
                    {o.out(rows), o.out(rows), o.out(rows)},
                    {o.inout(wide, DType::f32), o.inout(skips, DType::f32)}, gated_row);
       })},
      {"embed", with([=](Operands& o) {
         return row(RowOperation::embed, {o.in({kTokens}, DType::i32), o.in({kVocabulary, kColumns})},
                    {o.out(rows)}, {}, vocabulary);
       }),
       static_cast<std::int32_t>(kVocabulary)},
      {"embed_backward", with([=](Operands& o) {
         return row(RowOperation::embed_backward, {o.in({kTokens}, DType::i32), o.in(rows)}, {},
                    {o.inout({kVocabulary, kColumns})}, vocabulary);
       }),
       static_cast<std::int32_t>(kVocabulary)},
      {"cross_entropy", with([=](Operands& o) {
         return row(RowOperation::cross_entropy, {o.in(logits), o.in({kLogitRows}, DType::i32)},
                    {o.out(of_logits, DType::f32), o.out(sums, DType::f32)}, {}, vocabulary);
       }),
       static_cast<std::int32_t>(kVocabulary)},
      {"cross_entropy_backward", with([=](Operands& o) {
         return row(RowOperation::cross_entropy_backward,
                    {o.in(logits), o.in(of_logits, DType::f32), o.in(sums, DType::f32),
                     o.in({kLogitRows}, DType::i32), o.in({1}, DType::f32)},
                    {o.out(logits), o.out({kLogitRows}, DType::f32)}, {}, vocabulary);
       }),
       static_cast<std::int32_t>(kVocabulary)},
      {"dispatch", with([=](Operands& o) {
         return row(RowOperation::dispatch, {o.in(rows), o.in({kTokens, kChosen}, DType::i32)},
                    {o.out({kSlots, kColumns})}, {}, slots);
       }),
       kExperts},
      {"combine", with([=](Operands& o) {
         return row(RowOperation::combine, {o.in({kSlots, kColumns}), o.in({kTokens, kChosen}, DType::i32)},
                    {o.out(rows)}, {}, slots);
       }),
       kExperts},
      {"squared_norm", with([=](Operands& o) {
         return row(RowOperation::squared_norm, {o.in({kTokens * kColumns})}, {o.out({1}, DType::f32)}, {},
                    SquaredNormRule{{1}});
       })},
      {"optimizer", with([=](Operands& o) {
         const std::int64_t count = kTokens * kColumns / 2;
         return row(RowOperation::optimizer, {o.in({count}), o.in({1}, DType::f32), o.in({2}, DType::f32)},
                    {o.out({count})}, {o.inout({count}, DType::f32), o.inout({2 * count}, DType::f32)},
                    OptimizerRule{});
       })}};
}

}  // namespace

void register_rows() {
  for (const RowCase& made : row_cases()) {
    add_benchmark(str("Rows/", made.name, "/64MiB"), 21,
                  [=](benchmark::State& state) { compare_with_copy(state, made.add, made.integers); });
  }
}

}  // namespace cp::benchmarks
