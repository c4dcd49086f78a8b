#include "shared/context_parallel/trips.h"

namespace cp::detail {

std::int64_t KeyTrips::inner_cost(int direction) const {
  const AttentionProblem& problem = context_.request.problem;
  const Strategy& strategy = context_.request.strategy;
  const Gradients& wanted = context_.request.options.gradients;
  // dK and dV of latent rows are wanted both or neither, so what is less of the two is less for what travels
  // in their place, too.
  const std::int64_t size = size_bytes(problem.dtype),
                     dkv_size = strategy.input_dtype_gradients ? size : size_bytes(DType::f32);
  const std::int64_t kv_bytes = (problem.head_dim + problem.v_head_dim) * size,
                     dkv_bytes = ((wanted.dk ? problem.head_dim : 0) + (wanted.dv ? problem.v_head_dim : 0)) *
                                 dkv_size;
  std::int64_t cost = 0;
  for (int node = 0; node < nodes_; ++node) {
    for (int block = 0; block < num_blocks(); ++block) {
      const Trip trip = inner(node, block, direction);
      if (trip.last == 0) continue;
      cost += context_.num_kv_rows(block) * (trip.last * kv_bytes + (trip.last - trip.first + 1) * dkv_bytes);
    }
  }
  return cost;
}

std::int64_t KeyTrips::outer_cost(int direction) const {
  std::int64_t cost = 0;
  for (int block = 0; block < num_blocks(); ++block)
    cost += context_.num_kv_rows(block) * outer(block, direction).last;
  return cost;
}

KeyTrips::Rows KeyTrips::rows(int outer_direction, int inner_direction) const {
  Rows sum;
  for (int block = 0; block < num_blocks(); ++block) {
    const std::int64_t rows = context_.num_kv_rows(block);
    const int nodes_passed = outer(block, outer_direction).last;
    for (int distance = 0; distance <= nodes_passed; ++distance) {
      const int node = ((block / size_ + outer_direction * distance) % nodes_ + nodes_) % nodes_;
      const Trip trip = inner(node, block, inner_direction);
      sum.keys += rows * (trip.last + (distance > 0 ? 1 : 0));
      if (trip.last > 0) sum.gradients += rows * (trip.last - trip.first + 1);
      if (distance > 0 && node_needs(node, block)) sum.gradients += rows;
    }
  }
  return sum;
}

}  // namespace cp::detail
