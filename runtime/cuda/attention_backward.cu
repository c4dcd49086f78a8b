// Gradients of attention for any dtype, dims and mask: Dao et al., "FlashAttention" (2022), appendix B.2.
// Each gradient has a kernel of its own over its own rows, and computes the weights again. So no block adds
// to the sums of another one, and equal calls give equal bits.
#include <algorithm>
#include <cmath>
#include <memory>

#include "runtime/cuda/attention_tiles.h"
#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/prepared_kernels.h"
#include "runtime/cuda/score_rules.h"

namespace cp::runtime {
namespace {

enum class Gradient { dq, dk, dv };

// With p = exp(scale q k - lse) and ds = p (dout v - delta) scale:
//   dq = sum over keys ds k,   dk = sum over queries ds q,   dv = sum over queries p dout.
// With the rules of ScoreRules, ds = p (m dout v - delta) slope scale, and dv = sum over queries m p dout,
// where m is what dropout multiplies the weight by.
template <Gradient kGradient, class Element, int kColumns, class RulesOfScores>
struct Backward {
  static constexpr bool kChangesScores = !std::is_same_v<RulesOfScores, NoScoreRules>;
  static constexpr int kThreads = kBlockThreads;
  static constexpr bool kRowsAreQueries = kGradient == Gradient::dq,
                        kNeedsProducts = kGradient != Gradient::dv;
  static constexpr const char* kName = kGradient == Gradient::dq   ? "attention_backward_dq"
                                       : kGradient == Gradient::dk ? "attention_backward_dk"
                                                                   : "attention_backward_dv";

  Heads q, k, v, dout, out;  // `out` is the gradient
  Statistic lse, delta;
  std::int64_t heads_of_kv_head;
  float scale;
  bool accumulate;
  RowGrid grid;  // its heads are those of the rows: query heads for dq, key heads for dk and dv
  BandTable table;
  RulesOfScores rules;

  struct Tile {
    PerThread<BlockSums<kColumns>> sums;
    PerThread<Scores> scores, products;
    CP_DEVICE explicit Tile(const Block& block) : sums(block), scores(block), products(block) {}
  };

  // What the columns of a step belong to: a head of the queries, and its keys.
  struct Pair {
    Rows queries, douts, keys, values;
    std::int64_t head;
    CP_DEVICE Pair(const Backward& of, std::int64_t batch, std::int64_t query_head)
        : queries(of.q, batch, query_head),
          douts(of.dout, batch, query_head),
          keys(of.k, batch, query_head / of.heads_of_kv_head),
          values(of.v, batch, query_head / of.heads_of_kv_head),
          head(query_head) {}
  };

  CP_DEVICE void operator()(Block& block) const {
    const BlockPlace place = grid.place(block.index());
    const RowVectors<Element> vectors(q.dim, kNeedsProducts ? v.dim : 0);
    Tile tile(block);
    block.for_each_thread([&](int thread) { clear(tile.sums[thread]); });
    const std::int64_t heads = kRowsAreQueries ? 1 : heads_of_kv_head, row = place.tile * kBlockRows;
    const Pair first(*this, place.batch, kRowsAreQueries ? place.head : place.head * heads_of_kv_head);
    vectors.keep(block, 0, kRowsAreQueries ? first.queries : first.keys, row);
    vectors.keep(block, 1, kRowsAreQueries ? first.douts : first.values, row);
    for (std::int64_t i = 0; i < heads; ++i) {
      const Pair pair(*this, place.batch, first.head + i);
      for (std::int32_t b = table.begins[place.tile]; b < table.begins[place.tile + 1]; ++b) {
        const Band band = table.bands[table.ids[b]];
        const BandPart part = part_of(band, row, kBlockRows);
        for (std::int64_t column = part.column_begin; column < part.column_end; column += kBlockColumns) {
          add_columns(block, tile, vectors, place, pair, band, column, columns_of(part, column));
        }
      }
    }
    finish(block, tile, place);
  }

