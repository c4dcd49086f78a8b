// A stack of two-layer blocks over x [S, S], of which each rank holds S/n rows: x becomes W1 (x W0). The
// first layer works on rows; the second one on columns, between two AllToAlls. The weights are sharded over
// the ranks: the next layer's are gathered on a stream of their own while this layer computes. Three slots
// take turns, so that a gather need not wait for the layer before.
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "tests/support/hand_plans.h"
#include "tests/support/values.h"

namespace cp::testing {
namespace {

constexpr std::int64_t kSize = 8, kBlockNumel = kSize * kSize, kSlots = 3;

View at_iteration(View view, std::int64_t iteration) {
  view.offset = offset_at(view, iteration);
  view.advance = {};
  return view;
}

class PrefetchedBlocks {
 public:
  PrefetchedBlocks(int ranks, int self, std::int64_t blocks)
      : n_(ranks), blocks_(blocks), rows_(kSize / ranks), b_(self, host_target()) {
    std::vector<Rank> members;
    for (Rank rank = 0; rank < n_; ++rank) members.push_back(rank);
    compute_ = b_.stream("compute");
    weight_stream_ = b_.stream("weights");
    activation_stream_ = b_.stream("activations");
    weight_group_ = b_.group("fsdp", members);
    activation_group_ = b_.group("cp", members);
    shards_ = b_.input("weight_shards", DType::f32, 2 * blocks_ * kBlockNumel / n_);
    x_ = b_.inout("x", DType::f32, rows_ * kSize);
    weights_ = b_.temporary("weights", DType::f32, kSlots * kBlockNumel);
    row_product_ = b_.temporary("row_product", DType::f32, rows_ * kSize);
    packed_ = b_.temporary("packed", DType::f32, rows_ * kSize);
    columns_ = b_.temporary("columns", DType::f32, rows_ * kSize);
    column_product_ = b_.temporary("column_product", DType::f32, rows_ * kSize);
    returned_ = b_.temporary("returned", DType::f32, rows_ * kSize);
  }

  Plan build() {
    b_.add(weight_stream_, AllGather{weight_group_, at_iteration(shard(0), 0), at_iteration(weights(0), 0)},
           "layer 0");
    b_.begin_repeat(blocks_ - 1);
    add_block([](View view) { return view; }, false);
    b_.end_repeat();
    add_block([this](View view) { return at_iteration(std::move(view), blocks_ - 1); }, true);
    Hasher inputs;
    inputs.add(std::string_view("prefetched_blocks")).add(n_).add(blocks_);
    return std::move(b_).build(inputs.digest());
  }

 private:
  // Layer 2t + `layer` in block t. Its slot is (t + 2 * layer) mod 3: 0 and 2 in block 0, 1 and 0 in block 1,
  // 2 and 1, ...
  View shard(std::int64_t layer) const {
    return flat_view(shards_, layer * kBlockNumel / n_, kBlockNumel / n_, {2 * kBlockNumel / n_, 0, 0});
  }
  View weights(std::int64_t layer) const {
    return dense_view(weights_, 0, {kSize, kSize}, {kBlockNumel, kSlots, 2 * layer % kSlots});
  }

  View rows(BufferId buffer) const { return dense_view(buffer, 0, {rows_, kSize}); }
  View columns(BufferId buffer) const {
    return dense_view(buffer, 0, {kSize, rows_});
  }  // kSize / n_ == rows_ of them
  // Rows, in the order [peer, row, column of the peer].
  View rows_by_peer(BufferId buffer) const { return {buffer, 0, {n_, rows_, rows_}, {rows_, kSize, 1}, {}}; }
  View flat(BufferId buffer) const { return flat_view(buffer, 0, rows_ * kSize); }

