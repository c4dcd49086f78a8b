// The gradients of the short convolution of recurrent layers (convolution_strips.h).
//
// Gradients of rows need those of the rows behind, before which stands what normalizes. So the block finds
// the gradients of the convolution's sums of its tile, and of the few rows behind, and leaves them in shared
// memory, where each row finds its own. They are computed twice for these few rows alone.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "runtime/cuda/convolution_strips.h"
#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/row_access.h"
#include "runtime/cuda/row_column_sums.h"
#include "runtime/cuda/row_kernels.h"

namespace cp::runtime {
namespace {

// Each block takes tiles of its group in turns, adds up the terms of the weights' gradients in the registers
// of each thread, and then over the block's threads. `partial` has a row of `columns` x taps sums for each
// block of a group, and `partial_bias` one of `columns`.
template <int kPack>
struct ConvolutionBackward {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "short_convolution_backward";
  static constexpr int kLeastBlocks = 2;
  // A thread has the slopes and gradients of its rows beside their values, and the weights' sums: so there
  // are registers for half of the rows of the forward pass.
  static constexpr int kRows = kPack == 8 ? 2 : kPack == 4 ? 4 : 8;
  using X = Convolved<kPack, kRows>;
  static constexpr int kTaps = X::kTaps, kBefore = X::kBefore;

  // Of a row: of squares, or r, and of products with the gradients, or what values are multiplied with.
  struct Sums {
    RowSums<kRows> squares, products;
  };
  // Behind the joined sums: gradients of the tile's z, and the chains of its rows.
  static constexpr int kGradientsAt = kThreads * static_cast<int>(sizeof(Sums));
  static constexpr int kChainsAt = kGradientsAt + kThreads * kRows * kPack * static_cast<int>(sizeof(float));
  static constexpr int kSharedBytes = kChainsAt + kThreads * kRows * static_cast<int>(sizeof(std::int32_t));

  X x;
  ConvolvedParts<kPack> parts;
  double eps = 0;
  RowOutput<kPack> dx, d_halo;
  std::int64_t strands = 0;  // blocks of each group
  std::int64_t columns = 0;  // of x
  float *partial = nullptr, *partial_bias = nullptr;

  struct Own {
    float weights[kTaps][kPack], bias[kPack];  // sums
    typename X::Own strip;
    float values[kRows][kPack], slopes[kRows][kPack];
    RowBits d[kRows];
  };

  // Neighbouring lanes have neighbouring numbers, of 16 bytes if a pack has as many.
  static constexpr int kPart = kPack < 4 ? kPack : 4;
  using Part = Pack<float, kPart>;
  CP_DEVICE static void store(Part* row, int lanes, int lane, const float (&from)[kPack]) {
    CP_UNROLL
    for (int p = 0; p < kPack / kPart; ++p) {
      Part part;
      CP_UNROLL
      for (int i = 0; i < kPart; ++i) part.values[i] = from[p * kPart + i];
      row[p * lanes + lane] = part;
    }
  }
  CP_DEVICE static void load(const Part* row, int lanes, int lane, float (&to)[kPack]) {
    CP_UNROLL
    for (int p = 0; p < kPack / kPart; ++p) {
      const Part part = row[p * lanes + lane];
      CP_UNROLL
      for (int i = 0; i < kPart; ++i) to[p * kPart + i] = part.values[i];
    }
  }
  // The place of a column's number in a row that was stored.
  CP_DEVICE static int number_of(int lanes, std::int64_t column) {
    const auto lane = static_cast<int>(column / kPack), within = static_cast<int>(column % kPack);
    return (within / kPart * lanes + lane) * kPart + within % kPart;
  }

  CP_DEVICE void operator()(Block& block) const {
    parts.for_block(block.index(),
                    [&](const ConvolvedPart<kPack>& part, std::int64_t group, std::int64_t strand) {
                      PerThread<Own> own(block);
                      block.for_each_thread([&](int thread) {
                        Own& its = own[thread];
                        CP_UNROLL
                        for (int i = 0; i < kPack; ++i) {
                          its.bias[i] = 0;
                          CP_UNROLL
                          for (int distance = 0; distance < kTaps; ++distance) its.weights[distance][i] = 0;
                        }
                      });
                      for (std::int64_t turn = strand; turn < part.turns; turn += strands)
                        give_tile(block, part, group, place_of(part, turn), own);
                      leave_sums(block, part, group, strand, own);
                    });
  }

