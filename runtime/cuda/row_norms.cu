// Norms of rows by their root mean square, or by that of what is left without their mean, and their
// gradients.
//
// A row of these kernels is a group of columns, which is normalized alone. The sums of a pack are f32, and
// those of packs f64, so that they do not round the more the longer a row is: f64 for each element, with its
// conversions, would take longer than memory does. What follows from the sums for each element is f32. A
// thread keeps the first packs that it has read until the sum is known, and so reads rows of up to 8192
// columns of 16 bits once; of longer ones the rest comes from a cache.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <variant>
#include <vector>

#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/row_access.h"
#include "runtime/cuda/row_column_sums.h"
#include "runtime/cuda/row_kernels.h"
#include "runtime/cuda/walk.h"
#include "shared/base/index.h"
#include "shared/plan/row_rules.h"

namespace cp::runtime {
namespace {

// The groups of one weight, numbered row by row.
struct NormGroups {
  Divider of_row;
  std::int64_t first = 0, width = 0;  // columns

  struct Place {
    std::int64_t row = 0, column = 0;
  };
  CP_DEVICE Place at(std::int64_t group) const {
    const std::int64_t row = of_row.quotient(static_cast<std::uint32_t>(group));
    return {row, first + (group - row * of_row.size) * width};
  }
};

// What all of these kernels know of a group. With `known` sums, which all ranks of the rows have added up,
// they find none themselves.
template <int kPack>
struct NormOperands {
  RowLanes lanes;
  NormGroups groups;
  RowMatrix<kPack> x, weight;  // weight: without data if there is none
  float offset = 0;            // of the weight: 0 or 1; without one: 1
  double divisor = 1, inverse_divisor = 1, eps = 0;
  bool is_power = false;  // whether the divisor is a power of two, of which the product is the quotient
  bool known = false;
  Statistics squares, products;
  std::int64_t statistic = 0;  // the column of both: the number of the weight

  CP_DEVICE void factors(std::int64_t column, float (&to)[kPack]) const {
    factors_of(has_weight() ? weight.read(0, column) : RowBits{}, to);
  }
  CP_DEVICE bool has_weight() const { return weight.elements.data != nullptr; }
  // Of the weight's elements; those of no weight are zeros.
  CP_DEVICE void factors_of(const RowBits& bits, float (&to)[kPack]) const {
    weight.values(bits, to);
    CP_UNROLL
    for (int i = 0; i < kPack; ++i) to[i] += offset;
  }
  // r, from the sum of squares.
  CP_DEVICE double near_root(double sum) const { return near_inverse_root(mean(sum)); }
  // The f32 nearest to 1 / sqrt(), as the host has it. Both roots are within two units in the last place (of
  // 2^-52) of each other and of the exact one: so that f32 is the same, unless a border between two of them
  // lies as near.
  CP_DEVICE float inverse_root(double sum) const {
#if defined(__CUDA_ARCH__)
    constexpr double kBeyond = 0x1p-49;
    const double near = near_root(sum);
    const auto low = static_cast<float>(near - near * kBeyond),
               high = static_cast<float>(near + near * kBeyond);
    if (low == high) return low;
#endif
    return static_cast<float>(1 / sqrt(mean(sum)));
  }
  CP_DEVICE double mean(double sum) const { return quotient(sum) + eps; }
  CP_DEVICE double quotient(double sum) const { return is_power ? sum * inverse_divisor : sum / divisor; }
};

// The sum of a pack's products.
template <int kPack>
CP_DEVICE float product_of(const float (&a)[kPack], const float (&b)[kPack]) {
  float sum = 0;
  CP_UNROLL
  for (int i = 0; i < kPack; ++i) sum += a[i] * b[i];
  return sum;
}

template <int kPack>
CP_DEVICE float sum_of(const float (&a)[kPack]) {
  float sum = 0;
  CP_UNROLL
  for (int i = 0; i < kPack; ++i) sum += a[i];
  return sum;
}
template <int kPack>
CP_DEVICE void subtract(float mean, float (&from)[kPack]) {
  CP_UNROLL
  for (int i = 0; i < kPack; ++i) from[i] -= mean;
}

// The packs of a thread that it keeps.
template <int kCount>
struct KeptPacks {
  RowBits packs[kCount];
};

// Calls use(column, bits) for the packs of a lane: for those in `kept`, and then for the others, which it
// reads. Columns are those of the group.
template <int kPack, class Use>
CP_DEVICE void for_row(const RowLanes& lanes, int lane, const KeptPacks<kPacksOfLane>& kept,
                       const RowMatrix<kPack>& x, const NormGroups::Place& place, Use&& use) {
  CP_UNROLL
  for (int i = 0; i < kPacksOfLane; ++i) {
    const std::int64_t pack = lane + i * lanes.lanes();
    if (pack < lanes.packs) use(pack * kPack, kept.packs[i]);
  }
  for_packs(
      lane + kPacksOfLane * lanes.lanes(), lanes.lanes(), lanes.packs,
      [&](std::int64_t pack) { return x.read(place.row, place.column + pack * kPack); },
      [&](std::int64_t pack, const RowBits& bits) { use(pack * kPack, bits); });
}
template <int kPack, int kCount>
CP_DEVICE void keep(const RowLanes& lanes, int lane, const RowMatrix<kPack>& x,
                    const NormGroups::Place& place, KeptPacks<kCount>& kept) {
  CP_UNROLL
  for (int i = 0; i < kCount; ++i) {
    const std::int64_t pack = lane + i * lanes.lanes();
    if (pack < lanes.packs) kept.packs[i] = x.read(place.row, place.column + pack * kPack);
  }
}

// Of kernels that subtract the mean of a group, kCentered: they find it first, and then the sums.
template <int kPack, bool kCentered>
struct NormForward {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "rms_norm";
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(double));

