// What stands before and behind a recurrence in each row: what heads decay by and write with, and the norm
// and gates of what they give.
//
// Sums and what is read twice are as in row_norms.cu: packs are added up in f32, their sums in f64, and the
// first packs of a lane stay in registers. An exponential is computed twice, where keeping it would take
// registers from the reads that are under way.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/row_access.h"
#include "runtime/cuda/row_column_sums.h"
#include "runtime/cuda/row_kernels.h"
#include "runtime/cuda/walk.h"
#include "shared/base/index.h"
#include "shared/kernels/activation.h"
#include "shared/plan/row_rules.h"

namespace cp::runtime {
namespace {

// ---- decay and beta ----

// Of a pack of heads: their numbers, and what they are in all rows.
template <int kPack>
struct HeadPack {
  float beta_logits[kPack] = {}, step_logits[kPack], rates[kPack];
};

template <int kPack>
struct DecayOperands {
  std::int64_t heads = 0;
  bool has_beta = false;  // whether each head has two numbers
  RowMatrix<kPack> numbers, of_heads;

  CP_DEVICE HeadPack<kPack> load(std::int64_t row, std::int64_t head) const {
    HeadPack<kPack> pack;
    float biases[kPack];
    if (has_beta) numbers.load(row, head, pack.beta_logits);
    numbers.load(row, has_beta ? heads + head : head, pack.step_logits);
    of_heads.load(0, head, pack.rates), of_heads.load(0, heads + head, biases);
    CP_UNROLL
    for (int i = 0; i < kPack; ++i)
      pack.step_logits[i] += biases[i], pack.rates[i] = -std::exp(pack.rates[i]);
    return pack;
  }
};

template <int kPack>
struct DecayForward {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "decay_and_beta";

  RowLanes lanes;  // packs: of heads
  DecayOperands<kPack> operands;
  RowMatrix<kPack> log_decay, beta;

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row >= lanes.rows) return;
      CP_NO_UNROLL
      for (std::int64_t pack = lanes.lane(thread); pack < lanes.packs; pack += lanes.lanes()) {
        const HeadPack<kPack> heads = operands.load(row, pack * kPack);
        float decays[kPack], betas[kPack];
        CP_UNROLL
        for (int i = 0; i < kPack; ++i) {
          const float step = softplus(heads.step_logits[i]);
          decays[i] = heads.rates[i] * step;
          betas[i] = operands.has_beta ? sigmoid(heads.beta_logits[i]) : step;
        }
        log_decay.write(row, pack * kPack, decays), beta.write(row, pack * kPack, betas);
      }
    });
  }
};

// Lanes of a row in the backward pass, which takes heads beyond their packs in blocks of their own: so a
// thread has the same heads in all of its rows, and adds up their terms in registers. Chosen.
constexpr std::int64_t kMostHeadLanes = 32;

// `partial` has a row of 2 heads for each of the `strands` blocks that have the same heads: what is added to
// the gradients of A_log and then of dt_bias.
template <int kPack>
struct DecayBackward {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "decay_and_beta_backward";
  static constexpr int kOfThread = 2 * kPack;
  static constexpr int kSharedBytes = kThreads * kOfThread * static_cast<int>(sizeof(float));

  RowLanes lanes;   // packs: of heads
  Divider columns;  // blocks that share rows
  std::int64_t strands = 0;
  DecayOperands<kPack> operands;
  RowMatrix<kPack> d_decay, d_beta;
  RowOutput<kPack> d_numbers;
  float* partial = nullptr;

  struct Own {
    double sums[2][kPack];
  };

