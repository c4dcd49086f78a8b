// The mask-cell ledger: which (query, key) pairs were computed, and by which step, for every batch and query
// head.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "shared/context_parallel/problem.h"
#include "shared/placement/index_set.h"
#include "sim/proof/ledger/findings.h"

namespace cp::sim {

class CellBook {
 public:
  explicit CellBook(const AttentionProblem& problem);

  // A lane is a batch and a query head of it: batch * q_heads + head. A set of them, ascending, gets a
  // number.
  std::int32_t lanes(std::vector<std::int64_t> lanes);

  // The pairs of the query with the keys of the run, in all lanes of the set. `step` is a number of the
  // caller's.
  void enter(std::int64_t query, std::int32_t lanes, const Run& keys, std::int32_t step);

  // Words for the findings.
  struct Names {
    std::function<std::string(std::int32_t step)> step;
    std::function<std::string(std::int64_t lane, std::int64_t query, std::int64_t key)> holders;
  };
  // Finds pairs that were computed though the mask forbids them, more than once, or not at all. Leaves the
  // book empty. Returns how many pairs there are, over all lanes.
  std::int64_t close(const Names& names, Findings& findings);

 private:
  struct Entry {
    std::int32_t query, lanes, step;
    std::int32_t begin, run, stride, count;  // of the keys
  };
  using Page = std::vector<const Entry*>;  // of one query
  class Auditor;

  std::vector<Page> pages() const;

  const AttentionProblem& problem_;
  std::vector<std::vector<std::int64_t>> lane_sets_;
  std::vector<Entry> entries_;
};

}  // namespace cp::sim
