// Gradients of attention for any dtype, dims and mask: Dao et al., "FlashAttention" (2022), appendix B.2.
// Each gradient has a kernel of its own over its own rows, and computes the weights again. So no block adds
// to the sums of another one, and equal calls give equal bits.
#include <algorithm>
#include <cmath>
#include <memory>

#include "runtime/cuda/attention_tiles.h"
#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/prepared_kernels.h"

namespace cp::runtime {
namespace {

enum class Gradient { dq, dk, dv };

// With p = exp(scale q k - lse) and ds = p (dout v - delta) scale:
//   dq = sum over keys ds k,   dk = sum over queries ds q,   dv = sum over queries p dout.
template <Gradient kGradient, int kColumns>
struct Backward {
  static constexpr int kThreads = kTileThreads;
  static constexpr bool kRowsAreQueries = kGradient == Gradient::dq;
  static constexpr const char* kName = kGradient == Gradient::dq   ? "attention_backward_dq"
                                       : kGradient == Gradient::dk ? "attention_backward_dk"
                                                                   : "attention_backward_dv";

  Heads q, k, v, dout, out;  // `out` is the gradient
  Statistic lse, delta;
  std::int64_t rows, head_dim, v_head_dim, heads_of_kv_head;
  float scale;
  bool accumulate;
  RowGrid grid;  // its heads are those of the rows: query heads for dq, key heads for dk and dv
  BandTable table;

  struct Tile {
    PerThread<TileSums<float, kColumns>> sums;
    PerThread<Scores> scores, products;
    CP_DEVICE explicit Tile(const Block& block) : sums(block), scores(block), products(block) {}
  };

  CP_DEVICE void operator()(Block& block) const {
    const BlockPlace place = grid.place(block.index());
    Tile tile(block);
    block.for_each_thread([&](int thread) { clear(tile.sums[thread]); });
    const std::int64_t heads = kRowsAreQueries ? 1 : heads_of_kv_head;
    for (std::int64_t i = 0; i < heads; ++i) {
      const std::int64_t head = kRowsAreQueries ? place.head : place.head * heads_of_kv_head + i;
      for (std::int32_t b = table.begins[place.tile]; b < table.begins[place.tile + 1]; ++b) {
        const Band band = table.bands[table.ids[b]];
        const BandPart part = part_of(band, place.tile * kTileRows, kTileRows);
        for (std::int64_t column = part.column_begin; column < part.column_end; column += kTileRows) {
          add_columns(block, tile, place, head, band, part, column);
        }
      }
    }
    finish(block, tile, place);
  }

  // `head` is the head of the queries.
  CP_DEVICE void add_columns(Block& block, Tile& tile, const BlockPlace& place, std::int64_t head,
                             const Band& band, const BandPart& part, std::int64_t column) const {
    const std::int64_t kv_head = head / heads_of_kv_head, row = place.tile * kTileRows;
    const Rows queries(q, place.batch, head), douts(dout, place.batch, head);
    const Rows keys(k, place.batch, kv_head), values(v, place.batch, kv_head);
    const int columns = columns_of(part, column);
    const std::int64_t first_query = kRowsAreQueries ? row : column,
                       first_key = kRowsAreQueries ? column : row;
    float *shared = block.shared<float>(), *row_lse = shared + kStatisticsAt,
          *row_delta = row_lse + kTileRows;
    block.for_each_thread([&](int thread) {
      clear(tile.scores[thread]), clear(tile.products[thread]);
      if (thread >= kTileRows) return;
      const bool is_row =
          kRowsAreQueries ? row + thread >= part.row_begin && row + thread < part.row_end : thread < columns;
      row_lse[thread] = is_row ? lse.at(place.batch, head, first_query + thread) : -INFINITY;
      row_delta[thread] =
          is_row && kGradient != Gradient::dv ? delta.at(place.batch, head, first_query + thread) : 0;
    });
    // A query that gives no key any weight has no gradient, whatever values it has, NaNs included.
    const auto from_query = [&](const Rows& of) {
      return [&](int r, std::int64_t d) {
        return row_lse[r] == -INFINITY ? 0.0f : of.value(first_query + r, d);
      };
    };
    const auto from_key = [&](const Rows& of) {
      return [&](int r, std::int64_t d) {
        const bool is_row =
            kRowsAreQueries ? r < columns : row + r >= part.row_begin && row + r < part.row_end;
        return is_row ? of.value(first_key + r, d) : 0.0f;
      };
    };
    const auto add = [&](const Rows& of_queries, const Rows& of_keys, std::int64_t dim,
                         PerThread<Scores>& to) {
      if constexpr (kRowsAreQueries) {
        add_dots(block, shared, dim, from_query(of_queries), from_key(of_keys), to);
      } else {
        add_dots(block, shared, dim, from_key(of_keys), from_query(of_queries), to);
      }
    };
    add(queries, keys, head_dim, tile.scores);
    if constexpr (kGradient != Gradient::dv) add(douts, values, v_head_dim, tile.products);
    weigh(block, tile, band, row, column, columns);
    const std::int64_t first = place.chunk * kColumns,
                       dim = kGradient == Gradient::dv ? v_head_dim : head_dim;
    add_values<kColumns>(
        block, shared, columns,
        [&](int c, int d) {
          if (first + d >= dim) return 0.0f;
          if constexpr (kGradient == Gradient::dq) {
            return from_key(keys)(c, first + d);
          } else if constexpr (kGradient == Gradient::dk) {
            return from_query(queries)(c, first + d);
          } else {
            return from_query(douts)(c, first + d);
          }
        },
        tile.sums, [](int, int, float) {});
  }