  CP_DEVICE void operator()(Block& block) const {
    const std::int64_t strand = columns.quotient(static_cast<std::uint32_t>(block.index())),
                       first = (block.index() - strand * columns.size) * lanes.lanes();
    PerThread<Own> own(block);
    auto* const all = block.template shared<float>();  // [row of the block][of A_log, of dt_bias][head]
    const int of_row = lanes.lanes() * kPack;
    block.for_each_thread([&](int thread) {
      Own& its = own[thread];
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) its.sums[0][i] = its.sums[1][i] = 0;
      const std::int64_t pack = first + lanes.lane(thread);
      if (pack < lanes.packs) {
        CP_NO_UNROLL
        for (std::int64_t row = lanes.row(strand, thread); row < lanes.rows;
             row += strands * lanes.rows_of_block())
          give(row, pack * kPack, its);
      }
      float* const to = all + (thread >> lanes.shift) * 2 * of_row + lanes.lane(thread) * kPack;
      CP_UNROLL
      for (int i = 0; i < kPack; ++i)
        to[i] = static_cast<float>(its.sums[0][i]), to[of_row + i] = static_cast<float>(its.sums[1][i]);
    });
    block.last([&](int thread) {
      for (int number = thread; number < 2 * of_row; number += kThreads) {
        const std::int64_t head = first * kPack + number % of_row;
        if (head >= operands.heads) continue;
        double sum = 0;
        for (std::int64_t row = 0; row < lanes.rows_of_block(); ++row) sum += all[row * 2 * of_row + number];
        partial[(2 * strand + number / of_row) * operands.heads + head] = static_cast<float>(sum);
      }
    });
  }

  CP_DEVICE void give(std::int64_t row, std::int64_t head, Own& its) const {
    float of_decay[kPack], of_beta[kPack];
    d_decay.load(row, head, of_decay), d_beta.load(row, head, of_beta);
    const HeadPack<kPack> heads = operands.load(row, head);
    CP_UNROLL
    for (int i = 0; i < kPack; ++i) {
      // The slope of softplus is the sigmoid; exp(A_log) is its own.
      const float along = of_decay[i] * heads.rates[i], logit = heads.step_logits[i];
      const float d_step = (along + (operands.has_beta ? 0 : of_beta[i])) * sigmoid(logit);
      its.sums[0][i] += along * softplus(logit), its.sums[1][i] += d_step;
      of_decay[i] = d_step;
      const float b = sigmoid(heads.beta_logits[i]);
      of_beta[i] *= b * (1 - b);
    }
    d_numbers.give(row, operands.has_beta ? operands.heads + head : head, of_decay);
    if (operands.has_beta) d_numbers.give(row, head, of_beta);
  }
};

// ---- norm and gates ----

// A lane keeps its first packs, kKept of each of up to four matrices: two forward, and backward as many as a
// group of its lanes needs, one or two. More would leave no registers for the sums of the gradients.
constexpr int kMostKept = 2;

template <int kPack, int kKept>
struct GatedNormOperands {
  RowLanes lanes;  // packs: of a group
  std::int64_t width = 0;
  Divider of_weight, of_head;  // columns
  double inverse_width = 1, eps = 0;
  bool skips = false;
  RowMatrix<kPack> x, gates, v, weight, dy;  // v: if it skips; dy: backward
  bool backward = false;
  RowMatrix<1> skip;

  struct Bits {
    RowBits x, gates, v, dy;
  };
  struct Kept {
    Bits packs[kKept];
  };
  CP_DEVICE Bits read(std::int64_t row, std::int64_t column) const {
    Bits bits{x.read(row, column), gates.read(row, column), {}, {}};
    if (skips) bits.v = v.read(row, column);
    if (backward) bits.dy = dy.read(row, column);
    return bits;
  }
  CP_DEVICE void keep(int lane, std::int64_t row, std::int64_t first, Kept& kept) const {
    CP_UNROLL
    for (int i = 0; i < kKept; ++i) {
      const std::int64_t pack = lane + i * lanes.lanes();
      if (pack < lanes.packs) kept.packs[i] = read(row, first + pack * kPack);
    }
  }
  // Calls use(pack, number, bits) for the packs of a lane; number: among those that it keeps, or -1.
  template <class Use>
  CP_DEVICE void for_group(int lane, const Kept& kept, std::int64_t row, std::int64_t first,
                           Use&& use) const {
    CP_UNROLL
    for (int i = 0; i < kKept; ++i) {
      const std::int64_t pack = lane + i * lanes.lanes();
      if (pack < lanes.packs) use(pack, i, kept.packs[i]);
    }
    CP_NO_UNROLL
    for (std::int64_t pack = lane + kKept * lanes.lanes(); pack < lanes.packs; pack += lanes.lanes())
      use(pack, -1, read(row, first + pack * kPack));
  }

