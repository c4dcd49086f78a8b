// What both passes of the short convolution of recurrent layers share: how rows are found by their positions,
// and how columns and positions are divided among blocks and threads.
//
// A sequence's rows, of x and of the halo, stand one behind the other in the order of the rule's runs, and
// have positions. Chains of them follow one another; a row sees the rows before it as far as its chain's
// begin. Of q, k and v, or of y, each block has a group of columns, a head where heads are normalized, and a
// tile of positions. A thread has a strip of it: a pack of columns of a few rows, which reads these and the
// few rows before, so that a row comes once from memory and else from a cache.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/kernel_launch.h"
#include "runtime/cuda/row_access.h"
#include "runtime/cuda/row_column_sums.h"
#include "runtime/cuda/walk.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/base/types.h"
#include "shared/kernels/activation.h"
#include "shared/plan/row_rules.h"

namespace cp::runtime {

// ---- rows by their positions ----

// A run of the rule. Rows of sequence s are row + s step and those behind.
struct PlacedRun {
  std::int32_t begin = 0, end = 0;  // positions
  std::int32_t chain = 0;           // the position at which its chain begins
  std::int32_t row = 0, step = 0;   // in x, or in the halo
  std::int32_t of_halo = 0;
};

struct PlacedRuns {
  const PlacedRun* runs = nullptr;
  std::int32_t count = 0, positions = 0;  // positions: of a sequence

