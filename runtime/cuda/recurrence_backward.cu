// The backward pass of recurrences. It goes through the rows from the last to the first and needs the state
// before each: a first pass keeps the states at the begins of blocks of rows, and then, from the last block
// to the first, the states of a block are made anew (recurrence_rules.h says where they lie in the workspace,
// and how long a block is).
//
// All tiles of all heads go backward at once, as they go forward, though the gradients of q and k are sums
// over columns and over the value heads that share a key head. So each block of threads leaves its parts of
// these sums, for the rows of one block of rows, in memory of the kernel's own (two vectors of key_dim for a
// tile of a state: with 32 columns a sixteenth of what the states take), and a second kernel adds the parts
// up in a fixed order, and rounds once.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>

#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/prepared_kernels.h"
#include "runtime/cuda/recurrence_tiles.h"
#include "shared/plan/recurrence_rules.h"

namespace cp::runtime {
namespace {

// Columns of a thread on the way back. There are sums over keys as well as over columns, so a thread has 8
// keys of 4 columns: what is left to be added up through shared memory is a quarter and an eighth of a tile.
constexpr int kColumnsBack = 4;

// What the tiles leave of a row's gradients: of q and of k, then of beta and of log_decay.
struct GradientParts {
  float* data = nullptr;  // [lane][row of the block][value head of the lane][tile][size()]
  std::int64_t block_rows = 0, heads_of_lane = 0, tiles = 0, key_dim = 0;

  CP_DEVICE std::int64_t size() const { return 2 * key_dim + 2; }
  CP_DEVICE float* at(std::int64_t lane, std::int64_t row, std::int64_t head_of_lane,
                      std::int64_t tile) const {
    return data + (((lane * block_rows + row) * heads_of_lane + head_of_lane) * tiles + tile) * size();
  }
};

// A block of rows backward. With the names of StatePass, u = beta w, and the gradient dS behind a row:
//   dS' = dS + scale q dout^T        of S' = P + k u^T
//   dw = beta dS'^T k                also of v, and dbeta = (dS'^T k) w
//   dP = dS' - k dw^T                for the delta rule; else dS'
//   dq = scale S' dout,  dk = dS' u - P dw (the last for the delta rule)
//   dlog_decay = the sum of dP P,  and the gradient before the row is exp(log_decay) dP
template <class T>
struct BackwardPass {
  static constexpr int kThreads = kStateThreads;
  static constexpr const char* kName = "recurrence_backward";
  static constexpr int kDecayThreads = 16;  // that put the threads' parts of dlog_decay together. Chosen.
  using Rows = StateRows<T, kColumnsBack>;
  struct Own {
    typename Rows::Share p, dstate;
  };
  // In floats behind the rows in shared memory.
  struct Rest {
    int dq = 0, dk = 0;      // [thread across][keys], with a gap
    int keys = 0;            // with it
    int column_sums = 0;     // P^T k and then dS'^T k: [thread down][column], with a gap
    int columns = 0;         // with it
    int u = 0, dw = 0;       // [column]
    int dlog_decay = 0;      // [thread]
    int row_dbeta = 0;       // [row][column]
    int row_dlog_decay = 0;  // [row][kDecayThreads]
  };

  StatePass<T, PassOf::kept> states;  // makes those before the rows
  Rows rows;
  Rest rest;
  StateView from, to;  // the gradient of the state behind the rows, and before them
  Vectors<T> dv;
  GradientParts parts;
  float scale = 1;

  void set_layout() {
    const StateTile<kColumnsBack>& tile = rows.tile;
    // Threads of a quarter of a warp store four keys each at once, and those of a warp one column each; with
    // these gaps they find different banks.
    rest.keys = tile.keys + kKeysOfGroup, rest.columns = tile.columns + tile.across;
    const int key_sums = tile.across * rest.keys, column_sums = 2 * tile.down * rest.columns;
    rows.layout = staged_layout({tile.keys, 2, tile.columns, 2, tile.columns + kDecayThreads,
                                 2 * key_sums + column_sums + 2 * tile.columns + kThreads});
    rest.dq = rows.layout.rest, rest.dk = rest.dq + key_sums, rest.column_sums = rest.dk + key_sums;
    rest.u = rest.column_sums + column_sums, rest.dw = rest.u + tile.columns;
    rest.dlog_decay = rest.dw + tile.columns, rest.row_dbeta = rest.dlog_decay + kThreads;
    rest.row_dlog_decay = rest.row_dbeta + rows.layout.rows * tile.columns;
    states.set_layout();
  }
  int shared_bytes() const { return std::max(rows.layout.bytes, states.rows.layout.bytes); }

