// Copy: moves bytes, whatever they mean.
#include <algorithm>
#include <cstring>

#include "shared/kernels/kernels.h"
#include "shared/kernels/strided.h"

namespace cp {
namespace {

// Steps in bytes. An inner run of a few bytes that is contiguous on both sides counts as one element of that
// size.
template <std::size_t kBytes>
void copy_elements(std::vector<Loop> loops, const std::byte* in, std::byte* out) {
  constexpr std::int64_t kTile =
      16;  // rows and columns, so that a transpose uses each cache line that it touches
  const Loop inner = loops.back();
  const Loop middle = loops.size() > 1 ? loops[loops.size() - 2] : Loop{1, 0, 0};
  const bool transposed = middle.size > 1 && middle.step_a < inner.step_a;
  const std::int64_t tile_rows = transposed ? kTile : 1, tile_columns = transposed ? kTile : inner.size;
  const auto copy_plane = [&](const std::byte* from, std::byte* to) {
    for (std::int64_t row = 0; row < middle.size; row += tile_rows) {
      for (std::int64_t column = 0; column < inner.size; column += tile_columns) {
        const std::int64_t rows_end = std::min(row + tile_rows, middle.size);
        const std::int64_t columns_end = std::min(column + tile_columns, inner.size);
        for (std::int64_t m = row; m < rows_end; ++m) {
          for (std::int64_t i = column; i < columns_end; ++i) {
            std::memcpy(to + m * middle.step_b + i * inner.step_b,
                        from + m * middle.step_a + i * inner.step_a, kBytes);
          }
        }
      }
    }
  };
  loops.resize(std::max<std::size_t>(loops.size(), 2) - 2);
  if (loops.empty()) return copy_plane(in, out);
  for_each_run(loops, [&](std::int64_t from, std::int64_t from_step, std::int64_t to, std::int64_t to_step,
                          std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) copy_plane(in + from + i * from_step, out + to + i * to_step);
  });
}

void copy_runs(const std::vector<Loop>& loops, std::int64_t run_bytes, const std::byte* in, std::byte* out) {
  for_each_run(loops, [&](std::int64_t from, std::int64_t from_step, std::int64_t to, std::int64_t to_step,
                          std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      std::memcpy(out + to + i * to_step, in + from + i * from_step, static_cast<std::size_t>(run_bytes));
    }
  });
}

// `loops` walk elements of `bytes` bytes.
void copy_loops(std::vector<Loop> loops, std::int64_t bytes, const std::byte* in, std::byte* out) {
  for (Loop& loop : loops) {
    loop.step_a *= bytes;
    loop.step_b *= bytes;
  }
  if (loops.back().step_a == bytes && loops.back().step_b == bytes) {
    bytes *= loops.back().size;
    loops.pop_back();
    if (loops.empty()) loops.push_back({1, bytes, bytes});
  }
  switch (bytes) {
    case 2:
      return copy_elements<2>(loops, in, out);
    case 4:
      return copy_elements<4>(loops, in, out);
    case 8:
      return copy_elements<8>(loops, in, out);
    case 16:
      return copy_elements<16>(loops, in, out);
    case 32:
      return copy_elements<32>(loops, in, out);
    default:
      return copy_runs(loops, bytes, in, out);
  }
}

}  // namespace

void run(const Copy& kernel, const HostMemory& memory, std::int64_t iteration) {
  const std::byte* in = memory.at(kernel.in, iteration);
  std::byte* out = memory.at(kernel.out, iteration);
  const std::int64_t element_bytes = size_bytes(memory.dtype(kernel.in));
  if (kernel.in.numel() == 0) return;
  if (auto loops = common_loops(kernel.in, kernel.out))
    return copy_loops(*std::move(loops), element_bytes, in, out);
  for_each_run(
      kernel.in, kernel.out,
      [&](std::int64_t from, std::int64_t from_step, std::int64_t to, std::int64_t to_step, std::int64_t n) {
        copy_loops({{n, from_step, to_step}}, element_bytes, in + from * element_bytes,
                   out + to * element_bytes);
      });
}

}  // namespace cp
