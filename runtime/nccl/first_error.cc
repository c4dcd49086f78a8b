#include "runtime/nccl/first_error.h"

namespace cp::runtime {

void FirstError::set(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (is_set_.load()) return;
  try {
    std::rethrow_exception(error);
  } catch (const Error& caught) {
    error_.emplace(caught);
  } catch (const std::exception& caught) {
    error_.emplace(ErrorKind::check_failed, caught.what());
  }
  is_set_.store(true);
}

void FirstError::rethrow(const std::string& more) const {
  throw_error(error_->kind(), str(error_->message(), more), error_->facts());
}

}  // namespace cp::runtime