  NormOperands<kPack> norm;
  RowMatrix<kPack> y;

  CP_DEVICE void operator()(Block& block) const {
    double* const shared = block.template shared<double>();
    const RowLanes& lanes = norm.lanes;
    PerThread<KeptPacks<kPacksOfLane>> kept(block);
    PerThread<double> sums(block);
    PerThread<float> means(block);
    const auto join = [](double a, double b) { return a + b; };
    if constexpr (kCentered) {
      block.for_each_thread([&](int thread) {
        sums[thread] = 0;
        const std::int64_t group = lanes.row(block.index(), thread);
        if (group >= lanes.rows) return;
        const auto place = norm.groups.at(group);
        keep(lanes, lanes.lane(thread), norm.x, place, kept[thread]);
        double sum = 0;
        for_row(lanes, lanes.lane(thread), kept[thread], norm.x, place,
                [&](std::int64_t, const RowBits& bits) {
                  float values[kPack];
                  norm.x.values(bits, values);
                  sum += sum_of(values);
                });
        sums[thread] = sum;
      });
      join_lanes(block, lanes, sums, shared, join, [&](double sum, int) { return norm.quotient(sum); });
      block.for_each_thread(
          [&](int thread) { means[thread] = static_cast<float>(shared[lanes.first_lane(thread)]); });
    }
    block.for_each_thread([&](int thread) {
      sums[thread] = 0;
      const std::int64_t group = lanes.row(block.index(), thread);
      if (group >= lanes.rows) return;
      const int lane = lanes.lane(thread);
      const auto place = norm.groups.at(group);
      if constexpr (!kCentered) keep(lanes, lane, norm.x, place, kept[thread]);
      if (norm.known) return;
      double sum = 0;
      for_row(lanes, lane, kept[thread], norm.x, place, [&](std::int64_t, const RowBits& bits) {
        float values[kPack];
        norm.x.values(bits, values);
        if constexpr (kCentered) subtract(means[thread], values);
        sum += product_of(values, values);
      });
      sums[thread] = sum;
    });
    join_lanes(block, lanes, sums, shared, join, [&](double sum, int thread) {
      const std::int64_t group = lanes.row(block.index(), thread);
      if (group >= lanes.rows) return 0.0;
      const double squares = norm.known ? norm.squares.at(norm.groups.at(group).row, norm.statistic) : sum;
      return static_cast<double>(norm.inverse_root(squares));
    });
    block.last([&](int thread) {
      const std::int64_t group = lanes.row(block.index(), thread);
      if (group >= lanes.rows) return;
      const auto place = norm.groups.at(group);
      const auto r = static_cast<float>(shared[lanes.first_lane(thread)]);
      for_row(lanes, lanes.lane(thread), kept[thread], norm.x, place,
              [&](std::int64_t column, const RowBits& bits) {
                float values[kPack], factors[kPack];
                norm.x.values(bits, values), norm.factors(column, factors);
                if constexpr (kCentered) subtract(means[thread], values);
                CP_UNROLL
                for (int i = 0; i < kPack; ++i) values[i] *= r * factors[i];
                y.write(place.row, place.column + column, values);
              });
    });
  }
};

// Both sums of the gradients: of squares, and of products.
struct NormSums {
  double squares = 0, products = 0;
};
CP_DEVICE NormSums operator+(const NormSums& a, const NormSums& b) {
  return {a.squares + b.squares, a.products + b.products};
}

// dx, and the terms of the weight's gradient, of which each block adds up those of its own groups: in the
// registers of each thread, group after group, and then over the block's threads. So the rows are read once
// for both. `partial` has a row of `width` sums for each block.
//
// A thread keeps kKept packs of x and of dy. Where two are enough (4096 columns of 16 bits), there are
// registers for those of the next group and for the weight, too: the next group is under way while this one's
// lanes wait for their sums, and the weight is read once.
template <int kPack, int kKept, bool kCentered>
struct NormBackward {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "rms_norm_backward";
  static constexpr int kLeastBlocks = 2;  // as kGradientBlocks
  static constexpr bool kReadsAhead = kKept == 2;
  static constexpr int kOfThread = kKept * kPack;  // sums in registers
  static constexpr int kSharedBytes =
      kThreads * std::max(static_cast<int>(sizeof(NormSums)), kOfThread* static_cast<int>(sizeof(float)));