  CP_DEVICE void operator()(Block& block) const {
    states(block);
    const StatePlace place = rows.grid.place(block.index());
    float* const shared = block.template shared<float>();
    PerThread<Own> own(block);
    block.for_each_thread([&](int thread) { rows.load(thread, place, from, own[thread].dstate); });
    for (std::int64_t end = states.end; end > states.begin; end -= rows.layout.rows) {
      const std::int64_t left = end - states.begin;
      const int count = static_cast<int>(left < rows.layout.rows ? left : rows.layout.rows);
      const std::int64_t first = end - count;
      block.for_each_thread([&](int thread) { rows.stage(thread, shared, place, first, count); });
      for (int row = count - 1; row >= 0; --row) {
        block.for_each_thread([&](int thread) {
          if (row + 1 < count) join_keys(thread, shared, place, first, row + 1);
          begin_row(thread, shared, place, first, row, own[thread]);
        });
        block.for_each_thread([&](int thread) { join_columns(thread, shared, place, first, row); });
        block.for_each_thread([&](int thread) { end_row(thread, shared, row, own[thread]); });
      }
      block.for_each_thread([&](int thread) { join_keys(thread, shared, place, first, 0); });
      block.for_each_thread([&](int thread) {
        if (thread < count) join_numbers(thread, shared, place, first);
      });
    }
    block.last([&](int thread) { rows.store(thread, place, to, own[thread].dstate); });
  }

 private:
  CP_DEVICE const float* k_of(const float* shared, int row) const {
    return shared + rows.layout.k + row * rows.tile.keys;
  }
  CP_DEVICE const float* q_of(const float* shared, int row) const {
    return shared + rows.layout.q + row * rows.tile.keys;
  }
  // Of the thread's columns.
  struct ColumnValues {
    float values[kColumnsBack];
  };
  CP_DEVICE ColumnValues columns_of(int thread, const float* of_tile) const {
    ColumnValues columns;
    CP_UNROLL
    for (int c = 0; c < kColumnsBack; ++c) columns.values[c] = of_tile[rows.tile.column(thread, c)];
    return columns;
  }
  CP_DEVICE float* parts_of(const StatePlace& place, std::int64_t row) const {
    return parts.at(place.lane, row - states.begin, place.head_of_lane, place.tile);
  }

  // Takes the state before the row, which becomes P, and makes dS'. The thread's parts of P^T k and dS'^T k.
  CP_DEVICE void begin_row(int thread, float* shared, const StatePlace& place, std::int64_t first, int row,
                           Own& own) const {
    StateView before = states.to;
    before.data += (first + row - states.begin) * states.kept_step;
    rows.load(thread, place, before, own.p);
    const float decay = rows.numbers(shared)[row].decay;
    const ColumnValues dout = columns_of(thread, shared + rows.layout.dout + row * rows.tile.columns);
    float p_sums[kColumnsBack] = {}, dstate_sums[kColumnsBack] = {};
    CP_UNROLL
    for (int group = 0; group < Rows::kGroups; ++group) {
      if (group >= rows.tile.groups) continue;
      const FourFloats keys = four_floats(k_of(shared, row) + rows.tile.key(thread, group)),
                       queries = four_floats(q_of(shared, row) + rows.tile.key(thread, group));
      CP_UNROLL
      for (int i = 0; i < kKeysOfGroup; ++i) {
        const float query = scale * queries.values[i];
        CP_UNROLL
        for (int c = 0; c < kColumnsBack; ++c) {
          float &p = own.p.values[group][i][c], &dstate = own.dstate.values[group][i][c];
          p *= decay;
          dstate += query * dout.values[c];
          p_sums[c] += p * keys.values[i];
          dstate_sums[c] += dstate * keys.values[i];
        }
      }
    }
    float* const sums = shared + rest.column_sums + rows.tile.lane_down(thread) * rest.columns;
    CP_UNROLL
    for (int c = 0; c < kColumnsBack; ++c) {
      const int column = rows.tile.column(thread, c);
      sums[column] = p_sums[c], sums[rows.tile.down * rest.columns + column] = dstate_sums[c];
    }
  }

