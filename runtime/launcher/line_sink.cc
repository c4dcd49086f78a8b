#include "runtime/launcher/line_sink.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <iostream>
#include <poll.h>
#include <unistd.h>

namespace cp::runtime {

LineSink::LineSink(std::ostream& stream) : stream_(stream) {
  if (&stream == &std::cout) fd_ = STDOUT_FILENO;
  if (&stream == &std::cerr) fd_ = STDERR_FILENO;
  if (fd_ >= 0) stream_.flush();  // so that what others wrote comes first
}

void LineSink::write(std::string_view lines) {
  if (fd_ < 0) {
    stream_ << lines << std::flush;
    return;
  }
  pending_ += lines;
  flush();
}

void LineSink::flush() {
  std::size_t taken = 0;
  while (taken < pending_.size()) {
    pollfd ready{fd_, POLLOUT, 0};
    if (poll(&ready, 1, 0) <= 0) break;
    // At most as much as poll() promises room for in a pipe. The descriptor cannot be made non-blocking
    // instead, because it is shared with other programs.
    const ssize_t n =
        ::write(fd_, pending_.data() + taken, std::min<std::size_t>(pending_.size() - taken, PIPE_BUF));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    // Nobody reads any more, so the rest is lost, as it would be for any program.
    taken = n < 0 ? pending_.size() : taken + static_cast<std::size_t>(n);
  }
  pending_.erase(0, taken);
}

}  // namespace cp::runtime
