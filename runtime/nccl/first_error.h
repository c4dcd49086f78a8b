// A FirstError keeps the first of the errors that any thread of a device meets.
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
  // Keeps the error, unless there is one already. Any thread may call this. An exception that is not an Error
  // is kept as an Error of the kind check_failed with its text.
  void set(const std::exception_ptr& error);
  explicit operator bool() const { return is_set_.load(std::memory_order_acquire); }
  // Throws the error as the type that belongs to its kind, with its facts, and with `more` behind its
  // message. Call it only if an error is set.
  [[noreturn]] void rethrow(const std::string& more) const;

 private:
  std::mutex mutex_;
  std::atomic<bool> is_set_{false};
  std::optional<Error> error_;  // does not change any more after it is set, so it is read without the lock
};

}  // namespace cp::runtime
