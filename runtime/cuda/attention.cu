// Attention and its gradients for any dtype, dims and mask: sums in f32, in an order that depends on shapes and slices alone.
//
// A block has a tile of rows, and goes through the bands of the mask that they have to do with (mask_bands.h), some columns at a time:
// products of the rows' vectors with the columns' vectors give weights, and weights times values of the columns are added to the
// rows' sums. Rows are queries for the output and dq, and keys for dk and dv. Rows whose sums are wider than a block's go to several
// blocks, which find the weights again. Online softmax: Milakov and Gimelshein (2018); gradients: Dao et al. (2022), appendix B.2.
#include <algorithm>
#include <cmath>
#include <memory>
#include <type_traits>

#include "runtime/cuda/mask_bands.h"
#include "runtime/cuda/prepared_kernels.h"
#include "runtime/cuda/tile.h"
#include "shared/base/error.h"

namespace cp::runtime {
namespace {

using Scores = TileSums<float, kTileRows>;

// A [batch, seq, heads, dim] view of any floating type.
struct Heads {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch_step = 0, row_step = 0, head_step = 0, dim_step = 0;

  CP_DEVICE std::int64_t offset(std::int64_t batch, std::int64_t head) const {
    return batch * batch_step + head * head_step;
  }
  CP_DEVICE float value(std::int64_t at) const {
    if (dtype == DType::f32) return reinterpret_cast<const float*>(data)[at];
    const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(data)[at];
    return dtype == DType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  CP_DEVICE void store(std::int64_t at, float sum, bool accumulate) const {
    if (accumulate) sum = value(at) + sum;
    if (dtype == DType::f32) {
      reinterpret_cast<float*>(data)[at] = sum;
    } else {
      reinterpret_cast<std::uint16_t*>(data)[at] = dtype == DType::f16 ? f32_to_f16(sum) : f32_to_bf16(sum);
    }
  }
};

// One head of one batch of it.
struct Rows {
  const Heads& heads;
  std::int64_t offset;
  CP_DEVICE Rows(const Heads& all, std::int64_t batch, std::int64_t head)
      : heads(all), offset(all.offset(batch, head)) {}
  CP_DEVICE std::int64_t at(std::int64_t row, std::int64_t d) const {
    return offset + row * heads.row_step + d * heads.dim_step;
  }
  CP_DEVICE float value(std::int64_t row, std::int64_t d) const { return heads.value(at(row, d)); }
};

// A [batch, heads, seq] view in f32.
struct Statistic {
  float* data = nullptr;
  std::int64_t batch_step = 0, head_step = 0, row_step = 0;
  CP_DEVICE float& at(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return data[batch * batch_step + head * head_step + row * row_step];
  }
};

// What a block of a grid over [chunk of the sums' width][batch][head][tile of rows] has.
struct BlockPlace {
  std::int64_t tile, head, batch, chunk;
};
struct RowGrid {
  std::int64_t tiles = 0, heads = 0, batches = 0, chunks = 0;
  CP_DEVICE BlockPlace place(std::int64_t index) const {
    BlockPlace place;
    place.tile = index % tiles, index /= tiles;
    place.head = index % heads, index /= heads;
    place.batch = index % batches, place.chunk = index / batches;
    return place;
  }
  std::int64_t blocks() const { return tiles * heads * batches * chunks; }
};

// Shared memory, in floats. Products and values of columns take turns in the first part.
constexpr int kWeightsRow = kTileRows + 1;
constexpr int kWeightsAt = kDotsShared;
constexpr int kStatisticsAt = kWeightsAt + kTileRows * kWeightsRow;
constexpr int kSharedFloats = kStatisticsAt + 2 * kTileRows;
constexpr int kSharedBytes = kSharedFloats * static_cast<int>(sizeof(float));
constexpr int kMostColumns = 2 * kTileRows;
static_assert(kTileDepth * kMostColumns <= kDotsShared && kTileRows * (kLanes + 1) <= kDotsShared);

// sums[r][c] += sum over k < count, ascending, of weights[r][k] * value(k, c); calls each(thread, i, weight) with the weights too.
template <int kColumns, class Value, class Each>
CP_DEVICE void add_values(Block& block, float* shared, int count, Value&& value,
                          PerThread<TileSums<float, kColumns>>& sums, Each&& each) {
  const float* weights = shared + kWeightsAt;
  for (int begin = 0; begin < count; begin += kTileDepth) {
    const int part = count - begin < kTileDepth ? count - begin : kTileDepth;
    block.for_each_thread([&](int thread) {
      CP_NO_UNROLL
      for (int i = thread; i < part * kColumns; i += kTileThreads) {
        shared[i] = value(begin + i / kColumns, i % kColumns);
      }
    });
    block.for_each_thread([&](int thread) {
      auto& values = sums[thread].values;
      CP_NO_UNROLL
      for (int k = 0; k < part; ++k) {
        float factors[kRowsOfThread];
        CP_UNROLL
        for (int i = 0; i < kRowsOfThread; ++i) {
          factors[i] = weights[tile_row(thread, i) * kWeightsRow + begin + k];
          each(thread, i, factors[i]);
        }
        CP_UNROLL
        for (int j = 0; j < kColumns / kLanes; ++j) {
          const float other = shared[k * kColumns + tile_column(thread, j)];
          CP_UNROLL
          for (int i = 0; i < kRowsOfThread; ++i) values[i][j] += factors[i] * other;
        }
      }
    });
  }
}

CP_DEVICE int columns_of(const BandPart& part, std::int64_t column) {
  return static_cast<int>(part.column_end - column < kTileRows ? part.column_end - column : kTileRows);
}

// ---- forward ----

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