  // x with what is added to it, the gates' activations, and what is normalized; the latter without gates
  // where these stand behind the norm.
  struct Values {
    float x[kPack], gates[kPack], slopes[kPack], normalized[kPack];
  };
  CP_DEVICE void normalized(const Bits& bits, std::int64_t column, Values& of) const {
    x.values(bits.x, of.x);
    if (skips) {
      float added[kPack];
      v.values(bits.v, added);
      const float factor = skip_of(column);
      activate_gates(bits, of);
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) of.x[i] += factor * added[i];
    }
    CP_UNROLL
    for (int i = 0; i < kPack; ++i) of.normalized[i] = skips ? of.x[i] * of.gates[i] : of.x[i];
  }
  CP_DEVICE void all_values(const Bits& bits, std::int64_t column, Values& of) const {
    normalized(bits, column, of);
    if (!skips) activate_gates(bits, of);
  }
  CP_DEVICE void activate_gates(const Bits& bits, Values& of) const {
    gates.values(bits.gates, of.gates);
    CP_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const Activated activated = activate(ActivationFunction::silu, of.gates[i]);
      of.gates[i] = activated.value, of.slopes[i] = activated.slope;
    }
  }
  // The weight of a pack of columns, which begins anew at each multiple of its length.
  CP_DEVICE void load_weight(std::int64_t column, float (&to)[kPack]) const {
    const std::int64_t before = of_weight.quotient(static_cast<std::uint32_t>(column));
    weight.load(0, column - before * of_weight.size, to);
  }
  // A pack is of one head.
  CP_DEVICE float skip_of(std::int64_t column) const {
    float factor[1];
    skip.load(0, of_head.quotient(static_cast<std::uint32_t>(column)), factor);
    return factor[0];
  }
  CP_DEVICE double inverse_root(double squares) const {
    return near_inverse_root(squares * inverse_width + eps);
  }
};

template <int kPack>
struct GatedNormForward {
  using Norm = GatedNormOperands<kPack, kMostKept>;

  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "gated_norm";
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(double));

  Norm norm;  // rows of its lanes: groups, row by row
  Divider groups;
  RowMatrix<kPack> y;

  using Kept = typename Norm::Kept;
  struct Place {
    std::int64_t row = 0, first = 0;  // first: the group's first column
  };
  CP_DEVICE Place place(std::int64_t number) const {
    const std::int64_t row = groups.quotient(static_cast<std::uint32_t>(number));
    return {row, (number - row * groups.size) * norm.width};
  }

  CP_DEVICE void operator()(Block& block) const {
    double* const shared = block.template shared<double>();
    const RowLanes& lanes = norm.lanes;
    PerThread<Kept> kept(block);
    PerThread<double> sums(block);
    block.for_each_thread([&](int thread) {
      sums[thread] = 0;
      const std::int64_t number = lanes.row(block.index(), thread);
      if (number >= lanes.rows) return;
      const int lane = lanes.lane(thread);
      const Place at = place(number);
      norm.keep(lane, at.row, at.first, kept[thread]);
      double all = 0;
      norm.for_group(lane, kept[thread], at.row, at.first, [&](std::int64_t pack, int, const auto& bits) {
        typename Norm::Values of;
        norm.normalized(bits, at.first + pack * kPack, of);
        float sum = 0;
        CP_UNROLL
        for (int i = 0; i < kPack; ++i) sum += of.normalized[i] * of.normalized[i];
        all += sum;
      });
      sums[thread] = all;
    });
    join_lanes(
        block, lanes, sums, shared, [](double a, double b) { return a + b; },
        [&](double squares, int) { return norm.inverse_root(squares); });
    block.last([&](int thread) {
      const std::int64_t number = lanes.row(block.index(), thread);
      if (number >= lanes.rows) return;
      const Place at = place(number);
      const auto r = static_cast<float>(shared[lanes.first_lane(thread)]);
      norm.for_group(lanes.lane(thread), kept[thread], at.row, at.first,
                     [&](std::int64_t pack, int, const auto& bits) {
                       const std::int64_t column = at.first + pack * kPack;
                       typename Norm::Values of;
                       float factors[kPack];
                       norm.all_values(bits, column, of), norm.load_weight(column, factors);
                       CP_UNROLL
                       for (int i = 0; i < kPack; ++i)
                         of.normalized[i] *= r * factors[i] * (norm.skips ? 1 : of.gates[i]);
                       y.write(at.row, column, of.normalized);
                     });
    });
  }
};

