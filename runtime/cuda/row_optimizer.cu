// The norm of gradients, and the step of an optimizer.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/row_access.h"
#include "runtime/cuda/row_kernels.h"
#include "runtime/cuda/walk.h"
#include "shared/kernels/optimizer_step.h"

namespace cp::runtime {
namespace {

// As many as an H100 has room for at once; their threads go on with further packs. The same number
// everywhere, so that results are the same, too.
constexpr std::int64_t kMostBlocks = 1056;

// ---- squared norm ----

// Of a part of a view: each block's sum of squares, in f64, divided by the number of copies.
template <int kPack>
struct SumOfSquares {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "squared_norm";
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(double));

  Walk walk;  // over packs
  RowElements<kPack> in;
  std::int64_t blocks;
  double copies;
  double* partial;

  CP_DEVICE void operator()(Block& block) const {
    PerThread<double> sums(block);
    block.for_each_thread([&](int thread) {
      double sum = 0;
      for_packs(
          block.index() * kThreads + thread, blocks * kThreads, walk.count,
          [&](std::int64_t pack) { return in.read(walk.at(static_cast<std::uint32_t>(pack)).out * kPack); },
          [&](std::int64_t, const RowBits& bits) {
            float values[kPack];
            in.values(bits, values);
            CP_UNROLL
            for (int i = 0; i < kPack; ++i) sum += static_cast<double>(values[i]) * values[i];
          });
      sums[thread] = sum;
    });
    join_lanes(
        block, RowLanes{1, kThreads, 8}, sums, block.template shared<double>(),
        [](double a, double b) { return a + b; },
        [&](double sum, int) {
          partial[block.index()] = sum / copies;
          return sum;
        });
  }
};

// Adds up the sums of all blocks, in one.
struct SumOfPartials {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "squared_norm_total";
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(double));

  const double* partial;
  std::int64_t count;
  float* total;

  CP_DEVICE void operator()(Block& block) const {
    PerThread<double> sums(block);
    block.for_each_thread([&](int thread) {
      double sum = 0;
      for (std::int64_t i = thread; i < count; i += kThreads) sum += partial[i];
      sums[thread] = sum;
    });
    join_lanes(
        block, RowLanes{1, kThreads, 8}, sums, block.template shared<double>(),
        [](double a, double b) { return a + b; },
        [&](double sum, int) {
          *total = static_cast<float>(sum);
          return sum;
        });
  }
};

std::int64_t norm_blocks(const WalkPart& part) {
  constexpr std::int64_t kOfBlock = kRowThreads * kPacksOfLane;
  return std::min(kMostBlocks, ceil_div(part.walk.count, kOfBlock));
}

// A view's parts, in packs as far as it has them, and one by one.
struct SquaredView {
  const View* view;
  double copies;
  int pack;
  std::vector<WalkPart> packed, single;

  std::int64_t most_blocks() const {
    std::int64_t packed_blocks = 0, single_blocks = 0;
    for (const WalkPart& part : packed) packed_blocks += norm_blocks(part);
    for (const WalkPart& part : single) single_blocks += norm_blocks(part);
    return std::max(packed_blocks, single_blocks);
  }
};

// ---- optimizer ----

// Parameters in packs of four, as f32 has them; all that they need is beside them.
template <int kPack>
struct OptimizerStep {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "optimizer";
  static constexpr int kSharedBytes = static_cast<int>(sizeof(OptimizerNumbers));

  OptimizerRule rule;
  RowLanes lanes;
  std::int64_t blocks;
  const float* squared_norm;
  Statistics schedule;
  RowMatrix<kPack> gradients, parameters, computed;  // of one row
  bool writes;                                       // the parameters in another dtype
  RowMatrix<kPack> states;                           // of a row each

  struct Own {
    RowBits gradients, parameters, mean, square;
  };

  CP_DEVICE void operator()(Block& block) const {
    auto* const numbers = block.template shared<OptimizerNumbers>();
    block.for_each_thread([&](int thread) {
      // Powers in f64 take a hundred instructions, once for each block.
      if (thread == 0) *numbers = optimizer_numbers(rule, *squared_norm, schedule.at(0), schedule.at(1));
    });
    block.last([&](int thread) {
      for_packs<2>(
          block.index() * kThreads + thread, blocks * kThreads, lanes.packs,
          [&](std::int64_t pack) {
            const std::int64_t first = pack * kPack;
            Own own{gradients.read(0, first), parameters.read(0, first), {}, {}};
            if (rule.states > 0) own.mean = states.read(0, first);
            if (rule.states > 1) own.square = states.read(1, first);
            return own;
          },
          [&](std::int64_t pack, const Own& own) { update(*numbers, pack * kPack, own); });
    });
  }

