// Attention for any dtype, dims and mask, with an online softmax: Milakov and Gimelshein (2018).
#include <algorithm>
#include <cmath>
#include <memory>
#include <type_traits>

#include "runtime/cuda/attention_tiles.h"
#include "runtime/cuda/prepared_kernels.h"
#include "runtime/cuda/score_rules.h"

namespace cp::runtime {
namespace {

// RulesOfScores: ScoreRules, or NoScoreRules for most steps, whose kernels have no branch for them.
template <class Element, int kColumns, class RulesOfScores>
struct Forward {
  static constexpr bool kChangesScores = !std::is_same_v<RulesOfScores, NoScoreRules>;
  static constexpr int kThreads = kBlockThreads;
  static constexpr const char* kName = "attention_forward";

  Heads q, k, v, out;
  Statistic lse;
  std::int64_t heads_of_kv_head;
  float scale;
  RowGrid grid;
  BandTable table;
  RulesOfScores rules;

  // What a thread knows of its rows over the columns so far: the greatest scores of all lanes, and the sums
  // of the weights of its own columns. (The sums of weights times values are in Tile::sums.)
  struct Running {
    float greatest[kRowsOfLane], weights[kRowsOfLane];
  };
  struct Tile {
    PerThread<BlockSums<kColumns>> sums;
    PerThread<Scores> scores;
    PerThread<Running> running;
    CP_DEVICE explicit Tile(const Block& block) : sums(block), scores(block), running(block) {}
  };

  CP_DEVICE void operator()(Block& block) const {
    const BlockPlace place = grid.place(block.index());
    const RowVectors<Element> vectors(q.dim, 0);
    Tile tile(block);
    block.for_each_thread([&](int thread) {
      clear(tile.sums[thread]);
      CP_UNROLL
      for (int i = 0; i < kRowsOfLane; ++i) {
        tile.running[thread].greatest[i] = -INFINITY, tile.running[thread].weights[i] = 0;
      }
    });
    const std::int64_t row = place.tile * kBlockRows;
    vectors.keep(block, 0, Rows(q, place.batch, place.head), row);
    for (std::int32_t i = table.begins[place.tile]; i < table.begins[place.tile + 1]; ++i) {
      const Band band = table.bands[table.ids[i]];
      const BandPart part = part_of(band, row, kBlockRows);
      for (std::int64_t column = part.column_begin; column < part.column_end; column += kBlockColumns) {
        attend(block, tile, vectors, place, band, column, columns_of(part, column));
      }
    }
    finish(block, tile, place);
  }

  CP_DEVICE void attend(Block& block, Tile& tile, const RowVectors<Element>& vectors, const BlockPlace& place,
                        const Band& band, std::int64_t column, int count) const {
    const std::int64_t kv_head = place.head / heads_of_kv_head, row = place.tile * kBlockRows,
                       first = place.chunk * kColumns;
    const Rows queries(q, place.batch, place.head), keys(k, place.batch, kv_head),
        values(v, place.batch, kv_head);
    block.for_each_thread([&](int thread) { clear(tile.scores[thread]); });
    vectors.dot(block, 0, queries, row, keys, column, count, tile.scores);
    weigh(block, tile, band, row, column, count);
    if constexpr (kChangesScores) drop(block, tile, place, column, count);
    float* const staged = block.shared<float>() + kColumnsAt;
    add_values<Element, kColumns>(block, count, width_of<kColumns>(v.dim, first), tile.scores, tile.sums,
                                  [&](int thread, int begin) {
                                    stage_values<kColumns>(thread, staged, values, column + begin, first,
                                                           [&](int c) { return begin + c < count; });
                                  });
  }

  // Turns scores into weights relative to the new maxima, and scales what was summed up so far to them.
  // Scores of columns that a row does not see become -inf.
  CP_DEVICE void weigh(Block& block, Tile& tile, const Band& band, std::int64_t row, std::int64_t column,
                       int count) const {
    const bool all = sees_tile(band, row, column, count);
    block.for_each_warp([&](Warp warp) {
      PerLane<Running> now;
      warp.for_each_lane([&](int thread) {
        CP_UNROLL
        for (int i = 0; i < kRowsOfLane; ++i) {
          float most = tile.running[thread].greatest[i];
          CP_UNROLL
          for (int j = 0; j < kColumnsOfLane<kBlockColumns>; ++j) {
            const int c = sum_column(thread, j);
            float& score = tile.scores[thread].value(i, j);
            score = all || (c < count && band.sees(row + sum_row(thread, i), column + c))
                        ? capped(score * scale)
                        : -INFINITY;
            most = fmaxf(most, score);
          }
          now[thread].greatest[i] = most;
        }
      });
      CP_UNROLL
      for (int i = 0; i < kRowsOfLane; ++i)
        combine_quads(
            warp, [&](int thread) -> float& { return now[thread].greatest[i]; },
            [](float a, float b) { return fmaxf(a, b); });
      warp.for_each_lane([&](int thread) {
        Running& running = tile.running[thread];
        CP_UNROLL
        for (int i = 0; i < kRowsOfLane; ++i) {
          const float most = now[thread].greatest[i];
          const float zero = most == -INFINITY ? 0 : most;  // inf - inf would be a NaN
          const float factor = expf(running.greatest[i] - zero);
          running.greatest[i] = most;
          running.weights[i] *= factor;
          CP_UNROLL
          for (int j = 0; j < kColumnsOfLane<kColumns>; ++j) tile.sums[thread].value(i, j) *= factor;
          CP_UNROLL
          for (int j = 0; j < kColumnsOfLane<kBlockColumns>; ++j) {
            float& score = tile.scores[thread].value(i, j);
            score = expf(score - zero);
            running.weights[i] += score;
          }
        }
      });
    });
  }

