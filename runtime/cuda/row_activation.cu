// What MLPs and gates compute element by element, and biases. The exponentials of a pack take fewer
// instructions than its memory traffic leaves room for, in 16 bits too.
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/cuda/row_access.h"
#include "runtime/cuda/row_column_sums.h"
#include "runtime/cuda/row_kernels.h"
#include "runtime/cuda/walk.h"
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
    case F::quick_gelu:
      return use(std::integral_constant<F, F::quick_gelu>());
    case F::identity:
      return use(std::integral_constant<F, F::identity>());
  }
}

// What ActivationRule says beside the function.
struct ActivationLimits {
  bool gated, weighs_inputs;
  float limit, offset;

  explicit ActivationLimits(const ActivationRule& rule)
      : gated(rule.gated),
        weighs_inputs(rule.weighs_inputs),
        limit(static_cast<float>(rule.limit)),
        offset(static_cast<float>(rule.offset)) {}
  CP_DEVICE Gated of(ActivationFunction function, float gate, float other) const {
    return gated ? activate_gated(function, limit, offset, gate, other)
                 : activate_alone(function, limit, gate);
  }
};

// Packs of a thread, which reads two or three views: with more of them fewer threads would have registers,
// and the few blocks of a matrix would end at different times.
constexpr int kActivationPacks = 2;

template <int kPack>
struct ActivationForward {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "gated_activation";

  RowLanes lanes;  // packs: of y
  ActivationFunction function;
  ActivationLimits rule;
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
      const float weight = weights.data == nullptr ? 1 : weights.at(row),
                  of_inputs = rule.weighs_inputs ? weight : 1, of_outputs = rule.weighs_inputs ? 1 : weight;
      with_function(function, [&](auto chosen) {
        for_packs<kActivationPacks>(
            lanes.lane(thread), lanes.lanes(), lanes.packs,
            [&](std::int64_t pack) {
              Own own{up.read(row, pack * kPack), {}};
              if (rule.gated) own.up = up.read(row, columns + pack * kPack);
              return own;
            },
            [&](std::int64_t pack, const Own& own) {
              float gates[kPack], others[kPack];
              up.values(own.gate, gates), up.values(own.up, others);
              CP_UNROLL
              for (int i = 0; i < kPack; ++i)
                gates[i] = of_outputs * rule.of(chosen(), of_inputs * gates[i], of_inputs * others[i]).value;
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
  ActivationLimits rule;
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
      const float weight = weighted ? weights.at(row) : 1, of_inputs = rule.weighs_inputs ? weight : 1;
      double sum = 0;
      with_function(function, [&](auto chosen) {
        for_packs<kActivationPacks>(
            lanes.lane(thread), lanes.lanes(), lanes.packs,
            [&](std::int64_t pack) {
              Own own{up.read(row, pack * kPack), {}, dy.read(row, pack * kPack)};
              if (rule.gated) own.up = up.read(row, columns + pack * kPack);
              return own;
            },
            [&](std::int64_t pack, const Own& own) {
              float gates[kPack], others[kPack], d[kPack];
              up.values(own.gate, gates), up.values(own.up, others), dy.values(own.dy, d);
              float of_pack = 0;
              CP_UNROLL
              for (int i = 0; i < kPack; ++i) {
                const Gated of = rule.of(chosen(), of_inputs * gates[i], of_inputs * others[i]);
                const float d_gate = d[i] * of.gate_slope, d_other = d[i] * of.other_slope;
                of_pack += !rule.weighs_inputs ? d[i] * of.value
                                               : d_gate * gates[i] + (rule.gated ? d_other * others[i] : 0);
                gates[i] = weight * d_gate, others[i] = weight * d_other;
              }
              if (weighted) sum += of_pack;
              d_up.write(row, pack * kPack, gates);
              if (rule.gated) d_up.write(row, columns + pack * kPack, others);
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

// Biases of rows in groups of equally many.
template <int kPack>
struct GroupBias {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "group_bias";

  RowLanes lanes;
  Divider of_group;  // the rows of a group
  RowMatrix<kPack> biases, y;
  Statistics weights;  // without data if there are none

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row >= lanes.rows) return;
      const std::int64_t group = of_group.quotient(static_cast<std::uint32_t>(row));
      const float weight = weights.data == nullptr ? 1 : weights.at(row);
      for_packs(
          lanes.lane(thread), lanes.lanes(), lanes.packs,
          [&](std::int64_t pack) { return y.read(row, pack * kPack); },
          [&](std::int64_t pack, const RowBits& bits) {
            float values[kPack], more[kPack];
            y.values(bits, values), biases.load(group, pack * kPack, more);
            CP_UNROLL
            for (int i = 0; i < kPack; ++i) values[i] += weight * more[i];
            y.write(row, pack * kPack, values);
          });
    });
  }
};

// The gradients of biases: a thread has a pack of a group, and adds up its rows, in f64.
template <int kPack>
struct GroupBiasGradient {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "group_bias_backward";

  std::int64_t threads, of_group;  // rows of a group
  Divider packs;
  RowMatrix<kPack> dy;
  RowOutput<kPack> d_biases;
  Statistics weights;

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t number = block.index() * kThreads + thread;
      if (number >= threads) return;
      const std::int64_t group = packs.quotient(static_cast<std::uint32_t>(number)),
                         column = (number - group * packs.size) * kPack, first = group * of_group;
      double sums[kPack] = {};
      for_packs(
          first, 1, first + of_group, [&](std::int64_t row) { return dy.read(row, column); },
          [&](std::int64_t row, const RowBits& bits) {
            float d[kPack];
            dy.values(bits, d);
            const double weight = weights.data == nullptr ? 1 : weights.at(row);
            CP_UNROLL
            for (int i = 0; i < kPack; ++i) sums[i] += weight * d[i];
          });
      float rounded[kPack];
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) rounded[i] = static_cast<float>(sums[i]);
      d_biases.give(group, column, rounded);
    });
  }
};

// Adds to the gradients of weights: of each row the product of its gradient with the bias.
template <int kPack>
struct GroupBiasWeights {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "group_bias_weights";
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(double));

