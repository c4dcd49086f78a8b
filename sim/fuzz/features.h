// Features of cases, and the table of feature x feature: how much of what can come together has.
//
// A group is a question about a case (which splits? which order of ranks?); a case may give several answers.
// A cell of the table is a pair of answers to two questions.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "traces/fuzz_case.pb.h"

namespace cp::sim {

struct FeatureGroup {
  std::string_view name;
  std::vector<std::string_view> values;
};
// Of cases of that kind.
std::span<const FeatureGroup> feature_groups(proto::FuzzCase::JobCase job);

// The answers of a case: numbers of values, counted over all groups of its kind.
std::vector<int> features_of(const proto::FuzzCase& fuzz_case);

class Coverage {
 public:
  Coverage();

  // How many cells of the table the case is the first in.
  int add(const proto::FuzzCase& fuzz_case);
  std::size_t covered() const { return covered_; }
  std::size_t cells() const { return cells_; }  // of the kinds that any case was added of

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
