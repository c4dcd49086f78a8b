// What the kernels of recurrences share: how the state of a head is divided among blocks and threads, and how
// rows come to them.
//
// Given q and k, the columns of a state do not depend on one another. So a block of 128 threads has a tile of
// columns of one value head's state, and takes it through the rows one after the other. The tile stays in
// registers, 32 elements of it in each thread: at most 32 columns, and fewer where keys are long. What
// threads add up over the keys of a column, or over the columns of a key, comes together in shared memory, in
// an order that depends on shapes alone, so that equal calls give equal bits.
//
// Rows come into shared memory as f32, up to 16 at once, so that the reads of all of them are under way
// together.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/pack.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/base/types.h"
#include "shared/kernels/elements.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Chosen: 32 elements of a state and as many of its gradient, with what a thread computes from them, fit into
// the 168 registers that a thread has where three blocks share a multiprocessor.
inline constexpr int kStateThreads = 128, kStateElements = 32;
inline constexpr int kTileElements = kStateThreads * kStateElements;
inline constexpr int kMostTileColumns = 32;  // of f32: a cache line of a state in memory
inline constexpr int kMostStagedRows = 16;

// Neighbouring keys go together: four values of a row's k are one access.
inline constexpr int kKeysOfGroup = 4;
using FourFloats = Pack<float, kKeysOfGroup>;
CP_DEVICE const FourFloats& four_floats(const float* at) { return *reinterpret_cast<const FourFloats*>(at); }

// ---- views ----

// A [batch, rows, heads, dim] view. A [batch, rows, heads] one has a single value in each row.
template <class T>
struct Vectors {
  T* data = nullptr;
  std::int64_t batch_step = 0, row_step = 0, head_step = 0, dim_step = 0;

  CP_DEVICE T* at(std::int64_t batch, std::int64_t row, std::int64_t head) const {
    return data + batch * batch_step + row * row_step + head * head_step;
  }
};

// What a block has of a state. A lane is a key head of a batch entry, with the value heads that share it; it
// is counted among those of the launch, and the value head among those of the lane.
struct StatePlace {
  std::int64_t batch = 0, key_head = 0, head = 0, lane = 0, head_of_lane = 0, tile = 0;
  std::int64_t column = 0;  // the tile's first
};

// A [batch, value_heads, key_dim, value_dim] view of states, or those of the lanes of a workspace.
struct StateView {
  float* data = nullptr;  // null: zeros, if they are read
  std::int64_t batch_step = 0, head_step = 0, lane_step = 0, head_of_lane_step = 0, key_step = 0,
               column_step = 0;

  CP_DEVICE float* at(const StatePlace& place) const {
    return data + place.batch * batch_step + place.head * head_step + place.lane * lane_step +
           place.head_of_lane * head_of_lane_step + place.column * column_step;
  }
};

// The rows before which states become zeros, ascending.
struct DocumentStarts {
  const std::int64_t* rows = nullptr;
  std::int64_t count = 0;

  CP_DEVICE bool contains(std::int64_t row) const {
    std::int64_t begin = 0, end = count;
    while (begin < end) {
      const std::int64_t middle = (begin + end) / 2;
      if (rows[middle] < row) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin < count && rows[begin] == row;
  }
};

// Owns them on the current device.
class StartTable {
 public:
  // Blocks until they are there.
  explicit StartTable(const std::vector<std::int64_t>& starts)
      : bytes_(std::as_bytes(std::span<const std::int64_t>(starts))),
        count_(static_cast<std::int64_t>(starts.size())) {}
  DocumentStarts starts() const { return {reinterpret_cast<const std::int64_t*>(bytes_.data()), count_}; }

 private:
  GpuBytes bytes_;
  std::int64_t count_;
};

// ---- tiles ----

// The blocks of a launch: [lane][value head of the lane][tile].
struct StateGrid {
  std::int64_t key_heads = 1, heads_of_lane = 0, tiles = 0, columns = 0, first_lane = 0, lanes = 0;

