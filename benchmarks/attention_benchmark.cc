// The attention kernels beside OpenBLAS's sgemm, both on one core: rates of the fastest run, and their ratio.
// Flops are those of the pairs that the mask allows: 4 d for each in the forward pass (two products), 10 d in
// the backward pass (five).
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <cblas.h>

#include "shared/kernels/host_kernels.h"
#include "shared/kernels/tiled_attention.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = MaskSlice::Kind;

constexpr std::int64_t kHeads = 2, kHeadDim = 128;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Flop/s of one product of square matrices.
double sgemm_rate() {
  constexpr int kSize = 2048;
  static std::vector<float> a(kSize * kSize, 0.5f), b(kSize * kSize, 0.25f), c(kSize * kSize);
  openblas_set_num_threads(1);
  const Clock::time_point start = Clock::now();
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, kSize, kSize, kSize, 1, a.data(), kSize, b.data(),
              kSize, 0, c.data(), kSize);
  benchmark::DoNotOptimize(c.data());
  return 2.0 * kSize * kSize * kSize / seconds_since(start);
}

// All tensors of one attention, forward and backward, filled with values in (-1, 1).
struct Problem {
  Problem(std::int64_t seq_len, DType dtype, std::vector<MaskSlice> slices)
      : slices_(std::move(slices)),
        q(tensor(seq_len, dtype)),
        k(tensor(seq_len, dtype)),
        v(tensor(seq_len, dtype)),
        out(tensor(seq_len, dtype)),
        dout(tensor(seq_len, dtype)),
        dq(tensor(seq_len, DType::f32)),
        dk(tensor(seq_len, DType::f32)),
        dv(tensor(seq_len, DType::f32)),
        lse(rows(seq_len)),
        delta(rows(seq_len)),
        memory(plan_, {}) {
    for (const View* view : {&q, &k, &v, &dout}) fill(*view);
  }

  AttentionForward forward() const { return {q, k, v, out, lse, kScale, slices_}; }
  AttentionDelta rows_of_gradients() const { return {out, dout, delta}; }
  AttentionBackward backward() const {
    return {q, k, v, dout, lse, delta, dq, dk, dv, kScale, slices_, false, false};
  }
  double pairs() const {
    double pairs = 0;
    for (const MaskSlice& slice : slices_) {
      const auto q_len = static_cast<double>(slice.q_len), k_len = static_cast<double>(slice.k_len);
      pairs += slice.kind == Kind::full ? q_len * k_len : q_len * (q_len + 1) / 2;
    }
    return pairs * static_cast<double>(kHeads);
  }

 private:
  static constexpr double kScale = 0.08838834764831845;  // 1 / sqrt(128)

  BufferId buffer(DType dtype, std::int64_t numel) {
    plan_.buffers.push_back({"b", BufferKind::inout, dtype, numel});
    return static_cast<BufferId>(plan_.buffers.size() - 1);
  }
  View tensor(std::int64_t seq_len, DType dtype) {
    return dense_view(buffer(dtype, seq_len * kHeads * kHeadDim), 0, {1, seq_len, kHeads, kHeadDim});
  }
  View rows(std::int64_t seq_len) {
    return dense_view(buffer(DType::f32, seq_len * kHeads), 0, {1, kHeads, seq_len});
  }
  void fill(const View& view) {
    std::uint64_t state = 1;
    for (std::int64_t i = 0; i < view.numel(); ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      store_element(memory.dtype(view), memory.at(view, 0), i,
                    static_cast<double>(state >> 40) * 0x1p-23 - 1);
    }
  }

  Plan plan_;
  std::vector<MaskSlice> slices_;

 public:
  View q, k, v, out, dout, dq, dk, dv, lse, delta;
  HostMemory memory;
};

// A causal mask whose queries and keys are cut in blocks, each pair of blocks a slice of its own.
std::vector<MaskSlice> causal_blocks(std::int64_t seq_len, std::int64_t block) {
  std::vector<MaskSlice> slices;
  for (std::int64_t q = 0; q < seq_len; q += block) {
    for (std::int64_t k = 0; k <= q; k += block) {
      slices.push_back({q, block, k, block, k == q ? Kind::causal : Kind::full, 0, 0});
    }
  }
  return slices;
}

std::vector<MaskSlice> documents(std::int64_t seq_len, std::int64_t size) {
  std::vector<MaskSlice> slices;
  for (std::int64_t begin = 0; begin < seq_len; begin += size) {
    slices.push_back({begin, size, begin, size, Kind::causal, 0, 0});
  }
  return slices;
}

void measure(benchmark::State& state, const Problem& problem, const Kernel& kernel, double flops_per_pair,
             const TileKernels& tiles) {
  double best = std::numeric_limits<double>::infinity(), sgemm = 0;
  for (auto _ : state) {
    const Clock::time_point start = Clock::now();
    if (const auto* forward = std::get_if<AttentionForward>(&kernel)) {
      run(*forward, problem.memory, 0, all_parts(*forward), tiles);
    } else {
      const auto& backward = std::get<AttentionBackward>(kernel);
      run(backward, problem.memory, 0, all_parts(backward), tiles);
    }
    best = std::min(best, seconds_since(start));
    state.PauseTiming();
    sgemm = std::max(sgemm, sgemm_rate());
    state.ResumeTiming();
  }
  const double rate = flops_per_pair * kHeadDim * problem.pairs() / best;
  state.counters["attention_GFlop/s"] = rate * 1e-9;
  state.counters["sgemm_GFlop/s"] = sgemm * 1e-9;
  state.counters["ratio"] = rate / sgemm;
}

void register_all() {
  struct Mask {
    std::string name;
    std::vector<MaskSlice> (*slices)(std::int64_t seq_len);
  };
  const std::vector<Mask> masks = {
      {"full",
       [](std::int64_t n) {
         return std::vector<MaskSlice>{{0, n, 0, n, Kind::full, 0, 0}};
       }},
      {"causal", [](std::int64_t n) { return documents(n, n); }},
      {"causal_in_blocks_of_16", [](std::int64_t n) { return causal_blocks(n, 16); }},
      {"documents_of_64", [](std::int64_t n) { return documents(n, 64); }},
  };
  for (const TileKernels* tiles : tile_kernels()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const Mask& mask : masks) {
        const std::string suffix =
            "/" + mask.name + "/" + std::string(name(dtype)) + "/" + std::string(tiles->name);
        const auto add = [&](const std::string& pass, bool backward) {
          benchmark::RegisterBenchmark((pass + suffix).c_str(), [=](benchmark::State& state) {
            constexpr std::int64_t kSeqLen = 2048;
            const Problem problem(kSeqLen, dtype, mask.slices(kSeqLen));
            run_kernel(problem.forward(), problem.memory, 0);
            run_kernel(problem.rows_of_gradients(), problem.memory, 0);
            const Kernel kernel = backward ? Kernel(problem.backward()) : Kernel(problem.forward());
            measure(state, problem, kernel, backward ? 10 : 4, *tiles);
          })->Unit(benchmark::kMillisecond);
        };
        add("forward", false), add("backward", true);
      }
    }
  }
}

const bool kRegistered = (register_all(), true);

}  // namespace
}  // namespace cp
