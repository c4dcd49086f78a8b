// Elementwise kernels: out[i] = f(in[i], out[i]) over two views, in accesses of up to 16 bytes, which is the
// most that one instruction of a thread loads or stores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/pack.h"
#include "runtime/cuda/prepared_kernels.h"
#include "runtime/cuda/walk.h"

namespace cp::runtime {

// The kernel. F has the types In and Out of a unit, kName, kReadsIn, kReadsOut and Out operator()(In, Out
// before) const. A block has 256 threads, and each thread has four units: the reads of all four are under way
// together, before the first is written. With packs of 16 bytes a block moves 16 KiB. Both numbers are
// chosen.
template <class F>
struct Elementwise {
  static constexpr int kThreads = 256;
  static constexpr int kUnits = 4;  // of each thread
  static constexpr const char* kName = F::kName;
  using In = typename F::In;
  using Out = typename F::Out;

  Walk walk;
  const In* in;
  Out* out;
  F f;

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const auto first = static_cast<std::uint32_t>(block.index() * (kThreads * kUnits)) +
                         static_cast<std::uint32_t>(thread);
      In values[kUnits];
      Out before[kUnits];
      std::int64_t to[kUnits];
      CP_UNROLL
      for (int u = 0; u < kUnits; ++u) {
        const std::uint32_t number = first + static_cast<std::uint32_t>(u * kThreads);
        if (number >= walk.count) continue;
        const WalkOffsets at = walk.at(number);
        to[u] = at.out;
        if constexpr (F::kReadsIn) values[u] = in[at.in];
        if constexpr (F::kReadsOut) before[u] = out[at.out];
      }
      CP_UNROLL
      for (int u = 0; u < kUnits; ++u) {
        if (first + static_cast<std::uint32_t>(u * kThreads) < walk.count)
          out[to[u]] = f(values[u], before[u]);
      }
    });
  }
};

template <class F>
void launch_elementwise(cudaStream_t stream, const Walk& walk, const void* in, void* out, const F& f) {
  using Body = Elementwise<F>;
  constexpr std::int64_t kUnitsPerBlock = Body::kThreads * Body::kUnits;
  CP_INVARIANT(
      (!F::kReadsIn || is_aligned(in, alignof(typename F::In))) && is_aligned(out, alignof(typename F::Out)),
      F::kName, " at ", in, " and ", out);
  launch(stream, {ceil_div(walk.count, kUnitsPerBlock)},
         Body{walk, static_cast<const typename F::In*>(in), static_cast<typename F::Out*>(out), f});
}

// Applies F to each element of a pack. F has the types In and Out of an element.
template <class F, int kCount>
struct Packed {
  static constexpr const char* kName = F::kName;
  static constexpr bool kReadsIn = F::kReadsIn, kReadsOut = F::kReadsOut;
  using In = Pack<typename F::In, kCount>;
  using Out = Pack<typename F::Out, kCount>;

  F f;

  CP_DEVICE Out operator()(const In& in, const Out& before) const {
    Out out;
    CP_UNROLL
    for (int i = 0; i < kCount; ++i) out.values[i] = f(in.values[i], before.values[i]);
    return out;
  }
};

// Prepares F over two views. If F does not read `in`, give the view `out` for it. The views and the memory
// must outlive the result.
template <class F>
PreparedKernel prepare_elementwise(const View& in, const View& out, const CudaMemory& memory, const F& f) {
  using In = typename F::In;
  using Out = typename F::Out;
  constexpr int kPack = 16 / static_cast<int>(std::max(sizeof(In), sizeof(Out)));
  return [&in, &out, &memory, f, parts = *walks(in, out, 1), packed = walks(in, out, kPack)](
             std::int64_t iteration, cudaStream_t stream) {
    const In* from = reinterpret_cast<const In*>(memory.at(in, iteration));
    Out* to = reinterpret_cast<Out*>(memory.at(out, iteration));
    const bool aligned = is_aligned(from, sizeof(In) * kPack) && is_aligned(to, sizeof(Out) * kPack);
    for (const WalkPart& part : packed&& aligned ? *packed : parts) {
      if (part.packed) {
        launch_elementwise(stream, part.walk, from + part.in_offset, to + part.out_offset,
                           Packed<F, kPack>{f});
      } else {
        launch_elementwise(stream, part.walk, from + part.in_offset, to + part.out_offset, Packed<F, 1>{f});
      }
    }
  };
}

}  // namespace cp::runtime