// A block has one group of columns, and rows in turns, so that a thread has the same columns in all of them
// and adds up the terms of the weight's and the skip's gradients in registers. `partial` has a row of
// `columns` sums for each of the `strands` blocks of a group, and `partial_skip` one of columns / kPack.
template <int kPack, int kKept>
struct GatedNormBackward {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "gated_norm_backward";
  static constexpr int kLeastBlocks = 2;  // as kGradientBlocks

  using Norm = GatedNormOperands<kPack, kKept>;
  struct Sums {
    double squares = 0, products = 0;
  };
  static constexpr int kOfThread = kKept * (kPack + 1);  // sums in registers
  static constexpr int kSharedBytes =
      kThreads * std::max(static_cast<int>(sizeof(Sums)), kOfThread* static_cast<int>(sizeof(float)));

  Norm norm;  // rows of its lanes: those of the matrices
  Divider groups;
  std::int64_t strands = 0, columns = 0;
  RowOutput<kPack> dx, d_gates, d_v;
  float *partial = nullptr, *partial_skip = nullptr;

  struct Own {
    typename Norm::Kept kept;
    float weights[kKept][kPack], skips[kKept];  // sums
  };
  // A block's partial sums, from its group's first column on.
  struct Partial {
    float *weights, *skips;
  };

  CP_DEVICE void operator()(Block& block) const {
    const RowLanes& lanes = norm.lanes;
    const std::int64_t strand = groups.quotient(static_cast<std::uint32_t>(block.index())),
                       first = (block.index() - strand * groups.size) * norm.width;
    const Partial own_partial{partial + strand * columns + first,
                              partial_skip + (strand * columns + first) / kPack};
    Sums* const shared = block.template shared<Sums>();
    PerThread<Own> own(block);
    PerThread<Sums> sums(block);
    block.for_each_thread([&](int thread) {
      Own& its = own[thread];
      CP_UNROLL
      for (int i = 0; i < kKept; ++i) {
        its.skips[i] = 0;
        CP_UNROLL
        for (int e = 0; e < kPack; ++e) its.weights[i][e] = 0;
      }
      // Packs behind those in registers: only where a block has one row at a time.
      for (std::int64_t pack = lanes.lane(thread) + kKept * lanes.lanes(); pack < lanes.packs;
           pack += lanes.lanes()) {
        for (int e = 0; e < kPack; ++e) own_partial.weights[pack * kPack + e] = 0;
        if (norm.skips) own_partial.skips[pack] = 0;
      }
    });
    for (std::int64_t turn = strand; turn * lanes.rows_of_block() < lanes.rows; turn += strands) {
      block.for_each_thread([&](int thread) {
        Own& its = own[thread];
        sums[thread] = {};
        const std::int64_t row = lanes.row(turn, thread);
        if (row >= lanes.rows) return;
        norm.keep(lanes.lane(thread), row, first, its.kept);
        sums[thread] = add_up(lanes.lane(thread), its, row, first);
      });
      join_lanes(
          block, lanes, sums, shared,
          [](const Sums& a, const Sums& b) {
            return Sums{a.squares + b.squares, a.products + b.products};
          },
          [&](const Sums& found, int) {
            const double r = norm.inverse_root(found.squares);
            return Sums{r, found.products * r * r * r * norm.inverse_width};
          });
      block.for_each_thread([&](int thread) {
        const std::int64_t row = lanes.row(turn, thread);
        if (row < lanes.rows)
          give(lanes.lane(thread), row, first, shared[lanes.first_lane(thread)], own[thread], own_partial);
      });
    }
    leave_sums(block, own, own_partial);
  }

