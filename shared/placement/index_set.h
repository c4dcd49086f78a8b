// An IndexSet says which global indices a rank holds along one tensor dimension, and in which local order. It
// is a list of periodic runs, so its size depends on the pattern and not on the length of the dimension. Of a
// dimension of 16 indices over 2 ranks, rank 0 holds, in the notation {begin, run, stride, count}:
//
//   a contiguous shard   {0, 8, 8, 1}                  0..7
//   a head-tail shard    {0, 4, 4, 1}, {12, 4, 4, 1}   0..3, then 12..15
//   stripes of 2         {0, 2, 4, 4}                  0 1, 4 5, 8 9, 12 13
//
// All operations work on runs and none walks over the elements: a dimension of 2^40 elements costs as much as
// one of 40.
//
// Every function here expects a valid set and does not check it: each run has run >= 1, count >= 1, stride >=
// run and begin >= 0, and no index comes twice. An empty set has no runs. Runs need not ascend, since their
// order is the local order: {8, 4, 4, 1}, {0, 4, 4, 1} holds 8..11 first, then 0..3.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cp {

// `count` blocks of `run` consecutive indices each; the blocks begin at begin, begin + stride, begin +
// 2*stride, and so on.
struct Run {
  std::int64_t begin = 0, run = 0, stride = 0, count = 0;
  bool operator==(const Run&) const = default;
  std::int64_t size() const { return run * count; }
};

using IndexSet = std::vector<Run>;

IndexSet index_range(std::int64_t begin, std::int64_t end);  // [begin, end), empty when end <= begin
std::int64_t size(const IndexSet& set);

// The canonical form of a set: neighbouring runs are merged wherever they continue one another, a run of one
// block has stride == run, and a contiguous range is one run with count 1. Two sets hold the same indices in
// the same order if and only if their canonical forms are equal. index_range, compose, clip and split_part
// return canonical sets.
IndexSet canonical(IndexSet set);
bool same_indices(const IndexSet& a, const IndexSet& b);  // same indices in the same local order
bool same_members(const IndexSet& a, const IndexSet& b);  // same indices, whatever the order

// Translates a position in local order to the global index there; `local` is in 0 .. size(set)-1.
std::int64_t to_global(const IndexSet& set, std::int64_t local);
// The inverse: the position of a global index in local order, or nothing if the set does not hold it.
std::optional<std::int64_t> to_local(const IndexSet& set, std::int64_t global);

// Chooses from a set: the result holds base[i] for each i of `positions`, in that order. This is how splits
// nest, since a further mesh axis splits what the axes before it left. For example, the positions [0..2) of
// the base {8, 4, 4, 1} are the indices 8 and 9. The positions must lie in 0 .. size(base)-1.
//
// A periodic choice from a periodic run is again one run if the two patterns fit (the inner block divides the
// outer one). Otherwise the result has three levels of repetition and takes one run for each repetition of
// the outermost; Infeasible is thrown if these are more than 4 Mi.
IndexSet compose(const IndexSet& base, const IndexSet& positions);

// The indices of `set` in [begin, end), in the set's local order.
IndexSet clip(const IndexSet& set, std::int64_t begin, std::int64_t end);

// The number of indices that both sets hold. This is the hot function of the planner. Two periodic runs cost
// the smaller of two numbers: of their counts, and of the relative positions in which their blocks can meet.
// That is at most a small multiple of the square root of the dimension's size.
std::int64_t intersection_size(const IndexSet& a, const IndexSet& b);

// A stretch of indices that two sets share, and that advances regularly in both: `count` runs of `run`
// indices each. Run k begins at local position in_a + k*stride_a of a, at local position in_b + k*stride_b of
// b, and at global index global + k*stride_global.
struct Overlap {
  std::int64_t run = 0, count = 0;
  std::int64_t global = 0, stride_global = 0;
  std::int64_t in_a = 0, stride_a = 0;
  std::int64_t in_b = 0, stride_b = 0;
  bool operator==(const Overlap&) const = default;
};

// All indices that a and b share, each exactly once, ordered by in_a. Regular stretches are folded into one
// Overlap where possible, so the runs of two Overlaps may interleave. Strides are positive, and equal to
// `run` if count is 1. Pack, unpack and transfer steps are made of these.
std::vector<Overlap> intersect(const IndexSet& a, const IndexSet& b);

// For messages and tests: "[0..4) [12..16)" for two ranges, "[0..2)+8x4" for four blocks of two that begin 8
// apart, or "empty".
std::string to_string(const IndexSet& set);

}  // namespace cp
