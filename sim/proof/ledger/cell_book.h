// The ledger of mask cells: which (query, key) pairs were computed, and by which step, for every batch and
// query head.
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
  // The problem must outlive this.
  explicit CellBook(const AttentionProblem& problem);

  // Returns the number of a set of lanes, which must be ascending. A lane is a batch and one of its query
  // heads: batch * q_heads + head.
  std::int32_t lanes(std::vector<std::int64_t> lanes);

  // Enters the pairs of the query with the keys of the run, in all lanes of the set. `step` is a number of
  // the caller's choice.
  void enter(std::int64_t query, std::int32_t lanes, const Run& keys, std::int32_t step);

  // Functions that make the words for the findings.
  struct Names {
    std::function<std::string(std::int32_t step)> step;
    std::function<std::string(std::int64_t lane, std::int64_t query, std::int64_t key)> holders;
  };
  // Adds findings for pairs that were computed although the mask forbids them, or more than once, or not at
  // all. Returns how many pairs were computed, over all lanes, and leaves the book empty.
  std::int64_t close(const Names& names, Findings& findings);

 private:
  struct Entry {
    std::int32_t query, lanes, step;
    std::int32_t begin, run, stride, count;  // the run of keys
  };
  using Page = std::vector<const Entry*>;  // the entries of one query
  class Auditor;

  std::vector<Page> pages() const;

  const AttentionProblem& problem_;
  std::vector<std::vector<std::int64_t>> lane_sets_;
  std::vector<Entry> entries_;
};

}  // namespace cp::sim