  CP_DEVICE void give_tile(Block& block, const ConvolvedPart<kPack>& part, std::int64_t group,
                           const TilePlace& place, PerThread<Own>& own) const {
    auto* const joined = block.template shared<Sums>();
    auto* const gradients = block.template shared<Part>(kGradientsAt);
    auto* const chains = block.template shared<std::int32_t>(kChainsAt);
    const int of_row = part.lanes.lanes() * (kPack / kPart), rows = part.strips() * kRows;
    PerThread<Sums> sums(block);
    block.for_each_thread([&](int thread) {
      sums[thread] = {};
      const int strip = part.strip(thread);
      prepare(part, group, place, strip, thread, own[thread], sums[thread]);
      if (part.lanes.lane(thread) > 0) return;
      CP_UNROLL
      for (int r = 0; r < kRows; ++r) chains[strip * kRows + r] = own[thread].strip.chains[r];
    });
    if (part.normalized) {
      join_lanes(
          block, part.lanes, sums, joined,
          [](const Sums& a, const Sums& b) {
            return Sums{a.squares + b.squares, a.products + b.products};
          },
          [&](Sums found, int) {
            CP_UNROLL
            for (int r = 0; r < kRows; ++r) {
              const double factor = near_inverse_root(found.squares.of[r] + eps);
              found.squares.of[r] = factor, found.products.of[r] *= factor * factor * factor;
            }
            return found;
          });
    }
    block.for_each_thread([&](int thread) {
      const Own& its = own[thread];
      CP_UNROLL
      for (int r = 0; r < kRows; ++r) {
        float gradient[kPack] = {};
        if (its.strip.is_convolved(r)) {
          float factor = 1, along = 0;
          if (part.normalized) {
            const Sums& found = joined[part.lanes.first_lane(thread)];
            factor = static_cast<float>(found.squares.of[r]);
            along = static_cast<float>(found.products.of[r]);
          }
          part.matrix.values(its.d[r], gradient);
          CP_UNROLL
          for (int i = 0; i < kPack; ++i)
            gradient[i] = its.slopes[r][i] * (factor * gradient[i] - along * its.values[r][i]);
        }
        store(gradients + (part.strip(thread) * kRows + r) * of_row, part.lanes.lanes(),
              part.lanes.lane(thread), gradient);
      }
    });
    block.for_each_thread([&](int thread) {
      if (part.has(group, thread)) give(part, group, place, rows, gradients, chains, thread, own[thread]);
    });
  }

