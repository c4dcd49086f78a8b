#include "runtime/descriptor.h"

#include <cerrno>
#include <cstring>
#include <string>

#include "shared/base/error.h"

namespace cp::runtime {
namespace {

Descriptor above_stdio(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return Descriptor(fd);
  const Descriptor low(fd);
  return Descriptor(fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

}  // namespace

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw InvalidInput(str("cannot make a pipe: ", std::strerror(errno),
                           "; each process needs up to four descriptors (ulimit -n)"));
  }
  return {above_stdio(ends[0]), above_stdio(ends[1])};
}

Descriptor open_file(const char* path, int flags) {
  Descriptor file = above_stdio(open(path, flags | O_CLOEXEC, 0666));
  if (!file.is_open()) throw InvalidInput(str("cannot open '", path, "': ", std::strerror(errno)));
  return file;
}

}  // namespace cp::runtime
