// Collects what a ledger found wrong: the first few in words, and how many there are.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cp::sim {

class Findings {
 public:
  // How many findings keep their words. Chosen: one slip often makes thousands of them, all alike.
  static constexpr std::size_t kKept = 8;

  // Adds a finding. `text` makes its words, and is called for the first kKept only.
  template <class Text>
  void add(const Text& text) {
    if (texts_.size() < kKept) texts_.push_back(text());
    ++count_;
  }

  bool empty() const { return count_ == 0; }
  std::int64_t count() const { return count_; }
  const std::vector<std::string>& texts() const { return texts_; }
  // The words of the findings in one line: "a; b; and 5 more".
  std::string summary() const;

 private:
  std::int64_t count_ = 0;
  std::vector<std::string> texts_;
};

}  // namespace cp::sim