  CP_DEVICE void add_columns(Block& block, Tile& tile, const RowVectors<Element>& vectors,
                             const BlockPlace& place, const Pair& of, const Band& band, std::int64_t column,
                             int count) const {
    const std::int64_t row = place.tile * kBlockRows;
    float *shared = block.shared<float>(), *query_lse = shared + kStatisticsAt,
          *query_delta = query_lse + kBlockRows;
    block.for_each_thread([&](int thread) {
      clear(tile.scores[thread]), clear(tile.products[thread]);
      if (thread >= kBlockRows) return;
      const std::int64_t query = (kRowsAreQueries ? row : column) + thread;
      const bool is_query = kRowsAreQueries ? query < q.rows : thread < count;
      query_lse[thread] = is_query ? lse.at(place.batch, of.head, query) : -INFINITY;
      query_delta[thread] = is_query && kNeedsProducts ? delta.at(place.batch, of.head, query) : 0;
    });
    const auto dot = [&](int kind, const Rows& of_queries, const Rows& of_keys, PerThread<Scores>& to) {
      vectors.dot(block, kind, kRowsAreQueries ? of_queries : of_keys, row,
                  kRowsAreQueries ? of_keys : of_queries, column, count, to);
    };
    dot(0, of.queries, of.keys, tile.scores);
    if constexpr (kNeedsProducts) dot(1, of.douts, of.values, tile.products);
    weigh(block, tile, place, of, band, row, column, count);
    const std::int64_t first = place.chunk * kColumns;
    const Rows& added = kGradient == Gradient::dq   ? of.keys
                        : kGradient == Gradient::dk ? of.queries
                                                    : of.douts;
    add_values<Element, kColumns>(
        block, count, width_of<kColumns>(out.dim, first), tile.scores, tile.sums, [&](int thread, int begin) {
          // A query that gives no key any weight has no gradient, whatever values it has, NaNs included.
          stage_values<kColumns>(thread, shared + kColumnsAt, added, column + begin, first, [&](int c) {
            return begin + c < count && (kRowsAreQueries || query_lse[begin + c] != -INFINITY);
          });
        });
  }

  // Turns scores into weights.
  CP_DEVICE void weigh(Block& block, Tile& tile, const BlockPlace& place, const Pair& of, const Band& band,
                       std::int64_t row, std::int64_t column, int count) const {
    const float *query_lse = block.shared<float>() + kStatisticsAt, *query_delta = query_lse + kBlockRows;
    const bool all = sees_tile(band, row, column, count);
    block.for_each_thread([&](int thread) {
      [[maybe_unused]] auto kept = kept_weights(place, of);
      CP_UNROLL
      for (int i = 0; i < kRowsOfLane; ++i) {
        CP_UNROLL
        for (int j = 0; j < kColumnsOfLane<kBlockColumns>; ++j) {
          const int r = sum_row(thread, i), c = sum_column(thread, j), query = kRowsAreQueries ? r : c;
          float weight = 0;
          if (query_lse[query] != -INFINITY && (all || (c < count && band.sees(row + r, column + c)))) {
            if constexpr (kChangesScores) {
              weight =
                  changed_weight(kept, row + r, column + c, tile.scores[thread].value(i, j) * scale,
                                 query_lse[query], tile.products[thread].value(i, j), query_delta[query]);
            } else {
              weight = expf(tile.scores[thread].value(i, j) * scale - query_lse[query]);
              if constexpr (kNeedsProducts) {
                weight *= (tile.products[thread].value(i, j) - query_delta[query]) * scale;
              }
            }
          }
          tile.scores[thread].value(i, j) = weight;
        }
      }
    });
  }

  CP_DEVICE auto kept_weights(const BlockPlace& place, const Pair& of) const {
    if constexpr (kChangesScores) {
      return KeptWeights(rules, place.batch, of.head);
    } else {
      return rules;
    }
  }
  CP_DEVICE float changed_weight(KeptWeights& kept, std::int64_t row, std::int64_t column, float score,
                                 float row_lse, float product, float row_delta) const {
    const float capped = rules.capped(score), weight = expf(capped - row_lse),
                factor = kRowsAreQueries ? kept.factor(row, column) : kept.factor(column, row);
    if constexpr (!kNeedsProducts) return weight * factor;
    return weight * (product * factor - row_delta) * rules.slope(capped) * scale;
  }

