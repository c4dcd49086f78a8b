// The forward pass of recurrences, and what rows make of states that they do not know yet.
#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>

#include "runtime/cuda/prepared_kernels.h"
#include "runtime/cuda/recurrence_tiles.h"

namespace cp::runtime {
namespace {

// The way back through all rows, of the gradient dS of a state: dS' = dS + scale q dout^T; for the delta rule
// dP = dS' - k (beta dS'^T k)^T, else dP = dS'; and the gradient before the row is exp(log_decay) dP.
template <class T>
struct GradientPass {
  static constexpr int kThreads = kStateThreads;
  static constexpr const char* kName = "recurrence_summary_gradient";
  using StagedRows = StateRows<T, 1>;
  using Share = typename StagedRows::Share;

  StagedRows rows;
  StateView to;
  float scale;
  std::int64_t row_count;

  CP_DEVICE void operator()(Block& block) const {
    const StatePlace place = rows.grid.place(block.index());
    float* const shared = block.template shared<float>();
    PerThread<Share> dstate(block);
    block.for_each_thread([&](int thread) { rows.clear(dstate[thread]); });
    for (std::int64_t end = row_count; end > 0; end -= rows.layout.rows) {
      const int count = static_cast<int>(end < rows.layout.rows ? end : rows.layout.rows);
      block.for_each_thread([&](int thread) { rows.stage(thread, shared, place, end - count, count); });
      for (int row = count - 1; row >= 0; --row) {
        const auto begin_of = [&](int thread) { add_outputs(thread, shared, row, dstate[thread]); };
        if (rows.is_delta) block.for_each_thread(begin_of);
        block.for_each_thread([&](int thread) {
          if (!rows.is_delta) begin_of(thread);
          end_row(thread, shared, row, dstate[thread]);
        });
      }
    }
    block.last([&](int thread) { rows.store(thread, place, to, dstate[thread]); });
  }

  // dS becomes dS'. For the delta rule, the thread's part of dS'^T k too.
  CP_DEVICE void add_outputs(int thread, float* shared, int row, Share& dstate) const {
    const int column = rows.tile.column(thread, 0);
    const float dout = shared[rows.layout.dout + row * rows.tile.columns + column];
    const float *const k = shared + rows.layout.k + row * rows.tile.keys, *const q = shared + rows.layout.q +
                                                                                     row * rows.tile.keys;
    float sums[kKeysOfGroup] = {};
    CP_UNROLL
    for (int group = 0; group < StagedRows::kGroups; ++group) {
      if (group >= rows.tile.groups) continue;
      const FourFloats keys = four_floats(k + rows.tile.key(thread, group)),
                       queries = four_floats(q + rows.tile.key(thread, group));
      CP_UNROLL
      for (int i = 0; i < kKeysOfGroup; ++i) {
        float& element = dstate.values[group][i][0];
        element += scale * queries.values[i] * dout;
        sums[i] += element * keys.values[i];
      }
    }
    if (rows.is_delta) shared[rows.layout.rest + thread] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  CP_DEVICE void end_row(int thread, float* shared, int row, Share& dstate) const {
    const RowNumbers numbers = rows.numbers(shared)[row];
    float dw = 0;
    if (rows.is_delta) {
      const float* const dots = shared + rows.layout.rest + rows.tile.column(thread, 0);
      for (int part = 0; part < rows.tile.down; ++part) dw += dots[part * rows.tile.across];
      dw *= numbers.beta;
    }
    const float* const k = shared + rows.layout.k + row * rows.tile.keys;
    CP_UNROLL
    for (int group = 0; group < StagedRows::kGroups; ++group) {
      if (group >= rows.tile.groups) continue;
      const FourFloats keys = four_floats(k + rows.tile.key(thread, group));
      CP_UNROLL
      for (int i = 0; i < kKeysOfGroup; ++i) {
        float& element = dstate.values[group][i][0];
        if (rows.is_delta) element -= keys.values[i] * dw;
        element *= numbers.decay;
      }
    }
  }
};

// The transition of the rule of decay: one number for all rows of a head. A block has one head. Each thread
// adds up its own share, in double, as a long sequence has many rows.
struct DecayOfRows {
  static constexpr int kThreads = 128;
  static constexpr const char* kName = "recurrence_transition";
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(double));