  // The run that has a position, of which there must be one.
  CP_DEVICE std::int32_t run_at(std::int32_t position) const {
    std::int32_t low = 0, high = count - 1;
    while (low < high) {
      const std::int32_t middle = (low + high + 1) / 2;
      if (runs[middle].begin <= position) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

// The chain of a row that is not there: it begins behind all rows.
constexpr std::int32_t kNoChain = std::numeric_limits<std::int32_t>::max();

// Taps whose weights a thread has in registers. Every model known here has 4 of them; more are for packs of
// one column.
constexpr std::int64_t kTapsOfPacks = 4, kMostTaps = 8;
template <int kPack>
constexpr int kTapsOf = static_cast<int>(kPack == 1 ? kMostTaps : kTapsOfPacks);

// A pack of columns of kRows rows, and of the rows before them.
template <int kPack, int kRows>
struct Strip {
  static constexpr int kBefore = kTapsOf<kPack> - 1;
  RowBits bits[kBefore + kRows];
  std::uint32_t of_halo;       // a bit for each
  std::int32_t rows[kRows];    // in x, or in the halo
  std::int32_t chains[kRows];  // the positions at which their chains begin, or kNoChain

  CP_DEVICE bool is_of_halo(int row) const { return (of_halo >> (kBefore + row) & 1) != 0; }
  // Whether the convolution has an output for the row.
  CP_DEVICE bool is_convolved(int row) const { return chains[row] != kNoChain && !is_of_halo(row); }
};

// What both kernels read. Weights stand by their distance: 0 is that of the row itself, the last tap.
template <int kPack, int kRowsOf>
struct Convolved {
  static constexpr int kRows = kRowsOf, kTaps = kTapsOf<kPack>, kBefore = kTaps - 1;
  using Own = Strip<kPack, kRows>;

  PlacedRuns placed;
  int taps = 1;
  bool has_bias = false, plain = false;
  RowMatrix<kPack> x, halo, bias;
  RowMatrix<1> weights;

  // Reads the strip whose own rows have the positions from `first` on.
  CP_DEVICE void read(std::int32_t sequence, std::int32_t first, std::int64_t column, Own& own) const {
    own.of_halo = 0;
    CP_UNROLL
    for (int r = 0; r < kRows; ++r) own.chains[r] = kNoChain, own.rows[r] = 0;
    const std::int32_t from = first < taps ? 0 : first - (taps - 1);
    std::int32_t number = placed.run_at(from);
    PlacedRun run = placed.runs[number];
    CP_UNROLL
    for (int j = 0; j < kBefore + kRows; ++j) {
      const std::int32_t position = first - kBefore + j;
      own.bits[j] = {};
      if (position < from || position >= placed.positions) continue;
      if (position >= run.end) run = placed.runs[++number];
      const std::int32_t row = run.row + sequence * run.step + (position - run.begin);
      own.bits[j] = run.of_halo != 0 ? halo.read(row, column) : x.read(row, column);
      own.of_halo |= static_cast<std::uint32_t>(run.of_halo) << j;
      if (j >= kBefore) own.chains[j - kBefore] = run.chain, own.rows[j - kBefore] = row;
    }
  }

  CP_DEVICE void values(const Own& own, int j, float (&to)[kPack]) const {
    const DType dtype = (own.of_halo >> j & 1) != 0 ? halo.elements.dtype : x.elements.dtype;
    RowElements<kPack>{nullptr, dtype}.values(own.bits[j], to);
  }

  CP_DEVICE void load_weights(std::int64_t column, float (&to)[kTaps][kPack]) const {
    if (kPack > 1 && taps == kTaps) {
      // Those of a pack stand side by side.
      const RowElements<kPack> packs{weights.elements.data, weights.elements.dtype};
      CP_UNROLL
      for (int pack = 0; pack < kTaps; ++pack) {
        float values[kPack];
        packs.values(packs.read(column * kTaps + pack * kPack), values);
        CP_UNROLL
        for (int i = 0; i < kPack; ++i) {
          const int weight = pack * kPack + i;
          to[kTaps - 1 - weight % kTaps][weight / kTaps] = values[i];
        }
      }
      return;
    }
    CP_UNROLL
    for (int distance = 0; distance < kTaps; ++distance) {
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) {
        float weight[1] = {};
        if (distance < taps) weights.load(0, (column + i) * taps + (taps - 1 - distance), weight);
        to[distance][i] = weight[0];
      }
    }
  }

  // What stands behind the convolution. That of a `plain` one is chosen from both, without a branch.
  CP_DEVICE Activated activated(float z) const {
    const Activated silu = activate(ActivationFunction::silu, z);
    return {plain ? z : silu.value, plain ? 1 : silu.slope};
  }

  // z of the strip's own rows, the first of which is at the position `first`.
  CP_DEVICE void add_up(const Own& own, std::int32_t first, std::int64_t column,
                        float (&z)[kRows][kPack]) const {
    float of_taps[kTaps][kPack], begin[kPack] = {};
    load_weights(column, of_taps);
    if (has_bias) bias.load(0, column, begin);
    CP_UNROLL
    for (int r = 0; r < kRows; ++r) {
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) z[r][i] = begin[i];
    }
    CP_UNROLL
    for (int j = 0; j < kBefore + kRows; ++j) {
      float seen[kPack];
      values(own, j, seen);
      CP_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const int distance = r + kBefore - j;
        if (distance < 0 || distance >= kTaps) continue;
        if (distance >= taps || first - kBefore + j < own.chains[r]) continue;
        CP_UNROLL
        for (int i = 0; i < kPack; ++i) z[r][i] += of_taps[distance][i] * seen[i];
      }
    }
  }
};

// ---- blocks ----

// Columns of a group that is no head: 128 bytes of a row of 16 bits. Chosen, as memory gives 64 bytes of a
// row as fast as more.
constexpr std::int64_t kGroupColumns = 64;
// So that a head in packs of one column has a lane for each of them.
constexpr std::int64_t kMostHead = kRowThreads;

// q, k or v, or y, or its gradient, and the blocks that have it.
template <int kPack>
struct ConvolvedPart {
  RowMatrix<kPack> matrix;
  std::int64_t first = 0, columns = 0;  // of x
  std::int64_t width = 0;               // of a group
  bool normalized = false;
  RowLanes lanes;           // of a group's packs; each has one
  Divider groups, tiles;    // tiles: of a sequence
  std::int32_t tile = 0;    // positions from a tile to the next one
  std::int64_t turns = 0;   // tiles of all sequences
  std::int64_t blocks = 0;  // all in all