  // One thread for each column: u and dw, which is the gradient of v too, and the column's part of dbeta.
  CP_DEVICE void join_columns(int thread, float* shared, const StatePlace& place, std::int64_t first,
                              int row) const {
    if (thread >= rows.tile.columns) return;
    const float* const sums = shared + rest.column_sums + thread;
    float p_sum = 0, du = 0;
    for (int part = 0; part < rows.tile.down; ++part) {
      p_sum += sums[part * rest.columns];
      du += sums[(rows.tile.down + part) * rest.columns];
    }
    const float beta = rows.numbers(shared)[row].beta,
                v = shared[rows.layout.v + row * rows.tile.columns + thread],
                w = rows.is_delta ? v - p_sum : v, dw = beta * du;
    shared[rest.u + thread] = beta * w, shared[rest.dw + thread] = dw;
    shared[rest.row_dbeta + row * rows.tile.columns + thread] = du * w;
    const std::int64_t column = place.column + thread;
    if (column < rows.value_dim)
      dv.at(place.batch, first + row, place.head)[column * dv.dim_step] = convert<T>(dw);
  }

  // dS' becomes the gradient before the row. The thread's parts of dq (but for the scale), dk and dlog_decay.
  CP_DEVICE void end_row(int thread, float* shared, int row, Own& own) const {
    const RowNumbers numbers = rows.numbers(shared)[row];
    const ColumnValues dout = columns_of(thread, shared + rows.layout.dout + row * rows.tile.columns),
                       u = columns_of(thread, shared + rest.u), dw = columns_of(thread, shared + rest.dw);
    float decay_sum = 0;
    CP_UNROLL
    for (int group = 0; group < Rows::kGroups; ++group) {
      if (group >= rows.tile.groups) continue;
      const int key = rows.tile.key(thread, group);
      const FourFloats keys = four_floats(k_of(shared, row) + key);
      FourFloats dq = {}, dk = {};
      CP_UNROLL
      for (int i = 0; i < kKeysOfGroup; ++i) {
        CP_UNROLL
        for (int c = 0; c < kColumnsBack; ++c) {
          const float p = own.p.values[group][i][c];
          float& dstate = own.dstate.values[group][i][c];
          dq.values[i] += (p + keys.values[i] * u.values[c]) * dout.values[c];
          dk.values[i] += dstate * u.values[c];
          if (rows.is_delta) {
            dk.values[i] -= p * dw.values[c];
            dstate -= keys.values[i] * dw.values[c];
          }
          decay_sum += dstate * p;
          dstate = numbers.is_start != 0 ? 0 : dstate * numbers.decay;
        }
      }
      const int at = rows.tile.lane_across(thread) * rest.keys + key;
      *reinterpret_cast<FourFloats*>(shared + rest.dq + at) = dq;
      *reinterpret_cast<FourFloats*>(shared + rest.dk + at) = dk;
    }
    shared[rest.dlog_decay + thread] = decay_sum;
  }

  // Puts together what the threads left of a row.
  CP_DEVICE void join_keys(int thread, float* shared, const StatePlace& place, std::int64_t first,
                           int row) const {
    float* const sums = parts_of(place, first + row);
    for (std::int64_t key = thread; key < rows.key_dim; key += kThreads) {
      float dq = 0, dk = 0;
      for (int part = 0; part < rows.tile.across; ++part) {
        dq += shared[rest.dq + part * rest.keys + key];
        dk += shared[rest.dk + part * rest.keys + key];
      }
      sums[key] = scale * dq, sums[rows.key_dim + key] = dk;
    }
    if (thread >= kDecayThreads) return;
    float sum = 0;
    for (int i = thread; i < kThreads; i += kDecayThreads) sum += shared[rest.dlog_decay + i];
    shared[rest.row_dlog_decay + row * kDecayThreads + thread] = sum;
  }
  CP_DEVICE void join_numbers(int row, float* shared, const StatePlace& place, std::int64_t first) const {
    float dbeta = 0, dlog_decay = 0;
    for (int column = 0; column < rows.tile.columns; ++column)
      dbeta += shared[rest.row_dbeta + row * rows.tile.columns + column];
    for (int i = 0; i < kDecayThreads; ++i)
      dlog_decay += shared[rest.row_dlog_decay + row * kDecayThreads + i];
    float* const sums = parts_of(place, first + row) + 2 * rows.key_dim;
    sums[0] = dbeta, sums[1] = dlog_decay;
  }
};

// One thread for each gradient of a block of rows. It adds up the parts of its value heads and tiles in
// order.
template <class T>
struct GradientSums {
  static constexpr int kThreads = 256;
  static constexpr const char* kName = "recurrence_gradient_sums";

