// The kernels of recurrences against the host's.
//
// Values are drawn so that what they make stays small, whatever the sizes are, and bounds can be derived
// once. All norms are those of vectors, or of matrices as vectors:
//   - q, k, v, dout, the state before the rows and the gradient behind them have norms of at most 1, since an
//     element is at most one over the root of their number; the scale is 1/2;
//   - beta is between 1/8 and 7/8, so that the transitions of the delta rule, I - beta k k^T, have norms of
//     at most 1; decays are between e^-2 and e^-0.7 < 1/2.
// So with P = exp(log_decay) S and S' = P + k u^T, u = beta w, w = v - P^T k:
//   |S| <= 7/8 / (1 - e^-0.7) < 2, |P| <= 1, |w| <= 2 and |u| <= 2;
// and backward, with dS' = dS + scale q dout^T, du = dS'^T k, dw = beta du and dP = dS' - k dw^T:
//   |dS'| <= 3/2, |du| <= 3/2, |dw| <= 3/2 and |dP| <= 3/2.
//
// Errors, of one side, in roundings of f32. A row adds at most key_dim + 16 to the state's: 5 for P (4 for an
// exponential within two units in the last place, and the product), key_dim for P^T k, whose terms are added
// up in any order (Higham 2002, 3.1), and few for w, u, k u^T and S'. What was there before is halved at
// least. So the error of S never exceeds 2 (key_dim + 16), and that of the gradient is bounded alike.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/recurrence_rules.h"
#include "tests/gpu/kernel_run.h"
#include "tests/gpu/kernel_views.h"
#include "tests/support/values.h"

namespace cp {
namespace {

using testing::any_floating;
using testing::any_of;
using testing::any_view;
using testing::coin;
using testing::difference;
using testing::extent_of;
using testing::KernelRun;
using testing::kRounding;
using testing::pick;

struct RecurrenceSizes {
  std::int64_t batch = 1, rows = 1, key_heads = 1, heads_of_each = 1, key_dim = 1, value_dim = 1;