  // The gradient of what is normalized, over r.
  CP_DEVICE void gradient(const typename Norm::Values& of, std::int64_t column, float (&d)[kPack]) const {
    float factors[kPack];
    norm.load_weight(column, factors);
    CP_UNROLL
    for (int i = 0; i < kPack; ++i) d[i] *= factors[i] * (norm.skips ? 1 : of.gates[i]);
  }

  CP_DEVICE Sums add_up(int lane, const Own& its, std::int64_t row, std::int64_t first) const {
    Sums sums;
    norm.for_group(lane, its.kept, row, first, [&](std::int64_t pack, int, const auto& bits) {
      const std::int64_t column = first + pack * kPack;
      typename Norm::Values of;
      float d[kPack], squares = 0, products = 0;
      norm.all_values(bits, column, of), norm.dy.values(bits.dy, d);
      gradient(of, column, d);
      CP_UNROLL
      for (int i = 0; i < kPack; ++i)
        squares += of.normalized[i] * of.normalized[i], products += d[i] * of.normalized[i];
      sums.squares += squares, sums.products += products;
    });
    return sums;
  }

  // `found`: r, and what is taken away of what is normalized.
  CP_DEVICE void give(int lane, std::int64_t row, std::int64_t first, const Sums& found, Own& its,
                      const Partial& own_partial) const {
    const auto r = static_cast<float>(found.squares), along = static_cast<float>(found.products);
    norm.for_group(lane, its.kept, row, first, [&](std::int64_t pack, int number, const auto& bits) {
      const std::int64_t column = first + pack * kPack;
      typename Norm::Values of;
      float dy[kPack], d[kPack], weights[kPack], of_gates[kPack];
      norm.all_values(bits, column, of), norm.dy.values(bits.dy, dy);
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) d[i] = dy[i];
      gradient(of, column, d);
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) {
        d[i] = r * d[i] - along * of.normalized[i];
        weights[i] = dy[i] * (of.normalized[i] * r);
      }
      if (norm.skips) {
        float added[kPack], of_v[kPack], sum = 0;
        norm.v.values(bits.v, added);
        const float factor = norm.skip_of(column);
        CP_UNROLL
        for (int i = 0; i < kPack; ++i) {
          of_gates[i] = d[i] * of.x[i] * of.slopes[i];
          d[i] *= of.gates[i], of_v[i] = d[i] * factor, sum += d[i] * added[i];
        }
        d_v.give(row, column, of_v);
        (number >= 0 ? its.skips[number] : own_partial.skips[pack]) += sum;
      } else {
        float factors[kPack];
        norm.load_weight(column, factors);
        CP_UNROLL
        for (int i = 0; i < kPack; ++i)
          of_gates[i] = weights[i] * factors[i] * of.slopes[i], weights[i] *= of.gates[i];
      }
      dx.give(row, column, d), d_gates.give(row, column, of_gates);
      if (number >= 0) {
        CP_UNROLL
        for (int i = 0; i < kPack; ++i) its.weights[number][i] += weights[i];
      } else {
        for (int i = 0; i < kPack; ++i) own_partial.weights[pack * kPack + i] += weights[i];
      }
    });
  }

  // The sums of the threads that have the same columns, by row of the block.
  CP_DEVICE void leave_sums(Block& block, PerThread<Own>& own, const Partial& own_partial) const {
    const RowLanes& lanes = norm.lanes;
    const std::int64_t packs = std::int64_t{lanes.lanes()} * kKept, of_row = packs * kPack;
    float* const weights = block.template shared<float>();
    float* const skips = weights + kThreads * kKept * kPack;
    block.for_each_thread([&](int thread) {
      CP_UNROLL
      for (int i = 0; i < kKept; ++i) {
        const std::int64_t pack = (thread >> lanes.shift) * packs + lanes.lane(thread) + i * lanes.lanes();
        skips[pack] = own[thread].skips[i];
        CP_UNROLL
        for (int e = 0; e < kPack; ++e) weights[pack * kPack + e] = own[thread].weights[i][e];
      }
    });
    block.last([&](int thread) {
      for (std::int64_t column = thread; column < of_row && column < norm.width; column += kThreads) {
        float sum = 0;
        for (std::int64_t row = 0; row < lanes.rows_of_block(); ++row) sum += weights[row * of_row + column];
        own_partial.weights[column] = sum;
      }
      if (!norm.skips) return;
      for (std::int64_t pack = thread; pack < packs && pack < lanes.packs; pack += kThreads) {
        float sum = 0;
        for (std::int64_t row = 0; row < lanes.rows_of_block(); ++row) sum += skips[row * packs + pack];
        own_partial.skips[pack] = sum;
      }
    });
  }
};

