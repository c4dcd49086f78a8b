// What row kernels are refused for: every change of a shape, a dtype, a number of views or a rule that has no
// meaning, and values that have none.
#include "shared/plan/row_rules.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/plan/builder.h"
#include "shared/plan/check.h"
#include "shared/plan/step_rules.h"

namespace cp {
namespace {

using ::testing::HasSubstr;

// A kernel whose views lie in buffers of their own.
class RowCase {
 public:
  RowCase(RowOperation operation, RowRule rule) {
    plan_.target = host_target(), plan_.streams = {"s"};
    kernel_.operation = operation, kernel_.rule = std::move(rule);
  }
  // A size that is `free` may be another one.
  RowCase& reads(Shape shape, DType dtype = DType::f32, std::set<std::size_t> free = {}) {
    return add(kernel_.reads, std::move(shape), dtype, std::move(free));
  }
  RowCase& writes(Shape shape, DType dtype = DType::f32, std::set<std::size_t> free = {}) {
    return add(kernel_.writes, std::move(shape), dtype, std::move(free));
  }
  RowCase& updates(Shape shape, DType dtype = DType::f32, std::set<std::size_t> free = {}) {
    return add(kernel_.updates, std::move(shape), dtype, std::move(free));
  }
  RowCase& with(RowRule rule) {
    kernel_.rule = std::move(rule);
    return *this;
  }

  std::string error() const { return error(kernel_); }
  std::string name() const { return std::string(cp::name(kernel_.operation)); }