  std::int64_t value_heads() const { return key_heads * heads_of_each; }
  Shape keys() const { return {batch, rows, key_heads, key_dim}; }
  Shape values() const { return {batch, rows, value_heads(), value_dim}; }
  Shape numbers() const { return {batch, rows, value_heads()}; }
  Shape states() const { return {batch, value_heads(), key_dim, value_dim}; }
  Shape transitions(RecurrenceRule rule) const {
    const std::int64_t n = rule == RecurrenceRule::decay ? 1 : key_dim;
    return {batch, value_heads(), n, n};
  }
  // Of states, for the two sides together: out = scale S'^T q, with the error of S' halved by the scale and
  // key_dim |S'| / 2 of its own sums, is within it, too.
  double state_error() const { return 4 * static_cast<double>(key_dim + 16) * kRounding; }
  // Of gradients. With n = key_dim + value_dim + 64, the errors of S, P and dS' are below 2n; of w below 4n,
  // of u and dw below 5n and of du below 4n. So
  //   dq = scale S' dout           below 2n
  //   dk = dS' u - P dw            below 2 * 2n + 3/2 * 5n + 3/2 * 2n + 5n, and 5n of its own sums: 24.5n
  //   dbeta = du w                 below 2 * 4n + 3/2 * 4n + 3n
  //   dlog_decay = sum of dP P     below 8n + 3/2 * 2n + 3/2 n; a sum's longest chain has at most n terms
  // and dq and dk have as many of them as value heads share a key head, with a rounding of the sum.
  double gradient_error() const {
    return 2 * 25 * static_cast<double>(heads_of_each * (key_dim + value_dim + 64)) * kRounding;
  }
};

// Odd sizes, and those that fill tiles. The host has to compute them, too.
RecurrenceSizes any_recurrence_sizes() {
  constexpr std::int64_t kMostElements = 1 << 18;
  RecurrenceSizes sizes{any_of<std::int64_t>({0, 1, 1, 2}),
                        any_of<std::int64_t>({0, 1, 7, 50, 50}),
                        pick<std::int64_t>(1, 2),
                        pick<std::int64_t>(1, 3),
                        any_of<std::int64_t>({1, 3, 17, 64, 128, 130}),
                        any_of<std::int64_t>({1, 5, 33})};
  while (sizes.rows * numel(sizes.states()) > kMostElements) sizes.rows /= 2;
  return sizes;
}

struct RecurrenceOptions {
  RecurrenceRule rule = RecurrenceRule::delta;
  bool has_state = true, has_dstate = true, has_transition = true, has_final_state = true;
  std::vector<std::int64_t> starts = {};
  std::int64_t workspace_lanes = 1, workspace_rest = 0;
};

RecurrenceOptions any_options(const RecurrenceSizes& sizes) {
  RecurrenceOptions options;
  options.rule = coin() ? RecurrenceRule::delta : RecurrenceRule::decay;
  options.has_state = coin(), options.has_dstate = coin(), options.has_transition = pick(0, 3) > 0;
  options.has_final_state = coin();
  if (coin()) {
    for (std::int64_t row = 1; row < sizes.rows; ++row) {
      if (pick(0, 5) == 0) options.starts.push_back(row);
    }
  }
  options.workspace_lanes = pick<std::int64_t>(1, 3), options.workspace_rest = pick<std::int64_t>(0, 1);
  return options;
}

enum class RecurrenceViews : std::uint8_t { dense, any };

// Half a unit in the last place of what is stored.
double half_unit(DType dtype, double value) {
  switch (dtype) {
    case DType::f16:
      return std::max(0x1p-11 * std::abs(value), 0x1p-25);
    case DType::bf16:
      return 0x1p-8 * std::abs(value);
    default:
      return kRounding * std::abs(value);
  }
}

// The operands of kernels, as buffers of a KernelRun.
class RecurrenceCase {
 public:
  RecurrenceCase(const RecurrenceSizes& sizes, DType dtype, RecurrenceViews views)
      : sizes_(sizes), dtype_(dtype), views_(views) {}

  RecurrenceForward forward(const RecurrenceOptions& options) {
    return {keys(),
            keys(),
            values(),
            log_decays(),
            betas(),
            options.has_state ? states() : View{},
            output(dtype_, sizes_.values()),
            options.starts,
            kScaleOfOutput,
            options.rule,
            options.has_final_state ? output(DType::f32, sizes_.states()) : View{}};
  }
  RecurrenceSummary summary(const RecurrenceOptions& options) {
    return {keys(),
            values(),
            log_decays(),
            betas(),
            output(DType::f32, sizes_.states()),
            options.has_transition ? output(DType::f32, sizes_.transitions(options.rule)) : View{},
            options.rule};
  }
  RecurrenceSummaryGradient summary_gradient(const RecurrenceOptions& options) {
    return {keys(),         keys(),      log_decays(), betas(), values(), output(DType::f32, sizes_.states()),
            kScaleOfOutput, options.rule};
  }
  RecurrenceJoin join(const RecurrenceOptions& options, bool accumulate, bool transposed) {
    const View transition = input(DType::f32, sizes_.transitions(options.rule), 0, 1);
    const View in = input(DType::f32, sizes_.states(), 0, 1);
    return {transition, in, output(DType::f32, sizes_.states()), accumulate, transposed};
  }
  RecurrenceBackward backward(const RecurrenceOptions& options) {
    return {keys(),
            keys(),
            values(),
            log_decays(),
            betas(),
            options.has_state ? states() : View{},
            values(),
            options.has_dstate ? states() : View{},
            output(dtype_, sizes_.keys()),
            output(dtype_, sizes_.keys()),
            output(dtype_, sizes_.values()),
            output(DType::f32, sizes_.numbers()),
            output(DType::f32, sizes_.numbers()),
            workspace(options),
            options.starts,
            kScaleOfOutput,
            options.rule};
  }

