// Copy: moves bytes in the widest units that the views and their addresses allow. Views whose innermost
// dimensions are swapped go through shared memory, tile by tile, so that both sides are read and written in
// long runs.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "runtime/cuda/elementwise.h"
#include "runtime/cuda/transpose_tile.h"
#include "shared/base/dtype.h"

namespace cp::runtime {
namespace {

template <class Unit>
struct CopyUnit {
  static constexpr const char* kName = "copy";
  static constexpr bool kReadsIn = true, kReadsOut = false;
  using In = Unit;
  using Out = Unit;
  CP_DEVICE Unit operator()(const Unit& in, const Unit&) const { return in; }
};

// Sets out[o + r + c * out_step] = in[o + r * in_step + c] for the rows r and columns c of many planes.
template <class Unit, class Tile>
struct Transpose {
  static constexpr std::int64_t kTile = Tile::kTile;
  static constexpr int kThreads = Tile::kThreads;
  // Else the compiler takes so few registers that a thread waits for some reads before it issues the others:
  // measured on an H200 in accesses of 16 bytes, 0.80 of a copy's rate instead of 0.94.
  static constexpr int kLeastBlocks = 1;
  static constexpr const char* kName = "transpose";

  Walk planes;
  std::int64_t rows, columns, row_tiles, column_tiles, in_step, out_step;
  const Unit* in;
  Unit* out;

