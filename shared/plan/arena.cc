#include "shared/plan/arena.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "shared/base/index.h"

namespace cp {
namespace {

// Finds the added lives that meet a span of positions. Where there may be many, it is a segment tree: a node
// stands for a range of positions, and each life hangs at the O(log n) nodes whose ranges make it up. A look
// at a short span costs little more than what it finds, so that plans of tens of thousands of temporaries are
// packed without comparing all pairs. But below a long span lie up to twice as many nodes as it has
// positions: where there are fewer lives than that, as in the steps of models, it takes less time to walk
// through a list of all of them.
class LivingBlocks {
 public:
  LivingBlocks(Position num_positions, std::size_t num_lives) : is_list_(num_lives <= kMostListed) {
    if (is_list_) return;
    while (leaves_ < static_cast<std::size_t>(num_positions)) leaves_ *= 2;
    heads_.assign(2 * leaves_, kNone);
    added_below_.assign(2 * leaves_, false);
  }

  void add(std::size_t life, Position first, Position last) {
    list_.push_back({life, first, last});
    if (!is_list_) add(1, 0, leaves_, life, size(first), size(last) + 1);
  }

  // In a tree, a life that hangs at several nodes may be reported several times.
  template <class F>
  void for_each(Position first, Position last, const F& f) const {
    if (!is_list_ && 2 * (size(last) - size(first)) < list_.size()) {
      visit(1, 0, leaves_, size(first), size(last) + 1, f);
      return;
    }
    for (const Listed& listed : list_) {
      if (listed.first <= last && first <= listed.last) f(listed.life);
    }
  }

 private:
  // Chosen: all pairs of as many are compared in a tenth of a millisecond.
  static constexpr std::size_t kMostListed = 512;
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  struct Listed {
    std::size_t life;
    Position first, last;
  };
  struct Entry {
    std::size_t life, next;
  };

  static std::size_t size(Position position) { return static_cast<std::size_t>(position); }

  void add(std::size_t node, std::size_t begin, std::size_t end, std::size_t life, std::size_t from,
           std::size_t until) {
    if (until <= begin || end <= from) return;
    added_below_[node] = true;
    if (from <= begin && end <= until) {
      entries_.push_back({life, heads_[node]});
      heads_[node] = entries_.size() - 1;
      return;
    }
    const std::size_t middle = (begin + end) / 2;
    add(2 * node, begin, middle, life, from, until);
    add(2 * node + 1, middle, end, life, from, until);
  }

  template <class F>
  void visit(std::size_t node, std::size_t begin, std::size_t end, std::size_t from, std::size_t until,
             const F& f) const {
    if (until <= begin || end <= from || !added_below_[node]) return;
    for (std::size_t entry = heads_[node]; entry != kNone; entry = entries_[entry].next)
      f(entries_[entry].life);
    if (end - begin == 1) return;
    const std::size_t middle = (begin + end) / 2;
    visit(2 * node, begin, middle, from, until, f);
    visit(2 * node + 1, middle, end, from, until, f);
  }

  bool is_list_;
  std::vector<Listed> list_;
  std::size_t leaves_ = 1;
  std::vector<std::size_t> heads_;  // by node, of its list of entries
  std::vector<bool> added_below_;   // by node
  std::vector<Entry> entries_;
};

// The bytes [begin, end) of the arena.
struct Interval {
  std::int64_t begin = 0, end = 0;
};

// All blocks that live for the same span; or all that live anew in each iteration of the same Repeat, which
// for all others live as long as it. Placed one on the other, they take a few runs of bytes, which are looked
// at instead of the blocks.
struct Life {
  Position first = 0, last = 0, horizon = 0;  // of the blocks' horizons, the first
  std::int32_t body = -1;
  std::vector<std::size_t> placed;  // blocks
  // The bytes that they take: ascending, and not touching one another. Empty while blocks are being stacked.
  std::vector<Interval> runs;
  std::size_t look = 0;  // number of the last look that found it