  GradientParts parts;
  std::int64_t count, rows, first_row, first_lane, key_heads;
  Vectors<T> dq, dk;
  Vectors<float> dbeta, dlog_decay;

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      std::int64_t rest = block.index() * kThreads + thread;
      if (rest >= count) return;
      const std::int64_t key_dim = parts.key_dim, heads = parts.heads_of_lane, width = 2 * (key_dim + heads),
                         number = rest % width;
      rest /= width;
      const std::int64_t row = rest % rows, lane = rest / rows, batch = (first_lane + lane) / key_heads,
                         key_head = (first_lane + lane) % key_heads, all_row = first_row + row;
      if (number < 2 * key_dim) {
        float sum = 0;
        for (std::int64_t head = 0; head < heads; ++head) sum += sum_of_tiles(lane, row, head, number);
        const bool is_q = number < key_dim;
        const Vectors<T>& to = is_q ? dq : dk;
        to.at(batch, all_row, key_head)[(is_q ? number : number - key_dim) * to.dim_step] = convert<T>(sum);
      } else {
        const bool is_beta = number < 2 * key_dim + heads;
        const std::int64_t head = number - 2 * key_dim - (is_beta ? 0 : heads);
        const Vectors<float>& to = is_beta ? dbeta : dlog_decay;
        *to.at(batch, all_row, key_head * heads + head) =
            sum_of_tiles(lane, row, head, 2 * key_dim + (is_beta ? 0 : 1));
      }
    });
  }

 private:
  CP_DEVICE float sum_of_tiles(std::int64_t lane, std::int64_t row, std::int64_t head,
                               std::int64_t number) const {
    float sum = 0;
    for (std::int64_t tile = 0; tile < parts.tiles; ++tile) sum += parts.at(lane, row, head, tile)[number];
    return sum;
  }
};

// How a backward step is cut: as many lanes at once as the workspace holds, and the blocks of their rows.
struct BackwardCuts {
  int columns = 0;
  std::int64_t lanes = 0, lanes_at_once = 0, heads_of_lane = 0, tiles = 0;
  std::int64_t rows = 0, block_rows = 0, blocks = 0, key_dim = 0, value_dim = 0, lane_numel = 0;

  explicit BackwardCuts(const RecurrenceBackward& kernel)
      : columns(tile_columns(kernel.k.shape[3], kernel.v.shape[3], kColumnsBack)),
        lanes(kernel.k.shape[0] * kernel.k.shape[2]),
        heads_of_lane(kernel.v.shape[2] / std::max<std::int64_t>(1, kernel.k.shape[2])),
        tiles(ceil_div(kernel.v.shape[3], columns)),
        rows(kernel.k.shape[1]),
        block_rows(recurrence_block_rows(rows)),
        blocks(ceil_div(rows, block_rows)),
        key_dim(kernel.k.shape[3]),
        value_dim(kernel.v.shape[3]),
        lane_numel(recurrence_workspace_numel(rows, heads_of_lane, key_dim, value_dim)) {
    lanes_at_once = lane_numel == 0 ? lanes : std::min(lanes, kernel.workspace.numel() / lane_numel);
  }
  GradientParts parts(float* data) const { return {data, block_rows, heads_of_lane, tiles, key_dim}; }
  std::size_t parts_bytes() const {
    return static_cast<std::size_t>(lanes_at_once * block_rows * heads_of_lane * tiles * (2 * key_dim + 2)) *
           sizeof(float);
  }
  std::int64_t row_numel() const { return heads_of_lane * key_dim * value_dim; }
  // Those of the lanes at hand: before the rows of a block, at the blocks' begins, that which goes through
  // the rows, and its gradient (recurrence_rules.h). The third stays in registers here.
  StateView states(float* workspace, std::int64_t number) const {
    return {workspace + number * row_numel(), 0, 0, lane_numel, key_dim * value_dim, value_dim, 1};
  }
  StateView before_rows(float* workspace) const { return states(workspace, 0); }
  StateView at_begin(float* workspace, std::int64_t block) const {
    return states(workspace, block_rows + block);
  }
  StateView gradient(float* workspace) const { return states(workspace, block_rows + blocks + 1); }
};