  CP_DEVICE void finish(Block& block, Tile& tile, const BlockPlace& place) const {
    const Rows gradient(out, place.batch, place.head);
    block.last([&](int thread) {
      CP_UNROLL
      for (int i = 0; i < kRowsOfLane; ++i) {
        const std::int64_t row = place.tile * kBlockRows + sum_row(thread, i);
        CP_UNROLL
        for (int j = 0; j < kColumnsOfLane<kColumns>; ++j) {
          const std::int64_t d = place.chunk * kColumns + sum_column(thread, j);
          if (row < out.rows && d < out.dim)
            out.store(gradient.at(row, d), tile.sums[thread].value(i, j), accumulate);
        }
      }
    });
  }
};

template <Gradient kGradient, class RulesOfScores>
void launch_backward(const AttentionBackward& kernel, const Operands& operands, const Statistic& delta,
                     const BandTable& table, const RulesOfScores& rules, const View& out,
                     cudaStream_t stream) {
  if (is_absent(out)) return;
  const Heads q = operands.heads(kernel.q), dout = operands.heads(kernel.dout);
  with_element(q.dtype, dout.dtype, [&](auto element) {
    with_columns_under<RulesOfScores>(out.shape[3], [&](auto columns) {
      using Body = Backward<kGradient, decltype(element), columns, RulesOfScores>;
      const Body body{q,
                      operands.heads(kernel.k),
                      operands.heads(kernel.v),
                      dout,
                      operands.heads(out),
                      operands.statistic(kernel.lse),
                      delta,
                      group_size(kernel.q, kernel.k),
                      static_cast<float>(kernel.softmax_scale),
                      kGradient == Gradient::dq ? kernel.accumulate_dq : kernel.accumulate_dkv,
                      grid_over<columns>(out),
                      table,
                      rules};
      launch(stream, {body.grid.blocks(), kSharedBytes}, body);
    });
  });
}

// The delta of a step that declares none, because it was made for a library that computes delta itself.
class OwnDelta {
 public:
  OwnDelta(const AttentionBackward& kernel, const CudaMemory& memory)
      : heads_(kernel.lse.shape[1]),
        q_len_(kernel.lse.shape[2]),
        data_(static_cast<std::size_t>(kernel.lse.numel()) * sizeof(float)),
        launch_(prepare_delta(kernel.out, kernel.dout, values(), memory)) {}

  void launch(std::int64_t iteration, cudaStream_t stream) const { launch_(iteration, stream); }
  Statistic statistic() const { return {values(), heads_ * q_len_, q_len_, 1}; }

 private:
  float* values() const { return reinterpret_cast<float*>(data_.data()); }

  std::int64_t heads_, q_len_;
  GpuBytes data_;
  PreparedKernel launch_;
};

}  // namespace

PreparedKernel prepare(const AttentionBackward& kernel, const CudaMemory& memory) {
  const auto by_query = std::make_shared<MaskBands>(kernel.slices, false, kernel.q.shape[1], kBlockRows),
             by_key = std::make_shared<MaskBands>(kernel.slices, true, kernel.k.shape[1], kBlockRows);
  const auto scores = std::make_shared<ScoreTable>(kernel);
  const auto launch_with = [&kernel, by_query, by_key](const auto& rules, const Operands& operands,
                                                       const Statistic& delta, cudaStream_t stream) {
    launch_backward<Gradient::dq>(kernel, operands, delta, by_query->table(), rules, kernel.dq, stream);
    launch_backward<Gradient::dk>(kernel, operands, delta, by_key->table(), rules, kernel.dk, stream);
    launch_backward<Gradient::dv>(kernel, operands, delta, by_key->table(), rules, kernel.dv, stream);
  };
  const auto launch_all = [&kernel, &memory, scores, launch_with](
                              const Operands& operands, const Statistic& delta, std::int64_t iteration,
                              cudaStream_t stream) {
    if (!scores->changes_scores()) return launch_with(NoScoreRules(), operands, delta, stream);
    const std::byte* seed = is_absent(kernel.seed) ? nullptr : memory.at(kernel.seed, iteration);
    launch_with(scores->rules(seed), operands, delta, stream);
  };
  if (kernel.delta.buffer >= 0) {
    return [&kernel, &memory, launch_all](std::int64_t iteration, cudaStream_t stream) {
      const Operands operands(memory, iteration);
      launch_all(operands, operands.statistic(kernel.delta), iteration, stream);
    };
  }
  const auto delta = std::make_shared<OwnDelta>(kernel, memory);
  return [&memory, delta, launch_all](std::int64_t iteration, cudaStream_t stream) {
    delta->launch(iteration, stream);
    launch_all(Operands(memory, iteration), delta->statistic(), iteration, stream);
  };
}

}  // namespace cp::runtime