  Vectors<const float> log_decay;
  std::int64_t rows, heads;
  float* transition;
  std::int64_t batch_step, head_step;

  CP_DEVICE void operator()(Block& block) const {
    const std::int64_t batch = block.index() / heads, head = block.index() % heads;
    double* const sums = block.shared<double>();
    block.for_each_thread([&](int thread) {
      double sum = 0;
      for (std::int64_t row = thread; row < rows; row += kThreads)
        sum += static_cast<double>(*log_decay.at(batch, row, head));
      sums[thread] = sum;
    });
    block.last([&](int thread) {
      if (thread != 0) return;
      double sum = 0;
      for (int i = 0; i < kThreads; ++i) sum += sums[i];
      transition[batch * batch_step + head * head_step] = static_cast<float>(exp(sum));
    });
  }
};

// One thread for each element of the result, whose sum runs in ascending order in one accumulator, as the
// host's does.
struct JoinStates {
  static constexpr int kThreads = 256;
  static constexpr const char* kName = "recurrence_join";

  StateView transition, in, out;
  std::int64_t count, heads, key_dim, value_dim;
  bool is_matrix, accumulate;

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      std::int64_t rest = block.index() * kThreads + thread;
      if (rest >= count) return;
      const std::int64_t column = rest % value_dim;
      rest /= value_dim;
      const std::int64_t key = rest % key_dim;
      rest /= key_dim;
      StatePlace place;
      place.head = rest % heads, place.batch = rest / heads;
      const float *const t = transition.at(place) + key * transition.key_step, *const x =
                                                                                   in.at(place) +
                                                                                   column * in.column_step;
      float sum = 0;
      if (is_matrix) {
        for (std::int64_t k = 0; k < key_dim; ++k) sum += t[k * transition.column_step] * x[k * in.key_step];
      } else {
        sum += *t * x[key * in.key_step];
      }
      float& element = out.at(place)[key * out.key_step + column * out.column_step];
      element = (accumulate ? element : 0) + sum;
    });
  }
};

template <class T>
PreparedKernel prepare_forward(const RecurrenceForward& kernel, const CudaMemory& memory) {
  const int columns = tile_columns(kernel.k.shape[3], kernel.v.shape[3], 1);
  const auto starts = std::make_shared<const StartTable>(kernel.starts);
  return [&kernel, &memory, columns, starts](std::int64_t iteration, cudaStream_t stream) {
    StatePass<T, PassOf::outputs> body{};
    body.rows = state_rows<T, 1>(kernel, kernel.v.shape[3], columns, memory, iteration);
    body.rows.q = vectors<const T>(kernel.q, memory, iteration);
    body.rows.v = vectors<const T>(kernel.v, memory, iteration);
    body.rows.starts = starts->starts();
    body.from = state_view(kernel.state, memory, iteration);
    body.to = state_view(kernel.final_state, memory, iteration);
    body.out = vectors<T>(kernel.out, memory, iteration);
    body.scale = static_cast<float>(kernel.scale);
    body.end = kernel.k.shape[1];
    body.set_layout();
    launch(stream, {body.rows.grid.blocks(), body.rows.layout.bytes}, body);
  };
}

// One of a summary's two states: that of the values or, without values, the transition, which goes through
// the rows as a state does that begins with ones on its diagonal and is written nothing to.
template <class T>
void launch_summary(const RecurrenceSummary& kernel, bool of_values, int columns, const CudaMemory& memory,
                    std::int64_t iteration, cudaStream_t stream) {
  const std::int64_t value_dim = of_values ? kernel.v.shape[3] : kernel.k.shape[3];
  StatePass<T, PassOf::summary> body{};
  body.rows = state_rows<T, 1>(kernel, value_dim, columns, memory, iteration);
  if (of_values) body.rows.v = vectors<const T>(kernel.v, memory, iteration);
  body.to = state_view(of_values ? kernel.state : kernel.transition, memory, iteration);
  body.begins_with_ones = !of_values;
  body.end = kernel.k.shape[1];
  body.set_layout();
  launch(stream, {body.rows.grid.blocks(), body.rows.layout.bytes}, body);
}