  // Of a strip: the values, slopes and gradients of q, k or v, or y, and their sums.
  CP_DEVICE void prepare(const ConvolvedPart<kPack>& part, std::int64_t group, const TilePlace& place,
                         int strip, int thread, Own& its, Sums& sums) const {
    CP_UNROLL
    for (int r = 0; r < kRows; ++r) its.strip.chains[r] = kNoChain;
    const std::int32_t first = place.first + strip * kRows;
    if (first >= x.placed.positions || !part.has(group, thread)) return;
    const std::int64_t own_column = part.column(group, thread), column = part.first + own_column;
    x.read(place.sequence, first, column, its.strip);
    CP_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (its.strip.is_convolved(r)) its.d[r] = part.matrix.read(its.strip.rows[r], own_column);
    }
    x.add_up(its.strip, first, column, its.values);
    CP_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (!its.strip.is_convolved(r)) continue;
      float d[kPack], squares = 0, products = 0;
      part.matrix.values(its.d[r], d);
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) {
        const Activated activated = x.activated(its.values[r][i]);
        its.values[r][i] = activated.value, its.slopes[r][i] = activated.slope;
        squares += activated.value * activated.value, products += d[i] * activated.value;
      }
      sums.squares.of[r] = squares, sums.products.of[r] = products;
    }
  }

  // The gradients of a strip's rows, from those of z of the rows that see them, and the terms of the weights.
  CP_DEVICE void give(const ConvolvedPart<kPack>& part, std::int64_t group, const TilePlace& place, int rows,
                      const Part* gradients, const std::int32_t* chains, int thread, Own& its) const {
    const int lanes = part.lanes.lanes(), lane = part.lanes.lane(thread), of_row = lanes * (kPack / kPart),
              first = part.strip(thread) * kRows;
    const std::int64_t column = part.first + part.column(group, thread);
    float of_taps[kTaps][kPack], seen[kRows][kPack], sums[kRows][kPack];
    x.load_weights(column, of_taps);
    CP_UNROLL
    for (int r = 0; r < kRows; ++r) {
      x.values(its.strip, kBefore + r, seen[r]);
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) sums[r][i] = 0;
    }
    CP_UNROLL
    for (int j = 0; j < kRows + kBefore; ++j) {
      const int row = first + j;
      if (row >= rows) continue;
      const std::int32_t chain = chains[row];
      float d[kPack];
      load(gradients + row * of_row, lanes, lane, d);
      CP_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const int distance = j - r;
        if (distance < 0 || distance >= kTaps) continue;
        // The tile's last rows are there for those before them, and belong to the next tile.
        if (distance >= x.taps || first + r >= part.tile || chain > place.first + first + r) continue;
        CP_UNROLL
        for (int i = 0; i < kPack; ++i) {
          sums[r][i] += of_taps[distance][i] * d[i];
          its.weights[distance][i] += seen[r][i] * d[i];
          if (distance == 0) its.bias[i] += d[i];
        }
      }
    }
    CP_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= part.tile || its.strip.chains[r] == kNoChain) continue;
      (its.strip.is_of_halo(r) ? d_halo : dx).give(its.strip.rows[r], column, sums[r]);
    }
  }

  // Adds up what the threads of a block have for the same columns, strip by strip.
  CP_DEVICE void leave_sums(Block& block, const ConvolvedPart<kPack>& part, std::int64_t group,
                            std::int64_t strand, PerThread<Own>& own) const {
    auto* const all = block.template shared<Part>();
    const int lanes = part.lanes.lanes(), of_row = lanes * (kPack / kPart);
    const std::int64_t first = group * part.width;
    CP_UNROLL
    for (int distance = 0; distance <= kTaps; ++distance) {
      const bool of_bias = distance == kTaps;
      if (of_bias ? partial_bias == nullptr : distance >= x.taps) continue;
      block.for_each_thread([&](int thread) {
        const Own& its = own[thread];
        store(all + part.strip(thread) * of_row, lanes, part.lanes.lane(thread),
              of_bias ? its.bias : its.weights[of_bias ? 0 : distance]);
      });
      block.for_each_thread([&](int thread) {
        for (std::int64_t column = thread; column < part.width && first + column < part.columns;
             column += kThreads) {
          const int number = number_of(lanes, column);
          float sum = 0;
          for (int strip = 0; strip < part.strips(); ++strip)
            sum += all[strip * of_row + number / kPart].values[number % kPart];
          const std::int64_t at = strand * columns + part.first + first + column;
          if (of_bias) {
            partial_bias[at] = sum;
          } else {
            partial[at * x.taps + (x.taps - 1 - distance)] = sum;
          }
        }
      });
    }
  }
};

}  // namespace

PreparedKernel prepare_short_convolution_backward(const RowKernel& kernel, const CudaMemory& memory) {
  const ConvolutionViews views(kernel, memory);
  const std::vector<RowResult> results = results_of(kernel);
  std::vector<const View*> packed = views.views();
  packed.push_back(results[0].view);
  if (views.has_halo()) packed.push_back(results[1].view);
  const std::int64_t of_weights = views.columns() * views.rule().taps, strands = views.strands();
  const auto partial = std::make_shared<const GpuBytes>(
      static_cast<std::size_t>(strands * (of_weights + views.columns())) * sizeof(float));
  return prepare_rows(packed, views.bounds(), memory,
                      [views, results, of_weights, strands, partial]<int kPack>(
                          std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
                        using Body = ConvolutionBackward<kPack>;
                        Body body;
                        body.x = views.convolved<kPack, Body::kRows>(iteration);
                        body.parts = views.parts<kPack, Body::kRows>(iteration, views.rule().taps - 1);
                        // A block without a turn leaves zeros, so that all groups have as many rows of sums.
                        body.strands = std::min(strands, body.parts.most_turns());
                        body.parts.set_strands(body.strands);
                        body.eps = views.rule().eps;
                        body.dx = row_output<kPack>(results[0], views.memory(), iteration);
                        if (views.has_halo())
                          body.d_halo = row_output<kPack>(results[1], views.memory(), iteration);
                        body.columns = views.columns();
                        body.partial = reinterpret_cast<float*>(partial->data());
                        if (views.has_bias()) body.partial_bias = body.partial + strands * of_weights;
                        launch(stream, {body.parts.blocks(), Body::kSharedBytes}, body);
                        const auto add_up = [&](float* from, std::int64_t columns, const RowResult& result) {
                          launch_partial_sums(stream, from, body.strands, columns,
                                              row_matrix<1>(*result.view, views.memory(), iteration),
                                              result.adds);
                        };
                        add_up(body.partial, of_weights, results[views.has_halo() ? 2 : 1]);
                        if (views.has_bias()) add_up(body.partial_bias, views.columns(), results.back());
                      });
}

}  // namespace cp::runtime