  // Over the columns so far: sums of weights times values; greatest scores and sums of weights.
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

  // Scores of what is not seen become -inf; each thread leaves the greatest of its columns.
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

  // Scores become weights relative to the new maxima, and so does what was summed up.
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
        const float zero = most == -INFINITY ? 0 : most;  // keeps inf - inf away
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

// ---- gradients ----

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

  Heads q, k, v, dout, out;  // out: the gradient
  Statistic lse, delta;
  std::int64_t rows, head_dim, v_head_dim, heads_of_kv_head;
  float scale;
  bool accumulate;
  RowGrid grid;  // its heads are those of the rows
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

  // `head` is the queries'.
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
    // Queries that no key gave any weight to have no gradient, whatever they hold.
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

// ---- launches ----

class Operands {
 public:
  Operands(const CudaMemory& memory, std::int64_t iteration) : memory_(memory), iteration_(iteration) {}
  Heads heads(const View& view) const {
    return {memory_.at(view, iteration_),
            memory_.dtype(view),
            view.strides[0],
            view.strides[1],
            view.strides[2],
            view.strides[3]};
  }
  Statistic statistic(const View& view) const {
    return {reinterpret_cast<float*>(memory_.at(view, iteration_)), view.strides[0], view.strides[1],
            view.strides[2]};
  }

 private:
  const CudaMemory& memory_;
  std::int64_t iteration_;
};

// Of sums with the shape of the view.
template <int kColumns>
RowGrid grid_over(const View& sums) {
  return {ceil_div(sums.shape[1], std::int64_t{kTileRows}), sums.shape[2], sums.shape[0],
          ceil_div(sums.shape[3], std::int64_t{kColumns})};
}

// Calls f(std::integral_constant<int, columns of a block's sums>{}).
template <class F>
void with_columns(std::int64_t dim, F&& f) {
  dim <= kTileRows ? f(std::integral_constant<int, kTileRows>{})
                   : f(std::integral_constant<int, kMostColumns>{});
}

std::int64_t group_size(const View& q, const View& k) {
  return k.shape[2] == 0 ? 1 : q.shape[2] / k.shape[2];
}

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
    body.grid.chunks =
        std::max<std::int64_t>(body.grid.chunks, 1);  // lse is written even where out has no columns
    launch(stream, {body.grid.blocks(), kSharedBytes}, body);
  });
}

template <Gradient kGradient>
void launch_backward(const AttentionBackward& kernel, const Operands& operands, const Statistic& delta,
                     const BandTable& table, const View& out, cudaStream_t stream) {
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

// delta of a step that declares none, since it was made for a library that finds it itself.
class OwnDelta {
 public:
  OwnDelta(const AttentionBackward& kernel, const CudaMemory& memory)
      : heads_(kernel.lse.shape[1]),
        q_len_(kernel.lse.shape[2]),
        data_(allocate(kernel.lse.numel())),
        launch_(prepare_delta(kernel.out, kernel.dout, data_.get(), memory)) {}

  void launch(std::int64_t iteration, cudaStream_t stream) const { launch_(iteration, stream); }
  Statistic statistic() const { return {data_.get(), heads_ * q_len_, q_len_, 1}; }

 private:
  struct Free {
    void operator()(float* data) const { cudaFree(data); }
  };
  static float* allocate(std::int64_t count) {
    void* data = nullptr;
    CP_CUDA(cudaMalloc(&data, std::max<std::size_t>(static_cast<std::size_t>(count), 1) * sizeof(float)));
    return static_cast<float*>(data);
  }

  std::int64_t heads_, q_len_;
  std::unique_ptr<float, Free> data_;
  PreparedKernel launch_;
};

}  // namespace

PreparedKernel prepare(const AttentionForward& kernel, const CudaMemory& memory) {
  const auto bands = std::make_shared<MaskBands>(kernel.slices, false, kernel.q.shape[1], kTileRows);
  return [&kernel, &memory, bands](std::int64_t iteration, cudaStream_t stream) {
    launch_forward(kernel, Operands(memory, iteration), bands->table(), stream);
  };
}

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
