// What the kernels of exact attention share. Their sums are in f32, and their order depends only on shapes
// and slices, so equal calls give equal bits.
//
// A block of four warps has a tile of 64 rows, of which each warp has 16. It goes through the bands of the
// mask that concern these rows (mask_bands.h), at most 64 columns at a time. The products of the rows'
// vectors with the columns' vectors give weights; the weights times the columns' values are added to the
// rows' sums. Rows are queries for the output and dq, and keys for dk and dv. If the sums are wider than a
// block's (128), several blocks share the rows, and each computes the weights again.
//
// Both products run on tensor cores (mma.h), and are as exact as sums in f32:
//   - vectors of 16 bits are multiplied as they are. Vectors of f32 are split into two tf32 each, and the
//     product of the two small ones is left out: a product is off by at most 2^-21 of its size, 8 roundings
//     of f32 (split_tf32: 2^-23 for either factor, and 2^-11 * 2^-11 for what is left out);
//   - weights are f32, and are split too. Values of 16 bits are exact in tf32 (bf16 has 8 bits, f16 has 11),
//     so that two products do, off by 2^-23; values of f32 take three;
//   - at most 32 words of depth, or 16 columns, are added up by tensor cores, which cut off, before the
//     result is added to a sum that rounds.
// Where the vectors have different dtypes, those of 16 bits count as f32. Infinite vectors and values give
// NaNs.
#pragma once

#include <cstdint>
#include <type_traits>

#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/mask_bands.h"
#include "runtime/cuda/mma.h"
#include "shared/base/dtype.h"
#include "shared/base/error.h"
#include "shared/kernels/float16.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// Four warps: with 64 x 128 sums, 64 x 64 scores and as many products, a thread holds 64 + 32 + 32 f32 of the
// at most 255 registers that it can have; the rest is for fragments. Chosen.
inline constexpr int kBlockThreads = 128, kBlockRows = 64, kBlockColumns = 64;
static_assert(kBlockThreads / kWarpThreads * kMmaRows == kBlockRows);

// The sums of a thread: two rows, 8 apart, of its warp's 16, and two neighbouring columns of each 8.
inline constexpr int kRowsOfLane = 2;
template <int kColumns>
struct BlockSums {
  MmaSums of[kColumns / kMmaColumns];
  CP_DEVICE float& value(int row, int column) { return of[column / 2].values[row * 2 + column % 2]; }
};
using Scores = BlockSums<kBlockColumns>;
template <int kColumns>
inline constexpr int kColumnsOfLane = kColumns / kMmaColumns * 2;

// In the tile, of the thread's rows and columns.
CP_DEVICE int sum_row(int thread, int i) {
  return thread / kWarpThreads * kMmaRows + mma_sum_row(thread, i * 2);
}
CP_DEVICE int sum_column(int thread, int j) { return j / 2 * kMmaColumns + mma_sum_column(thread, j % 2); }

template <int kColumns>
CP_DEVICE void clear(BlockSums<kColumns>& sums) {
  CP_UNROLL
  for (MmaSums& part : sums.of) {
    CP_UNROLL
    for (float& value : part.values) value = 0;
  }
}

// A [batch, seq, heads, dim] view of any floating type.
struct Heads {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t batch_step = 0, row_step = 0, head_step = 0, dim_step = 0, rows = 0, dim = 0;
  bool is_wide = false;  // rows begin and end at multiples of 16 bytes, without gaps between values

  CP_DEVICE std::int64_t offset(std::int64_t batch, std::int64_t head) const {
    return batch * batch_step + head * head_step;
  }
  CP_DEVICE std::uint16_t bits(std::int64_t at) const {
    return reinterpret_cast<const std::uint16_t*>(data)[at];
  }
  CP_DEVICE float value(std::int64_t at) const {
    if (dtype == DType::f32) return reinterpret_cast<const float*>(data)[at];
    return dtype == DType::f16 ? f16_to_f32(bits(at)) : bf16_to_f32(bits(at));
  }
  CP_DEVICE void store(std::int64_t at, float sum, bool accumulate) const {
    if (accumulate) sum = value(at) + sum;
    if (dtype == DType::f32) {
      reinterpret_cast<float*>(data)[at] = sum;
    } else {
      reinterpret_cast<std::uint16_t*>(data)[at] = dtype == DType::f16 ? f32_to_f16(sum) : f32_to_bf16(sum);
    }
  }
};