  // Runs the kernel on both sides, and on the GPU once more: empty, if the outputs' buffers hold the same but
  // for `error` and the rounding of what is stored, and nothing but equal bits in the second run.
  std::string disagreement(const Kernel& kernel, const std::vector<View>& outputs, double error,
                           std::int64_t iteration = 0) {
    run.run(kernel, iteration);
    std::vector<std::vector<std::byte>> first;
    for (const View& view : outputs) {
      if (std::string far = far_values(view.buffer, error); !far.empty()) return far;
      first.push_back(run.gpu(view.buffer));
    }
    run.run_on_gpu(kernel, iteration);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (run.gpu(outputs[i].buffer) != first[i]) return str("output ", i, " has other bits in a second run");
    }
    return "";
  }
  std::string disagreement(const RecurrenceForward& kernel, std::int64_t iteration = 0) {
    std::vector<View> outputs = {kernel.out};
    if (!is_absent(kernel.final_state)) outputs.push_back(kernel.final_state);
    return disagreement(kernel, outputs, sizes_.state_error(), iteration);
  }
  std::string disagreement(const RecurrenceSummary& kernel, std::int64_t iteration = 0) {
    std::vector<View> outputs = {kernel.state};
    if (!is_absent(kernel.transition)) outputs.push_back(kernel.transition);
    return disagreement(kernel, outputs, sizes_.state_error(), iteration);
  }
  std::string disagreement(const RecurrenceSummaryGradient& kernel, std::int64_t iteration = 0) {
    return disagreement(kernel, {kernel.dstate}, sizes_.state_error(), iteration);
  }
  std::string disagreement(const RecurrenceBackward& kernel, std::int64_t iteration = 0) {
    return disagreement(kernel, {kernel.dq, kernel.dk, kernel.dv, kernel.dlog_decay, kernel.dbeta},
                        sizes_.gradient_error(), iteration);
  }
  // Bit for bit, as sums run in one order. The first run alone: another one would accumulate once more.
  std::string disagreement(const RecurrenceJoin& kernel, std::int64_t iteration = 0) {
    run.run(kernel, iteration);
    return difference(run, kernel.out.buffer);
  }

  KernelRun run;

 private:
  static constexpr double kScaleOfOutput = 0.5;

  View place(const Shape& shape, bool written) const {
    return views_ == RecurrenceViews::any ? any_view(0, shape, written) : dense_view(0, 0, shape);
  }
  // Values between middle - reach and middle + reach.
  View input(DType dtype, const Shape& shape, double middle, double reach) {
    View view = place(shape, false);
    std::vector<double> made = testing::small_fractions(extent_of(view), ++seed_);
    for (double& value : made) value = middle + reach * value;
    view.buffer = run.add(dtype, made);
    return view;
  }
  View output(DType dtype, const Shape& shape) {
    View view = place(shape, true);
    view.buffer = run.add(dtype, std::vector<double>(static_cast<std::size_t>(extent_of(view)), 96));
    return view;
  }
  static double below_one_of(std::int64_t count) {
    return 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(1, count)));
  }
  View keys() { return input(dtype_, sizes_.keys(), 0, below_one_of(sizes_.key_dim)); }
  View values() { return input(dtype_, sizes_.values(), 0, below_one_of(sizes_.value_dim)); }
  View states() {
    return input(DType::f32, sizes_.states(), 0, below_one_of(sizes_.key_dim * sizes_.value_dim));
  }
  View log_decays() { return input(DType::f32, sizes_.numbers(), -1.35, 0.65); }
  View betas() { return input(DType::f32, sizes_.numbers(), 0.5, 0.375); }
  // NaNs, so that reading what nobody wrote shows.
  View workspace(const RecurrenceOptions& options) {
    const std::int64_t count =
        options.workspace_lanes *
            recurrence_workspace_numel(sizes_.rows, sizes_.heads_of_each, sizes_.key_dim, sizes_.value_dim) +
        options.workspace_rest;
    const BufferId buffer = run.add(
        DType::f32,
        std::vector<double>(static_cast<std::size_t>(count), std::numeric_limits<double>::quiet_NaN()));
    return flat_view(buffer, 0, count);
  }

  // What lies between the elements of a view is the same on both sides.
  std::string far_values(BufferId buffer, double error) const {
    const DType dtype = run.plan().buffers[static_cast<std::size_t>(buffer)].dtype;
    const std::vector<double> host = run.host_values(buffer), gpu = run.gpu_values(buffer);
    for (std::size_t i = 0; i < host.size(); ++i) {
      const double most = error + 2 * half_unit(dtype, host[i]);
      if (!(std::abs(gpu[i] - host[i]) <= most))
        return str("element ", i, " of buffer ", buffer, " is ", gpu[i], " on the GPU and ", host[i],
                   " on the host; they may differ by ", most);
    }
    return "";
  }

  RecurrenceSizes sizes_;
  DType dtype_;
  RecurrenceViews views_;
  std::uint64_t seed_ = 0;
};