  CP_DEVICE StatePlace place(std::int64_t index) const {
    StatePlace place;
    place.tile = index % tiles, place.column = place.tile * columns, index /= tiles;
    place.head_of_lane = index % heads_of_lane, place.lane = index / heads_of_lane;
    place.batch = (first_lane + place.lane) / key_heads;
    place.key_head = (first_lane + place.lane) % key_heads;
    place.head = place.key_head * heads_of_lane + place.head_of_lane;
    return place;
  }
  std::int64_t blocks() const { return lanes * heads_of_lane * tiles; }
};

// Which elements of a tile a thread has: kColumns columns, and of them keys in groups of four. Neighbouring
// threads have neighbouring columns, and then neighbouring groups.
template <int kColumns>
struct StateTile {
  static constexpr int kGroups = kStateElements / (kColumns * kKeysOfGroup);
  int columns = 0;
  int across = 0, across_bits = 0;  // threads that share a key, a power of two
  int down = 0;                     // threads that share a column
  int groups = 0;                   // of each thread; the last one may lie behind key_dim
  int keys = 0;                     // of all threads' groups: key_dim, and zeros behind it

  CP_DEVICE int lane_across(int thread) const { return thread & (across - 1); }
  CP_DEVICE int lane_down(int thread) const { return thread >> across_bits; }
  CP_DEVICE int column(int thread, int i) const { return lane_across(thread) + across * i; }
  CP_DEVICE int key(int thread, int group) const { return (lane_down(thread) + down * group) * kKeysOfGroup; }
};

template <int kColumns>
struct StateShare {
  float values[StateTile<kColumns>::kGroups][kKeysOfGroup][kColumns];
};

// The columns of a tile: a power of two from `least` on. Throws InvalidInput if keys are too long for a tile.
inline int tile_columns(std::int64_t key_dim, std::int64_t value_dim, int least) {
  int columns = kMostTileColumns;
  const auto fits = [&] { return key_dim <= kTileElements / columns; };
  while (columns > least && (!fits() || columns / 2 >= value_dim)) columns /= 2;
  if (!fits())
    throw InvalidInput(str("keys have ", key_dim, " elements; the GPU's kernel takes up to ",
                           kTileElements / columns, ", which its threads hold in registers"));
  return columns;
}

template <int kColumns>
StateTile<kColumns> state_tile(std::int64_t key_dim, int columns) {
  StateTile<kColumns> tile;
  tile.columns = columns, tile.across = columns / kColumns;
  tile.across_bits = std::countr_zero(static_cast<unsigned>(tile.across));
  tile.down = kStateThreads / tile.across;
  const int keys_at_once = tile.down * kKeysOfGroup;
  tile.groups = static_cast<int>(ceil_div(key_dim, keys_at_once)), tile.keys = tile.groups * keys_at_once;
  CP_INVARIANT(columns % kColumns == 0 && tile.groups <= StateTile<kColumns>::kGroups, "a tile of ", columns,
               " columns with ", key_dim, " keys");
  return tile;
}

// ---- rows in shared memory ----

struct RowNumbers {
  float decay, beta;
  std::int32_t is_start;  // a document begins with the row
};

// Where the rows at hand lie in shared memory, in floats from its begin on.
struct StagedLayout {
  int rows = 0;         // at once
  int k = 0, q = 0;     // [row][keys of the tile]
  int v = 0, dout = 0;  // [row][columns of the tile]
  int numbers = 0;      // [row] of RowNumbers
  int rest = 0;         // what else the kernel has there; aligned for FourFloats
  int bytes = 0;        // in all
};

struct StagedSizes {
  int keys = 0, key_vectors = 0;       // k, then q
  int columns = 0, value_vectors = 0;  // v, then dout
  // Floats that the kernel needs for each row, and in all.
  int of_row = 0, of_block = 0;
};

inline StagedLayout staged_layout(const StagedSizes& sizes) {
  constexpr int kFloats = 48 * 1024 / 4;
  constexpr int kNumbers = static_cast<int>(sizeof(RowNumbers) / sizeof(float));
  const int row = sizes.key_vectors * sizes.keys + sizes.value_vectors * sizes.columns + kNumbers +
                  sizes.of_row,
            room = kFloats - sizes.of_block - (kKeysOfGroup - 1);
  StagedLayout at;
  at.rows = std::clamp(room / row, 1, kMostStagedRows);
  CP_INVARIANT(at.rows * row <= room, "a row of ", row, " floats beside ", sizes.of_block);
  at.q = at.k + (sizes.key_vectors > 1 ? at.rows * sizes.keys : 0);
  at.v = at.q + at.rows * sizes.keys;
  at.dout = at.v + (sizes.value_vectors > 1 ? at.rows * sizes.columns : 0);
  at.numbers = at.dout + at.rows * sizes.columns;
  at.rest = static_cast<int>(align_up(at.numbers + at.rows * kNumbers, kKeysOfGroup));
  at.bytes = (at.rest + at.rows * sizes.of_row + sizes.of_block) * 4;
  return at;
}

// The rows that go past the states, and how these are divided. T: of q, k, v and dout.
template <class T, int kColumns>
struct StateRows {
  using Share = StateShare<kColumns>;
  static constexpr int kGroups = StateTile<kColumns>::kGroups;

