// Copy: moves bytes, whatever they mean.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "shared/kernels/kernels.h"
#include "shared/kernels/strided.h"

namespace cp {
namespace {

// Steps in bytes. An inner run of a few bytes that is contiguous on both sides counts as one element of that
// size.
template <std::size_t kBytes>
void copy_elements(std::vector<Loop> loops, const std::byte* in, std::byte* out) {
  // A transpose is copied in tiles of this many rows and columns, so that it uses all of each cache line that
  // it touches: 16 elements of 4 bytes are a line of 64 bytes.
  constexpr std::int64_t kTile = 16;
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

// ---- runs of a cache line and longer ----
//
// The C library's memcpy is at its best for one large piece; for rows it has cases that are two to three
// times as slow as plain loads and stores, where source and target lie differently in their pages or where a
// row ends before the processor fetches ahead. So rows are copied by lines, the beginning of the next row is
// fetched while the end of one is copied, and what no cache would keep is stored past the caches, which saves
// reading the target first.

// Bytes of a cache line on x86-64 and on most ARM processors. On others copies are as right, and a little
// slower.
constexpr std::int64_t kLine = 64;
// Bytes from a fetch to its use. Chosen: a core copies about 10 bytes in a nanosecond, so the fetch has some
// 200 ns, about twice the latency of memory. Too few bytes would wait for memory, many more would be evicted
// before their use.
constexpr std::int64_t kAhead = 2048;
// A copy of at least this many bytes is stored past the caches. Chosen: with its source it is more than a
// core's share of any cache, so that nobody would find the target there.
constexpr std::int64_t kStreamed = std::int64_t{8} << 20;
// The shortest run that is stored past the caches. Chosen: the ends of a run that are part of a line cost a
// store more, which four lines outweigh.
constexpr std::int64_t kShortestStreamed = 256;

inline void copy_line(const std::byte* in, std::byte* out) {
  std::array<std::byte, kLine> line;
  std::memcpy(line.data(), in, kLine);
  std::memcpy(out, line.data(), kLine);
}

#ifdef __SSE2__
// `out` at the beginning of a line.
inline void stream_line(const std::byte* in, std::byte* out) {
  using Part = long long __attribute__((vector_size(16)));
  std::array<Part, 4> line;
  std::memcpy(line.data(), in, kLine);
  Part* to = reinterpret_cast<Part*>(out);
  for (std::size_t i = 0; i < line.size(); ++i) {
#ifdef __clang__
    __builtin_nontemporal_store(line[i], to + i);
#else
    __builtin_ia32_movntdq(to + i, line[i]);
#endif
  }
}
inline void end_of_stream() { __builtin_ia32_sfence(); }
inline void fetch(const std::byte* data) { __builtin_prefetch(data); }
#else
inline void stream_line(const std::byte* in, std::byte* out) { copy_line(in, out); }
inline void end_of_stream() {}
inline void fetch(const std::byte*) {}
#endif

// Runs of `bytes` bytes, at least a line each, at these steps.
template <bool kStreams>
void copy_rows(const std::byte* in, std::int64_t in_step, std::byte* out, std::int64_t out_step,
               std::int64_t rows, std::int64_t bytes) {
  const std::int64_t rows_ahead = std::max<std::int64_t>(1, kAhead / bytes);
  // Of the row(s) ahead, from its beginning.
  const std::int64_t begin_fetching = std::max<std::int64_t>(0, bytes - kAhead);
  const auto copy = [](const std::byte* from, std::byte* to) {
    if constexpr (kStreams) {
      stream_line(from, to);
    } else {
      copy_line(from, to);
    }
  };
  for (std::int64_t row = 0; row < rows; ++row, in += in_step, out += out_step) {
    std::int64_t at = 0;
    if constexpr (kStreams) {
      at = static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(out) % kLine);
      std::memcpy(out, in, static_cast<std::size_t>(at));
    }
    const bool fetches = row + rows_ahead < rows;
    for (const std::int64_t end = fetches ? begin_fetching : bytes; at + kLine <= end; at += kLine)
      copy(in + at, out + at);
    for (const std::byte* ahead = in + rows_ahead * in_step - begin_fetching; at + kLine <= bytes;
         at += kLine) {
      fetch(ahead + at);
      copy(in + at, out + at);
    }
    std::memcpy(out + at, in + at, static_cast<std::size_t>(bytes - at));
  }
}

void copy_runs(const std::vector<Loop>& loops, std::int64_t run_bytes, const std::byte* in, std::byte* out) {
  std::int64_t total_bytes = run_bytes;
  for (const Loop& loop : loops) total_bytes *= loop.size;
  const bool streams = total_bytes >= kStreamed && run_bytes >= kShortestStreamed;
  for_each_run(loops, [&](std::int64_t from, std::int64_t from_step, std::int64_t to, std::int64_t to_step,
                          std::int64_t n) {
    if (streams) {
      copy_rows<true>(in + from, from_step, out + to, to_step, n, run_bytes);
    } else if (run_bytes >= kLine) {
      copy_rows<false>(in + from, from_step, out + to, to_step, n, run_bytes);
    } else {
      for (std::int64_t i = 0; i < n; ++i)
        std::memcpy(out + to + i * to_step, in + from + i * from_step, static_cast<std::size_t>(run_bytes));
    }
  });
  if (streams) end_of_stream();
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