// The rows of one head in one batch.
struct Rows {
  const Heads& heads;
  std::int64_t offset;
  CP_DEVICE Rows(const Heads& all, std::int64_t batch, std::int64_t head)
      : heads(all), offset(all.offset(batch, head)) {}
  CP_DEVICE std::int64_t at(std::int64_t row, std::int64_t d) const {
    return offset + row * heads.row_step + d * heads.dim_step;
  }
  CP_DEVICE float value(std::int64_t row, std::int64_t d) const { return heads.value(at(row, d)); }
};

// A [batch, heads, seq] view in f32.
struct Statistic {
  float* data = nullptr;
  std::int64_t batch_step = 0, head_step = 0, row_step = 0;
  CP_DEVICE float& at(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return data[batch * batch_step + head * head_step + row * row_step];
  }
};

// What a block does in a grid over [chunk of the sums' width][batch][head][tile of rows].
struct BlockPlace {
  std::int64_t tile, head, batch, chunk;
};
struct RowGrid {
  std::int64_t tiles = 0, heads = 0, batches = 0, chunks = 0;
  CP_DEVICE BlockPlace place(std::int64_t index) const {
    BlockPlace place;
    place.tile = index % tiles, index /= tiles;
    place.head = index % heads, index /= heads;
    place.batch = index % batches, place.chunk = index / batches;
    return place;
  }
  std::int64_t blocks() const { return tiles * heads * batches * chunks; }
};

// ---- shared memory ----

// In words of 4 bytes: the vectors of the rows; those of the columns, 32 words of each at a time, which take
// turns with values; then two numbers for each row or column. Rows of each part are 4 words longer than they
// are wide, so that the 32 lanes find the words of a fragment in 32 different banks (rows 4 words apart
// modulo 32 for vectors, and pairs of rows 8 apart for values). In all 43,520 bytes of the 48 KiB that a
// block may have.
//
// The rows' vectors stay if they have at most 128 words together: dims up to 128 of f32 and 256 of 16 bits
// forward, and half of that backward. Otherwise they come 32 words at a time too, again for each tile of
// columns.
inline constexpr int kChunkWords = 32, kRowWords = 128;
inline constexpr int kPad = 4;
inline constexpr int kRowsStride = kRowWords + kPad, kColumnsStride = kChunkWords + kPad;
inline constexpr int kColumnsAt = kBlockRows * kRowsStride;
inline constexpr int kStatisticsAt = kColumnsAt + kBlockColumns * kColumnsStride;
inline constexpr int kSharedBytes = (kStatisticsAt + 2 * kBlockRows) * 4;
// The width of a block's sums, and how many columns' values lie in shared memory at once.
inline constexpr int kMostColumns = 128;
template <int kColumns>
inline constexpr int kValuesStride = kColumns + kPad;
template <int kColumns>
inline constexpr int kValueRows = kColumns <= 64 ? 32 : 16;
static_assert(kValueRows<64> * kValuesStride<64> <= kBlockColumns * kColumnsStride &&
              kValueRows<kMostColumns> * kValuesStride<kMostColumns> <= kBlockColumns * kColumnsStride);

struct alignas(16) Words4 {
  std::uint32_t words[4];
};

template <class Element>
CP_DEVICE bool has_words_of(const Heads& heads) {
  return heads.dtype == (std::is_same_v<Element, MmaTf32>  ? DType::f32
                         : std::is_same_v<Element, MmaF16> ? DType::f16
                                                           : DType::bf16);
}

// One word of a vector; zeros behind its end.
template <class Element>
CP_DEVICE std::uint32_t word_of(const Rows& from, std::int64_t row, std::int64_t d) {
  if (d >= from.heads.dim) return 0;
  if constexpr (std::is_same_v<Element, MmaTf32>) {
    return std::bit_cast<std::uint32_t>(from.value(row, d));
  } else {
    const std::uint32_t low = from.heads.bits(from.at(row, d)),
                        high = d + 1 < from.heads.dim ? from.heads.bits(from.at(row, d + 1)) : 0u;
    return low | high << 16;
  }
}