  StateGrid grid;
  StateTile<kColumns> tile;
  StagedLayout layout;
  Vectors<const T> q, k, v, dout;  // those that are null are not staged
  Vectors<const float> log_decay, beta;
  DocumentStarts starts;
  std::int64_t key_dim = 0, value_dim = 0;
  bool is_delta = false;

  // Stages `count` rows from `first` on. Part of a phase.
  CP_DEVICE void stage(int thread, float* shared, const StatePlace& place, std::int64_t first,
                       int count) const {
    const std::int64_t columns = value_dim - place.column;
    if (key_dim > 0) {
      stage_vectors(thread, shared + layout.k, tile.keys, k, key_dim,
                    k.at(place.batch, first, place.key_head), count);
      if (q.data != nullptr)
        stage_vectors(thread, shared + layout.q, tile.keys, q, key_dim,
                      q.at(place.batch, first, place.key_head), count);
    }
    if (v.data != nullptr)
      stage_vectors(thread, shared + layout.v, tile.columns, v, columns,
                    v.at(place.batch, first, place.head) + place.column * v.dim_step, count);
    if (dout.data != nullptr)
      stage_vectors(thread, shared + layout.dout, tile.columns, dout, columns,
                    dout.at(place.batch, first, place.head) + place.column * dout.dim_step, count);
    if (thread < count) {
      const std::int64_t row = first + thread;
      numbers(shared)[thread] = {expf(*log_decay.at(place.batch, row, place.head)),
                                 *beta.at(place.batch, row, place.head), starts.contains(row) ? 1 : 0};
    }
  }
  CP_DEVICE RowNumbers* numbers(float* shared) const {
    return reinterpret_cast<RowNumbers*>(shared + layout.numbers);
  }

  // Calls f(element, key, column of the tile) for those elements of the thread that the state has.
  template <class F>
  CP_DEVICE void for_each_element(int thread, const StatePlace& place, Share& share, F&& f) const {
    CP_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      CP_UNROLL
      for (int i = 0; i < kKeysOfGroup; ++i) {
        CP_UNROLL
        for (int c = 0; c < kColumns; ++c) {
          const int key = tile.key(thread, group) + i, column = tile.column(thread, c);
          if (key < key_dim && place.column + column < value_dim) f(share.values[group][i][c], key, column);
        }
      }
    }
  }
  CP_DEVICE void clear(Share& share) const {
    CP_UNROLL
    for (auto& group : share.values) {
      CP_UNROLL
      for (auto& key : group) {
        CP_UNROLL
        for (float& value : key) value = 0;
      }
    }
  }
  // Zeros where the state has no element, too.
  CP_DEVICE void load(int thread, const StatePlace& place, const StateView& from, Share& share) const {
    clear(share);
    if (from.data == nullptr) return;
    const float* const first = from.at(place);
    for_each_element(thread, place, share, [&](float& element, int key, int column) {
      element = first[key * from.key_step + column * from.column_step];
    });
  }
  CP_DEVICE void store(int thread, const StatePlace& place, const StateView& to, Share& share) const {
    if (to.data == nullptr) return;  // of no elements, or nobody wants it
    float* const first = to.at(place);
    for_each_element(thread, place, share, [&](float& element, int key, int column) {
      first[key * to.key_step + column * to.column_step] = element;
    });
  }

 private:
  // The first `size` values of each vector, and zeros up to `width`.
  CP_DEVICE static void stage_vectors(int thread, float* to, int width, const Vectors<const T>& view,
                                      std::int64_t size, const T* from, int count) {
    for (int i = thread; i < width; i += kStateThreads) {
      T values[kMostStagedRows] = {};
      CP_UNROLL
      for (int row = 0; row < kMostStagedRows; ++row) {
        if (row < count && i < size) values[row] = from[row * view.row_step + i * view.dim_step];
      }
      CP_UNROLL
      for (int row = 0; row < kMostStagedRows; ++row) {
        if (row < count) to[row * width + i] = cp::load(values[row]);
      }
    }
  }
};