RecurrenceCase any_case(const RecurrenceSizes& sizes) {
  return {sizes, any_floating(), RecurrenceViews::any};
}

// One of each kernel, over dense views of f32: the first disagreement.
std::string disagreement_of_any_kernel(const RecurrenceSizes& sizes, const RecurrenceOptions& options) {
  const auto of = [&](const auto& made) {
    RecurrenceCase each(sizes, DType::f32, RecurrenceViews::dense);
    return each.disagreement(made(each));
  };
  std::string all;
  all += of([&](RecurrenceCase& each) { return each.forward(options); });
  all += of([&](RecurrenceCase& each) { return each.summary(options); });
  all += of([&](RecurrenceCase& each) { return each.summary_gradient(options); });
  all += of([&](RecurrenceCase& each) { return each.join(options, false, false); });
  all += of([&](RecurrenceCase& each) { return each.backward(options); });
  return all;
}

TEST(GpuRecurrenceForward, IsTheHostsWithinTheRoundingOfStates) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const RecurrenceSizes sizes = any_recurrence_sizes();
    RecurrenceCase each = any_case(sizes);
    RC_ASSERT(each.disagreement(each.forward(any_options(sizes))) == "");
  }));
}

// A transition of the rule of decay is the exponential of a sum, in double on both sides, which is rounded
// once; its columns of the delta rule are those of states of norm 1 that nothing is written to.
TEST(GpuRecurrenceSummary, IsTheHostsWithinTheRoundingOfStates) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const RecurrenceSizes sizes = any_recurrence_sizes();
    RecurrenceCase each = any_case(sizes);
    RC_ASSERT(each.disagreement(each.summary(any_options(sizes))) == "");
  }));
}

TEST(GpuRecurrenceSummaryGradient, IsTheHostsWithinTheRoundingOfStates) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const RecurrenceSizes sizes = any_recurrence_sizes();
    RecurrenceCase each = any_case(sizes);
    RC_ASSERT(each.disagreement(each.summary_gradient(any_options(sizes))) == "");
  }));
}

TEST(GpuRecurrenceJoin, IsTheHostsBitForBit) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const RecurrenceSizes sizes = any_recurrence_sizes();
    RecurrenceCase each = any_case(sizes);
    const bool accumulate = coin(), transposed = coin();
    RC_ASSERT(each.disagreement(each.join(any_options(sizes), accumulate, transposed)) == "");
  }));
}