  // Adds an interval to the runs, and joins it with the runs that it meets or touches.
  void take(Interval interval) {
    const auto begin = std::lower_bound(runs.begin(), runs.end(), interval.begin,
                                        [](const Interval& run, std::int64_t at) { return run.end < at; });
    auto end = begin;
    for (; end != runs.end() && end->begin <= interval.end; ++end)
      interval = {std::min(interval.begin, end->begin), std::max(interval.end, end->end)};
    if (begin == end) {
      runs.insert(begin, interval);
    } else {
      *begin = interval;
      runs.erase(begin + 1, end);
    }
  }
};

// The lowest aligned place of `size` bytes that meets none of the intervals.
std::int64_t lowest_gap(std::vector<Interval>& taken, std::int64_t size, std::int64_t alignment) {
  std::sort(taken.begin(), taken.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::int64_t at = 0;
  for (const Interval& interval : taken) {
    if (at + size <= interval.begin) break;
    at = std::max(at, align_up(interval.end, alignment));
  }
  return at;
}

class Packer {
 public:
  Packer(std::span<const Block> blocks, const Ordered& ordered, Position num_positions)
      : blocks_(blocks), ordered_(ordered), num_positions_(num_positions), life_of_(blocks.size()) {
    std::vector<std::size_t> order(blocks.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto key = [&](std::size_t i) {
      const Block& block = blocks[i];
      return std::tuple(block.begin(), block.end(), block.cycles() ? 0 : block.horizon, block.cycle.body);
    };
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
    for (std::size_t i = 0; i < order.size(); ++i) {
      const Block& block = blocks[order[i]];
      if (i == 0 || key(order[i - 1]) != key(order[i]))
        lives_.push_back({block.begin(), block.end(), block.horizon, block.cycle.body, {}, {}, 0});
      lives_.back().horizon = std::min(lives_.back().horizon, block.horizon);
      life_of_[order[i]] = lives_.size() - 1;
    }
  }

  Packing anchored() {
    start();
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].anchor != Anchor::any && blocks_[i].size_bytes > 0) ends.push_back(i);
    }
    std::sort(ends.begin(), ends.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(blocks_[a].first, a) < std::pair(blocks_[b].first, b);
    });
    stack_at_both_ends(ends);
    largest_first(false);
    return std::move(packing_);
  }

  Packing plain() {
    start();
    largest_first(true);
    return std::move(packing_);
  }

 private:
  void start() {
    packing_.offsets.assign(blocks_.size(), 0);
    packing_.size_bytes = 0;
    living_ = LivingBlocks(num_positions_, lives_.size());
    for (Life& life : lives_) life.placed.clear(), life.runs.clear(), life.look = 0;
    looks_ = 0;
  }

  void place(std::size_t block) {
    Life& life = lives_[life_of_[block]];
    if (life.placed.empty()) living_.add(life_of_[block], life.horizon, life.last);
    life.placed.push_back(block);
  }
  Interval interval_of(std::size_t block) const {
    return {packing_.offsets[block], packing_.offsets[block] + blocks_[block].size_bytes};
  }

  // The largest sum of sizes that live at the same position. No packing is smaller.
  std::int64_t most_alive() const {
    std::vector<std::int64_t> change(static_cast<std::size_t>(num_positions_) + 1, 0);
    for (const Block& block : blocks_) {
      if (block.size_bytes == 0) continue;
      change[static_cast<std::size_t>(block.first)] += block.size_bytes;
      change[static_cast<std::size_t>(block.last) + 1] -= block.size_bytes;
    }
    std::int64_t alive = 0, most = 0;
    for (const std::int64_t bytes : change) most = std::max(most, alive += bytes);
    return most;
  }

  // Whether two blocks may live at the same time. Positions decide it if they overlap, or if one ended before
  // the other's horizon; in between it depends on what the streams have waited for. Of two that live anew in
  // each iteration, the later one must also be over before the earlier one begins again.
  bool together(std::size_t a, std::size_t b) const {
    if (blocks_[b].first < blocks_[a].first) std::swap(a, b);
    const Block &earlier = blocks_[a], &later = blocks_[b];
    if (later.first <= earlier.last) return true;
    const bool one_body = earlier.cycles() && earlier.cycle.body == later.cycle.body;
    if (one_body && later.last >= earlier.cycle.again && !ordered_(b, a, Turn::next)) return true;
    return (one_body ? earlier.last : earlier.end()) >= later.horizon && !ordered_(a, b, Turn::same);
  }

  // Calls f(life) once for each life of which some placed blocks may live together with this one. A life may
  // hang at several nodes of the tree, so `look` remembers who has been seen.
  template <class F>
  void for_each_life(std::size_t block, const F& f) {
    ++looks_;
    living_.for_each(blocks_[block].horizon, blocks_[block].end(), [&](std::size_t found) {
      Life& life = lives_[found];
      if (std::exchange(life.look, looks_) != looks_) f(life);
    });
  }
  template <class F>
  void for_each_together(std::size_t block, const F& f) {
    for_each_life(block, [&](const Life& life) {
      for (const std::size_t other : life.placed) {
        if (together(block, other)) f(other);
      }
    });
  }