// ---- preparation ----

// A kernel's operands by their meaning.
struct GatedNormViews {
  const GatedNormRule& rule;
  const CudaMemory& memory;
  const View *dy = nullptr, *v = nullptr, *skip = nullptr;  // null: there is none
  const View &x, &gates, &weight;
  std::int64_t columns, groups;

  GatedNormViews(const RowKernel& kernel, const CudaMemory& of)
      : rule(std::get<GatedNormRule>(kernel.rule)),
        memory(of),
        x(kernel.reads[first(kernel)]),
        gates(kernel.reads[first(kernel) + 1]),
        weight(kernel.reads[first(kernel) + (skips(kernel) ? 3 : 2)]),
        columns(x.shape[1]),
        groups(columns / rule.width) {
    require_numbers(x.shape[0], std::max<std::int64_t>(1, groups));
    if (first(kernel) > 0) dy = &kernel.reads[0];
    if (skips(kernel)) v = &kernel.reads[first(kernel) + 2], skip = &kernel.reads.back();
  }

  // With the results that have rows.
  std::vector<const View*> packed(std::vector<const View*> views) const {
    views.insert(views.end(), {&x, &gates, &weight});
    for (const View* view : {dy, v}) {
      if (view != nullptr) views.push_back(view);
    }
    return views;
  }
  std::int64_t of_head() const { return skip == nullptr ? columns : columns / skip->numel(); }
  std::vector<std::int64_t> bounds() const { return {rule.width, of_head()}; }

  // All but the rows of its lanes.
  template <int kPack, int kKept>
  GatedNormOperands<kPack, kKept> operands(std::int64_t rows, std::int64_t iteration) const {
    GatedNormOperands<kPack, kKept> norm;
    norm.lanes = row_lanes(rows, rule.width / kPack, kKept);
    norm.width = rule.width, norm.inverse_width = 1 / static_cast<double>(rule.width), norm.eps = rule.eps;
    norm.of_weight = divider(weight.numel()), norm.of_head = divider(std::max<std::int64_t>(1, of_head()));
    norm.x = row_matrix<kPack>(x, memory, iteration),
    norm.gates = row_matrix<kPack>(gates, memory, iteration);
    norm.weight = row_matrix<kPack>(weight, memory, iteration);
    norm.skips = skip != nullptr, norm.backward = dy != nullptr;
    if (dy != nullptr) norm.dy = row_matrix<kPack>(*dy, memory, iteration);
    if (skip == nullptr) return norm;
    norm.v = row_matrix<kPack>(*v, memory, iteration), norm.skip = row_matrix<1>(*skip, memory, iteration);
    return norm;
  }

