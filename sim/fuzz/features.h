// Features of cases, and the table of feature x feature: how much of all that can come together has come
// together.
//
// A group is a question about a case ("which splits?", "which order of ranks?"), and a case may give several
// answers to it. A cell of the table is a pair of answers to two different questions.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "traces/fuzz_case.pb.h"

namespace cp::sim {

// A question, and all answers that there are.
struct FeatureGroup {
  std::string_view name;
  std::vector<std::string_view> values;
};
// The questions about cases of this kind.
std::span<const FeatureGroup> feature_groups(proto::FuzzCase::JobCase job);

// The answers that the case gives, as numbers: the values of all groups of its kind are counted through from
// 0.
std::vector<int> features_of(const proto::FuzzCase& fuzz_case);

// The table of the pairs of answers that have been seen, one for each kind of case.
class Coverage {
 public:
  Coverage();

  // Adds a case. Returns how many cells of the table it is the first in.
  int add(const proto::FuzzCase& fuzz_case);
  std::size_t covered() const { return covered_; }
  std::size_t cells() const { return cells_; }  // of those kinds of which a case was added

 private:
  struct Table {
    std::vector<int> group_of;  // by value
    std::vector<bool> seen;     // value x value
    std::size_t cells = 0;
    bool used = false;
  };
  Table& table_of(proto::FuzzCase::JobCase job) { return tables_[static_cast<std::size_t>(job)]; }

  std::vector<Table> tables_;
  std::size_t covered_ = 0, cells_ = 0;
};

}  // namespace cp::sim
