// Attention for any dtype, dims and mask, with an online softmax: Milakov and Gimelshein (2018).
#include <algorithm>
#include <cmath>
#include <memory>

#include "runtime/cuda/attention_tiles.h"
#include "runtime/cuda/prepared_kernels.h"

namespace cp::runtime {
namespace {

template <int kColumns>
struct Forward {
  static constexpr int kThreads = kTileThreads;
  static constexpr const char* kName = "attention_forward";

  Heads q, k, v, out;
  Statistic lse;
  std::int64_t q_len, head_dim, v_head_dim, heads_of_kv_head;
  float scale;
  RowGrid grid;
  BandTable table;

  // What a thread knows of its rows over the columns so far: the greatest scores and the sums of weights.
  // (The sums of weights times values are in Tile::sums.)
  struct Running {
    float greatest[kRowsOfThread], weights[kRowsOfThread];
  };
  struct Tile {
    PerThread<TileSums<float, kColumns>> sums;
    PerThread<Scores> scores;
    PerThread<Running> running;
    CP_DEVICE explicit Tile(const Block& block) : sums(block), scores(block), running(block) {}
  };

  CP_DEVICE void operator()(Block& block) const {
    const BlockPlace place = grid.place(block.index());
    Tile tile(block);
    block.for_each_thread([&](int thread) {
      clear(tile.sums[thread]);
      CP_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) {
        tile.running[thread].greatest[i] = -INFINITY, tile.running[thread].weights[i] = 0;
      }
    });
    for (std::int32_t i = table.begins[place.tile]; i < table.begins[place.tile + 1]; ++i) {
      const Band band = table.bands[table.ids[i]];
      const BandPart part = part_of(band, place.tile * kTileRows, kTileRows);
      for (std::int64_t column = part.column_begin; column < part.column_end; column += kTileRows) {
        attend(block, tile, place, band, part, column);
      }
    }
    finish(block, tile, place);
  }

  CP_DEVICE void attend(Block& block, Tile& tile, const BlockPlace& place, const Band& band,
                        const BandPart& part, std::int64_t column) const {
    float* shared = block.shared<float>();
    const std::int64_t kv_head = place.head / heads_of_kv_head, row = place.tile * kTileRows;
    const Rows queries(q, place.batch, place.head), keys(k, place.batch, kv_head),
        values(v, place.batch, kv_head);
    const int columns = columns_of(part, column);
    block.for_each_thread([&](int thread) { clear(tile.scores[thread]); });
    add_dots(
        block, shared, head_dim,
        [&](int r, std::int64_t d) {
          return row + r >= part.row_begin && row + r < part.row_end ? queries.value(row + r, d) : 0.0f;
        },
        [&](int c, std::int64_t d) { return c < columns ? keys.value(column + c, d) : 0.0f; }, tile.scores);
    find_greatest(block, tile, band, row, column, columns);
    weigh(block, tile);
    const std::int64_t first = place.chunk * kColumns;
    add_values<kColumns>(
        block, shared, columns,
        [&](int c, int d) { return first + d < v_head_dim ? values.value(column + c, first + d) : 0.0f; },
        tile.sums, [&](int thread, int i, float weight) { tile.running[thread].weights[i] += weight; });
  }

  // Scores of columns that a row does not see become -inf. Each thread leaves the greatest score of its
  // columns in shared memory.
  CP_DEVICE void find_greatest(Block& block, Tile& tile, const Band& band, std::int64_t row,
                               std::int64_t column, int columns) const {
    float* greatest = block.shared<float>();
    block.for_each_thread([&](int thread) {
      CP_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) {
        float most = -INFINITY;
        CP_UNROLL
        for (int j = 0; j < kTileRows / kLanes; ++j) {
          const int c = tile_column(thread, j);
          float& score = tile.scores[thread].values[i][j];
          score = c < columns && band.sees(row + tile_row(thread, i), column + c) ? score * scale : -INFINITY;
          most = fmaxf(most, score);
        }
        greatest[tile_row(thread, i) * (kLanes + 1) + thread % kLanes] = most;
      }
    });
  }

  // Turns scores into weights relative to the new maxima, and scales what was summed up so far to them.
  CP_DEVICE void weigh(Block& block, Tile& tile) const {
    const float* greatest = block.shared<float>();
    float* weights = block.shared<float>() + kWeightsAt;
    block.for_each_thread([&](int thread) {
      CP_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) {
        const int r = tile_row(thread, i);
        float most = tile.running[thread].greatest[i];
        const float before = most;
        CP_UNROLL
        for (int lane = 0; lane < kLanes; ++lane) most = fmaxf(most, greatest[r * (kLanes + 1) + lane]);
        const float zero = most == -INFINITY ? 0 : most;  // inf - inf would be a NaN
        const float factor = expf(before - zero);
        tile.running[thread].greatest[i] = most;
        tile.running[thread].weights[i] *= factor;
        CP_UNROLL
        for (int j = 0; j < kColumns / kLanes; ++j) tile.sums[thread].values[i][j] *= factor;
        CP_UNROLL
        for (int j = 0; j < kTileRows / kLanes; ++j) {
          weights[r * kWeightsRow + tile_column(thread, j)] = expf(tile.scores[thread].values[i][j] - zero);
        }
      }
    });
  }

  CP_DEVICE void finish(Block& block, Tile& tile, const BlockPlace& place) const {
    const Rows rows(out, place.batch, place.head);
    block.last([&](int thread) {
      CP_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) {
        const std::int64_t row = place.tile * kTileRows + tile_row(thread, i);
        if (row >= q_len) continue;
        const float weights = tile.running[thread].weights[i];
        CP_UNROLL
        for (int j = 0; j < kColumns / kLanes; ++j) {
          const std::int64_t d = place.chunk * kColumns + tile_column(thread, j);
          if (d >= v_head_dim) continue;
          out.store(rows.at(row, d), weights == 0 ? 0 : tile.sums[thread].values[i][j] / weights, false);
        }
        if (thread % kLanes == 0 && place.chunk == 0) {
          lse.at(place.batch, place.head, row) =
              weights == 0 ? -INFINITY : tile.running[thread].greatest[i] + logf(weights);
        }
      }
    });
  }
};

void launch_forward(const AttentionForward& kernel, const Operands& operands, const BandTable& table,
                    cudaStream_t stream) {
  with_columns(kernel.out.shape[3], [&](auto columns) {
    Forward<columns> body{operands.heads(kernel.q),
                          operands.heads(kernel.k),
                          operands.heads(kernel.v),
                          operands.heads(kernel.out),
                          operands.statistic(kernel.lse),
                          kernel.q.shape[1],
                          kernel.q.shape[3],
                          kernel.v.shape[3],
                          group_size(kernel.q, kernel.k),
                          static_cast<float>(kernel.softmax_scale),
                          grid_over<columns>(kernel.out),
                          table};
    // lse must be written even if out has no columns.
    body.grid.chunks = std::max<std::int64_t>(body.grid.chunks, 1);
    launch(stream, {body.grid.blocks(), kSharedBytes}, body);
  });
}

}  // namespace

PreparedKernel prepare(const AttentionForward& kernel, const CudaMemory& memory) {
  const auto bands = std::make_shared<MaskBands>(kernel.slices, false, kernel.q.shape[1], kTileRows);
  return [&kernel, &memory, bands](std::int64_t iteration, cudaStream_t stream) {
    launch_forward(kernel, Operands(memory, iteration), bands->table(), stream);
  };
}

}  // namespace cp::runtime
