// What MLPs and gates compute element by element, and biases. The exponentials of a pack take fewer
// instructions than its memory traffic leaves room for, in 16 bits too.
#include <cstdint>
#include <type_traits>
#include <variant>
#include <vector>

#include "runtime/cuda/row_access.h"
#include "runtime/cuda/row_column_sums.h"
#include "runtime/cuda/row_kernels.h"
#include "shared/kernels/activation.h"
#include "shared/plan/row_rules.h"

namespace cp::runtime {
namespace {

// Calls use(std::integral_constant<ActivationFunction, ...>()), so that a branch on the function stands
// before the loop over a row's packs. Within it, each pack would bring the code of all functions, several
// times what the caches of instructions hold, of which one function's would lie in pieces.
template <class Use>
CP_DEVICE void with_function(ActivationFunction function, Use&& use) {
  using F = ActivationFunction;
  switch (function) {
    case F::silu:
      return use(std::integral_constant<F, F::silu>());
    case F::gelu:
      return use(std::integral_constant<F, F::gelu>());
    case F::gelu_tanh:
      return use(std::integral_constant<F, F::gelu_tanh>());
    case F::relu:
      return use(std::integral_constant<F, F::relu>());
    case F::relu2:
      return use(std::integral_constant<F, F::relu2>());
  }
}

// Packs of a thread, which reads two or three views: with more of them fewer threads would have registers,
// and the few blocks of a matrix would end at different times.
constexpr int kActivationPacks = 2;

template <int kPack>
struct ActivationForward {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "gated_activation";

  RowLanes lanes;  // packs: of y
  ActivationFunction function;
  bool gated;
  std::int64_t columns;  // of y
  RowMatrix<kPack> up, y;
  Statistics weights;  // without data if there are none

  struct Own {
    RowBits gate, up;
  };

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row >= lanes.rows) return;
      const float weight = weights.data == nullptr ? 1 : weights.at(row);
      with_function(function, [&](auto chosen) {
        for_packs<kActivationPacks>(
            lanes.lane(thread), lanes.lanes(), lanes.packs,
            [&](std::int64_t pack) {
              Own own{up.read(row, pack * kPack), {}};
              if (gated) own.up = up.read(row, columns + pack * kPack);
              return own;
            },
            [&](std::int64_t pack, const Own& own) {
              float gates[kPack], others[kPack];
              up.values(own.gate, gates), up.values(own.up, others);
              CP_UNROLL
              for (int i = 0; i < kPack; ++i)
                gates[i] = weight * activate(chosen(), gates[i]).value * (gated ? others[i] : 1);
              y.write(row, pack * kPack, gates);
            });
      });
    });
  }
};

// Of experts' rows also the gradient of the row's weight: as in norms, sums of packs in f32, and theirs in
// f64.
template <int kPack>
struct ActivationBackward {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "gated_activation_backward";
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(double));

  RowLanes lanes;  // packs: of dy
  ActivationFunction function;
  bool gated;
  std::int64_t columns;  // of dy
  RowMatrix<kPack> up, dy, d_up;
  Statistics weights, d_weights;  // without data if there are none

  struct Own {
    RowBits gate, up, dy;
  };

  CP_DEVICE void operator()(Block& block) const {
    PerThread<double> sums(block);
    block.for_each_thread([&](int thread) {
      sums[thread] = 0;
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row >= lanes.rows) return;
      const bool weighted = weights.data != nullptr;
      const float weight = weighted ? weights.at(row) : 1;
      double sum = 0;
      with_function(function, [&](auto chosen) {
        for_packs<kActivationPacks>(
            lanes.lane(thread), lanes.lanes(), lanes.packs,
            [&](std::int64_t pack) {
              Own own{up.read(row, pack * kPack), {}, dy.read(row, pack * kPack)};
              if (gated) own.up = up.read(row, columns + pack * kPack);
              return own;
            },
            [&](std::int64_t pack, const Own& own) {
              float gates[kPack], others[kPack], d[kPack];
              up.values(own.gate, gates), up.values(own.up, others), dy.values(own.dy, d);
              float of_pack = 0;
              CP_UNROLL
              for (int i = 0; i < kPack; ++i) {
                const Activated gate = activate(chosen(), gates[i]);
                const float other = gated ? others[i] : 1;
                of_pack += d[i] * gate.value * other;
                gates[i] = weight * d[i] * gate.slope * other;
                others[i] = weight * d[i] * gate.value;
              }
              if (weighted) sum += of_pack;
              d_up.write(row, pack * kPack, gates);
              if (gated) d_up.write(row, columns + pack * kPack, others);
            });
      });
      sums[thread] = sum;
    });
    if (weights.data == nullptr) return;
    join_lanes(
        block, lanes, sums, block.template shared<double>(), [](double a, double b) { return a + b; },
        [&](double sum, int thread) {
          const std::int64_t row = lanes.row(block.index(), thread);
          if (row < lanes.rows) d_weights.at(row) = static_cast<float>(sum);
          return sum;
        });
  }
};

