// IndexSet: the global indices that a rank holds along one tensor dimension, as periodic runs in LOCAL order.
//
// A contiguous shard is one run, a head-tail shard two, a striped one a single periodic run whatever the
// length of the sequence. All operations work on the runs; none walks over the elements, so that a dimension
// of 2^40 elements costs as much as one of 40.
//
// Every function here expects a valid set: runs with run >= 1, count >= 1, stride >= run, begin >= 0, and no
// index twice. An empty set has no runs. Runs need not ascend: {8, 4, 4, 1}, {0, 4, 4, 1} holds 8..11 first,
// then 0..3.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cp {

// begin, begin+1, ... (`run` of them), then again from begin+stride, `count` times in all.
struct Run {
  std::int64_t begin = 0, run = 0, stride = 0, count = 0;
  bool operator==(const Run&) const = default;
  std::int64_t size() const { return run * count; }
};

using IndexSet = std::vector<Run>;

IndexSet index_range(std::int64_t begin, std::int64_t end);  // [begin, end), empty when end <= begin
std::int64_t size(const IndexSet& set);

// The canonical form: neighbouring runs merged wherever they continue one another, stride == run for a single
// run, a contiguous range as one run with count 1. Two sets hold the same indices in the same order if and
// only if their canonical forms are equal. index_range, compose, clip and split_part return canonical sets.
IndexSet canonical(IndexSet set);
bool same_indices(const IndexSet& a, const IndexSet& b);  // same indices in the same local order
bool same_members(const IndexSet& a, const IndexSet& b);  // same indices, whatever the order

// Position in local order → global index. 0 <= local < size(set).
std::int64_t to_global(const IndexSet& set, std::int64_t local);
// Global index → position in local order, if the set holds it.
std::optional<std::int64_t> to_local(const IndexSet& set, std::int64_t global);

// The set of base[i] for each i of `positions`, in that order: how a further mesh axis splits what is left.
// Positions lie in 0 .. size(base)-1. A periodic choice from a periodic run is one run where the pattern
// allows it; a pattern of three levels becomes as many runs as its outermost level repeats, and throws
// Infeasible beyond 4 Mi of them.
IndexSet compose(const IndexSet& base, const IndexSet& positions);

// The part of `set` with begin <= global index < end, in local order.
IndexSet clip(const IndexSet& set, std::int64_t begin, std::int64_t end);

// Number of indices that both hold. The hot function of the planner. Two periodic runs cost the smallest of
// their counts and of the number of ways in which their blocks can lie against each other; never more than
// the square root of the dimension's size times a small number.
std::int64_t intersection_size(const IndexSet& a, const IndexSet& b);

// A stretch of indices that two sets share and that advances regularly in both: `count` runs of `run`
// indices; run k begins at local position in_a + k*stride_a of a and in_b + k*stride_b of b, and at global
// index global + k*stride_global.
struct Overlap {
  std::int64_t run = 0, count = 0;
  std::int64_t global = 0, stride_global = 0;
  std::int64_t in_a = 0, stride_a = 0;
  std::int64_t in_b = 0, stride_b = 0;
  bool operator==(const Overlap&) const = default;
};

// What a and b share, ordered by in_a; regular stretches are folded into one Overlap where possible, so that
// overlaps of several runs may interleave. Strides are positive, and equal to `run` where count is 1.
// Together the overlaps hold each shared index exactly once. This is what pack, unpack and transfer steps are
// made of.
std::vector<Overlap> intersect(const IndexSet& a, const IndexSet& b);

// "[0..4) [12..16)", "[0..2)+8x4" or "empty": for messages and tests.
std::string to_string(const IndexSet& set);

}  // namespace cp