  CP_DEVICE void update(const OptimizerNumbers& numbers, std::int64_t first, const Own& own) const {
    float g[kPack], p[kPack], mean[kPack], square[kPack];
    gradients.values(own.gradients, g), parameters.values(own.parameters, p);
    states.values(own.mean, mean), states.values(own.square, square);
    CP_UNROLL
    for (int i = 0; i < kPack; ++i) {
      if (rule.states == 2) {
        adamw(numbers, g[i], p[i], mean[i], square[i]);
      } else {
        sgd(numbers, g[i], p[i], rule.states == 1 ? &mean[i] : nullptr);
      }
    }
    parameters.write(0, first, p);
    if (rule.states > 0) states.write(0, first, mean);
    if (rule.states > 1) states.write(1, first, square);
    if (writes) computed.write(0, first, p);
  }
};

}  // namespace

PreparedKernel prepare_squared_norm(const RowKernel& kernel, const CudaMemory& memory) {
  const auto& rule = std::get<SquaredNormRule>(kernel.rule);
  std::vector<SquaredView> views;
  std::int64_t blocks = 0;
  for (std::size_t i = 0; i < kernel.reads.size(); ++i) {
    const View& view = kernel.reads[i];
    const int pack = size_bytes(memory.dtype(view)) == 2 ? 8 : 4;
    SquaredView squared{&view, static_cast<double>(rule.copies[i]), pack, {}, *walks(view, view, 1)};
    if (auto packed = walks(view, view, pack)) squared.packed = *std::move(packed);
    blocks += squared.most_blocks();
    views.push_back(std::move(squared));
  }
  const auto partial = std::make_shared<const GpuBytes>(static_cast<std::size_t>(blocks) * sizeof(double));
  return [&kernel, &memory, views = std::move(views), partial](std::int64_t iteration, cudaStream_t stream) {
    auto* const sums = reinterpret_cast<double*>(partial->data());
    std::int64_t count = 0;
    for (const SquaredView& squared : views) {
      const DType dtype = memory.dtype(*squared.view);
      const std::int64_t bytes = size_bytes(dtype);
      std::byte* const data = memory.at(*squared.view, iteration);
      const bool aligned = !squared.packed.empty() && is_aligned(data, squared.pack * bytes);
      for (const WalkPart& part : aligned ? squared.packed : squared.single) {
        const std::int64_t of_part = norm_blocks(part);
        const auto add = [&]<int kPack>(std::integral_constant<int, kPack>) {
          using Body = SumOfSquares<kPack>;
          launch(
              stream, {of_part, Body::kSharedBytes},
              Body{
                  part.walk, {data + part.out_offset * bytes, dtype}, of_part, squared.copies, sums + count});
        };
        if (!part.packed) {
          add(std::integral_constant<int, 1>());
        } else if (squared.pack == 8) {
          add(std::integral_constant<int, 8>());
        } else {
          add(std::integral_constant<int, 4>());
        }
        count += of_part;
      }
    }
    launch(stream, {1, SumOfPartials::kSharedBytes},
           SumOfPartials{sums, count, reinterpret_cast<float*>(memory.at(kernel.writes[0], iteration))});
  };
}

PreparedKernel prepare_optimizer(const RowKernel& kernel, const CudaMemory& memory) {
  const auto& rule = std::get<OptimizerRule>(kernel.rule);
  const View &gradients = kernel.reads[0], &parameters = kernel.updates[0];
  const View *const states = rule.states > 0 ? &kernel.updates[1] : nullptr, *const computed =
                                                                                 kernel.writes.empty()
                                                                                     ? nullptr
                                                                                     : kernel.writes.data();
  const std::int64_t numel = gradients.numel();
  std::vector<const View*> views = {&gradients, &parameters};
  if (states != nullptr) views.push_back(states);
  if (computed != nullptr) views.push_back(computed);
  return prepare_rows(views, {numel}, memory,
                      [&kernel, &rule, &gradients, &parameters, states, computed, numel, &memory]<int kPack>(
                          std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
                        if constexpr (kPack < 8) {  // parameters are f32
                          using Body = OptimizerStep<kPack>;
                          constexpr std::int64_t kOfBlock = Body::kThreads * 2;
                          Body body{};
                          body.rule = rule;
                          body.lanes = {1, numel / kPack, 0};
                          body.blocks = std::min(kMostBlocks, ceil_div(body.lanes.packs, kOfBlock));
                          body.squared_norm =
                              reinterpret_cast<const float*>(memory.at(kernel.reads[1], iteration));
                          body.schedule = statistics(kernel.reads[2], memory, iteration);
                          body.gradients = row_matrix<kPack>(gradients, memory, iteration);
                          body.parameters = row_matrix<kPack>(parameters, memory, iteration);
                          body.writes = computed != nullptr;
                          if (body.writes) body.computed = row_matrix<kPack>(*computed, memory, iteration);
                          if (states != nullptr) {
                            body.states = row_matrix<kPack>(*states, memory, iteration);
                            // One behind the other, unless they are rows of their own.
                            if (states->shape.size() == 1) body.states.row_step = numel * states->strides[0];
                          }
                          launch(stream, {body.blocks, Body::kSharedBytes}, body);
                        }
                      });
}

}  // namespace cp::runtime