  // Places the anchored blocks: low ones as deep as possible, high ones as high as possible. For a chain in
  // which A makes B, B makes C and C makes D, each dead when the next but one begins:
  //
  //   top |      BBBBBBBBBBBBDDDDDDDDDDDD
  //       |      BBBBBBBBBBBB
  //       |            CCCCCCCCCCCC
  //       |AAAAAAAAAAAACCCCCCCCCCCC
  //     0 |AAAAAAAAAAAACCCCCCCCCCCC
  //       +-------------------------------> time
  //
  // Every step finds its two buffers at opposite ends, and the arena is as high as the largest pair (B and
  // C). Were all of them stacked from below, B would stand on A, and when A has gone C would not fit under B:
  // holes would remain.
  //
  // The top is not known before all blocks are placed: it is where low and high blocks that live together
  // just touch. So high blocks are measured by their depth below the top until then.
  void stack_at_both_ends(const std::vector<std::size_t>& ends) {
    // For high blocks, for now, the depth of the lower end below the top.
    std::vector<std::int64_t>& offsets = packing_.offsets;
    // No packing is smaller than what lives at once, so the top may as well be that high from the beginning;
    // it leaves room in the middle for blocks without an anchor.
    std::int64_t top = most_alive(), top_alignment = 1;
    std::vector<Interval> taken;
    // Each block goes as far towards its end as the blocks there that live with it allow. The arena must be
    // high enough for it and whatever faces it from the other end at the same time; blocks that never live
    // together may reach past one another.
    for (const std::size_t i : ends) {
      const Block& block = blocks_[i];
      std::int64_t facing = 0;  // how far the other end's blocks reach
      taken.clear();
      for_each_together(i, [&](std::size_t other) {
        const std::int64_t size = blocks_[other].size_bytes, at = offsets[other];
        const bool high = blocks_[other].anchor == Anchor::high;
        if (blocks_[other].anchor != block.anchor) {
          facing = std::max(facing, high ? at : at + size);
        } else {
          taken.push_back(high ? Interval{at - size, at} : Interval{at, at + size});
        }
      });
      std::int64_t reach = 0;
      if (block.anchor == Anchor::high) {
        // Its lower end is what has to be aligned.
        const std::int64_t padded = align_up(block.size_bytes, block.alignment);
        reach = offsets[i] = lowest_gap(taken, padded, block.alignment) + padded;
        top_alignment = std::max(top_alignment, block.alignment);
      } else {
        offsets[i] = lowest_gap(taken, block.size_bytes, block.alignment);
        reach = offsets[i] + block.size_bytes;
      }
      top = std::max(top, reach + facing);
      place(i);
    }
    // Only now is the top known, from which high blocks were measured. It is aligned, so that a depth that is
    // aligned gives an offset that is.
    top = align_up(top, top_alignment);
    for (const std::size_t i : ends) {
      if (blocks_[i].anchor == Anchor::high) offsets[i] = top - offsets[i];
      packing_.size_bytes = std::max(packing_.size_bytes, offsets[i] + blocks_[i].size_bytes);
      lives_[life_of_[i]].take(interval_of(i));
    }
  }

  // Places the remaining blocks, the largest first, each at the lowest place that is free for its life (the
  // heuristic that Pisarchyk and Lee, 2020, call greedy by size). Small blocks then fill the gaps that large
  // ones leave; the other way round, large blocks would find only gaps that are too small for them. Ties
  // are settled by time and index, so that equal plans give equal places.
  void largest_first(bool anchored_too) {
    std::vector<std::size_t> rest;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if ((anchored_too || blocks_[i].anchor == Anchor::any) && blocks_[i].size_bytes > 0) rest.push_back(i);
    }
    std::sort(rest.begin(), rest.end(), [&](std::size_t a, std::size_t b) {
      return std::tuple(-blocks_[a].size_bytes, blocks_[a].first, a) <
             std::tuple(-blocks_[b].size_bytes, blocks_[b].first, b);
    });
    std::vector<Interval> taken;
    for (const std::size_t i : rest) {
      taken.clear();
      for_each_life(i, [&](const Life& life) {
        // The positions overlap, so all blocks of this life are in the way, and their runs say where.
        // Otherwise only the streams' waits tell which of them are over; and within a body each has positions
        // of its own.
        const bool one_body = life.body >= 0 && life.body == blocks_[i].cycle.body;
        if (!one_body && life.first <= blocks_[i].end() && blocks_[i].begin() <= life.last) {
          taken.insert(taken.end(), life.runs.begin(), life.runs.end());
          return;
        }
        for (const std::size_t other : life.placed) {
          if (together(i, other)) taken.push_back(interval_of(other));
        }
      });
      packing_.offsets[i] = lowest_gap(taken, blocks_[i].size_bytes, blocks_[i].alignment);
      packing_.size_bytes = std::max(packing_.size_bytes, packing_.offsets[i] + blocks_[i].size_bytes);
      place(i);
      lives_[life_of_[i]].take(interval_of(i));
    }
  }

  std::span<const Block> blocks_;
  const Ordered& ordered_;
  Position num_positions_;
  Packing packing_;
  std::vector<Life> lives_;
  std::vector<std::size_t> life_of_;  // by block
  LivingBlocks living_{0, 0};
  std::size_t looks_ = 0;
};

}  // namespace

Packing pack(std::span<const Block> blocks, const Ordered& ordered) {
  Position num_positions = 1;
  bool any_anchor = false;
  for (const Block& block : blocks) {
    num_positions = std::max(num_positions, block.end() + 1);
    any_anchor = any_anchor || block.anchor != Anchor::any;
  }
  Packer packer(blocks, ordered, num_positions);
  Packing plain = packer.plain();
  if (!any_anchor) return plain;
  Packing anchored = packer.anchored();
  return plain.size_bytes < anchored.size_bytes ? plain : anchored;
}

}  // namespace cp