  NormOperands<kPack> norm;
  RowMatrix<kPack> dy;
  RowOutput<kPack> dx;
  std::int64_t blocks;
  float* partial;

  struct Own {
    KeptPacks<kKept> x, dy, next_x, next_dy, weight;  // the latter three if it reads ahead
    float sums[kKept][kPack];
    float mean = 0, mean_gradient = 0;  // of the group's x and (w + o) dy, if centered
  };

  CP_DEVICE void operator()(Block& block) const {
    NormSums* const shared = block.template shared<NormSums>();
    const RowLanes& lanes = norm.lanes;
    float* const partial_row = partial + block.index() * norm.groups.width;
    PerThread<Own> own(block);
    PerThread<NormSums> sums(block);
    block.for_each_thread([&](int thread) {
      CP_UNROLL
      for (int i = 0; i < kKept; ++i) {
        CP_UNROLL
        for (int e = 0; e < kPack; ++e) own[thread].sums[i][e] = 0;
      }
      if constexpr (kReadsAhead) {
        own[thread].weight = {};
        if (norm.has_weight()) keep(lanes, lanes.lane(thread), norm.weight, {}, own[thread].weight);
        keep_group(lanes.row(block.index(), thread), thread, own[thread].x, own[thread].dy);
      }
      // Packs behind those in registers: only where a block has one row at a time.
      for (std::int64_t pack = lanes.lane(thread) + kKept * lanes.lanes(); pack < lanes.packs;
           pack += lanes.lanes()) {
        for (int e = 0; e < kPack; ++e) partial_row[pack * kPack + e] = 0;
      }
    });
    for (std::int64_t turn = block.index(); turn * lanes.rows_of_block() < lanes.rows; turn += blocks) {
      block.for_each_thread([&](int thread) {
        Own& its = own[thread];
        sums[thread] = {};
        const std::int64_t group = lanes.row(turn, thread);
        if constexpr (kReadsAhead) {
          keep_group(lanes.row(turn + blocks, thread), thread, its.next_x, its.next_dy);
        } else {
          keep_group(group, thread, its.x, its.dy);
        }
        if (group >= lanes.rows || norm.known) return;
        const auto place = norm.groups.at(group);
        sums[thread] =
            kCentered ? add_up_means(lanes.lane(thread), its, place) : add_up(lanes.lane(thread), its, place);
      });
      const auto join = [](const NormSums& a, const NormSums& b) { return a + b; };
      if constexpr (kCentered) {
        join_lanes(block, lanes, sums, shared, join, [&](const NormSums& found, int) {
          return NormSums{norm.quotient(found.squares), norm.quotient(found.products)};
        });
        block.for_each_thread([&](int thread) {
          Own& its = own[thread];
          const NormSums& means = shared[lanes.first_lane(thread)];
          its.mean = static_cast<float>(means.squares);
          its.mean_gradient = static_cast<float>(means.products);
        });
        block.for_each_thread([&](int thread) {
          const std::int64_t group = lanes.row(turn, thread);
          sums[thread] = {};
          if (group < lanes.rows)
            sums[thread] = add_up(lanes.lane(thread), own[thread], norm.groups.at(group));
        });
      }
      join_lanes(block, lanes, sums, shared, join,
                 [&](const NormSums& found, int thread) { return finish(found, lanes.row(turn, thread)); });
      block.for_each_thread([&](int thread) {
        Own& its = own[thread];
        const std::int64_t group = lanes.row(turn, thread);
        if (group < lanes.rows) give(thread, group, shared[lanes.first_lane(thread)], its, partial_row);
        if constexpr (kReadsAhead) its.x = its.next_x, its.dy = its.next_dy;
      });
    }
    // The sums of the threads that have the same columns, by row of the block.
    float* const all = block.template shared<float>();
    block.for_each_thread([&](int thread) {
      CP_UNROLL
      for (int i = 0; i < kKept; ++i) {
        CP_UNROLL
        for (int e = 0; e < kPack; ++e)
          all[lanes.first_lane(thread) * kOfThread + (lanes.lane(thread) + i * lanes.lanes()) * kPack + e] =
              own[thread].sums[i][e];
      }
    });
    block.last([&](int thread) {
      const std::int64_t of_row = static_cast<std::int64_t>(lanes.lanes()) * kOfThread;
      for (std::int64_t column = thread; column < of_row && column < norm.groups.width; column += kThreads) {
        float sum = 0;
        for (std::int64_t row = 0; row < lanes.rows_of_block(); ++row) sum += all[row * of_row + column];
        partial_row[column] = sum;
      }
    });
  }