// Copies 32 words, from `first_word` on, of 64 vectors from row `first` on; zeros for those behind `end`.
template <class Element>
CP_DEVICE void stage_vectors(int thread, std::uint32_t* to, int stride, const Rows& from, std::int64_t first,
                             std::int64_t end, std::int64_t first_word) {
  constexpr int kUnitsOfRow = kChunkWords / 4, kUnits = kBlockRows * kUnitsOfRow / kBlockThreads;
  Words4 units[kUnits];
  const bool wide = from.heads.is_wide && has_words_of<Element>(from.heads);
  CP_UNROLL
  for (int i = 0; i < kUnits; ++i) {
    const int unit = i * kBlockThreads + thread;
    const std::int64_t row = first + unit / kUnitsOfRow,
                       d = (first_word + unit % kUnitsOfRow * 4) * Element::kValues;
    units[i] = Words4{{0, 0, 0, 0}};
    if (row >= end || d >= from.heads.dim) continue;
    if (wide) {
      constexpr std::int64_t kBytes = 4 / Element::kValues;
      units[i] = *reinterpret_cast<const Words4*>(from.heads.data + from.at(row, d) * kBytes);
    } else {
      CP_UNROLL
      for (int w = 0; w < 4; ++w) units[i].words[w] = word_of<Element>(from, row, d + w * Element::kValues);
    }
  }
  CP_UNROLL
  for (int i = 0; i < kUnits; ++i) {
    const int unit = i * kBlockThreads + thread;
    *reinterpret_cast<Words4*>(to + unit / kUnitsOfRow * stride + unit % kUnitsOfRow * 4) = units[i];
  }
}

// Copies values as f32: kColumns of each of kValueRows rows, from `first` on; zeros where `is_row` says no.
template <int kColumns, class IsRow>
CP_DEVICE void stage_values(int thread, float* to, const Rows& from, std::int64_t first, std::int64_t column,
                            IsRow&& is_row) {
  constexpr int kUnitsOfRow = kColumns / 8, kRows = kValueRows<kColumns>,
                kUnits = kRows * kUnitsOfRow / kBlockThreads;
  static_assert(kUnits * kBlockThreads == kRows * kUnitsOfRow);
  CP_UNROLL
  for (int i = 0; i < kUnits; ++i) {
    const int unit = i * kBlockThreads + thread, r = unit / kUnitsOfRow;
    const std::int64_t d = column + unit % kUnitsOfRow * 8;
    float values[8] = {};
    if (is_row(r) && d < from.heads.dim) {
      if (from.heads.is_wide && from.heads.dtype != DType::f32) {
        const Words4 words = *reinterpret_cast<const Words4*>(from.heads.data + from.at(first + r, d) * 2);
        const bool is_f16 = from.heads.dtype == DType::f16;
        CP_UNROLL
        for (int v = 0; v < 8; ++v) {
          const auto bits = static_cast<std::uint16_t>(words.words[v / 2] >> (v % 2 * 16));
          values[v] = is_f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
        }
      } else if (from.heads.is_wide) {
        CP_UNROLL
        for (int piece = 0; piece < 2; ++piece) {
          if (d + piece * 4 >= from.heads.dim) continue;
          const Words4 words =
              *reinterpret_cast<const Words4*>(from.heads.data + from.at(first + r, d + piece * 4) * 4);
          CP_UNROLL
          for (int v = 0; v < 4; ++v) values[piece * 4 + v] = std::bit_cast<float>(words.words[v]);
        }
      } else {
        CP_UNROLL
        for (int v = 0; v < 8; ++v) {
          if (d + v < from.heads.dim) values[v] = from.value(first + r, d + v);
        }
      }
    }
    float* const at = to + r * kValuesStride<kColumns> + unit % kUnitsOfRow * 8;
    CP_UNROLL
    for (int piece = 0; piece < 2; ++piece) {
      Words4 words;
      CP_UNROLL
      for (int v = 0; v < 4; ++v) words.words[v] = std::bit_cast<std::uint32_t>(values[piece * 4 + v]);
      *reinterpret_cast<Words4*>(at + piece * 4) = words;
    }
  }
}

