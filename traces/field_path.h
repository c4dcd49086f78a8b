// The path of a value in a message, for error messages: "plan.segments[3].step.copy.in.buffer".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace cp {

// One link of a chain from a value up to its message. It costs nothing until it is printed. Parents and names
// must outlive it, so pass it down the stack and never keep it.
class FieldPath {
 public:
  explicit FieldPath(std::string_view root) : name_(root) {}
  FieldPath(const FieldPath& parent, std::string_view name, int index = -1)
      : parent_(&parent), name_(name), index_(index) {}

  std::string to_string() const {
    const std::string own = index_ < 0 ? std::string(name_) : str(name_, "[", index_, "]");
    return parent_ == nullptr ? own : str(parent_->to_string(), ".", own);
  }

  // Throws InvalidInput whose message is the path, then the parts.
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw InvalidInput(str(to_string(), " ", parts...));
  }

  // Throws InvalidInput unless `value` is an index into a list of `count` things, which `what` names in the
  // plural.
  void require_index(std::int64_t value, std::size_t count, std::string_view what) const {
    if (value >= 0 && static_cast<std::uint64_t>(value) < count) return;
    if (count == 0) fail("is ", value, ", but there are no ", what);
    fail("is ", value, ", but there are ", count, " ", what, "; use 0 to ", count - 1);
  }

  void require_not_negative(std::int64_t value) const {
    if (value < 0) fail("is ", value, "; use 0 or more");
  }

  void require_range(std::int64_t value, std::int64_t least, std::int64_t most) const {
    if (value < least || value > most) fail("is ", value, "; use ", least, " to ", most);
  }

 private:
  const FieldPath* parent_ = nullptr;
  std::string_view name_;
  int index_ = -1;
};

}  // namespace cp
