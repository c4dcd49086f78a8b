// The short convolution of recurrent layers along the sequence, and its gradients.
//
// A sequence's rows, of x and of the halo, stand one behind the other in the order of the rule's runs, and
// have positions. Chains of them follow one another; a row sees the rows before it as far as its chain's
// begin. Of q, k and v each block has a group of columns, a head where heads are normalized, and a tile of
// positions. A thread has a strip of it: a pack of columns of a few rows, which reads these and the few rows
// before, so that a row comes once from memory and else from a cache.
//
// Gradients of rows need those of the rows behind, before which stands what normalizes. So the block finds
// the gradients of the convolution's sums of its tile, and of the few rows behind, and leaves them in shared
// memory, where each row finds its own. They are computed twice for these few rows alone.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/row_access.h"
#include "runtime/cuda/row_column_sums.h"
#include "runtime/cuda/row_kernels.h"
#include "runtime/cuda/walk.h"
#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/kernels/activation.h"
#include "shared/plan/row_rules.h"

namespace cp::runtime {
namespace {

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
  bool has_bias = false;
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

// q, k or v, or its gradient, and the blocks that have it.
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
  ConvolvedPart<kPack> of[3];

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

CP_DEVICE Activated silu(float z) { return activate(ActivationFunction::silu, z); }

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
          its.values[r][i] = silu(its.values[r][i]).value;
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

  // Of a strip: the values, slopes and gradients of q, k or v, and their sums.
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
        const Activated activated = silu(its.values[r][i]);
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
    views.insert(views.end(), operands_.qkv.begin(), operands_.qkv.end());
    for (const View* view : {operands_.bias, operands_.halo}) {
      if (view != nullptr) views.push_back(view);
    }
    return views;
  }
  std::vector<std::int64_t> bounds() const {
    const std::int64_t q = operands_.qkv[0]->shape[1];
    return {q, q + operands_.qkv[1]->shape[1], rule_.normalized, rule_.taps > kTapsOfPacks ? 1 : 0};
  }

  template <int kPack, int kRows>
  Convolved<kPack, kRows> convolved(std::int64_t iteration) const {
    Convolved<kPack, kRows> x;
    x.placed = {reinterpret_cast<const PlacedRun*>(runs_->data()), count_, positions_};
    x.taps = static_cast<int>(rule_.taps), x.has_bias = operands_.bias != nullptr;
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
    for (std::size_t i = 0; i < operands_.qkv.size(); ++i) {
      ConvolvedPart<kPack>& part = parts.of[i];
      part.matrix = row_matrix<kPack>(*operands_.qkv[i], memory_, iteration);
      part.first = first, part.columns = operands_.qkv[i]->shape[1];
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
    for (std::size_t i = 0; i < operands_.qkv.size(); ++i)
      groups += ceil_div(operands_.qkv[i]->shape[1], width(i));
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
