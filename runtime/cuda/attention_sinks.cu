// The gradient of attention's sinks: for each head a sum over all rows.
#include "runtime/cuda/attention_tiles.h"
#include "runtime/cuda/prepared_kernels.h"

namespace cp::runtime {
namespace {

// A block has one head. Eight neighbouring threads share a row's values, so that they read neighbours; each
// adds up its own share, in double, as a long sequence has many rows. The order is fixed, so equal calls give
// equal bits.
struct SinkGradient {
  static constexpr int kThreads = 256, kLanes = 8;
  static constexpr const char* kName = "attention_sink_gradient";
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(double));

  Heads out, dout;
  Statistic lse;
  std::int64_t batches;
  const float* sinks;
  float* dsinks;
  std::int64_t sink_step, dsink_step;

  CP_DEVICE void operator()(Block& block) const {
    const std::int64_t head = block.index();
    double* const sums = block.shared<double>();
    block.for_each_thread([&](int thread) {
      const float sink = sinks[head * sink_step];
      double sum = 0;
      for (std::int64_t batch = 0; batch < batches; ++batch) {
        const Rows a(out, batch, head), b(dout, batch, head);
        for (std::int64_t row = thread / kLanes; row < out.rows; row += kThreads / kLanes) {
          float dot = 0;
          for (std::int64_t d = thread % kLanes; d < out.dim; d += kLanes)
            dot += a.value(row, d) * b.value(row, d);
          sum -= static_cast<double>(expf(sink - lse.at(batch, head, row)) * dot);
        }
      }
      sums[thread] = sum;
    });
    block.last([&](int thread) {
      if (thread != 0) return;
      double sum = 0;
      for (int i = 0; i < kThreads; ++i) sum += sums[i];
      dsinks[head * dsink_step] = static_cast<float>(sum);
    });
  }
};

}  // namespace

PreparedKernel prepare(const AttentionSinkGradient& kernel, const CudaMemory& memory) {
  return [&kernel, &memory](std::int64_t iteration, cudaStream_t stream) {
    const Operands operands(memory, iteration);
    const SinkGradient body{operands.heads(kernel.out),
                            operands.heads(kernel.dout),
                            operands.statistic(kernel.lse),
                            kernel.out.shape[0],
                            reinterpret_cast<const float*>(memory.at(kernel.sinks, iteration)),
                            reinterpret_cast<float*>(memory.at(kernel.dsinks, iteration)),
                            kernel.sinks.strides[0],
                            kernel.dsinks.strides[0]};
    launch(stream, {kernel.out.shape[2], SinkGradient::kSharedBytes}, body);
  };
}

}  // namespace cp::runtime