// The launches of one iteration.
template <class T>
class BackwardLaunches {
 public:
  BackwardLaunches(const RecurrenceBackward& kernel, const BackwardCuts& cuts, const DocumentStarts& starts,
                   float* parts, const CudaMemory& memory, std::int64_t iteration, cudaStream_t stream)
      : kernel_(kernel), cuts_(cuts), memory_(memory), iteration_(iteration), stream_(stream) {
    workspace_ = reinterpret_cast<float*>(memory.at(kernel.workspace, iteration));
    StatePass<T, PassOf::kept>& states = pass_.states;
    states.rows = state_rows<T, 1>(kernel, cuts.value_dim, cuts.columns, memory, iteration);
    pass_.rows = state_rows<T, kColumnsBack>(kernel, cuts.value_dim, cuts.columns, memory, iteration);
    states.rows.v = pass_.rows.v = vectors<const T>(kernel.v, memory, iteration);
    states.rows.starts = pass_.rows.starts = starts;
    pass_.rows.q = vectors<const T>(kernel.q, memory, iteration);
    pass_.rows.dout = vectors<const T>(kernel.dout, memory, iteration);
    pass_.to = cuts.gradient(workspace_), pass_.scale = static_cast<float>(kernel.scale);
    pass_.dv = vectors<T>(kernel.dv, memory, iteration);
    pass_.parts = sums_.parts = cuts.parts(parts);
    sums_.key_heads = pass_.rows.grid.key_heads;
    sums_.dq = vectors<T>(kernel.dq, memory, iteration), sums_.dk = vectors<T>(kernel.dk, memory, iteration);
    sums_.dbeta = vectors<float>(kernel.dbeta, memory, iteration);
    sums_.dlog_decay = vectors<float>(kernel.dlog_decay, memory, iteration);
    pass_.set_layout();
  }

  void run(std::int64_t first_lane, std::int64_t lanes) {
    pass_.states.rows.grid.first_lane = pass_.rows.grid.first_lane = sums_.first_lane = first_lane;
    pass_.states.rows.grid.lanes = pass_.rows.grid.lanes = lanes;
    keep_begins();
    for (std::int64_t block = cuts_.blocks - 1; block >= 0; --block) run_block(block);
  }

 private:
  void keep_begins() const {
    StatePass<T, PassOf::kept> states = pass_.states;
    states.from = state_view(kernel_.state, memory_, iteration_), states.to = cuts_.at_begin(workspace_, 0);
    states.end = (cuts_.blocks - 1) * cuts_.block_rows + 1;
    states.kept_rows = cuts_.block_rows, states.kept_step = cuts_.row_numel();
    launch(stream_, {states.rows.grid.blocks(), states.rows.layout.bytes}, states);
  }

  void run_block(std::int64_t block) {
    const bool is_last = block + 1 == cuts_.blocks;
    const std::int64_t begin = block * cuts_.block_rows, end = std::min(cuts_.rows, begin + cuts_.block_rows);
    StatePass<T, PassOf::kept>& states = pass_.states;
    states.from = cuts_.at_begin(workspace_, block), states.to = cuts_.before_rows(workspace_);
    states.begin = begin, states.end = end, states.kept_step = cuts_.row_numel();
    pass_.from = is_last ? state_view(kernel_.dstate, memory_, iteration_) : cuts_.gradient(workspace_);
    launch(stream_, {pass_.rows.grid.blocks(), pass_.shared_bytes()}, pass_);
    sums_.first_row = begin, sums_.rows = end - begin;
    sums_.count = pass_.rows.grid.lanes * sums_.rows * 2 * (cuts_.key_dim + cuts_.heads_of_lane);
    launch(stream_, {ceil_div(sums_.count, std::int64_t{GradientSums<T>::kThreads})}, sums_);
  }

  const RecurrenceBackward& kernel_;
  const BackwardCuts& cuts_;
  const CudaMemory& memory_;
  std::int64_t iteration_;
  cudaStream_t stream_;
  float* workspace_ = nullptr;
  BackwardPass<T> pass_;
  GradientSums<T> sums_{};
};

template <class T>
PreparedKernel prepare_backward(const RecurrenceBackward& kernel, const CudaMemory& memory) {
  const BackwardCuts cuts(kernel);
  const auto starts = std::make_shared<const StartTable>(kernel.starts);
  const auto parts = std::make_shared<const GpuBytes>(cuts.parts_bytes());
  return [&kernel, &memory, cuts, starts, parts](std::int64_t iteration, cudaStream_t stream) {
    if (cuts.lanes == 0 || cuts.rows == 0) return;
    BackwardLaunches<T> launches(kernel, cuts, starts->starts(), reinterpret_cast<float*>(parts->data()),
                                 memory, iteration, stream);
    for (std::int64_t lane = 0; lane < cuts.lanes; lane += cuts.lanes_at_once)
      launches.run(lane, std::min(cuts.lanes_at_once, cuts.lanes - lane));
  };
}

}  // namespace

PreparedKernel prepare(const RecurrenceBackward& kernel, const CudaMemory& memory) {
  return with_floating_type(memory.dtype(kernel.k), [&]<class T>(std::type_identity<T>) {
    return prepare_backward<T>(kernel, memory);
  });
}

}  // namespace cp::runtime
