#include "shared/kernels/attention_mask.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/support/any_case.h"

namespace cp {
namespace {

using Kind = MaskSlice::Kind;

bool any_allows(const std::vector<MaskSlice>& slices, std::int64_t q, std::int64_t k) {
  return std::any_of(slices.begin(), slices.end(),
                     [&](const MaskSlice& slice) { return allows(slice, q, k); });
}

// The rows of the panel that the definition lets see the key.
std::uint64_t rows_that_see(const std::vector<MaskSlice>& slices, const PanelMask::Sizes& sizes,
                            const TileKernels& tiles, std::int64_t panel, std::int64_t key) {
  std::uint64_t rows = 0;
  for (std::int64_t bit = 0; bit < tiles.width() && key < sizes.k_len; ++bit) {
    const std::int64_t row = panel * tiles.width() + bit;
    if (row >= sizes.q_len * sizes.heads) break;
    if (any_allows(slices, row / sizes.heads, key)) rows |= std::uint64_t{1} << bit;
  }
  return rows;
}

// The bits of the lanes of the run's vectors.
std::uint64_t lanes_of(const MaskRun& run, const TileKernels& tiles) {
  std::uint64_t lanes = 0;
  for (std::int64_t bit = run.first_vector * tiles.lanes;
       bit < (run.first_vector + run.vectors) * tiles.lanes; ++bit) {
    lanes |= std::uint64_t{1} << bit;
  }
  return lanes;
}

std::int64_t number(std::int64_t from, std::int64_t to) {
  return *rc::gen::inRange<std::int64_t>(from, to + 1);
}

MaskSlice random_slice(std::int64_t q_len, std::int64_t k_len) {
  const std::int64_t q_begin = number(0, q_len), k_begin = number(0, k_len);
  return {q_begin,
          number(0, q_len - q_begin),
          k_begin,
          number(0, k_len - k_begin),
          *rc::gen::element(Kind::full, Kind::causal, Kind::window),
          number(-q_len - 1, k_len + 1),
          number(1, k_len + 2)};
}

RC_GTEST_PROP(PanelMask, IsTheMaskOfTheSlices, ()) {
  const TileKernels& tiles =
      *tile_kernels()[pick("kernels", rc::gen::inRange<std::size_t>(0, tile_kernels().size()))];
  const PanelMask::Sizes sizes{number(0, 70), number(0, 70), number(1, 3), tiles.panel_rows * number(1, 5)};
  std::vector<MaskSlice> slices;
  for (std::int64_t i = number(0, 6); i > 0; --i) slices.push_back(random_slice(sizes.q_len, sizes.k_len));
  PanelMask mask(slices, sizes, tiles);
  RC_ASSERT(mask.panels() * tiles.width() >= sizes.q_len * sizes.heads);

  for (std::int64_t turn = 0; turn < 2 * mask.panels();
       ++turn) {  // each panel more than once, forwards and backwards
    const std::int64_t panel = turn < mask.panels() ? turn : 2 * mask.panels() - 1 - turn;
    mask.select(panel);
    std::vector<std::uint64_t> expected;
    for (std::int64_t key = 0; key < sizes.k_len + sizes.tile_keys; ++key) {
      expected.push_back(rows_that_see(slices, sizes, tiles, panel, key));
    }
    RC_ASSERT(mask.rows() ==
              std::accumulate(expected.begin(), expected.end(), std::uint64_t{0}, std::bit_or<>()));
    RC_ASSERT(std::is_sorted(mask.tiles().begin(), mask.tiles().end()));

    std::vector<std::uint64_t> found(expected.size());
    for (const std::int64_t tile : mask.tiles()) {
      std::int64_t end = tile * sizes.tile_keys;
      for (const MaskRun& run : mask.runs(tile)) {
        RC_ASSERT(run.begin >= end && run.begin % tiles.panel_rows == 0 && run.end % tiles.panel_rows == 0);
        end = run.end;
        RC_ASSERT(end <= (tile + 1) * sizes.tile_keys);
        const std::uint64_t lanes = lanes_of(run, tiles);
        bool all = true;
        for (std::int64_t key = run.begin; key < run.end; ++key) {
          found[static_cast<std::size_t>(key)] = *mask.of(key);
          RC_ASSERT((*mask.of(key) & ~lanes) == 0U);
          all = all && *mask.of(key) == lanes;
        }
        RC_ASSERT(run.all == all);
        std::vector<std::int64_t> stretches;
        for_each_stretch(mask, run, [&](std::int64_t from, std::int64_t to) {
          for (std::int64_t key = from; key < to; ++key) stretches.push_back(key);
        });
        std::vector<std::int64_t> seen;
        for (std::int64_t key = run.begin; key < run.end; ++key) {
          if (expected[static_cast<std::size_t>(key)] != 0) seen.push_back(key);
        }
        RC_ASSERT(stretches == seen);
      }
    }
    RC_ASSERT(found == expected);
  }
}

// A whole panel of queries before many keys is one run, whatever the number of slices that say so.
TEST(PanelMask, SlicesSideBySideAreOneRun) {
  for (const TileKernels* tiles : tile_kernels()) {
    const std::int64_t keys = 4 * tiles->panel_rows;
    std::vector<MaskSlice> slices;
    for (std::int64_t key = 0; key < keys; ++key)
      slices.push_back({0, tiles->width(), key, 1, Kind::full, 0, 0});
    PanelMask mask(slices, {tiles->width(), keys, 1, keys}, *tiles);
    mask.select(0);
    EXPECT_EQ(mask.runs(0), (std::vector<MaskRun>{{0, keys, 0, tiles->vectors, true}})) << tiles->name;
  }
}

TEST(PanelMask, ExtremeDiagonalsDoNotOverflow) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(),
                         kMost = std::numeric_limits<std::int64_t>::max();
  const TileKernels& tiles = *tile_kernels().back();
  const auto rows = [&](const MaskSlice& slice) {
    PanelMask mask(std::array{slice}, {2, 4, 1, tiles.panel_rows}, tiles);
    mask.select(0);
    return mask.rows();
  };
  EXPECT_EQ(rows({0, 2, 0, 4, Kind::causal, kMost, 0}), 3U);
  EXPECT_EQ(rows({0, 2, 0, 4, Kind::causal, kLeast, 0}), 0U);
  EXPECT_EQ(rows({0, 2, 0, 4, Kind::window, kMost, kMost}), 3U);  // keys above i
  EXPECT_EQ(rows({0, 2, 0, 4, Kind::window, kMost, 1}), 0U);
  EXPECT_EQ(rows({0, 2, 0, 4, Kind::window, kLeast, kMost}), 0U);
  EXPECT_EQ(rows({0, 2, 0, 4, Kind::window, 0, kMost}), 3U);
}

}  // namespace
}  // namespace cp