// ---- products ----

// Fragments of words as they are, or of f32 that are split.
template <class Element, class Fragment>
struct Factor {
  static constexpr bool kIsSplit = std::is_same_v<Element, MmaTf32>;
  Fragment big, small;  // small: if it is split
  CP_DEVICE void set(int i, std::uint32_t word) {
    if constexpr (kIsSplit) {
      const Tf32Split split = split_tf32(std::bit_cast<float>(word));
      big.words[i] = split.big, small.words[i] = split.small;
    } else {
      big.words[i] = word;
    }
  }
};

// Adds the products of 32 words of the vectors in shared memory to 64 x 64 scores. `words` of them, and
// `columns` of the columns, are not zero or not needed. One phase.
template <class Element>
CP_DEVICE void add_scores(Block& block, const std::uint32_t* rows, int rows_stride,
                          const std::uint32_t* columns, int words, int count, PerThread<Scores>& scores) {
  constexpr int kSteps = kChunkWords / kMmaWords;
  block.for_each_warp([&](Warp warp) {
    PerLane<Factor<Element, MmaRows>> a[kSteps];
    PerLane<Factor<Element, MmaColumns>> b;
    PerLane<MmaSums> sums;
    warp.for_each_lane([&](int thread) {
      const std::uint32_t* const of_warp = rows + thread / kWarpThreads * kMmaRows * rows_stride;
      CP_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        CP_UNROLL
        for (int i = 0; i < 4; ++i)
          a[step][thread].set(
              i, of_warp[mma_row(thread, i) * rows_stride + step * kMmaWords + mma_row_word(thread, i)]);
      }
    });
    CP_UNROLL
    for (int n = 0; n < kBlockColumns / kMmaColumns; ++n) {
      if (n * kMmaColumns >= count) continue;
      warp.for_each_lane([&](int thread) { sums[thread] = MmaSums{{0, 0, 0, 0}}; });
      CP_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        if (step * kMmaWords >= words) continue;
        warp.for_each_lane([&](int thread) {
          CP_UNROLL
          for (int i = 0; i < 2; ++i)
            b[thread].set(i, columns[(n * kMmaColumns + mma_column(thread)) * kColumnsStride +
                                     step * kMmaWords + mma_column_word(thread, i)]);
        });
        const auto to = [&](int thread) -> MmaSums& { return sums[thread]; };
        const auto row = [&](int thread) -> const MmaRows& { return a[step][thread].big; };
        const auto column = [&](int thread) -> const MmaColumns& { return b[thread].big; };
        if constexpr (std::is_same_v<Element, MmaTf32>) {
          mma<Element>(
              warp, to, [&](int thread) -> const MmaRows& { return a[step][thread].small; }, column);
          mma<Element>(warp, to, row, [&](int thread) -> const MmaColumns& { return b[thread].small; });
        }
        mma<Element>(warp, to, row, column);
      }
      warp.for_each_lane([&](int thread) {
        CP_UNROLL
        for (int i = 0; i < 4; ++i) scores[thread].of[n].values[i] += sums[thread].values[i];
      });
    }
  });
}