  CP_DEVICE int strips() const { return kRowThreads >> lanes.shift; }
  CP_DEVICE int strip(int thread) const { return thread >> lanes.shift; }
  // The column of a thread's pack in the part, if it has one.
  CP_DEVICE std::int64_t column(std::int64_t group, int thread) const {
    return group * width + std::int64_t{lanes.lane(thread)} * kPack;
  }
  CP_DEVICE bool has(std::int64_t group, int thread) const {
    return lanes.lane(thread) < lanes.packs && column(group, thread) < columns;
  }
};
// Where a tile of a part is.
struct TilePlace {
  std::int32_t sequence = 0, first = 0;  // first: its first position
};
template <int kPack>
CP_DEVICE TilePlace place_of(const ConvolvedPart<kPack>& part, std::int64_t turn) {
  const std::uint32_t sequence = part.tiles.quotient(static_cast<std::uint32_t>(turn));
  const auto tile = static_cast<std::int32_t>(turn - std::int64_t{sequence} * part.tiles.size);
  return {static_cast<std::int32_t>(sequence), tile * part.tile};
}

template <int kPack>
struct ConvolvedParts {
  ConvolvedPart<kPack> of[3];  // behind the last one: without blocks

  // Calls use(part, group, number) with what a block has: the part and the group, and its number among the
  // blocks of both. Neighbouring blocks have neighbouring columns.
  template <class Use>
  CP_DEVICE void for_block(std::int64_t index, Use&& use) const {
    int number = 0;
    while (index >= of[number].blocks) index -= of[number++].blocks;
    const ConvolvedPart<kPack>& part = of[number];
    const std::int64_t in_groups = part.groups.quotient(static_cast<std::uint32_t>(index));
    use(part, index - in_groups * part.groups.size, in_groups);
  }
  std::int64_t blocks() const { return of[0].blocks + of[1].blocks + of[2].blocks; }
  std::int64_t most_turns() const { return std::max({of[0].turns, of[1].turns, of[2].turns}); }
  // Gives each group so many blocks, instead of one for each of its turns.
  void set_strands(std::int64_t strands) {
    for (ConvolvedPart<kPack>& part : of)
      part.blocks = part.turns == 0 ? 0 : part.blocks / part.turns * strands;
  }
};

// Of each row of a strip, as join_lanes() adds them up.
template <int kRows>
struct RowSums {
  double of[kRows];
};
template <int kRows>
CP_DEVICE RowSums<kRows> operator+(RowSums<kRows> a, const RowSums<kRows>& b) {
  CP_UNROLL
  for (int r = 0; r < kRows; ++r) a.of[r] += b.of[r];
  return a;
}

// ---- preparation ----

// A kernel's operands, and its runs on the device.
class ConvolutionViews {
 public:
  ConvolutionViews(const RowKernel& kernel, const CudaMemory& memory)
      : rule_(std::get<ConvolutionRule>(kernel.rule)),
        memory_(memory),
        operands_(convolution_operands(kernel)),
        rows_(operands_.x->shape[0] / rule_.sequences) {
    if (rule_.taps > kMostTaps || rule_.normalized > kMostHead) {
      throw InvalidInput(str("a short convolution of ", rule_.taps, " taps that normalizes heads of ",
                             rule_.normalized, " columns: the GPU takes at most ", kMostTaps, " taps, and ",
                             kMostHead, " columns of a head"));
    }
    std::vector<PlacedRun> runs;
    std::int64_t position = 0, chain = 0;
    require_numbers(operands_.x->shape[0] + (operands_.halo == nullptr ? 0 : operands_.halo->shape[0]), 1);
    for (const ConvolvedRun& run : rule_.runs) {
      if (run.begins) chain = position;
      const auto number = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
      runs.push_back({number(position), number(position + run.rows), number(chain), number(run.first),
                      number(run.of_halo ? run.rows : rows_), run.of_halo ? 1 : 0});
      position += run.rows;
    }
    count_ = static_cast<std::int32_t>(runs.size()), positions_ = static_cast<std::int32_t>(position);
    runs_ = std::make_shared<const GpuBytes>(std::as_bytes(std::span<const PlacedRun>(runs)));
  }

