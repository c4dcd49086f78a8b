// What is wrong with a description, all of it said at once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::detail {

class Faults {
 public:
  void add(std::string fault) { faults_.push_back(std::move(fault)); }
  void require(bool holds, std::string fault) {
    if (!holds) add(std::move(fault));
  }
  // Whether the value is in [least, most]; a fault where it is not.
  bool require_range(std::string_view field, std::int64_t value, std::int64_t least, std::int64_t most) {
    const bool holds = value >= least && value <= most;
    require(holds, str(field, "=", value, " must be at least ", least, " and at most ", most));
    return holds;
  }

  bool empty() const { return faults_.empty(); }
  // Throws InvalidInput with all faults, where there are any; `of`: what is described.
  void raise(std::string_view of) const {
    if (!faults_.empty()) throw InvalidInput(str(of, ": ", join(faults_, "; ")));
  }

 private:
  std::vector<std::string> faults_;
};

}  // namespace cp::detail