// Adds weighted values: sums[r][c] += the sum over k < count of weights[r][k] * value(k, c). `width` of the
// columns are needed. `stage(thread, k)` puts the values of kValueRows columns from k on at kColumnsAt.
//
// The weights of a lane are those of columns 2t and 2t + 1 of each 8. They are words t and t + 4 of rows of A
// if words of B are taken in the same order: sums do not ask in which one their terms come.
template <class Element, int kColumns, class Stage>
CP_DEVICE void add_values(Block& block, int count, int width, PerThread<Scores>& weights,
                          PerThread<BlockSums<kColumns>>& sums, Stage&& stage) {
  constexpr bool kIsSplit = std::is_same_v<Element, MmaTf32>;
  constexpr int kRows = kValueRows<kColumns>, kParts = kRows / kMmaColumns;
  const float* const values = block.shared<float>() + kColumnsAt;
  CP_UNROLL
  for (int begin = 0; begin < kBlockColumns; begin += kRows) {
    if (begin >= count) continue;
    block.for_each_thread([&](int thread) { stage(thread, begin); });
    block.for_each_warp([&](Warp warp) {
      PerLane<Factor<MmaTf32, MmaRows>> a[kParts];
      PerLane<Factor<MmaTf32, MmaColumns>> b;
      PerLane<MmaSums> added;
      warp.for_each_lane([&](int thread) {
        CP_UNROLL
        for (int p = 0; p < kParts; ++p) {
          const MmaSums& part = weights[thread].of[begin / kMmaColumns + p];
          CP_UNROLL
          for (int i = 0; i < 4; ++i) {
            // Word i is of row i % 2 and of column i / 2 of the lane's two.
            a[p][thread].set(i, std::bit_cast<std::uint32_t>(part.values[i % 2 * 2 + i / 2]));
          }
        }
      });
      CP_UNROLL
      for (int n = 0; n < kColumns / kMmaColumns; ++n) {
        if (n * kMmaColumns >= width) continue;
        warp.for_each_lane([&](int thread) { added[thread] = MmaSums{{0, 0, 0, 0}}; });
        CP_UNROLL
        for (int p = 0; p < kParts; ++p) {
          warp.for_each_lane([&](int thread) {
            const float* const from =
                values + (p * kMmaColumns + mma_sum_column(thread, 0)) * kValuesStride<kColumns> +
                n * kMmaColumns + mma_column(thread);
            CP_UNROLL
            for (int i = 0; i < 2; ++i) {
              const auto word = std::bit_cast<std::uint32_t>(from[i * kValuesStride<kColumns>]);
              if constexpr (kIsSplit) {
                b[thread].set(i, word);
              } else {
                b[thread].big.words[i] = word;  // exact
              }
            }
          });
          const auto to = [&](int thread) -> MmaSums& { return added[thread]; };
          const auto row = [&](int thread) -> const MmaRows& { return a[p][thread].big; };
          const auto column = [&](int thread) -> const MmaColumns& { return b[thread].big; };
          mma<MmaTf32>(
              warp, to, [&](int thread) -> const MmaRows& { return a[p][thread].small; }, column);
          if constexpr (kIsSplit)
            mma<MmaTf32>(warp, to, row, [&](int thread) -> const MmaColumns& { return b[thread].small; });
          mma<MmaTf32>(warp, to, row, column);
        }
        warp.for_each_lane([&](int thread) {
          CP_UNROLL
          for (int i = 0; i < 4; ++i) sums[thread].of[n].values[i] += added[thread].values[i];
        });
      }
    });
  }
}

// The rows' vectors, of one or two kinds, in shared memory: all of them for good, or 32 words at a time.
template <class Element>
struct RowVectors {
  static constexpr int kValuesOfChunk = kChunkWords * Element::kValues;

  int chunks[2];  // of each kind
  bool stay;

  CP_DEVICE RowVectors(std::int64_t first_dim, std::int64_t second_dim)
      : chunks{static_cast<int>((first_dim + kValuesOfChunk - 1) / kValuesOfChunk),
               static_cast<int>((second_dim + kValuesOfChunk - 1) / kValuesOfChunk)} {
    stay = (chunks[0] + chunks[1]) * kChunkWords <= kRowWords;
  }

  // Copies all of one kind, if they stay. One phase.
  CP_DEVICE void keep(Block& block, int kind, const Rows& from, std::int64_t row) const {
    if (!stay || chunks[kind] == 0) return;
    std::uint32_t* const to = block.shared<std::uint32_t>() + kind * chunks[0] * kChunkWords;
    block.for_each_thread([&](int thread) {
      CP_NO_UNROLL
      for (int chunk = 0; chunk < chunks[kind]; ++chunk)
        stage_vectors<Element>(thread, to + chunk * kChunkWords, kRowsStride, from, row, from.heads.rows,
                               chunk * kChunkWords);
    });
  }