  // Reads a thread's packs of a group, if there is such a group.
  CP_DEVICE void keep_group(std::int64_t group, int thread, KeptPacks<kKept>& x, KeptPacks<kKept>& d) const {
    if (group >= norm.lanes.rows) return;
    const auto place = norm.groups.at(group);
    keep(norm.lanes, norm.lanes.lane(thread), norm.x, place, x);
    keep(norm.lanes, norm.lanes.lane(thread), dy, place, d);
  }

  // Of the pack with that number among those that the thread keeps, or -1.
  CP_DEVICE void factors(const Own& kept, std::int64_t column, int number, float (&to)[kPack]) const {
    if constexpr (kReadsAhead) {
      norm.factors_of(kept.weight.packs[number], to);
    } else {
      norm.factors(column, to);
    }
  }

  // (w + o) dy.
  CP_DEVICE void weigh(const Own& kept, std::int64_t column, int number, const float (&d)[kPack],
                       float (&to)[kPack]) const {
    factors(kept, column, number, to);
    CP_UNROLL
    for (int i = 0; i < kPack; ++i) to[i] *= d[i];
  }
  CP_DEVICE void without_mean(const Own& kept, const float (&x)[kPack], float (&z)[kPack]) const {
    CP_UNROLL
    for (int i = 0; i < kPack; ++i) z[i] = kCentered ? x[i] - kept.mean : x[i];
  }

  // S and T.
  CP_DEVICE NormSums add_up(int lane, const Own& kept, const NormGroups::Place& place) const {
    NormSums sums;
    for_both(lane, kept, place,
             [&](std::int64_t column, int number, const float(&x)[kPack], const float(&d)[kPack]) {
               float scaled[kPack];
               weigh(kept, column, number, d, scaled);
               float z[kPack];
               without_mean(kept, x, z);
               sums.squares += product_of(z, z);
               sums.products += product_of(scaled, z);
             });
    return sums;
  }

  // The sums of x and of (w + o) dy.
  CP_DEVICE NormSums add_up_means(int lane, const Own& kept, const NormGroups::Place& place) const {
    NormSums sums;
    for_both(lane, kept, place,
             [&](std::int64_t column, int number, const float(&x)[kPack], const float(&d)[kPack]) {
               float scaled[kPack];
               weigh(kept, column, number, d, scaled);
               sums.squares += sum_of(x);
               sums.products += sum_of(scaled);
             });
    return sums;
  }

  // Of the sums: r, and what x is multiplied with, r^3 T / (width ranks).
  CP_DEVICE NormSums finish(NormSums sums, std::int64_t group) const {
    if (group >= norm.lanes.rows) return {};
    if (norm.known) {
      const std::int64_t row = norm.groups.at(group).row;
      sums = {norm.squares.at(row, norm.statistic), norm.products.at(row, norm.statistic)};
    }
    const double r = norm.near_root(sums.squares);
    return {r, sums.products * r * r * r * norm.inverse_divisor};
  }