  void refuses_changes() {
    SCOPED_TRACE(name());
    ASSERT_EQ(error(), "");
    for (std::vector<View> RowKernel::*list : {&RowKernel::reads, &RowKernel::writes, &RowKernel::updates}) {
      for (std::size_t i = 0; i < (kernel_.*list).size(); ++i) {
        const View view = (kernel_.*list)[i];
        for (std::size_t dim = 0; dim < view.shape.size(); ++dim) {
          if (free_[idx(view.buffer)].contains(dim)) continue;
          RowKernel changed = kernel_;
          Shape shape = view.shape;
          ++shape[dim];
          (changed.*list)[i] = dense_view(view.buffer, 0, shape);
          EXPECT_NE(error(changed), "") << "view " << view.buffer << ", dimension " << dim;
        }
        RowKernel less = kernel_, more = kernel_;
        (less.*list).erase((less.*list).begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_TRUE(!error(less).empty() || may_lack(list, i)) << "without view " << view.buffer;
        (more.*list).push_back(view), (more.*list).back().buffer = spare();
        EXPECT_NE(error(more), "") << "with one more like view " << view.buffer;
        DType& dtype = plan_.buffers[idx(view.buffer)].dtype;
        const DType before = dtype;
        dtype = before == DType::i32 ? DType::f32 : DType::i32;
        EXPECT_NE(error(), "") << "view " << view.buffer << " of " << cp::name(dtype);
        dtype = before;
      }
    }
    for (const std::string_view rule : kRowRules) {
      RowKernel changed = kernel_;
      choose_rule(changed.rule, rule);
      if (changed.rule.index() == kernel_.rule.index()) continue;
      EXPECT_THAT(error(changed), HasSubstr("rule")) << rule;
    }
  }

 private:
  RowCase& add(std::vector<View>& list, Shape shape, DType dtype, std::set<std::size_t> free) {
    const auto id = static_cast<BufferId>(plan_.buffers.size());
    plan_.buffers.push_back({"b" + std::to_string(id), BufferKind::inout, dtype, 4096});
    free_.push_back(std::move(free));
    list.push_back(dense_view(id, 0, std::move(shape)));
    return *this;
  }
  // The factors of rows, a router's correction and its loads, parameters in another dtype, and the bias of
  // a convolution may be left out.
  bool may_lack(std::vector<View> RowKernel::*list, std::size_t i) const {
    const bool has_factors =
        kernel_.operation == RowOperation::gated_activation || kernel_.operation == RowOperation::group_bias;
    return (has_factors && list == &RowKernel::reads && i == 1) ||
           (kernel_.operation == RowOperation::route && list == &RowKernel::reads && i == 1) ||
           (kernel_.operation == RowOperation::route && list == &RowKernel::updates) ||
           (kernel_.operation == RowOperation::short_convolution && list == &RowKernel::reads && i == 2) ||
           (kernel_.operation == RowOperation::optimizer && list == &RowKernel::writes);
  }
  BufferId spare() {
    plan_.buffers.push_back({"spare", BufferKind::inout, DType::f32, 4096});
    return static_cast<BufferId>(plan_.buffers.size()) - 1;
  }
  std::string error(const RowKernel& kernel) const {
    try {
      validate_step(plan_, Step{0, Kernel(kernel), {}, ""}, 1);
    } catch (const InvalidInput& error) {
      return error.what();
    }
    return "";
  }

  Plan plan_;
  RowKernel kernel_;
  std::vector<std::set<std::size_t>> free_;  // by buffer
};

constexpr DType kIds = DType::i32;

NormRule qk_rule(std::int64_t ranks = 1) { return {1e-6, false, 1, 4, 1, 2, ranks}; }
RotaryRule rotary_rule() {
  RotaryRule rule;
  rule.sequences = 2, rule.positions = {{0, 3, 3, 1}};
  rule.moves = {{0, 0, 4, 0, 0, 4, 2, 4, true}, {0, 8, 0, 1, 0, 0, 1, 5, false}};
  return rule;
}
VocabularyRule vocabulary() {
  VocabularyRule rule;
  rule.first = 8, rule.count = 7;
  return rule;
}

// Of two sequences of three rows, whose last one begins a document; four rows of a halo.
ConvolutionRule convolution_rule() {
  return {3, 2, {{0, 2, true, true}, {0, 2, false, false}, {2, 1, false, true}}, 2, 1e-6};
}

// The same of one output, with nothing behind the convolution.
ConvolutionRule plain_convolution() {
  ConvolutionRule rule = convolution_rule();
  rule.normalized = 0, rule.plain = true;
  return rule;
}

std::vector<RowCase> row_cases() {
  std::vector<RowCase> all;
  const auto add = [&](RowOperation operation, RowRule rule = {}) -> RowCase& {
    return all.emplace_back(operation, std::move(rule));
  };
  add(RowOperation::rms_norm, qk_rule()).reads({3, 6}).reads({4}).reads({2}).writes({3, 6});
  add(RowOperation::rms_norm, qk_rule(2)).reads({3, 6}).reads({4}).reads({2}).reads({3, 2}).writes({3, 6});
  add(RowOperation::rms_norm_backward, qk_rule())
      .reads({3, 6})
      .reads({4})
      .reads({2})
      .reads({3, 6})
      .writes({3, 6})
      .updates({4})
      .updates({2});
  add(RowOperation::norm_sums, qk_rule(2)).reads({3, 6}, DType::bf16, {1}).writes({3, 2});
  add(RowOperation::norm_sums_backward, qk_rule(2))
      .reads({3, 6})
      .reads({4})
      .reads({2})
      .reads({3, 6})
      .writes({3, 2});
  add(RowOperation::rotary, rotary_rule())
      .reads({6, 13}, DType::f32, {1})
      .reads({9, 4}, DType::f32, {0})
      .writes({6, 8})
      .writes({6, 5});
  add(RowOperation::rotary_backward, rotary_rule())
      .reads({6, 8})
      .reads({6, 5})
      .reads({9, 4}, DType::f32, {0})
      .writes({6, 13}, DType::f32, {1});
  add(RowOperation::gated_activation, ActivationRule{}).reads({3, 8}).reads({3, 1}).writes({3, 4});
  add(RowOperation::gated_activation_backward, ActivationRule{ActivationFunction::relu2, false})
      .reads({3, 4})
      .reads({3, 1})
      .reads({3, 4})
      .writes({3, 4})
      .writes({3, 1});
  add(RowOperation::embed, vocabulary()).reads({3}, kIds).reads({7, 4}, DType::f32, {0}).writes({3, 4});
  add(RowOperation::embed_backward, vocabulary())
      .reads({3}, kIds)
      .reads({3, 4})
      .updates({7, 4}, DType::f32, {0});
  add(RowOperation::cross_entropy, vocabulary())
      .reads({3, 7}, DType::bf16, {1})
      .reads({3}, kIds)
      .writes({3, 1})
      .writes({3, 2});
  add(RowOperation::cross_entropy_backward, vocabulary())
      .reads({3, 7})
      .reads({3, 1})
      .reads({3, 2})
      .reads({3}, kIds)
      .reads({1})
      .writes({3, 7})
      .writes({3});
  add(RowOperation::route, RouterRule{false, 2, 1, true, 1, 1})
      .reads({3, 8})
      .writes({3, 2})
      .writes({3, 2}, kIds);
  add(RowOperation::route_backward, RouterRule{false, 2, 1, true, 1, 2})
      .reads({3, 8})
      .reads({3, 2}, kIds, {1})
      .reads({16, 1})
      .writes({3, 8});
  add(RowOperation::dispatch, SlotsRule{8, 2})
      .reads({3, 4})
      .reads({3, 2})
      .reads({3, 2}, kIds)
      .writes({16, 4})
      .writes({16, 1});
  add(RowOperation::combine, SlotsRule{8, 2}).reads({16, 4}).reads({3, 2}, kIds, {1}).writes({3, 4});
  add(RowOperation::add_bias).reads({4}).updates({3, 4}, DType::bf16, {0});
  add(RowOperation::add_bias).reads({3, 4}, DType::bf16, {0}).updates({4});
  add(RowOperation::output_gate).reads({3, 4}).reads({3, 4}).writes({3, 4});
  add(RowOperation::output_gate_backward)
      .reads({3, 4})
      .reads({3, 4})
      .reads({3, 4})
      .writes({3, 4})
      .writes({3, 4});
  add(RowOperation::squared_norm, SquaredNormRule{{1, 2}})
      .reads({3}, DType::f32, {0})
      .reads({3, 4}, DType::f32, {0, 1})
      .writes({1});
  add(RowOperation::optimizer, OptimizerRule{})
      .reads({5}, DType::bf16)
      .reads({1})
      .reads({2})
      .writes({5}, DType::bf16)
      .updates({5})
      .updates({10});
  add(RowOperation::short_convolution, convolution_rule())
      .reads({6, 8})
      .reads({24})
      .reads({8})
      .reads({4, 8})
      .writes({6, 2}, DType::bf16)
      .writes({6, 4})
      .writes({6, 2});
  add(RowOperation::short_convolution_backward, convolution_rule())
      .reads({6, 8})
      .reads({24})
      .reads({8})
      .reads({4, 8})
      .reads({6, 2})
      .reads({6, 4})
      .reads({6, 2})
      .writes({6, 8})
      .writes({4, 8})
      .updates({24})
      .updates({8});
  add(RowOperation::decay_and_beta).reads({3, 4}).reads({4}).writes({3, 2}).writes({3, 2});
  add(RowOperation::decay_and_beta_backward)
      .reads({3, 2}, DType::bf16)
      .reads({4})
      .reads({3, 2})
      .reads({3, 2})
      .writes({3, 2})
      .updates({4});
  add(RowOperation::gated_norm, GatedNormRule{4, 1e-6}).reads({3, 8}).reads({3, 8}).reads({4}).writes({3, 8});
  add(RowOperation::gated_norm, GatedNormRule{4, 1e-6})
      .reads({3, 8})
      .reads({3, 8})
      .reads({3, 8})
      .reads({8})
      .reads({2})
      .writes({3, 8});
  add(RowOperation::group_bias).reads({2, 4}, DType::f32, {0}).reads({6, 1}).updates({6, 4});
  add(RowOperation::group_bias_backward)
      .reads({6, 4})
      .reads({2, 4})
      .reads({6, 1})
      .writes({2, 4})
      .updates({6, 1});
  NormRule unweighted = qk_rule();
  unweighted.unweighted = true;
  add(RowOperation::rms_norm, unweighted).reads({3, 6}).writes({3, 6});
  add(RowOperation::rms_norm_backward, unweighted).reads({3, 6}).reads({3, 6}).writes({3, 6});
  add(RowOperation::gated_norm_backward, GatedNormRule{4, 1e-6})
      .reads({3, 8})
      .reads({3, 8})
      .reads({3, 8})
      .reads({3, 8})
      .reads({8})
      .reads({2})
      .writes({3, 8})
      .writes({3, 8})
      .writes({3, 8})
      .updates({8})
      .updates({2});
  add(RowOperation::route, RouterRule{true, 2, 1, true, 1, 1})
      .reads({3, 8})
      .reads({8})
      .writes({3, 2})
      .writes({3, 2}, kIds)
      .updates({8});
  add(RowOperation::short_convolution, plain_convolution())
      .reads({6, 8})
      .reads({24})
      .reads({8})
      .reads({4, 8})
      .writes({6, 8}, DType::bf16);
  add(RowOperation::short_convolution_backward, plain_convolution())
      .reads({6, 8})
      .reads({24})
      .reads({8})
      .reads({4, 8})
      .reads({6, 8})
      .writes({6, 8})
      .writes({4, 8})
      .updates({24})
      .updates({8});
  return all;
}

TEST(RowRules, RefuseEveryChangeWithoutMeaning) {
  for (RowCase& each : row_cases()) each.refuses_changes();
}

// Each value that has no meaning, and the words.
TEST(RowRules, NameTheValue) {
  const auto error = [](std::size_t which, RowRule rule) {
    return row_cases()[which].with(std::move(rule)).error();
  };
  const auto norm = [&](auto change) {
    NormRule rule = qk_rule();
    change(rule);
    return error(0, rule);
  };
  EXPECT_EQ(norm([](NormRule& rule) { rule.eps = 0; }),
            "step rms_norm of rank 0: eps is 0; it keeps a row of zeros from dividing by 0: use a positive "
            "number, as "
            "1e-6");
  EXPECT_THAT(norm([](NormRule& rule) { rule.groups = 2; }),
              HasSubstr("2 x 4 and 1 x 2 columns, but its rows have 6"));
  EXPECT_THAT(norm([](NormRule& rule) { rule.groups = 0; }), HasSubstr("normalizes 0 groups of 4 columns"));
  const auto rotary = [&](auto change) {
    RotaryRule rule = rotary_rule();
    change(rule);
    return error(5, rule);
  };
  EXPECT_THAT(rotary([](RotaryRule& rule) { rule.moves[1].source = 1; }),
              HasSubstr("of matrix 1 to matrix 1; there are 1 and 2"));
  EXPECT_THAT(rotary([](RotaryRule& rule) { rule.moves[0].from = 6; }),
              HasSubstr("from column 6 on and 4 apart"));
  EXPECT_THAT(rotary([](RotaryRule& rule) { rule.moves[0].to_step = 3; }),
              HasSubstr("only 3 apart; they would overlap"));
  EXPECT_THAT(rotary([](RotaryRule& rule) { rule.moves[0].heads = 1; }),
              HasSubstr("writes 4 columns of the 8"));
  EXPECT_THAT(rotary([](RotaryRule& rule) { rule.moves[1].rotated = true; }),
              HasSubstr("pairs need an even number"));
  EXPECT_THAT(rotary([](RotaryRule& rule) { rule.positions[0].begin = 7; }),
              HasSubstr("at positions 7 to 9, and a table of 9"));
  EXPECT_THAT(rotary([](RotaryRule& rule) { rule.sequences = 4; }),
              HasSubstr("does not begin with the 12 rows of 4"));
  EXPECT_THAT(rotary([](RotaryRule& rule) { rule.moves[0].scaled = true, rule.floor = 4; }),
              HasSubstr("scales columns that are rotated, too"));
  EXPECT_THAT(rotary([](RotaryRule& rule) { rule.moves[1].scaled = true; }),
              HasSubstr("with temperature=0 and floor=0; rotated ones stay"));
  NormRule unweighted = qk_rule();
  unweighted.unweighted = unweighted.unit_offset = true;
  EXPECT_THAT(error(31, unweighted), HasSubstr("has no weights and adds 1 to them"));
  NormRule centered = qk_rule(2);
  centered.centered = true;
  EXPECT_THAT(error(1, centered), HasSubstr("subtracts the mean of groups on 2 ranks"));
  EXPECT_THAT(error(7, ActivationRule{ActivationFunction::silu, true, -1}),
              HasSubstr("has limit=-1 and offset=0"));
  VocabularyRule scaled = vocabulary();
  scaled.logit_scale = 0;
  EXPECT_THAT(error(9, scaled), HasSubstr("multiplies logits with 0; use a number above 0"));
  VocabularyRule tokens = vocabulary();
  tokens.count = 8;
  EXPECT_THAT(error(9, tokens), HasSubstr("has the tokens 8 to 15, but a table or logits of 7"));
  EXPECT_THAT(error(13, RouterRule{false, 3, 1, true, 1, 1}), HasSubstr("8 experts in 3 groups"));
  EXPECT_THAT(error(13, RouterRule{false, 8, 1, true, 1, 1}),
              HasSubstr("chooses 2 of the 1 experts of 1 groups"));
  EXPECT_THAT(error(15, SlotsRule{9, 2}), HasSubstr("9 experts on 2 ranks; each has as many"));
  EXPECT_THAT(error(21, SquaredNormRule{{1, 0}}), HasSubstr("as one of 0 copies; it is one itself"));
  OptimizerRule adam;
  adam.beta2 = 1;
  EXPECT_THAT(error(22, adam), HasSubstr("beta2 is 1; use a number in [0, 1)"));
  EXPECT_THAT(error(22, OptimizerRule{3}), HasSubstr("has 3 states; AdamW has 2"));
  const auto convolution = [&](auto change) {
    ConvolutionRule rule = convolution_rule();
    change(rule);
    return error(23, rule);
  };
  EXPECT_THAT(convolution([](ConvolutionRule& rule) { rule.taps = 0; }), HasSubstr("has 0 taps"));
  EXPECT_THAT(convolution([](ConvolutionRule& rule) { rule.sequences = 4; }),
              HasSubstr("has 6 rows and 4 of a halo, of 4 sequences"));
  EXPECT_THAT(convolution([](ConvolutionRule& rule) { rule.runs[0].begins = false; }),
              HasSubstr("has a first run with no run before it"));
  EXPECT_THAT(convolution([](ConvolutionRule& rule) { rule.runs[1].first = 1; }),
              HasSubstr("has row 0 of a sequence in no run"));
  EXPECT_THAT(convolution([](ConvolutionRule& rule) { rule.runs[2].first = 1; }),
              HasSubstr("has row 1 of a sequence in two runs"));
  EXPECT_THAT(convolution([](ConvolutionRule& rule) { rule.runs.pop_back(); }),
              HasSubstr("has row 2 of a sequence in no run"));
  EXPECT_THAT(convolution([](ConvolutionRule& rule) { rule.runs[0].rows = 3; }),
              HasSubstr("has a run of 3 rows from 0 on, outside of the 4 rows of the halo"));
  EXPECT_THAT(convolution([](ConvolutionRule& rule) { rule.normalized = 3; }),
              HasSubstr("normalizes heads of 3 columns with eps=1e-06, but q and k have 2 and 4"));
  EXPECT_THAT(error(27, GatedNormRule{3, 1e-6}), HasSubstr("normalizes groups of 3 of 8 columns"));
  ConvolutionRule heads = plain_convolution();
  heads.normalized = 2;
  const std::size_t cases = row_cases().size();
  for (const std::size_t of_one : {cases - 2, cases - 1})
    EXPECT_THAT(error(of_one, heads),
                HasSubstr("normalizes heads of 2 columns of y, which has none: use 0, or write q, k and v"));
}

// Silu or nothing behind it, of one output or of three, with a bias, a halo, both or none.
TEST(RowRules, ConvolutionsHaveOneOutputOrThree) {
  for (const bool alone : {false, true}) {
    for (const bool plain : {false, true}) {
      for (const bool has_bias : {false, true}) {
        for (const bool has_halo : {false, true}) {
          ConvolutionRule rule{3, 2, {{0, 3, false, true}}, alone ? 0 : 2, 1e-6, plain};
          if (has_halo) rule.runs = convolution_rule().runs;
          RowCase forward(RowOperation::short_convolution, rule),
              backward(RowOperation::short_convolution_backward, rule);
          for (RowCase* both : {&forward, &backward}) {
            both->reads({6, 8}).reads({24});
            if (has_bias) both->reads({8});
            if (has_halo) both->reads({4, 8});
          }
          for (const std::int64_t width : alone ? Shape{8} : Shape{2, 4, 2})
            forward.writes({6, width}), backward.reads({6, width});
          backward.writes({6, 8}).updates({24});
          if (has_halo) backward.writes({4, 8});
          if (has_bias) backward.updates({8});
          EXPECT_EQ(forward.error(), "");
          EXPECT_EQ(backward.error(), "");
        }
      }
    }
  }
  EXPECT_THAT(RowCase(RowOperation::short_convolution, plain_convolution())
                  .reads({6, 8})
                  .reads({24})
                  .reads({4, 8})
                  .writes({6, 4})
                  .writes({6, 4})
                  .error(),
              HasSubstr("writes 2 outputs; they are q, k and v, or y alone"));
  EXPECT_THAT(RowCase(RowOperation::short_convolution_backward, plain_convolution())
                  .reads({6, 8})
                  .reads({24})
                  .writes({6, 8})
                  .updates({24})
                  .error(),
              HasSubstr("reads 2 views; it reads x, weights, a bias if there is one, a halo if there is one, "
                        "and the gradients of q, k and v, or that of y"));
  EXPECT_THAT(RowCase(RowOperation::short_convolution, plain_convolution())
                  .reads({6, 8})
                  .reads({24})
                  .reads({4, 8})
                  .writes({6, 6})
                  .error(),
              HasSubstr("has 8 columns of x, and 6 of y; they are the same"));
}

// Shapes only: that of serving, which updates cached rows.
TEST(RowRules, ConvolutionsOfServingHaveOneOutput) {
  PlanBuilder b(0, shape_target());
  const BufferId x = b.inout("x", DType::bf16, 48), weights = b.inout("weights", DType::bf16, 24),
                 y = b.inout("y", DType::bf16, 48), cached = b.inout("cached", DType::bf16, 32);
  b.add(b.stream("s"), RowKernel{RowOperation::short_convolution,
                                 {dense_view(x, 0, {6, 8}), flat_view(weights, 0, 24)},
                                 {dense_view(y, 0, {6, 8})},
                                 {dense_view(cached, 0, {4, 8})},
                                 {}});
  EXPECT_NO_THROW((void)std::move(b).build({}));
}

// A gated short convolution over columns of one matrix: [gate | x | other gate | convolved], of which every
// kernel reads some and writes others.
TEST(RowRules, RowsMayBeColumnsOfAWiderMatrix) {
  constexpr std::int64_t kRows = 6, kColumns = 8;
  PlanBuilder b(0, host_target());
  const StreamId stream = b.stream("s");
  const BufferId all = b.inout("all", DType::bf16, 4 * kRows * kColumns),
                 d_all = b.inout("d all", DType::bf16, 4 * kRows * kColumns),
                 product = b.inout("product", DType::bf16, kRows * kColumns),
                 d_product = b.inout("d product", DType::bf16, kRows * kColumns),
                 y = b.inout("y", DType::bf16, kRows * kColumns),
                 weights = b.inout("weights", DType::bf16, 3 * kColumns),
                 d_weights = b.inout("d weights", DType::f32, 3 * kColumns);
  const auto columns = [&](BufferId buffer, std::int64_t first, std::int64_t count) {
    return View{buffer, first * kColumns, {kRows, count * kColumns}, {4 * kColumns, 1}, {}};
  };
  const auto matrix = [&](BufferId buffer) { return dense_view(buffer, 0, {kRows, kColumns}); };
  const auto vector = [&](BufferId buffer) { return flat_view(buffer, 0, 3 * kColumns); };
  const ActivationRule gate{ActivationFunction::identity, true};
  const ConvolutionRule rule{3, 2, {{0, 3, false, true}}, 0, 1e-6, true};
  b.add(stream, RowKernel{RowOperation::gated_activation, {columns(all, 0, 2)}, {matrix(product)}, {}, gate});
  b.add(stream, RowKernel{RowOperation::short_convolution,
                          {matrix(product), vector(weights)},
                          {columns(all, 3, 1)},
                          {},
                          rule});
  b.add(stream, RowKernel{RowOperation::gated_activation, {columns(all, 2, 2)}, {matrix(y)}, {}, gate});
  b.add(stream, RowKernel{RowOperation::gated_activation_backward,
                          {columns(all, 2, 2), matrix(y)},
                          {columns(d_all, 2, 2)},
                          {},
                          gate});
  b.add(stream, RowKernel{RowOperation::short_convolution_backward,
                          {columns(all, 1, 1), vector(weights), columns(d_all, 3, 1)},
                          {columns(d_all, 0, 1)},
                          {vector(d_weights)},
                          rule});
  b.add(stream, RowKernel{RowOperation::gated_activation_backward,
                          {columns(all, 0, 2), matrix(d_product)},
                          {columns(d_all, 0, 2)},
                          {},
                          gate});
  EXPECT_NO_THROW((void)std::move(b).build({}));
}

}  // namespace
}  // namespace cp