  // Adds the products with the vectors of `count` columns.
  CP_DEVICE void dot(Block& block, int kind, const Rows& of_rows, std::int64_t row, const Rows& of_columns,
                     std::int64_t column, int count, PerThread<Scores>& scores) const {
    std::uint32_t* const shared = block.shared<std::uint32_t>();
    CP_NO_UNROLL
    for (int chunk = 0; chunk < chunks[kind]; ++chunk) {
      const std::uint32_t* const rows = stay ? shared + (kind * chunks[0] + chunk) * kChunkWords : shared;
      block.for_each_thread([&](int thread) {
        if (!stay)
          stage_vectors<Element>(thread, shared, kRowsStride, of_rows, row, of_rows.heads.rows,
                                 chunk * kChunkWords);
        stage_vectors<Element>(thread, shared + kColumnsAt, kColumnsStride, of_columns, column,
                               column + count, chunk * kChunkWords);
      });
      const std::int64_t left =
          (of_rows.heads.dim - chunk * kValuesOfChunk + Element::kValues - 1) / Element::kValues;
      const int words = left < kChunkWords ? static_cast<int>(left) : kChunkWords;
      add_scores<Element>(block, rows, kRowsStride, shared + kColumnsAt, words, count, scores);
    }
  }
};

// How many of a block's columns, from `first` on, a row of `dim` values has.
template <int kColumns>
CP_DEVICE int width_of(std::int64_t dim, std::int64_t first) {
  return static_cast<int>(dim - first < kColumns ? dim - first : kColumns);
}

CP_DEVICE int columns_of(const BandPart& part, std::int64_t column) {
  return static_cast<int>(part.column_end - column < kBlockColumns ? part.column_end - column
                                                                   : kBlockColumns);
}

// Whether every row of the tile sees all of its 64 columns, so that nothing need be asked of each pair.
CP_DEVICE bool sees_tile(const Band& band, std::int64_t row, std::int64_t column, int count) {
  return count == kBlockColumns && row >= band.row_begin && row + kBlockRows <= band.row_end &&
         column > row + kBlockRows - 1 + band.low && column + kBlockColumns - 1 <= row + band.high;
}

// ---- on the host ----

class Operands {
 public:
  Operands(const CudaMemory& memory, std::int64_t iteration) : memory_(memory), iteration_(iteration) {}
  Heads heads(const View& view) const {
    Heads made{memory_.at(view, iteration_),
               memory_.dtype(view),
               view.strides[0],
               view.strides[1],
               view.strides[2],
               view.strides[3],
               view.shape[1],
               view.shape[3],
               false};
    constexpr std::int64_t kWide = 16;
    const std::int64_t size = size_bytes(made.dtype);
    made.is_wide = made.dim_step == 1 && reinterpret_cast<std::uintptr_t>(made.data) % kWide == 0;
    for (const std::int64_t step : {made.batch_step, made.row_step, made.head_step, made.dim})
      made.is_wide = made.is_wide && step * size % kWide == 0;
    return made;
  }
  Statistic statistic(const View& view) const {
    return {reinterpret_cast<float*>(memory_.at(view, iteration_)), view.strides[0], view.strides[1],
            view.strides[2]};
  }

 private:
  const CudaMemory& memory_;
  std::int64_t iteration_;
};

// The grid of a kernel whose sums have the shape of the view.
template <int kColumns>
RowGrid grid_over(const View& sums) {
  return {ceil_div(sums.shape[1], std::int64_t{kBlockRows}), sums.shape[2], sums.shape[0],
          ceil_div(sums.shape[3], std::int64_t{kColumns})};
}

// Calls f(std::integral_constant<int, columns of a block's sums>{}).
template <class F>
void with_columns(std::int64_t dim, F&& f) {
  constexpr int kFew = 64;
  dim <= kFew ? f(std::integral_constant<int, kFew>{}) : f(std::integral_constant<int, kMostColumns>{});
}

// Calls f(how words of vectors of these dtypes are multiplied).
template <class F>
void with_element(DType one, DType other, F&& f) {
  if (one != other || one == DType::f32)
    f(MmaTf32());
  else if (one == DType::f16)
    f(MmaF16());
  else
    f(MmaBf16());
}

inline std::int64_t group_size(const View& q, const View& k) {
  return k.shape[2] == 0 ? 1 : q.shape[2] / k.shape[2];
}

}  // namespace cp::runtime