  template <class Place>
  void add_block(Place&& place, bool last) {
    const auto gather = [&](std::int64_t layer) {
      b_.add(weight_stream_, AllGather{weight_group_, place(shard(layer)), place(weights(layer))},
             str("layer +", layer));
    };
    gather(1);
    b_.add(compute_, MatMul{rows(x_), place(weights(0)), rows(row_product_)}, "x W0");
    b_.add(compute_, Copy{rows_by_peer(row_product_), flat(packed_)}, "pack");
    b_.add(activation_stream_, AllToAll{activation_group_, flat(packed_), flat(columns_)}, "rows to columns");
    if (!last) gather(2);
    b_.add(compute_, MatMul{place(weights(1)), columns(columns_), columns(column_product_)}, "W1 x");
    b_.add(activation_stream_, AllToAll{activation_group_, flat(column_product_), flat(returned_)},
           "columns to rows");
    b_.add(compute_, Copy{flat(returned_), rows_by_peer(x_)}, "unpack");
  }

  std::int64_t n_, blocks_, rows_;
  PlanBuilder b_;
  StreamId compute_ = -1, weight_stream_ = -1, activation_stream_ = -1;
  GroupId weight_group_ = -1, activation_group_ = -1;
  BufferId shards_ = -1, x_ = -1, weights_ = -1, row_product_ = -1, packed_ = -1, columns_ = -1,
           column_product_ = -1, returned_ = -1;
};

using Matrix = std::vector<double>;  // kSize x kSize, row-major

Matrix multiply(const Matrix& a, const Matrix& b) {
  Matrix product(kBlockNumel);
  for (std::size_t i = 0; i < kSize; ++i) {
    for (std::size_t j = 0; j < kSize; ++j) {
      for (std::size_t k = 0; k < kSize; ++k) product[i * kSize + j] += a[i * kSize + k] * b[k * kSize + j];
    }
  }
  return product;
}

// Two entries of +-1 in each row and column, so that twelve layers stay integers that f32 holds.
Matrix weights_of_layer(std::int64_t layer) {
  Matrix weights(kBlockNumel);
  const std::vector<double> signs = small_integers(2 * kSize, static_cast<std::uint64_t>(layer), 1);
  for (std::size_t row = 0; row < kSize; ++row) {
    const auto shift = static_cast<std::size_t>(layer) + 1;
    weights[row * kSize + (3 * row + shift) % kSize] += signs[2 * row] < 0 ? -1 : 1;
    weights[row * kSize + (5 * row + 3 * shift) % kSize] += signs[2 * row + 1] < 0 ? -1 : 1;
  }
  return weights;
}

}  // namespace

PlanCase prefetched_blocks(int ranks, std::int64_t blocks) {
  const Matrix x = small_integers(kBlockNumel, 99, 3);
  Matrix result_x = x;
  std::vector<Matrix> shards(static_cast<std::size_t>(ranks));  // by rank: of all layers
  const std::int64_t part = kBlockNumel / ranks;
  for (std::int64_t layer = 0; layer < 2 * blocks; ++layer) {
    const Matrix weights = weights_of_layer(layer);
    result_x = layer % 2 == 0 ? multiply(result_x, weights) : multiply(weights, result_x);
    for (int rank = 0; rank < ranks; ++rank) {
      Matrix& shard = shards[static_cast<std::size_t>(rank)];
      shard.insert(shard.end(), weights.begin() + rank * part, weights.begin() + (rank + 1) * part);
    }
  }
  PlanCase result{str("prefetched_", blocks, "_blocks_", ranks, "_ranks"), {}, {}, {}, 0};
  for (int rank = 0; rank < ranks; ++rank) {
    const auto mine = [&](const Matrix& m) {
      return Matrix(m.begin() + rank * part, m.begin() + (rank + 1) * part);
    };
    result.plans.push_back(PrefetchedBlocks(ranks, rank, blocks).build());
    result.inputs.push_back({{"weight_shards", shards[static_cast<std::size_t>(rank)]}, {"x", mine(x)}});
    result.expected.push_back({{"x", mine(result_x)}});
  }
  return result;
}

}  // namespace cp::testing