  RowLanes lanes;
  Divider of_group;
  RowMatrix<kPack> biases, dy;
  Statistics d_weights;

  CP_DEVICE void operator()(Block& block) const {
    PerThread<double> sums(block);
    block.for_each_thread([&](int thread) {
      sums[thread] = 0;
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row >= lanes.rows) return;
      const std::int64_t group = of_group.quotient(static_cast<std::uint32_t>(row));
      double sum = 0;
      for_packs(
          lanes.lane(thread), lanes.lanes(), lanes.packs,
          [&](std::int64_t pack) { return dy.read(row, pack * kPack); },
          [&](std::int64_t pack, const RowBits& bits) {
            float d[kPack], bias[kPack];
            dy.values(bits, d), biases.load(group, pack * kPack, bias);
            float of_pack = 0;
            CP_UNROLL
            for (int i = 0; i < kPack; ++i) of_pack += d[i] * bias[i];
            sum += of_pack;
          });
      sums[thread] = sum;
    });
    join_lanes(
        block, lanes, sums, block.template shared<double>(), [](double a, double b) { return a + b; },
        [&](double sum, int thread) {
          const std::int64_t row = lanes.row(block.index(), thread);
          if (row < lanes.rows) d_weights.at(row) += static_cast<float>(sum);
          return sum;
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
               ActivationForward<kPack>{lanes, rule.function, ActivationLimits(rule), y.shape[1],
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
                                  ActivationLimits(rule),
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

PreparedKernel prepare_group_bias(const RowKernel& kernel, const CudaMemory& memory) {
  const View &biases = kernel.reads[0], &y = kernel.updates[0];
  const View* const weights = kernel.reads.size() > 1 ? &kernel.reads[1] : nullptr;
  require_numbers(y.shape[0], 1);
  return prepare_rows(
      {&biases, &y}, {}, memory,
      [&biases, &y, weights, &memory]<int kPack>(std::integral_constant<int, kPack>, std::int64_t iteration,
                                                 cudaStream_t stream) {
        const RowLanes lanes = row_lanes(y.shape[0], y.shape[1] / kPack);
        launch(stream, {lanes.blocks()},
               GroupBias<kPack>{lanes, divider(std::max<std::int64_t>(1, y.shape[0] / biases.shape[0])),
                                row_matrix<kPack>(biases, memory, iteration),
                                row_matrix<kPack>(y, memory, iteration),
                                weights ? statistics(*weights, memory, iteration) : Statistics{}});
      });
}

PreparedKernel prepare_group_bias_backward(const RowKernel& kernel, const CudaMemory& memory) {
  const View& dy = kernel.reads[0];
  const bool weighted = kernel.reads.size() > 1;
  const std::vector<RowResult> results = results_of(kernel);
  const View& d_biases = *results[0].view;
  const View* const biases = weighted ? &kernel.reads[1] : nullptr;
  require_numbers(std::max(dy.shape[0], d_biases.shape[0]), d_biases.shape[1]);
  std::vector<const View*> views{&dy, &d_biases};
  if (weighted) views.push_back(biases);
  return prepare_rows(
      std::move(views), {}, memory,
      [&kernel, &dy, &d_biases, biases, results, &memory]<int kPack>(
          std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
        const std::int64_t packs = dy.shape[1] / kPack, of_group = dy.shape[0] / d_biases.shape[0],
                           threads = d_biases.shape[0] * packs;
        using Gradient = GroupBiasGradient<kPack>;
        launch(stream, {ceil_div(threads, std::int64_t{Gradient::kThreads})},
               Gradient{threads, of_group, divider(std::max<std::int64_t>(1, packs)),
                        row_matrix<kPack>(dy, memory, iteration),
                        row_output<kPack>(results[0], memory, iteration),
                        biases ? statistics(kernel.reads[2], memory, iteration) : Statistics{}});
        if (biases == nullptr) return;
        const RowLanes lanes = row_lanes(dy.shape[0], packs);
        using Weights = GroupBiasWeights<kPack>;
        launch(
            stream, {lanes.blocks(), Weights::kSharedBytes},
            Weights{lanes, divider(std::max<std::int64_t>(1, of_group)),
                    row_matrix<kPack>(*biases, memory, iteration), row_matrix<kPack>(dy, memory, iteration),
                    statistics(*results[1].view, memory, iteration)});
      });
}

}  // namespace cp::runtime