  CP_DEVICE float capped(float score) const {
    if constexpr (kChangesScores) return rules.capped(score);
    return score;
  }

  // Dropped weights become 0, after they were summed up: lse is that of all weights.
  CP_DEVICE void drop(Block& block, Tile& tile, const BlockPlace& place, std::int64_t column,
                      int count) const {
    if (rules.factor == 0) return;
    block.for_each_thread([&](int thread) {
      KeptWeights kept(rules, place.batch, place.head);
      CP_UNROLL
      for (int i = 0; i < kRowsOfLane; ++i) {
        const std::int64_t row = place.tile * kBlockRows + sum_row(thread, i);
        CP_UNROLL
        for (int j = 0; j < kColumnsOfLane<kBlockColumns>; ++j) {
          const int c = sum_column(thread, j);
          if (row < q.rows && c < count) tile.scores[thread].value(i, j) *= kept.factor(row, column + c);
        }
      }
    });
  }

  CP_DEVICE void finish(Block& block, Tile& tile, const BlockPlace& place) const {
    const Rows rows(out, place.batch, place.head);
    block.for_each_warp([&](Warp warp) {
      CP_UNROLL
      for (int i = 0; i < kRowsOfLane; ++i)
        combine_quads(
            warp, [&](int thread) -> float& { return tile.running[thread].weights[i]; },
            [](float a, float b) { return a + b; });
    });
    block.last([&](int thread) {
      CP_UNROLL
      for (int i = 0; i < kRowsOfLane; ++i) {
        const std::int64_t row = place.tile * kBlockRows + sum_row(thread, i);
        if (row >= q.rows) continue;
        const float weights = tile.running[thread].weights[i];
        CP_UNROLL
        for (int j = 0; j < kColumnsOfLane<kColumns>; ++j) {
          const std::int64_t d = place.chunk * kColumns + sum_column(thread, j);
          if (d >= v.dim) continue;
          out.store(rows.at(row, d), weights == 0 ? 0 : tile.sums[thread].value(i, j) / weights, false);
        }
        if (thread % 4 == 0 && place.chunk == 0) {
          lse.at(place.batch, place.head, row) =
              weights == 0 ? -INFINITY : tile.running[thread].greatest[i] + logf(weights);
        }
      }
    });
  }
};

template <class RulesOfScores>
void launch_forward(const AttentionForward& kernel, const Operands& operands, const BandTable& table,
                    const RulesOfScores& rules, cudaStream_t stream) {
  const Heads q = operands.heads(kernel.q);
  with_element(q.dtype, q.dtype, [&](auto element) {
    with_columns_under<RulesOfScores>(kernel.out.shape[3], [&](auto columns) {
      Forward<decltype(element), columns, RulesOfScores> body{q,
                                                              operands.heads(kernel.k),
                                                              operands.heads(kernel.v),
                                                              operands.heads(kernel.out),
                                                              operands.statistic(kernel.lse),
                                                              group_size(kernel.q, kernel.k),
                                                              static_cast<float>(kernel.softmax_scale),
                                                              grid_over<columns>(kernel.out),
                                                              table,
                                                              rules};
      // lse must be written even if out has no columns.
      body.grid.chunks = std::max<std::int64_t>(body.grid.chunks, 1);
      launch(stream, {body.grid.blocks(), kSharedBytes}, body);
    });
  });
}

}  // namespace

PreparedKernel prepare(const AttentionForward& kernel, const CudaMemory& memory) {
  const auto bands = std::make_shared<MaskBands>(kernel.slices, false, kernel.q.shape[1], kBlockRows);
  const auto scores = std::make_shared<ScoreTable>(kernel);
  return [&kernel, &memory, bands, scores](std::int64_t iteration, cudaStream_t stream) {
    const Operands operands(memory, iteration);
    if (!scores->changes_scores())
      return launch_forward(kernel, operands, bands->table(), NoScoreRules(), stream);
    const std::byte* seed = is_absent(kernel.seed) ? nullptr : memory.at(kernel.seed, iteration);
    launch_forward(kernel, operands, bands->table(), scores->rules(seed), stream);
  };
}

}  // namespace cp::runtime