  // All that packs are made of, and where they may not reach over.
  std::vector<const View*> views() const {
    std::vector<const View*> views{operands_.x, operands_.weights};
    views.insert(views.end(), operands_.outputs.begin(), operands_.outputs.end());
    for (const View* view : {operands_.bias, operands_.halo}) {
      if (view != nullptr) views.push_back(view);
    }
    return views;
  }
  std::vector<std::int64_t> bounds() const {
    std::vector<std::int64_t> bounds{rule_.normalized, rule_.taps > kTapsOfPacks ? 1 : 0};
    std::int64_t end = 0;
    for (const View* view : operands_.outputs) bounds.push_back(end += view->shape[1]);
    return bounds;
  }

  template <int kPack, int kRows>
  Convolved<kPack, kRows> convolved(std::int64_t iteration) const {
    Convolved<kPack, kRows> x;
    x.placed = {reinterpret_cast<const PlacedRun*>(runs_->data()), count_, positions_};
    x.taps = static_cast<int>(rule_.taps), x.has_bias = operands_.bias != nullptr, x.plain = rule_.plain;
    x.x = row_matrix<kPack>(*operands_.x, memory_, iteration);
    if (operands_.halo != nullptr) x.halo = row_matrix<kPack>(*operands_.halo, memory_, iteration);
    if (operands_.bias != nullptr) x.bias = row_matrix<kPack>(*operands_.bias, memory_, iteration);
    x.weights = row_matrix<1>(*operands_.weights, memory_, iteration);
    return x;
  }

  // Of tiles that share `shared` rows with the next one.
  template <int kPack, int kRows>
  ConvolvedParts<kPack> parts(std::int64_t iteration, std::int64_t shared) const {
    ConvolvedParts<kPack> parts;
    std::int64_t first = 0;
    for (std::size_t i = 0; i < operands_.outputs.size(); ++i) {
      ConvolvedPart<kPack>& part = parts.of[i];
      part.matrix = row_matrix<kPack>(*operands_.outputs[i], memory_, iteration);
      part.first = first, part.columns = operands_.outputs[i]->shape[1];
      part.width = width(i), part.normalized = is_normalized(i);
      part.lanes = row_lanes(0, part.width / kPack, 1);
      part.tile = static_cast<std::int32_t>((kRowThreads >> part.lanes.shift) * kRows - shared);
      const std::int64_t tiles = ceil_div(std::int64_t{positions_}, std::int64_t{part.tile}),
                         groups = ceil_div(part.columns, part.width);
      part.turns = tiles * rule_.sequences;
      require_numbers(part.turns, std::max<std::int64_t>(1, groups));
      part.groups = divider(std::max<std::int64_t>(1, groups));
      part.tiles = divider(std::max<std::int64_t>(1, tiles));
      part.blocks = groups * part.turns;
      first += part.columns;
    }
    return parts;
  }

  // The most blocks of each group, so that all are about four for each multiprocessor of an H100, whatever
  // the device.
  std::int64_t strands() const {
    std::int64_t groups = 0;
    for (std::size_t i = 0; i < operands_.outputs.size(); ++i)
      groups += ceil_div(operands_.outputs[i]->shape[1], width(i));
    return std::max<std::int64_t>(1, 2 * kGradientBlocks / std::max<std::int64_t>(1, groups));
  }

  const ConvolutionRule& rule() const { return rule_; }
  const CudaMemory& memory() const { return memory_; }
  std::int64_t columns() const { return operands_.x->shape[1]; }
  bool has_halo() const { return operands_.halo != nullptr; }
  bool has_bias() const { return operands_.bias != nullptr; }

 private:
  bool is_normalized(std::size_t part) const { return part < 2 && rule_.normalized > 0; }
  std::int64_t width(std::size_t part) const {
    return is_normalized(part) ? rule_.normalized : kGroupColumns;
  }

  const ConvolutionRule& rule_;
  const CudaMemory& memory_;
  const ConvolutionOperands operands_;
  const std::int64_t rows_;  // of x, of a sequence
  std::int32_t count_ = 0, positions_ = 0;
  std::shared_ptr<const GpuBytes> runs_;
};

}  // namespace cp::runtime
