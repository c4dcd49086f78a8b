#include "sim/cost/timeline/kernel_work.h"

#include <algorithm>
#include <optional>
#include <type_traits>

#include "shared/plan/operations.h"
#include "shared/plan/recurrence_rules.h"
#include "shared/plan/row_rules.h"
#include "sim/cost/timeline/view_bytes.h"

namespace cp::sim {
namespace {

double count(std::int64_t number) { return static_cast<double>(number); }

// Pairs of one head that a slice allows, and the most keys of one of its rows.
MaskPart part_of(const MaskSlice& slice) {
  const double rows = count(slice.q_len), keys = count(slice.k_len);
  if (slice.kind == MaskSlice::Kind::full) return {rows * keys, rows, 1, keys};
  // Keys j in (i + diagonal - window, i + diagonal], cut to [0, k_len).
  const auto below = [&](double reach) {
    // Sum over i in [0, rows) of clamp(i + reach, 0, keys).
    const double first = std::clamp(-reach, 0.0, rows), last = std::clamp(keys - reach, first, rows);
    const double rising = last - first;
    return rising * (first + reach) + rising * (rising - 1) / 2 + (rows - last) * keys;
  };
  const double reach = count(slice.diagonal) + 1;
  const double up_to = below(reach), most = std::clamp(rows - 1 + reach, 0.0, keys);
  if (slice.kind == MaskSlice::Kind::causal) return {up_to, rows, 1, most};
  const double window = count(slice.window);
  return {up_to - below(reach - window), rows, 1, std::min(most, window)};
}

void add_slices(const std::vector<MaskSlice>& slices, KernelWork& work) {
  for (const MaskSlice& slice : slices) {
    const MaskPart part = part_of(slice);
    if (part.pairs == 0) continue;
    AttentionCall& shape = work.attention;
    MaskPart& sum = slice.kind == MaskSlice::Kind::full     ? shape.full
                    : slice.kind == MaskSlice::Kind::causal ? shape.causal
                                                            : shape.window;
    sum.pairs += part.pairs, sum.rows += part.rows, sum.slices += 1;
    sum.most_keys = std::max(sum.most_keys, part.most_keys);
  }
}

bool lies_in_rows_of(const View& values, const View& keys) {
  const std::int64_t first = values.offset - keys.offset;
  return values.buffer == keys.buffer && values.advance == keys.advance &&
         std::equal(values.shape.begin(), values.shape.end() - 1, keys.shape.begin()) &&
         values.strides == keys.strides && first >= 0 && first + values.shape[3] <= keys.shape[3];
}

template <class Attention>
void count_attention(const Attention& op, const Plan& plan, KernelWork& work) {
  const double kv_heads = std::max(1.0, count(op.k.shape[2]));
  work.attention.heads = count(op.q.shape[0]) * count(op.q.shape[2]);
  work.attention.group = std::max(1.0, count(op.q.shape[2]) / kv_heads);
  add_slices(op.slices, work);
  work.full_pairs = work.attention.heads * work.attention.full.pairs;
  work.diagonal_pairs = work.attention.heads * (work.attention.causal.pairs + work.attention.window.pairs);
  work.rows = count(op.q.shape[1] * (op.q.shape[2] / std::max<std::int64_t>(1, op.k.shape[2])));
  work.values_in_keys = lies_in_rows_of(op.v, op.k);
  work.bytes_per_key = (bytes_of(op.k, plan) + (work.values_in_keys ? 0 : bytes_of(op.v, plan))) /
                       std::max(1.0, count(op.k.shape[1]));
  const double d = count(op.q.shape[3]), dv = count(op.v.shape[3]);
  // backward: the scores and their gradients, and a product for each gradient
  double per_pair = 2 * (d + dv);
  if constexpr (std::is_same_v<Attention, AttentionBackward>) {
    per_pair +=
        (is_absent(op.dq) ? 0 : 2 * d) + (is_absent(op.dk) ? 0 : 2 * d) + (is_absent(op.dv) ? 0 : 2 * dv);
  }
  work.flops = per_pair * (work.full_pairs + work.diagonal_pairs);
}

// Rows of all heads and batch entries of a [batch, rows, heads, dim] view.
double numel_of_heads(const View& view) {
  return count(view.shape[0]) * count(view.shape[1]) * count(view.shape[2]);
}

// Kernels take recurrences in chunks of this many rows, whose products with one another are a matrix as in
// attention, so that most work is products (Dao and Gu 2024; Yang et al. 2024). What flash-linear-attention
// and Mamba-2's own kernels use.
constexpr double kChunkRows = 64;

// Products of one row of a value head, in flops: what it writes to the state and reads from it, and the rows
// of its chunk; for the delta rule also what the state has at its key, and the triangular system of the
// chunk's keys, which is about as much as the product that makes it.
double row_flops(RecurrenceRule rule, double keys, double values) {
  const double chunk = kChunkRows * (keys + values), state = keys * values;
  const double delta = rule == RecurrenceRule::delta ? state + kChunkRows * keys + chunk : 0;
  return 2 * (2 * state + chunk + delta);
}

void count_recurrence(const RecurrenceForward& op, KernelWork& work) {
  work.flops = numel_of_heads(op.v) * row_flops(op.rule, count(op.k.shape[3]), count(op.v.shape[3]));
}
// Without the outputs, and with T as one more state of key_dim columns.
void count_recurrence(const RecurrenceSummary& op, KernelWork& work) {
  const double keys = count(op.k.shape[3]), values = count(op.v.shape[3]);
  const bool matrix = !is_absent(op.transition) && op.rule == RecurrenceRule::delta;
  work.flops = numel_of_heads(op.v) * (row_flops(op.rule, keys, values) / 2 + (matrix ? 4 * keys * keys : 0));
}
void count_recurrence(const RecurrenceSummaryGradient& op, KernelWork& work) {
  work.flops =
      numel_of_heads(op.dout) * row_flops(op.rule, count(op.k.shape[3]), count(op.dout.shape[3])) / 2;
}
void count_recurrence(const RecurrenceJoin& op, KernelWork& work) {
  work.flops = 2 * count(op.in.numel()) * count(op.transition.shape[3]);
}
void count_recurrence(const RecurrenceBackward& op, KernelWork& work) {
  work.flops = kBackwardOfRecurrence * numel_of_heads(op.v) *
               row_flops(op.rule, count(op.k.shape[3]), count(op.v.shape[3]));
}

}  // namespace

double recurrence_row_flops(RecurrenceRule rule, std::int64_t key_dim, std::int64_t value_dim) {
  return row_flops(rule, count(key_dim), count(value_dim));
}

KernelWork product_work(double m, double n, double k) {
  KernelWork work;
  work.m = m, work.n = n, work.k = k;
  work.flops = 2 * m * n * k;
  return work;
}

KernelWork work_of(const Kernel& kernel, const Plan& plan) {
  KernelWork work;
  std::visit(
      [&](const auto& op) {
        using T = std::remove_cvref_t<decltype(op)>;
        if constexpr (std::is_same_v<T, MatMul>) {
          const MatMul one = product_of(op, 0);
          work = product_work(count(one.a.shape[0]), count(one.b.shape[1]), count(one.a.shape[1]));
          work.products = count(num_products(op)), work.flops *= work.products;
        } else if constexpr (std::is_same_v<T, AttentionForward> || std::is_same_v<T, AttentionBackward>) {
          count_attention(op, plan, work);
        } else if constexpr (kIsRecurrence<T>) {
          count_recurrence(op, work);
        }
      },
      kernel);
  const View* workspace = nullptr;  // what a fused kernel does there is part of its speed
  const View* counted = nullptr;    // with the keys
  std::visit(
      [&](const auto& op) {
        if constexpr (requires { op.workspace; }) workspace = &op.workspace;
        if constexpr (requires { op.v; }) counted = work.values_in_keys ? &op.v : nullptr;
      },
      kernel);
  const auto* rows = std::get_if<RowKernel>(&kernel);
  const std::optional<LookUp> look_up = rows != nullptr ? look_up_of(*rows) : std::nullopt;
  const auto add_bytes = [&](const Access& access) {
    if (access.view == workspace || (counted != nullptr && access.view == counted)) return;
    double bytes = bytes_of(*access.view, plan);
    if (look_up && access.view == look_up->table)
      bytes *= count(look_up->rows) / std::max(1.0, count(access.view->shape.front()));
    work.bytes += (access.reads ? bytes : 0) + (access.writes ? bytes : 0);
  };
  std::visit([&](const auto& op) { for_each_access_of(op, 0, add_bytes); }, kernel);
  return work;
}

}  // namespace cp::sim