 private:
  static std::size_t first(const RowKernel& kernel) {
    return kernel.operation == RowOperation::gated_norm_backward ? 1 : 0;
  }
  static bool skips(const RowKernel& kernel) { return kernel.reads.size() > first(kernel) + 3; }
};

template <int kPack>
DecayOperands<kPack> decay_operands(const RowKernel& kernel, std::int64_t heads, const CudaMemory& memory,
                                    std::int64_t iteration) {
  const View& numbers = kernel.reads[0];
  return {heads, numbers.shape[1] > heads, row_matrix<kPack>(numbers, memory, iteration),
          row_matrix<kPack>(kernel.reads[1], memory, iteration)};
}

}  // namespace

PreparedKernel prepare_decay_and_beta(const RowKernel& kernel, const CudaMemory& memory) {
  const View &log_decay = kernel.writes[0], &beta = kernel.writes[1];
  return prepare_rows(
      {&kernel.reads[0], &kernel.reads[1], &log_decay, &beta}, {}, memory,
      [&kernel, &log_decay, &beta, &memory]<int kPack>(std::integral_constant<int, kPack>,
                                                       std::int64_t iteration, cudaStream_t stream) {
        const std::int64_t heads = log_decay.shape[1];
        // A pack for each lane: rows are short, and many of them keep the GPU busy.
        const RowLanes lanes = row_lanes(log_decay.shape[0], heads / kPack, 1);
        launch(stream, {lanes.blocks()},
               DecayForward<kPack>{lanes, decay_operands<kPack>(kernel, heads, memory, iteration),
                                   row_matrix<kPack>(log_decay, memory, iteration),
                                   row_matrix<kPack>(beta, memory, iteration)});
      });
}

PreparedKernel prepare_decay_and_beta_backward(const RowKernel& kernel, const CudaMemory& memory) {
  const View &d_decay = kernel.reads[2], &d_beta = kernel.reads[3];
  const std::vector<RowResult> results = results_of(kernel);
  const std::int64_t heads = d_decay.shape[1];
  const auto partial =
      std::make_shared<const GpuBytes>(static_cast<std::size_t>(kGradientBlocks * 2 * heads) * sizeof(float));
  return prepare_rows(
      {&kernel.reads[0], &kernel.reads[1], &d_decay, &d_beta, results[0].view}, {}, memory,
      [&kernel, &d_decay, &d_beta, results, heads, partial, &memory]<int kPack>(
          std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
        using Body = DecayBackward<kPack>;
        Body body;
        body.lanes = row_lanes(d_decay.shape[0], std::min(heads / kPack, kMostHeadLanes), 1);
        body.lanes.packs = heads / kPack;
        const std::int64_t columns = ceil_div(body.lanes.packs, std::int64_t{body.lanes.lanes()});
        body.columns = divider(std::max<std::int64_t>(1, columns));
        body.strands = std::min(kGradientBlocks, body.lanes.blocks());
        body.operands = decay_operands<kPack>(kernel, heads, memory, iteration);
        body.d_decay = row_matrix<kPack>(d_decay, memory, iteration);
        body.d_beta = row_matrix<kPack>(d_beta, memory, iteration);
        body.d_numbers = row_output<kPack>(results[0], memory, iteration);
        body.partial = reinterpret_cast<float*>(partial->data());
        launch(stream, {columns * body.strands, Body::kSharedBytes}, body);
        launch_partial_sums(stream, body.partial, body.strands, 2 * heads,
                            row_matrix<1>(*results[1].view, memory, iteration), results[1].adds);
      });
}