  CP_DEVICE void operator()(Block& block) const {
    const std::int64_t of_plane = block.index() % (row_tiles * column_tiles);
    const WalkOffsets plane =
        planes.at(static_cast<std::uint32_t>(block.index() / (row_tiles * column_tiles)));
    Tile::run(block, of_plane / column_tiles * kTile, of_plane % column_tiles * kTile, rows, columns,
              in + plane.in, in_step, out + plane.out, out_step);
  }
};

struct TransposePlan {
  std::vector<WalkPart> planes;
  std::int64_t rows = 0, columns = 0, in_step = 0, out_step = 0;
  // Whether units come in accesses of 16 bytes, in the rows of one side and the columns of the other.
  bool packs = false;
};

// How the views are copied: either by walks or by a transpose, in units of some bytes.
struct CopyPlan {
  std::int64_t unit_bytes = 0;
  std::vector<WalkPart> parts;  // or
  std::optional<TransposePlan> transpose;
};

// Looks for a transpose: a loop in which `out` moves by one, and another in which `in` does.
std::optional<TransposePlan> transpose_of(std::vector<Loop> loops, std::int64_t pack,
                                          std::int64_t unit_bytes) {
  constexpr std::int64_t kLeast = 8;  // shorter runs would leave most of a tile empty; chosen
  const Loop rows = loops.back();
  if (rows.step_b != 1 || rows.step_a <= 1 || rows.size < kLeast) return std::nullopt;
  loops.pop_back();
  const auto columns = std::find_if(
      loops.begin(), loops.end(), [&](const Loop& loop) { return loop.step_a == 1 && loop.size >= kLeast; });
  if (columns == loops.end()) return std::nullopt;
  TransposePlan plan{{}, rows.size, columns->size, rows.step_a, columns->step_b};
  loops.erase(columns);
  const auto whole = [unit_bytes](auto... numbers) { return ((numbers * unit_bytes % 16 == 0) && ...); };
  plan.packs = whole(plan.rows, plan.columns, plan.in_step, plan.out_step) &&
               std::all_of(loops.begin(), loops.end(),
                           [&](const Loop& loop) { return whole(loop.step_a, loop.step_b); });
  if (loops.empty()) loops.push_back({1, 0, 0});
  add_walks(loops, pack > 1, pack, 0, 0, plan.planes);
  return plan;
}

std::vector<CopyPlan> plans_of(const View& in, const View& out, std::int64_t element_bytes) {
  if (out.numel() == 0) return {{element_bytes, {}, std::nullopt}};
  std::vector<CopyPlan> plans;
  for (std::int64_t unit_bytes = 16; unit_bytes >= element_bytes; unit_bytes /= 2) {
    const std::int64_t pack = unit_bytes / element_bytes;
    auto loops = ordered_loops(in, out);
    if (loops && pack_loops(*loops, pack)) {
      if (auto transpose = transpose_of(*std::move(loops), pack, unit_bytes)) {
        plans.push_back({unit_bytes, {}, std::move(transpose)});
        continue;
      }
    }
    if (auto parts = walks(in, out, pack)) plans.push_back({unit_bytes, *std::move(parts), std::nullopt});
  }
  return plans;
}

template <class Tile, class Unit>
void launch_transpose(cudaStream_t stream, const TransposePlan& plan, const Walk& planes, const Unit* in,
                      Unit* out) {
  using Body = Transpose<Unit, Tile>;
  const std::int64_t row_tiles = ceil_div(plan.rows, Body::kTile),
                     column_tiles = ceil_div(plan.columns, Body::kTile);
  launch(
      stream, {row_tiles * column_tiles * planes.count, Tile::kSharedBytes},
      Body{planes, plan.rows, plan.columns, row_tiles, column_tiles, plan.in_step, plan.out_step, in, out});
}

template <class Unit>
void launch_transpose(cudaStream_t stream, const TransposePlan& plan, std::int64_t element_bytes,
                      const std::byte* in, std::byte* out) {
  for (const WalkPart& part : plan.planes) {
    const auto* from = reinterpret_cast<const Unit*>(in + part.in_offset * element_bytes);
    auto* to = reinterpret_cast<Unit*>(out + part.out_offset * element_bytes);
    // Accesses of single units take more instructions than there is time for.
    if constexpr (sizeof(Unit) <= 4) {
      if (plan.packs && is_aligned(from, 16) && is_aligned(to, 16)) {
        launch_transpose<PackedTransposeTile<Unit>>(stream, plan, part.walk, from, to);
        continue;
      }
    }
    launch_transpose<TransposeTile<Unit>>(stream, plan, part.walk, from, to);
  }
}

// Calls f(std::type_identity<Unit>{}).
template <class F>
void with_unit(std::int64_t bytes, F&& f) {
  switch (bytes) {
    case 16:
      return f(std::type_identity<uint4>{});
    case 8:
      return f(std::type_identity<std::uint64_t>{});
    case 4:
      return f(std::type_identity<std::uint32_t>{});
    default:
      return f(std::type_identity<std::uint16_t>{});
  }
}

void launch_plan(cudaStream_t stream, const CopyPlan& plan, std::int64_t element_bytes, const std::byte* in,
                 std::byte* out) {
  with_unit(plan.unit_bytes, [&]<class Unit>(std::type_identity<Unit>) {
    if (plan.transpose) launch_transpose<Unit>(stream, *plan.transpose, element_bytes, in, out);
  });
  for (const WalkPart& part : plan.parts) {
    with_unit(part.packed ? plan.unit_bytes : element_bytes, [&]<class Unit>(std::type_identity<Unit>) {
      launch_elementwise(stream, part.walk, in + part.in_offset * element_bytes,
                         out + part.out_offset * element_bytes, CopyUnit<Unit>{});
    });
  }
}

}  // namespace

PreparedKernel prepare(const Copy& kernel, const CudaMemory& memory) {
  const std::int64_t element_bytes = size_bytes(memory.dtype(kernel.in));
  return [&kernel, &memory, element_bytes, plans = plans_of(kernel.in, kernel.out, element_bytes)](
             std::int64_t iteration, cudaStream_t stream) {
    const std::byte* in = memory.at(kernel.in, iteration);
    std::byte* out = memory.at(kernel.out, iteration);
    const auto plan = std::find_if(plans.begin(), plans.end(), [&](const CopyPlan& candidate) {
      return is_aligned(in, candidate.unit_bytes) && is_aligned(out, candidate.unit_bytes);
    });
    CP_INVARIANT(plan != plans.end(), "a copy from ", in, " to ", out, " of elements of ", element_bytes,
                 " bytes");
    launch_plan(stream, *plan, element_bytes, in, out);
  };
}

}  // namespace cp::runtime
