// A PartialSum puts a result together from partial ones, for a target with fused kernels: out with its lse,
// from disjoint sets of keys; or a gradient. Internal to shared/context_parallel.
//
// Fused calls write parts in the problem's dtype. To move little memory, parts are put together late, several
// at once, and the result is rounded once:
//   16-bit result   The first part of a row is written where the result will be, others beside it; finish()
//                   merges them into it. Up to four parts of a row wait in this way. If there are more, they
//                   are added, two at a time, to a sum in f32, which finish() merges as well.
//   f32 result      It is the sum itself: the first part of a row is converted to it, others are added, two
//                   at a time.
// Exact calls write f32 parts, which are treated alike.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shared/context_parallel/partial_results.h"
#include "shared/context_parallel/written_rows.h"
#include "shared/plan/fused_attention.h"

namespace cp::detail {

class PartialSum {
 public:
  using Of = PartialGradient::Of;  // a result that has lse is out
  // `parts` says how many parts come for a row, if the calls of a step have disjoint rows (more is correct,
  // too). `begun` says that the result already holds one.
  PartialSum(AttentionWriter& writer, std::string name, const Tensor& result, const RowStatistic* lse, Of of,
             int parts, bool begun = false);

  // Some heads in some batch entries: one of the writer's groups of heads, and entries that share a mask.
  struct Slab {
    Range heads, batches;
    bool operator==(const Slab&) const = default;
  };
  // Reserves the place where one call writes its partial result for these rows, and records it as a part.
  // `shape` is that of a fused call, and null for an exact one.
  struct Place {
    View values, lse;  // lse is absent if the result has none
  };
  Place place(const FusedShape* shape, Range rows, const Slab& slab, const std::string& label);
  // Adds a whole partial result that came from elsewhere. It must be a temporary that may be written to, and
  // that stays until finish().
  void add(const Tensor& values, const RowStatistic* lse, const std::string& label);
  // Adds what waits to the sum now, so that the temporaries it is in may be used again.
  void settle(const std::string& label);
  // The result is out, and its heads' sinks are one more part of each row, which finish() merges.
  void join_sinks() { has_sinks_ = true; }
  // Writes the result; rows without a part become zeros (lse: -inf).
  void finish(const std::string& label);

 private:
  struct Part {
    Range rows;
    View values, lse;                          // the views of all these rows
    bool is_home = false;                      // whether it is in the result's memory
    std::vector<PartPool::Place> places = {};  // what it has from the pool
  };
  struct Group {
    Slab slab;
    std::vector<Part> waiting;
    WrittenRows summed;
  };

  bool is_sum() const { return result_.dtype == DType::f32; }  // the result itself is the sum
  Group& group_of(const Slab& slab);
  std::size_t depth(const Group& group, Range rows) const;
  bool has_home(const Group& group, Range rows) const;
  bool is_left_to_merges(const Group& group, Range rows) const;
  std::vector<Range> stretches(const Group& group) const;
  static std::vector<Part> parts_in(const Group& group, Range rows);
  Part of_result(Range rows, const Slab& slab) const;
  Part of_sum(Range rows, const Slab& slab);
  Part beside(DType dtype, Range rows, const Slab& slab);
  void place_lse(Part& part, const Slab& slab);
  static void hand_back(PartPool& pool, Group& group);
  // The first element of a slab's rows in a layer of the pool, if `per_row` are those of a row of one head.
  std::int64_t first_element(Range rows, const Slab& slab, std::int64_t per_row) const;
  void convert(const Part& from, const Part& to, const std::string& label);
  void merge(const Part& into, const std::vector<Part>& parts, const std::string& label);
  Part sinks(Range rows, const Slab& slab) const;
  void settle(Group& group, const std::string& label);
  void finish(Group& group, Range rows, const std::string& label);
  bool is_wide(const Part& part) const;

  AttentionWriter& writer_;
  const std::string name_;
  const Tensor result_;
  const RowStatistic lse_;  // of buffer -1: none
  const std::size_t most_waiting_;
  const bool only_one_;  // each row has one part
  bool has_sinks_ = false;
  Tensor sum_;
  RowStatistic sum_lse_;
  std::vector<Group> groups_;
};

}  // namespace cp::detail
