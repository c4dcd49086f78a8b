#include "runtime/nccl/first_error.h"

#include "runtime/errors.h"

namespace cp::runtime {

void FirstError::set(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (is_set_.load()) return;
  try {
    std::rethrow_exception(error);
  } catch (const Error& caught) {
    code_ = caught.code();
    message_ = caught.what();
  } catch (const std::exception& caught) {
    code_ = ExitCode::check_failed;
    message_ = caught.what();
  }
  is_set_.store(true);
}

void FirstError::rethrow(const std::string& more) const {
  const std::string message = message_ + more;
  switch (code_) {
    case ExitCode::timeout:
      throw Timeout(message);
    case ExitCode::peer_lost:
      throw PeerLost(message);
    case ExitCode::invalid_input:
      throw InvalidInput(message);
    case ExitCode::check_failed:
      throw CheckFailure(message);
    default:
      throw Error(code_, message);
  }
}

}  // namespace cp::runtime