  CP_DEVICE void give(int thread, std::int64_t group, const NormSums& of_group, Own& kept,
                      float* partial_row) const {
    const auto place = norm.groups.at(group);
    const auto r = static_cast<float>(of_group.squares), along = static_cast<float>(of_group.products);
    for_both(norm.lanes.lane(thread), kept, place,
             [&](std::int64_t column, int number, const float(&x)[kPack], const float(&d)[kPack]) {
               float scaled[kPack], gradient[kPack], terms[kPack];
               factors(kept, column, number, scaled);
               float z[kPack];
               without_mean(kept, x, z);
               CP_UNROLL
               for (int i = 0; i < kPack; ++i) {
                 if constexpr (kCentered)
                   gradient[i] = r * (scaled[i] * d[i] - kept.mean_gradient) - z[i] * along;
                 else
                   gradient[i] = r * scaled[i] * d[i] - z[i] * along;
                 terms[i] = d[i] * z[i] * r;
               }
               dx.give(place.row, place.column + column, gradient);
               if (number >= 0) {
                 CP_UNROLL
                 for (int i = 0; i < kPack; ++i) kept.sums[number][i] += terms[i];
               } else {
                 for (int i = 0; i < kPack; ++i) partial_row[column + i] += terms[i];
               }
             });
  }

  // Calls use(column, number, x, dy) for each pack of a lane; number: among those that the thread keeps, or
  // -1.
  template <class Use>
  CP_DEVICE void for_both(int lane, const Own& kept, const NormGroups::Place& place, Use&& use) const {
    const RowLanes& lanes = norm.lanes;
    float x[kPack], d[kPack];
    CP_UNROLL
    for (int i = 0; i < kKept; ++i) {
      const std::int64_t pack = lane + i * lanes.lanes();
      if (pack >= lanes.packs) continue;
      norm.x.values(kept.x.packs[i], x), dy.values(kept.dy.packs[i], d);
      use(pack * kPack, i, x, d);
    }
    // Rows whose threads read ahead have no more packs.
    if constexpr (!kReadsAhead) {
      CP_NO_UNROLL
      for (std::int64_t pack = lane + kKept * lanes.lanes(); pack < lanes.packs; pack += lanes.lanes()) {
        norm.x.load(place.row, place.column + pack * kPack, x);
        dy.load(place.row, place.column + pack * kPack, d);
        use(pack * kPack, -1, x, d);
      }
    }
  }
};

// The sums alone, of rows that ranks share: S, or with dy T.
template <int kPack>
struct NormRowSums {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "norm_sums";
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(double));

  NormOperands<kPack> norm;
  bool of_products;
  RowMatrix<kPack> dy;
  Statistics out;

  CP_DEVICE void operator()(Block& block) const {
    double* const shared = block.template shared<double>();
    const RowLanes& lanes = norm.lanes;
    PerThread<double> sums(block);
    block.for_each_thread([&](int thread) {
      sums[thread] = 0;
      const std::int64_t group = lanes.row(block.index(), thread);
      if (group >= lanes.rows) return;
      const auto place = norm.groups.at(group);
      struct Both {
        RowBits x, dy;
      };
      double sum = 0;
      for_packs(
          lanes.lane(thread), lanes.lanes(), lanes.packs,
          [&](std::int64_t pack) {
            const std::int64_t column = place.column + pack * kPack;
            Both both{norm.x.read(place.row, column), {}};
            if (of_products) both.dy = dy.read(place.row, column);
            return both;
          },
          [&](std::int64_t pack, const Both& both) {
            float x[kPack], d[kPack], factors[kPack];
            norm.x.values(both.x, x);
            if (of_products) {
              dy.values(both.dy, d), norm.factors(pack * kPack, factors);
              CP_UNROLL
              for (int i = 0; i < kPack; ++i) factors[i] *= d[i];
              sum += product_of(factors, x);
            } else {
              sum += product_of(x, x);
            }
          });
      sums[thread] = sum;
    });
    join_lanes(
        block, lanes, sums, shared, [](double a, double b) { return a + b; },
        [&](double sum, int thread) {
          const std::int64_t group = lanes.row(block.index(), thread);
          if (group < lanes.rows) out.at(norm.groups.at(group).row, norm.statistic) = static_cast<float>(sum);
          return sum;
        });
  }
};