  CP_DEVICE void weigh(Block& block, Tile& tile, const Band& band, std::int64_t row, std::int64_t column,
                       int columns) const {
    float *shared = block.shared<float>(), *weights = shared + kWeightsAt;
    const float *row_lse = shared + kStatisticsAt, *row_delta = row_lse + kTileRows;
    block.for_each_thread([&](int thread) {
      CP_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) {
        CP_UNROLL
        for (int j = 0; j < kTileRows / kLanes; ++j) {
          const int r = tile_row(thread, i), c = tile_column(thread, j), query = kRowsAreQueries ? r : c;
          float weight = 0;
          if (c < columns && row_lse[query] != -INFINITY && band.sees(row + r, column + c)) {
            weight = expf(tile.scores[thread].values[i][j] * scale - row_lse[query]);
            if constexpr (kGradient != Gradient::dv) {
              weight *= (tile.products[thread].values[i][j] - row_delta[query]) * scale;
            }
          }
          weights[r * kWeightsRow + c] = weight;
        }
      }
    });
  }

  CP_DEVICE void finish(Block& block, Tile& tile, const BlockPlace& place) const {
    const Rows gradient(out, place.batch, place.head);
    const std::int64_t dim = kGradient == Gradient::dv ? v_head_dim : head_dim;
    block.last([&](int thread) {
      CP_UNROLL
      for (int i = 0; i < kRowsOfThread; ++i) {
        const std::int64_t row = place.tile * kTileRows + tile_row(thread, i);
        CP_UNROLL
        for (int j = 0; j < kColumns / kLanes; ++j) {
          const std::int64_t d = place.chunk * kColumns + tile_column(thread, j);
          if (row < rows && d < dim)
            out.store(gradient.at(row, d), tile.sums[thread].values[i][j], accumulate);
        }
      }
    });
  }
};

template <Gradient kGradient>
void launch_backward(const AttentionBackward& kernel, const Operands& operands, const Statistic& delta,
                     const BandTable& table, const View& out, cudaStream_t stream) {
  if (is_absent(out)) return;
  with_columns(out.shape[3], [&](auto columns) {
    using Body = Backward<kGradient, columns>;
    const Body body{operands.heads(kernel.q),
                    operands.heads(kernel.k),
                    operands.heads(kernel.v),
                    operands.heads(kernel.dout),
                    operands.heads(out),
                    operands.statistic(kernel.lse),
                    delta,
                    out.shape[1],
                    kernel.q.shape[3],
                    kernel.v.shape[3],
                    group_size(kernel.q, kernel.k),
                    static_cast<float>(kernel.softmax_scale),
                    kGradient == Gradient::dq ? kernel.accumulate_dq : kernel.accumulate_dkv,
                    grid_over<columns>(out),
                    table};
    launch(stream, {body.grid.blocks(), kSharedBytes}, body);
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
  const auto by_query = std::make_shared<MaskBands>(kernel.slices, false, kernel.q.shape[1], kTileRows),
             by_key = std::make_shared<MaskBands>(kernel.slices, true, kernel.k.shape[1], kTileRows);
  const auto launch_all = [&kernel, by_query, by_key](const Operands& operands, const Statistic& delta,
                                                      cudaStream_t stream) {
    launch_backward<Gradient::dq>(kernel, operands, delta, by_query->table(), kernel.dq, stream);
    launch_backward<Gradient::dk>(kernel, operands, delta, by_key->table(), kernel.dk, stream);
    launch_backward<Gradient::dv>(kernel, operands, delta, by_key->table(), kernel.dv, stream);
  };
  if (kernel.delta.buffer >= 0) {
    return [&kernel, &memory, launch_all](std::int64_t iteration, cudaStream_t stream) {
      const Operands operands(memory, iteration);
      launch_all(operands, operands.statistic(kernel.delta), stream);
    };
  }
  const auto delta = std::make_shared<OwnDelta>(kernel, memory);
  return [&memory, delta, launch_all](std::int64_t iteration, cudaStream_t stream) {
    delta->launch(iteration, stream);
    launch_all(Operands(memory, iteration), delta->statistic(), stream);
  };
}

}  // namespace cp::runtime
