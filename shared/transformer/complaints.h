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

  bool empty() const { return complaints_.empty(); }
  // Throws InvalidInput with all complaints if there are any. `of` says what they are about.
  void raise(std::string_view of) const {
    if (!complaints_.empty()) throw InvalidInput(str(of, ": ", join(complaints_, "; ")));
  }

 private:
  std::vector<std::string> complaints_;
};

}  // namespace cp::detail