TEST(GpuRecurrenceBackward, IsTheHostsWithinTheRoundingOfGradients) {
  CP_SKIP_WITHOUT_GPU();
  EXPECT_TRUE(rc::check([] {
    const RecurrenceSizes sizes = any_recurrence_sizes();
    RecurrenceCase each = any_case(sizes);
    RC_ASSERT(each.disagreement(each.backward(any_options(sizes))) == "");
  }));
}

// Blocks of 18 rows, more than come into shared memory at once, and documents that begin where either does.
TEST(GpuRecurrence, GoesThroughManyRows) {
  CP_SKIP_WITHOUT_GPU();
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    for (const std::vector<std::int64_t>& starts :
         {std::vector<std::int64_t>{}, std::vector<std::int64_t>{1, 16, 17, 18, 150, 288, 299}}) {
      RecurrenceOptions options;
      options.rule = rule, options.starts = starts;
      EXPECT_EQ(disagreement_of_any_kernel({1, 300, 1, 2, 20, 40}, options), "");
    }
  }
}

// Where nothing decays and nothing is written, each row sees the state before all of them. Above, few rows
// do.
TEST(GpuRecurrence, StatesReachThroughRows) {
  CP_SKIP_WITHOUT_GPU();
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    RecurrenceCase each({1, 5, 1, 1, 4, 4}, DType::f32, RecurrenceViews::dense);
    RecurrenceOptions options;
    options.rule = rule;
    RecurrenceForward kernel = each.forward(options);
    const BufferId zeros = each.run.add(DType::f32, std::vector<double>(5, 0));
    kernel.log_decay = dense_view(zeros, 0, {1, 5, 1}), kernel.beta = kernel.log_decay;
    EXPECT_EQ(each.disagreement(kernel), "");
    const std::vector<double> out = each.run.gpu_values(kernel.out), q = each.run.gpu_values(kernel.q),
                              state = each.run.gpu_values(kernel.state);
    for (std::size_t row = 0; row < 5; ++row) {
      for (std::size_t j = 0; j < 4; ++j) {
        double sum = 0;
        for (std::size_t i = 0; i < 4; ++i) sum += q[row * 4 + i] * state[i * 4 + j];
        EXPECT_NEAR(out[row * 4 + j], sum / 2, 8 * kRounding) << row << " " << j;
      }
    }
  }
}

// Where a token is written: one row, and the state behind it takes the place of that before it.
TEST(GpuRecurrenceForward, UpdatesStatesInPlace) {
  CP_SKIP_WITHOUT_GPU();
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    RecurrenceCase each({2, 1, 2, 2, 6, 40}, DType::bf16, RecurrenceViews::dense);
    RecurrenceOptions options;
    options.rule = rule;
    RecurrenceForward kernel = each.forward(options);
    each.run.run_on_gpu(Kernel(kernel));
    const std::vector<double> out = each.run.gpu_values(kernel.out),
                              state = each.run.gpu_values(kernel.final_state);
    kernel.final_state = kernel.state;
    each.run.run_on_gpu(Kernel(kernel));
    EXPECT_EQ(each.run.gpu_values(kernel.out), out);
    EXPECT_EQ(each.run.gpu_values(kernel.state), state);
  }
}

TEST(GpuRecurrence, TakesSizesOfZero) {
  CP_SKIP_WITHOUT_GPU();
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    RecurrenceOptions options;
    options.rule = rule;
    const RecurrenceSizes whole{2, 3, 2, 2, 4, 3};
    for (std::int64_t RecurrenceSizes::*size :
         {&RecurrenceSizes::batch, &RecurrenceSizes::rows, &RecurrenceSizes::key_heads,
          &RecurrenceSizes::key_dim, &RecurrenceSizes::value_dim}) {
      RecurrenceSizes sizes = whole;
      sizes.*size = 0;
      EXPECT_EQ(disagreement_of_any_kernel(sizes, options), "")
          << join(sizes.keys(), "x") << " " << join(sizes.values(), "x");
    }
  }
}

