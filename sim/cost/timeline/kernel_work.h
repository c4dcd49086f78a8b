// What a kernel does, counted from its views and slices.
#pragma once

#include "shared/plan/plan.h"
#include "sim/cost/cluster/rates.h"

namespace cp::sim {

struct KernelWork {
  double flops = 0;  // of products; attention: of allowed pairs alone
  double bytes = 0;  // read and written
  // Attention alone, over batches and query heads: pairs in slices without a diagonal, and in those with one.
  double full_pairs = 0, diagonal_pairs = 0;
  double rows = 0;  // query rows that share a kv head: heads of a group x queries
  AttentionCall attention;
  double bytes_per_key = 0;  // of keys and values, of all sequences and kv heads
  // Values are a part of the keys' own rows, as those of latent rows are for absorbed queries: they are read
  // once.
  bool values_in_keys = false;
  // Products alone: so many of [m, k] times [k, n].
  double m = 0, n = 0, k = 0, products = 1;
};
KernelWork work_of(const Kernel& kernel, const Plan& plan);

// The flops of a forward recurrence, for each row of a value head. Backward there are so many times more.
double recurrence_row_flops(RecurrenceRule rule, std::int64_t key_dim, std::int64_t value_dim);
inline constexpr double kBackwardOfRecurrence = 3;  // each product has two gradients, and is made once more

// Of a product alone, without its bytes.
KernelWork product_work(double m, double n, double k);

}  // namespace cp::sim