template <int kPack>
struct OutputGate {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "output_gate";

  RowLanes lanes;
  RowMatrix<kPack> x, gates, y;

  struct Own {
    RowBits x, gates;
  };

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row >= lanes.rows) return;
      for_packs(
          lanes.lane(thread), lanes.lanes(), lanes.packs,
          [&](std::int64_t pack) {
            return Own{x.read(row, pack * kPack), gates.read(row, pack * kPack)};
          },
          [&](std::int64_t pack, const Own& own) {
            float values[kPack], gate[kPack];
            x.values(own.x, values), gates.values(own.gates, gate);
            CP_UNROLL
            for (int i = 0; i < kPack; ++i) values[i] *= sigmoid(gate[i]);
            y.write(row, pack * kPack, values);
          });
    });
  }
};

template <int kPack>
struct OutputGateBackward {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "output_gate_backward";

  RowLanes lanes;
  RowMatrix<kPack> dy, x, gates, dx, d_gates;

  struct Own {
    RowBits dy, x, gates;
  };

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row >= lanes.rows) return;
      for_packs(
          lanes.lane(thread), lanes.lanes(), lanes.packs,
          [&](std::int64_t pack) {
            return Own{dy.read(row, pack * kPack), x.read(row, pack * kPack), gates.read(row, pack * kPack)};
          },
          [&](std::int64_t pack, const Own& own) {
            float d[kPack], values[kPack], gate[kPack];
            dy.values(own.dy, d), x.values(own.x, values), gates.values(own.gates, gate);
            CP_UNROLL
            for (int i = 0; i < kPack; ++i) {
              const float s = sigmoid(gate[i]);
              gate[i] = d[i] * values[i] * s * (1 - s);
              d[i] *= s;
            }
            dx.write(row, pack * kPack, d), d_gates.write(row, pack * kPack, gate);
          });
    });
  }
};

template <int kPack>
struct AddBias {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "add_bias";

  RowLanes lanes;
  RowMatrix<kPack> bias, y;

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row >= lanes.rows) return;
      for_packs(
          lanes.lane(thread), lanes.lanes(), lanes.packs,
          [&](std::int64_t pack) { return y.read(row, pack * kPack); },
          [&](std::int64_t pack, const RowBits& bits) {
            float values[kPack], more[kPack];
            y.values(bits, values), bias.load(0, pack * kPack, more);
            CP_UNROLL
            for (int i = 0; i < kPack; ++i) values[i] += more[i];
            y.write(row, pack * kPack, values);
          });
    });
  }
};

}  // namespace

PreparedKernel prepare_gated_activation(const RowKernel& kernel, const CudaMemory& memory) {
  const View &up = kernel.reads[0], &y = kernel.writes[0];
  const View* const weights = kernel.reads.size() > 1 ? &kernel.reads[1] : nullptr;
  const auto rule = std::get<ActivationRule>(kernel.rule);
  return prepare_rows(
      {&up, &y}, {}, memory,
      [rule, &up, &y, weights, &memory]<int kPack>(std::integral_constant<int, kPack>, std::int64_t iteration,
                                                   cudaStream_t stream) {
        const RowLanes lanes = row_lanes(y.shape[0], y.shape[1] / kPack, kActivationPacks);
        launch(stream, {lanes.blocks()},
               ActivationForward<kPack>{lanes, rule.function, rule.gated, y.shape[1],
                                        row_matrix<kPack>(up, memory, iteration),
                                        row_matrix<kPack>(y, memory, iteration),
                                        weights ? statistics(*weights, memory, iteration) : Statistics{}});
      });
}