// The longest keys whose columns fit into the registers of a block, and what is said of longer ones.
TEST(GpuRecurrence, TakesKeysThatFitIntoABlock) {
  CP_SKIP_WITHOUT_GPU();
  constexpr std::int64_t kMost = 4096, kMostBackward = 1024;
  for (const RecurrenceRule rule : {RecurrenceRule::decay, RecurrenceRule::delta}) {
    RecurrenceOptions options;
    options.rule = rule, options.has_transition = false;
    const auto of = [&](std::int64_t key_dim, std::int64_t value_dim) {
      return RecurrenceCase({1, 5, 1, 1, key_dim, value_dim}, DType::f32, RecurrenceViews::dense);
    };
    RecurrenceCase forward = of(kMost, 2), summary = of(kMost, 2), gradient = of(kMost, 2),
                   backward = of(kMostBackward, 6);
    EXPECT_EQ(forward.disagreement(forward.forward(options)), "");
    EXPECT_EQ(summary.disagreement(summary.summary(options)), "");
    EXPECT_EQ(gradient.disagreement(gradient.summary_gradient(options)), "");
    EXPECT_EQ(backward.disagreement(backward.backward(options)), "");
    RecurrenceCase beyond = of(kMost + 1, 1), beyond_backward = of(kMostBackward + 1, 1);
    EXPECT_THROW(beyond.run.run_on_gpu(Kernel(beyond.forward(options))), InvalidInput);
    EXPECT_THROW(beyond.run.run_on_gpu(Kernel(beyond.summary(options))), InvalidInput);
    EXPECT_THROW(beyond.run.run_on_gpu(Kernel(beyond.summary_gradient(options))), InvalidInput);
    EXPECT_THROW(beyond_backward.run.run_on_gpu(Kernel(beyond_backward.backward(options))), InvalidInput);
  }
}

// In a Repeat, whose third iteration has the third batch entry.
TEST(GpuRecurrence, ViewsMoveWithTheIteration) {
  CP_SKIP_WITHOUT_GPU();
  const RecurrenceSizes sizes{3, 7, 2, 2, 6, 5};
  const auto move = [](std::initializer_list<View*> views) {
    for (View* view : views) view->shape[0] = 1, view->advance.stride = view->strides[0];
  };
  RecurrenceCase forward(sizes, DType::bf16, RecurrenceViews::dense),
      summary(sizes, DType::bf16, RecurrenceViews::dense),
      gradient(sizes, DType::bf16, RecurrenceViews::dense),
      joined(sizes, DType::bf16, RecurrenceViews::dense),
      backward(sizes, DType::bf16, RecurrenceViews::dense);
  RecurrenceForward a = forward.forward({});
  move({&a.q, &a.k, &a.v, &a.log_decay, &a.beta, &a.state, &a.out, &a.final_state});
  EXPECT_EQ(forward.disagreement(a, 2), "");
  RecurrenceSummary b = summary.summary({});
  move({&b.k, &b.v, &b.log_decay, &b.beta, &b.state, &b.transition});
  EXPECT_EQ(summary.disagreement(b, 2), "");
  RecurrenceSummaryGradient c = gradient.summary_gradient({});
  move({&c.q, &c.k, &c.log_decay, &c.beta, &c.dout, &c.dstate});
  EXPECT_EQ(gradient.disagreement(c, 2), "");
  RecurrenceJoin d = joined.join({}, true, true);
  move({&d.transition, &d.in, &d.out});
  EXPECT_EQ(joined.disagreement(d, 2), "");
  RecurrenceBackward e = backward.backward({});
  move({&e.q, &e.k, &e.v, &e.log_decay, &e.beta, &e.state, &e.dout, &e.dstate, &e.dq, &e.dk, &e.dv,
        &e.dlog_decay, &e.dbeta});
  EXPECT_EQ(backward.disagreement(e, 2), "");
}

}  // namespace
}  // namespace cp
