// FirstError: the first of the errors that any thread of a device meets.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <string>

#include "shared/base/error.h"

namespace cp::runtime {

class FirstError {
 public:
  // For any thread; later ones change nothing.
  void set(const std::exception_ptr& error);
  explicit operator bool() const { return is_set_.load(std::memory_order_acquire); }
  // Throws it, as the type of its kind and with its facts, with `more` behind its message. It is set.
  [[noreturn]] void rethrow(const std::string& more) const;

 private:
  std::mutex mutex_;
  std::atomic<bool> is_set_{false};
  std::optional<Error> error_;  // changes no more once it is set
};

}  // namespace cp::runtime