// ---- going through the rows ----

// What a pass over rows is for: their outputs, the state behind the last one, or the states before some.
enum class PassOf : std::uint8_t { outputs, summary, kept };

// Takes states through the rows [begin, end): P = exp(log_decay) S; w = v - P^T k, or v for the rule of
// decay; S' = P + k (beta w)^T; and out = scale S'^T q.
template <class T, PassOf kOf>
struct StatePass {
  static constexpr int kThreads = kStateThreads;
  static constexpr const char* kName = "recurrence_states";
  using Rows = StateRows<T, 1>;
  using Share = typename Rows::Share;

  Rows rows;
  // Before the first row; and behind the last, or, if states are kept, before the first. A block reads its
  // tile of the former before it writes that of the latter: both may be one view.
  StateView from, to;
  bool begins_with_ones = false;  // on the diagonal, instead of `from`
  Vectors<T> out;
  float scale = 1;
  std::int64_t begin = 0, end = 0;
  // If states are kept: that before the first row and before each so many rows further on, and how far apart
  // they lie.
  std::int64_t kept_rows = 1, kept_step = 0;

  // For a body whose rows and tile are set.
  void set_layout() {
    constexpr bool kHasOut = kOf == PassOf::outputs;
    rows.layout = staged_layout(
        {rows.tile.keys, kHasOut ? 2 : 1, rows.tile.columns, 1, kHasOut ? kStateThreads : 0, kStateThreads});
  }

  CP_DEVICE void operator()(Block& block) const {
    const StatePlace place = rows.grid.place(block.index());
    float* const shared = block.template shared<float>();
    PerThread<Share> state(block);
    block.for_each_thread([&](int thread) { begin_states(thread, place, state[thread]); });
    StateView kept = to;
    std::int64_t next_kept = begin;
    for (std::int64_t first = begin; first < end; first += rows.layout.rows) {
      const int count = static_cast<int>(end - first < rows.layout.rows ? end - first : rows.layout.rows);
      block.for_each_thread([&](int thread) { rows.stage(thread, shared, place, first, count); });
      for (int row = 0; row < count; ++row) {
        const bool keeps = kOf == PassOf::kept && first + row == next_kept;
        const auto begin_of = [&](int thread) {
          if (rows.numbers(shared)[row].is_start != 0) rows.clear(state[thread]);
          if (keeps) rows.store(thread, place, kept, state[thread]);
          decay_row(thread, shared, row, state[thread]);
        };
        if (rows.is_delta) block.for_each_thread(begin_of);
        block.for_each_thread([&](int thread) {
          if (!rows.is_delta) begin_of(thread);
          end_row(thread, shared, row, state[thread]);
        });
        if (keeps) next_kept += kept_rows, kept.data += kept_step;
      }
      if constexpr (kOf == PassOf::outputs)
        block.for_each_thread([&](int thread) { store_outputs(thread, shared, place, first, count); });
    }
    if constexpr (kOf != PassOf::kept)
      block.last([&](int thread) { rows.store(thread, place, to, state[thread]); });
  }

 private:
  // The sums over the keys of each thread: of P^T k, and behind them of S'^T q for each row.
  CP_DEVICE float* dots(float* shared) const { return shared + rows.layout.rest; }
  CP_DEVICE float* outs(float* shared, int row) const { return dots(shared) + (row + 1) * kStateThreads; }

  CP_DEVICE void begin_states(int thread, const StatePlace& place, Share& state) const {
    rows.load(thread, place, from, state);
    if (!begins_with_ones) return;
    rows.for_each_element(thread, place, state, [&](float& element, int key, int column) {
      element = key == place.column + column ? 1.0F : 0.0F;
    });
  }

