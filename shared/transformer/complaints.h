// Collects everything that is wrong with a description, so that a user can mend it all at once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::detail {

// Limits of what a config.json may say. Chosen far above any model. Sizes and counts are so low that the
// product of any two fits into 64 bits.
inline constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;
inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 16;  // of layers, heads and experts

// "{1, 2, 4}".
inline std::string divisors_text(std::int64_t value) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t d = 1; d <= value; ++d) {
    if (value % d == 0) divisors.push_back(d);
  }
  return str("{", join(divisors, ", "), "}");
}

class Complaints {
 public:
  void add(std::string complaint) { complaints_.push_back(std::move(complaint)); }
  void require(bool holds, std::string complaint) {
    if (!holds) add(std::move(complaint));
  }
  // Returns whether the value is in [least, most]; adds a complaint if it is not.
  bool require_range(std::string_view field, std::int64_t value, std::int64_t least, std::int64_t most) {
    const bool holds = value >= least && value <= most;
    require(holds, str(field, "=", value, " must be at least ", least, " and at most ", most));
    return holds;
  }

  // The same of a size that is at least `least`, and of a count of at least one.
  bool require_size(std::string_view field, std::int64_t value, std::int64_t least = 1) {
    return require_range(field, value, least, kMaxSize);
  }
  bool require_count(std::string_view field, std::int64_t value) {
    return require_range(field, value, 1, kMaxCount);
  }

  bool empty() const { return complaints_.empty(); }
  // Throws InvalidInput with all complaints if there are any. `of` says what they are about.
  void raise(std::string_view of) const {
    if (!complaints_.empty()) throw InvalidInput(str(of, ": ", join(complaints_, "; ")));
  }

 private:
  std::vector<std::string> complaints_;
};

}  // namespace cp::detail