// The columns behind the last group, which pass unchanged.
template <int kPack>
struct NormRest {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "norm_rest";

  RowLanes lanes;
  std::int64_t first;
  RowMatrix<kPack> in;
  RowOutput<kPack> out;

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row >= lanes.rows) return;
      for_packs(
          lanes.lane(thread), lanes.lanes(), lanes.packs,
          [&](std::int64_t pack) { return in.read(row, first + pack * kPack); },
          [&](std::int64_t pack, const RowBits& bits) {
            float values[kPack];
            in.values(bits, values);
            out.give(row, first + pack * kPack, values);
          });
    });
  }
};

// A kernel's operands by their meaning.
struct NormViews {
  const RowKernel& kernel;
  const NormRule& rule;
  const CudaMemory& memory;
  bool backward;  // it reads dy
  const View* dy = nullptr;
  const View *squares = nullptr, *products = nullptr;

  NormViews(const RowKernel& op, const CudaMemory& of)
      : kernel(op), rule(std::get<NormRule>(op.rule)), memory(of) {
    const auto weights = idx(rule.weights());
    require_numbers(op.reads[0].shape[0], std::max(rule.groups, rule.more_groups));
    const bool sums =
        op.operation == RowOperation::norm_sums || op.operation == RowOperation::norm_sums_backward;
    backward =
        op.operation == RowOperation::rms_norm_backward || op.operation == RowOperation::norm_sums_backward;
    if (backward) dy = &op.reads[1 + weights];
    if (sums || rule.ranks == 1) return;
    squares = &op.reads[(backward ? 2 : 1) + weights];
    if (backward) products = &op.reads[3 + weights];
  }

  // Calls f(number, groups of a row) for each kind of its groups, whose number is that of its weight.
  template <class F>
  void for_weights(F&& f) const {
    f(0, NormGroups{divider(rule.groups), 0, rule.width});
    if (rule.more_groups > 0)
      f(1, NormGroups{divider(rule.more_groups), rule.groups * rule.width, rule.more_width});
  }
  std::vector<const View*> with_weights(std::vector<const View*> views) const {
    for (std::int64_t weight = 0; weight < rule.weights(); ++weight)
      views.push_back(&kernel.reads[idx(1 + weight)]);
    return views;
  }
  std::vector<std::int64_t> bounds() const { return {rule.width, rule.more_width, rule.normalized()}; }

  template <int kPack>
  NormOperands<kPack> operands(std::int64_t weight, const NormGroups& groups, std::int64_t iteration) const {
    NormOperands<kPack> norm;
    const View& x = kernel.reads[0];
    norm.groups = groups;
    norm.lanes = row_lanes(x.shape[0] * groups.of_row.size, groups.width / kPack);
    norm.x = row_matrix<kPack>(x, memory, iteration);
    if (kernel.operation != RowOperation::norm_sums && !rule.unweighted)
      norm.weight = row_matrix<kPack>(kernel.reads[idx(1 + weight)], memory, iteration);
    norm.offset = rule.unit_offset || rule.unweighted ? 1 : 0;
    norm.divisor = static_cast<double>(groups.width * rule.ranks), norm.eps = rule.eps;
    norm.inverse_divisor = 1 / norm.divisor;
    norm.is_power = std::has_single_bit(static_cast<std::uint64_t>(groups.width * rule.ranks));
    norm.known = squares != nullptr, norm.statistic = weight;
    if (squares != nullptr) norm.squares = statistics(*squares, memory, iteration);
    if (products != nullptr) norm.products = statistics(*products, memory, iteration);
    return norm;
  }

  // Of `in`, to `out`.
  template <int kPack>
  void launch_rest(cudaStream_t stream, const View& in, const RowResult& out, std::int64_t iteration) const {
    const std::int64_t first = rule.normalized(), columns = in.shape[1] - first;
    const RowLanes lanes = row_lanes(in.shape[0], columns / kPack);
    launch(stream, {columns == 0 ? 0 : lanes.blocks()},
           NormRest<kPack>{lanes, first, row_matrix<kPack>(in, memory, iteration),
                           row_output<kPack>(out, memory, iteration)});
  }
};

}  // namespace

