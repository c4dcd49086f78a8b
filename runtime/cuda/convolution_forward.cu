// The short convolution of recurrent layers along the sequence (convolution_strips.h).
#include <cstdint>
#include <type_traits>

#include "runtime/cuda/convolution_strips.h"
#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/row_access.h"
#include "runtime/cuda/row_kernels.h"

namespace cp::runtime {
namespace {

template <int kPack>
struct ConvolutionForward {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "short_convolution";
  static constexpr int kLeastBlocks = 2;
  // Rows of a thread: as many as registers have room for in packs of 8.
  static constexpr int kRows = kPack == 8 ? 4 : 8;
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(RowSums<kRows>));

  Convolved<kPack, kRows> x;
  ConvolvedParts<kPack> parts;
  double eps = 0;

  struct Own {
    float values[kRows][kPack];
    std::int32_t rows[kRows];  // or -1
  };

  CP_DEVICE void operator()(Block& block) const {
    parts.for_block(block.index(),
                    [&](const ConvolvedPart<kPack>& part, std::int64_t group, std::int64_t turn) {
                      convolve(block, part, group, place_of(part, turn));
                    });
  }

  CP_DEVICE void convolve(Block& block, const ConvolvedPart<kPack>& part, std::int64_t group,
                          const TilePlace& place) const {
    auto* const shared = block.template shared<RowSums<kRows>>();
    PerThread<Own> own(block);
    PerThread<RowSums<kRows>> squares(block);
    block.for_each_thread([&](int thread) {
      Own& its = own[thread];
      CP_UNROLL
      for (int r = 0; r < kRows; ++r) its.rows[r] = -1, squares[thread].of[r] = 0;
      const std::int32_t first = place.first + part.strip(thread) * kRows;
      if (first >= x.placed.positions || !part.has(group, thread)) return;
      const std::int64_t column = part.first + part.column(group, thread);
      typename Convolved<kPack, kRows>::Own strip;
      x.read(place.sequence, first, column, strip);
      x.add_up(strip, first, column, its.values);
      CP_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (!strip.is_convolved(r)) continue;
        its.rows[r] = strip.rows[r];
        float sum = 0;
        CP_UNROLL
        for (int i = 0; i < kPack; ++i) {
          its.values[r][i] = x.activated(its.values[r][i]).value;
          sum += its.values[r][i] * its.values[r][i];
        }
        squares[thread].of[r] = sum;
      }
    });
    if (part.normalized) {
      join_lanes(
          block, part.lanes, squares, shared,
          [](const RowSums<kRows>& a, const RowSums<kRows>& b) { return a + b; },
          [&](RowSums<kRows> sums, int) {
            CP_UNROLL
            for (int r = 0; r < kRows; ++r) sums.of[r] = near_inverse_root(sums.of[r] + eps);
            return sums;
          });
    }
    block.last([&](int thread) {
      Own& its = own[thread];
      CP_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (its.rows[r] < 0) continue;
        if (part.normalized) {
          const auto factor = static_cast<float>(shared[part.lanes.first_lane(thread)].of[r]);
          CP_UNROLL
          for (int i = 0; i < kPack; ++i) its.values[r][i] *= factor;
        }
        part.matrix.write(its.rows[r], part.column(group, thread), its.values[r]);
      }
    });
  }
};

}  // namespace

PreparedKernel prepare_short_convolution(const RowKernel& kernel, const CudaMemory& memory) {
  const ConvolutionViews views(kernel, memory);
  return prepare_rows(
      views.views(), views.bounds(), memory,
      [views]<int kPack>(std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
        using Body = ConvolutionForward<kPack>;
        const Body body{views.convolved<kPack, Body::kRows>(iteration),
                        views.parts<kPack, Body::kRows>(iteration, 0), views.rule().eps};
        launch(stream, {body.parts.blocks(), Body::kSharedBytes}, body);
      });
}

}  // namespace cp::runtime