void launch_decay(const RecurrenceSummary& kernel, const CudaMemory& memory, std::int64_t iteration,
                  cudaStream_t stream) {
  const Shape &shape = kernel.log_decay.shape, &step = kernel.transition.strides;
  launch(stream, {shape[0] * shape[2], DecayOfRows::kSharedBytes},
         DecayOfRows{vectors<const float>(kernel.log_decay, memory, iteration), shape[1], shape[2],
                     reinterpret_cast<float*>(memory.at(kernel.transition, iteration)), step[0], step[1]});
}

template <class T>
PreparedKernel prepare_summary(const RecurrenceSummary& kernel, const CudaMemory& memory) {
  const std::int64_t key_dim = kernel.k.shape[3];
  const int columns = tile_columns(key_dim, kernel.v.shape[3], 1), square = tile_columns(key_dim, key_dim, 1);
  return [&kernel, &memory, columns, square](std::int64_t iteration, cudaStream_t stream) {
    launch_summary<T>(kernel, true, columns, memory, iteration, stream);
    if (is_absent(kernel.transition)) return;
    if (kernel.rule == RecurrenceRule::delta) {
      launch_summary<T>(kernel, false, square, memory, iteration, stream);
    } else {
      launch_decay(kernel, memory, iteration, stream);
    }
  };
}

template <class T>
PreparedKernel prepare_gradient(const RecurrenceSummaryGradient& kernel, const CudaMemory& memory) {
  const int columns = tile_columns(kernel.k.shape[3], kernel.dout.shape[3], 1);
  return [&kernel, &memory, columns](std::int64_t iteration, cudaStream_t stream) {
    GradientPass<T> body{};
    body.rows = state_rows<T, 1>(kernel, kernel.dout.shape[3], columns, memory, iteration);
    body.rows.q = vectors<const T>(kernel.q, memory, iteration);
    body.rows.dout = vectors<const T>(kernel.dout, memory, iteration);
    body.rows.layout = staged_layout({body.rows.tile.keys, 2, columns, 1, 0, kStateThreads});
    body.to = state_view(kernel.dstate, memory, iteration);
    body.scale = static_cast<float>(kernel.scale);
    body.row_count = kernel.k.shape[1];
    launch(stream, {body.rows.grid.blocks(), body.rows.layout.bytes}, body);
  };
}

}  // namespace

PreparedKernel prepare(const RecurrenceForward& kernel, const CudaMemory& memory) {
  return with_floating_type(memory.dtype(kernel.k), [&]<class T>(std::type_identity<T>) {
    return prepare_forward<T>(kernel, memory);
  });
}

PreparedKernel prepare(const RecurrenceSummary& kernel, const CudaMemory& memory) {
  return with_floating_type(memory.dtype(kernel.k), [&]<class T>(std::type_identity<T>) {
    return prepare_summary<T>(kernel, memory);
  });
}

PreparedKernel prepare(const RecurrenceSummaryGradient& kernel, const CudaMemory& memory) {
  return with_floating_type(memory.dtype(kernel.k), [&]<class T>(std::type_identity<T>) {
    return prepare_gradient<T>(kernel, memory);
  });
}

PreparedKernel prepare(const RecurrenceJoin& kernel, const CudaMemory& memory) {
  return [&kernel, &memory](std::int64_t iteration, cudaStream_t stream) {
    const Shape& shape = kernel.out.shape;
    StateView transition = state_view(kernel.transition, memory, iteration);
    if (kernel.transposed) std::swap(transition.key_step, transition.column_step);
    const bool is_matrix = kernel.transition.shape[2] != 1;
    if (!is_matrix) transition.key_step = 0;  // a number acts as a diagonal of it does
    const std::int64_t count = kernel.out.numel();
    launch(stream, {ceil_div(count, std::int64_t{JoinStates::kThreads})},
           JoinStates{transition, state_view(kernel.in, memory, iteration),
                      state_view(kernel.out, memory, iteration), count, shape[1], shape[2], shape[3],
                      is_matrix, kernel.accumulate});
  };
}

}  // namespace cp::runtime