  // S becomes P. For the delta rule, the thread's part of P^T k too: as four sums side by side, so that one
  // need not wait for the other.
  CP_DEVICE void decay_row(int thread, float* shared, int row, Share& state) const {
    const float decay = rows.numbers(shared)[row].decay;
    const float* const k = shared + rows.layout.k + row * rows.tile.keys;
    float sums[kKeysOfGroup] = {};
    CP_UNROLL
    for (int group = 0; group < Rows::kGroups; ++group) {
      if (group >= rows.tile.groups) continue;
      const FourFloats keys = four_floats(k + rows.tile.key(thread, group));
      CP_UNROLL
      for (int i = 0; i < kKeysOfGroup; ++i) {
        float& element = state.values[group][i][0];
        element *= decay;
        sums[i] += element * keys.values[i];
      }
    }
    if (rows.is_delta) dots(shared)[thread] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  // P becomes S'.
  CP_DEVICE void end_row(int thread, float* shared, int row, Share& state) const {
    const int column = rows.tile.column(thread, 0);
    float w = rows.v.data != nullptr ? shared[rows.layout.v + row * rows.tile.columns + column] : 0;
    if (rows.is_delta) {
      float sum = 0;
      for (int part = 0; part < rows.tile.down; ++part) sum += dots(shared)[part * rows.tile.across + column];
      w -= sum;
    }
    const float written = rows.numbers(shared)[row].beta * w;
    const float *const k = shared + rows.layout.k + row * rows.tile.keys, *const q = shared + rows.layout.q +
                                                                                     row * rows.tile.keys;
    float sums[kKeysOfGroup] = {};
    CP_UNROLL
    for (int group = 0; group < Rows::kGroups; ++group) {
      if (group >= rows.tile.groups) continue;
      const FourFloats keys = four_floats(k + rows.tile.key(thread, group));
      FourFloats queries = {};
      if constexpr (kOf == PassOf::outputs) queries = four_floats(q + rows.tile.key(thread, group));
      CP_UNROLL
      for (int i = 0; i < kKeysOfGroup; ++i) {
        float& element = state.values[group][i][0];
        element += keys.values[i] * written;
        if constexpr (kOf == PassOf::outputs) sums[i] += element * queries.values[i];
      }
    }
    if constexpr (kOf == PassOf::outputs)
      outs(shared, row)[thread] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  CP_DEVICE void store_outputs(int thread, float* shared, const StatePlace& place, std::int64_t first,
                               int count) const {
    for (int n = thread; n < count * rows.tile.columns; n += kThreads) {
      const int row = n >> rows.tile.across_bits, column = rows.tile.lane_across(n);
      if (place.column + column >= rows.value_dim) continue;
      float sum = 0;
      for (int part = 0; part < rows.tile.down; ++part)
        sum += outs(shared, row)[part * rows.tile.across + column];
      out.at(place.batch, first + row, place.head)[(place.column + column) * out.dim_step] =
          convert<T>(sum * scale);
    }
  }
};

// ---- operands ----

template <class T>
Vectors<T> vectors(const View& view, const CudaMemory& memory, std::int64_t iteration) {
  const Shape& step = view.strides;
  return {reinterpret_cast<T*>(memory.at(view, iteration)), step[0], step[1], step[2],
          step.size() > 3 ? step[3] : 0};
}

inline StateView state_view(const View& view, const CudaMemory& memory, std::int64_t iteration) {
  if (is_absent(view)) return {};
  const Shape& step = view.strides;
  return {reinterpret_cast<float*>(memory.at(view, iteration)), step[0], step[1], 0, 0, step[2], step[3]};
}

// What all operations on rows have: k and the numbers of the rows of all lanes. The states have `value_dim`
// columns.
template <class T, int kColumns, class Op>
StateRows<T, kColumns> state_rows(const Op& kernel, std::int64_t value_dim, int columns,
                                  const CudaMemory& memory, std::int64_t iteration) {
  StateRows<T, kColumns> rows;
  const Shape& keys = kernel.k.shape;
  rows.key_dim = keys[3], rows.value_dim = value_dim;
  rows.is_delta = kernel.rule == RecurrenceRule::delta;
  const std::int64_t key_heads = std::max<std::int64_t>(1, keys[2]);
  rows.grid = {
      key_heads,        kernel.log_decay.shape[2] / key_heads, ceil_div(value_dim, columns), columns, 0,
      keys[0] * keys[2]};
  rows.tile = state_tile<kColumns>(rows.key_dim, columns);
  rows.k = vectors<const T>(kernel.k, memory, iteration);
  rows.log_decay = vectors<const float>(kernel.log_decay, memory, iteration);
  rows.beta = vectors<const float>(kernel.beta, memory, iteration);
  return rows;
}

}  // namespace cp::runtime