PreparedKernel prepare_rms_norm(const RowKernel& kernel, const CudaMemory& memory) {
  const NormViews norm(kernel, memory);
  const View &x = kernel.reads[0], &y = kernel.writes[0];
  return prepare_rows(norm.with_weights({&x, &y}), norm.bounds(), memory,
                      [norm, &x, &y]<int kPack>(std::integral_constant<int, kPack>, std::int64_t iteration,
                                                cudaStream_t stream) {
                        norm.for_weights([&](std::int64_t weight, const NormGroups& groups) {
                          const auto give = [&]<bool kCentered>(std::bool_constant<kCentered>) {
                            using Body = NormForward<kPack, kCentered>;
                            const Body body{norm.operands<kPack>(weight, groups, iteration),
                                            row_matrix<kPack>(y, norm.memory, iteration)};
                            launch(stream, {body.norm.lanes.blocks(), Body::kSharedBytes}, body);
                          };
                          norm.rule.centered ? give(std::true_type()) : give(std::false_type());
                        });
                        norm.launch_rest<kPack>(stream, x, {&y, false}, iteration);
                      });
}

PreparedKernel prepare_rms_norm_backward(const RowKernel& kernel, const CudaMemory& memory) {
  const NormViews norm(kernel, memory);
  const View& x = kernel.reads[0];
  const std::vector<RowResult> results = results_of(kernel);
  const std::int64_t widest = std::max(norm.rule.width, norm.rule.more_width);
  const auto partial =
      std::make_shared<const GpuBytes>(static_cast<std::size_t>(kGradientBlocks * widest) * sizeof(float));
  return prepare_rows(
      norm.with_weights({&x, norm.dy, results[0].view}), norm.bounds(), memory,
      [norm, results, partial]<int kPack>(std::integral_constant<int, kPack>, std::int64_t iteration,
                                          cudaStream_t stream) {
        auto* const sums = reinterpret_cast<float*>(partial->data());
        norm.for_weights([&](std::int64_t weight, const NormGroups& groups) {
          std::int64_t blocks = 0;
          const auto give = [&]<int kKept, bool kCentered>(std::integral_constant<int, kKept>,
                                                           std::bool_constant<kCentered>) {
            using Body = NormBackward<kPack, kKept, kCentered>;
            Body body{norm.operands<kPack>(weight, groups, iteration),
                      row_matrix<kPack>(*norm.dy, norm.memory, iteration),
                      row_output<kPack>(results[0], norm.memory, iteration), 0, sums};
            body.norm.lanes = row_lanes(body.norm.lanes.rows, body.norm.lanes.packs, kKept);
            body.blocks = blocks = std::min(kGradientBlocks, body.norm.lanes.blocks());
            launch(stream, {blocks, Body::kSharedBytes}, body);
          };
          const auto give_kept = [&]<class Centered>(Centered centered) {
            groups.width / kPack <= 2 * kRowThreads ? give(std::integral_constant<int, 2>(), centered)
                                                    : give(std::integral_constant<int, 4>(), centered);
          };
          norm.rule.centered ? give_kept(std::true_type()) : give_kept(std::false_type());
          if (norm.rule.unweighted) return;
          const RowResult& result = results[idx(1 + weight)];
          launch_partial_sums(stream, sums, blocks, groups.width,
                              row_matrix<1>(*result.view, norm.memory, iteration), result.adds);
        });
        norm.launch_rest<kPack>(stream, *norm.dy, results[0], iteration);
      });
}

PreparedKernel prepare_norm_sums(const RowKernel& kernel, const CudaMemory& memory) {
  const NormViews norm(kernel, memory);
  const View &x = kernel.reads[0], &out = kernel.writes[0];
  return prepare_rows(norm.backward ? norm.with_weights({&x, norm.dy}) : std::vector<const View*>{&x},
                      norm.bounds(), memory,
                      [norm, &out]<int kPack>(std::integral_constant<int, kPack>, std::int64_t iteration,
                                              cudaStream_t stream) {
                        norm.for_weights([&](std::int64_t weight, const NormGroups& groups) {
                          using Body = NormRowSums<kPack>;
                          Body body{norm.operands<kPack>(weight, groups, iteration),
                                    norm.backward,
                                    {},
                                    statistics(out, norm.memory, iteration)};
                          if (norm.backward) body.dy = row_matrix<kPack>(*norm.dy, norm.memory, iteration);
                          launch(stream, {body.norm.lanes.blocks(), Body::kSharedBytes}, body);
                        });
                      });
}

}  // namespace cp::runtime