PreparedKernel prepare_gated_activation_backward(const RowKernel& kernel, const CudaMemory& memory) {
  const View &up = kernel.reads[0], &dy = kernel.reads.back(), &d_up = kernel.writes[0];
  const bool weighted = kernel.reads.size() > 2;
  const View *const weights = weighted ? &kernel.reads[1] : nullptr, *const d_weights =
                                                                         weighted ? &kernel.writes[1]
                                                                                  : nullptr;
  const auto rule = std::get<ActivationRule>(kernel.rule);
  return prepare_rows({&up, &dy, &d_up}, {}, memory,
                      [rule, &up, &dy, &d_up, weights, d_weights, &memory]<int kPack>(
                          std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
                        using Body = ActivationBackward<kPack>;
                        const RowLanes lanes = row_lanes(dy.shape[0], dy.shape[1] / kPack, kActivationPacks);
                        Body body{lanes,
                                  rule.function,
                                  rule.gated,
                                  dy.shape[1],
                                  row_matrix<kPack>(up, memory, iteration),
                                  row_matrix<kPack>(dy, memory, iteration),
                                  row_matrix<kPack>(d_up, memory, iteration),
                                  {},
                                  {}};
                        if (weights != nullptr) {
                          body.weights = statistics(*weights, memory, iteration);
                          body.d_weights = statistics(*d_weights, memory, iteration);
                        }
                        launch(stream, {lanes.blocks(), Body::kSharedBytes}, body);
                      });
}

PreparedKernel prepare_output_gate(const RowKernel& kernel, const CudaMemory& memory) {
  const View &x = kernel.reads[0], &gates = kernel.reads[1], &y = kernel.writes[0];
  return prepare_rows({&x, &gates, &y}, {}, memory,
                      [&x, &gates, &y, &memory]<int kPack>(std::integral_constant<int, kPack>,
                                                           std::int64_t iteration, cudaStream_t stream) {
                        const RowLanes lanes = row_lanes(x.shape[0], x.shape[1] / kPack);
                        launch(stream, {lanes.blocks()},
                               OutputGate<kPack>{lanes, row_matrix<kPack>(x, memory, iteration),
                                                 row_matrix<kPack>(gates, memory, iteration),
                                                 row_matrix<kPack>(y, memory, iteration)});
                      });
}

PreparedKernel prepare_output_gate_backward(const RowKernel& kernel, const CudaMemory& memory) {
  const View &dy = kernel.reads[0], &x = kernel.reads[1], &gates = kernel.reads[2], &dx = kernel.writes[0],
             &d_gates = kernel.writes[1];
  return prepare_rows({&dy, &x, &gates, &dx, &d_gates}, {}, memory,
                      [&dy, &x, &gates, &dx, &d_gates, &memory]<int kPack>(
                          std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
                        const auto matrix = [&](const View& view) {
                          return row_matrix<kPack>(view, memory, iteration);
                        };
                        const RowLanes lanes = row_lanes(x.shape[0], x.shape[1] / kPack);
                        launch(stream, {lanes.blocks()},
                               OutputGateBackward<kPack>{lanes, matrix(dy), matrix(x), matrix(gates),
                                                         matrix(dx), matrix(d_gates)});
                      });
}

PreparedKernel prepare_add_bias(const RowKernel& kernel, const CudaMemory& memory) {
  const View& read = kernel.reads[0];
  if (read.shape.size() == 1) {
    const View& y = kernel.updates[0];
    return prepare_rows({&read, &y}, {}, memory,
                        [&read, &y, &memory]<int kPack>(std::integral_constant<int, kPack>,
                                                        std::int64_t iteration, cudaStream_t stream) {
                          const RowLanes lanes = row_lanes(y.shape[0], y.shape[1] / kPack);
                          launch(stream, {lanes.blocks()},
                                 AddBias<kPack>{lanes, row_matrix<kPack>(read, memory, iteration),
                                                row_matrix<kPack>(y, memory, iteration)});
                        });
  }
  return prepare_rows({&read}, {}, memory,
                      [&read, result = results_of(kernel)[0], &memory]<int kPack>(
                          std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
                        launch_column_sums(stream, row_matrix<kPack>(read, memory, iteration), read.shape[0],
                                           read.shape[1], row_matrix<1>(*result.view, memory, iteration),
                                           result.adds);
                      });
}

}  // namespace cp::runtime