PreparedKernel prepare_gated_norm(const RowKernel& kernel, const CudaMemory& memory) {
  const GatedNormViews norm(kernel, memory);
  const View& y = kernel.writes[0];
  return prepare_rows(
      norm.packed({&y}), norm.bounds(), memory,
      [norm, &y]<int kPack>(std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
        using Body = GatedNormForward<kPack>;
        const Body body{norm.operands<kPack, kMostKept>(norm.x.shape[0] * norm.groups, iteration),
                        divider(std::max<std::int64_t>(1, norm.groups)),
                        row_matrix<kPack>(y, norm.memory, iteration)};
        launch(stream, {body.norm.lanes.blocks(), Body::kSharedBytes}, body);
      });
}

PreparedKernel prepare_gated_norm_backward(const RowKernel& kernel, const CudaMemory& memory) {
  const GatedNormViews norm(kernel, memory);
  const std::vector<RowResult> results = results_of(kernel);
  const std::size_t of_rows = norm.skip == nullptr ? 2 : 3;
  std::vector<const View*> written;
  for (std::size_t i = 0; i < of_rows; ++i) written.push_back(results[i].view);
  const std::int64_t strands =
      std::max<std::int64_t>(1, kGradientBlocks / std::max<std::int64_t>(1, norm.groups));
  // Behind the sums of columns those of packs, and then those of packs over all blocks: each pack has a
  // column at least.
  const std::int64_t sums = strands * norm.columns;
  const auto partial = std::make_shared<const GpuBytes>(
      static_cast<std::size_t>(sums + (norm.skip == nullptr ? 0 : sums + norm.columns)) * sizeof(float));
  return prepare_rows(
      norm.packed(written), norm.bounds(), memory,
      [norm, results, of_rows, strands, sums, partial]<int kPack>(
          std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
        auto* const partial_sums = reinterpret_cast<float*>(partial->data());
        auto* const partial_skip = partial_sums + sums;
        const auto output = [&](const RowResult& result) {
          return row_output<kPack>(result, norm.memory, iteration);
        };
        std::int64_t blocks = 0;  // of a group
        const auto give = [&]<int kKept>(std::integral_constant<int, kKept>) {
          using Body = GatedNormBackward<kPack, kKept>;
          Body body;
          body.norm = norm.operands<kPack, kKept>(norm.x.shape[0], iteration);
          body.groups = divider(std::max<std::int64_t>(1, norm.groups));
          body.strands = blocks = std::min(strands, body.norm.lanes.blocks());
          body.columns = norm.columns;
          body.dx = output(results[0]), body.d_gates = output(results[1]);
          if (norm.skip != nullptr) body.d_v = output(results[2]);
          body.partial = partial_sums, body.partial_skip = partial_skip;
          launch(stream, {norm.groups * blocks, Body::kSharedBytes}, body);
        };
        norm.rule.width / kPack <= kRowThreads ? give(std::integral_constant<int, 1>())
                                               : give(std::integral_constant<int, kMostKept>());
        // A row of partial sums has the weight several times, and so is several rows of it.
        const std::int64_t weights = norm.weight.numel();
        launch_partial_sums(stream, partial_sums, blocks * (norm.columns / weights), weights,
                            row_matrix<1>(*results[of_rows].view, norm.memory, iteration),
                            results[of_rows].adds);
        if (norm.skip == nullptr) return;
        // The sums of a head's packs: of all blocks first, and then of the head, of which each pack is a row.
        const std::int64_t heads = norm.skip->numel(), packs = norm.columns / kPack, of_head = packs / heads;
        float* const of_packs = partial_skip + sums;
        const RowMatrix<1> in{{reinterpret_cast<std::byte*>(of_packs), DType::f32}, 1, of_head};
        launch_partial_sums(stream, partial_skip, blocks, packs, RowMatrix<1>{in.elements, packs, 1}, false);
        launch_column_sums(stream, in, of_head, heads,
                           row_matrix<1>(*results.back().view, norm.memory, iteration), results.back().adds);
      });
}

}  // namespace cp::runtime
