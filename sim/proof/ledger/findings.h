// What a ledger found wrong: the first few in words, and how many there are.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cp::sim {

class Findings {
 public:
  static constexpr std::size_t kKept = 8;

  // `text` makes the words; it is called for the first ones only.
  template <class Text>
  void add(const Text& text) {
    if (texts_.size() < kKept) texts_.push_back(text());
    ++count_;
  }

  bool empty() const { return count_ == 0; }
  std::int64_t count() const { return count_; }
  const std::vector<std::string>& texts() const { return texts_; }
  // "a; b; and 5 more".
  std::string summary() const;

 private:
  std::int64_t count_ = 0;
  std::vector<std::string> texts_;
};

}  // namespace cp::sim
