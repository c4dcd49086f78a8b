// Descriptor: a file descriptor that is closed when its owner is destroyed. It can be moved, not copied.
#pragma once

#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace cp::runtime {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }  // the caller closes it
  void reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

struct Pipe {
  Descriptor read_end, write_end;
};

// Makes a pipe. Both ends are closed on exec, and neither is 0, 1 or 2 even if those are free, so that no
// child takes one for its standard output. Throws InvalidInput that names the limit which was reached.
Pipe make_pipe();

// Opens a file, with the same promises. Throws InvalidInput that quotes the path.
Descriptor open_file(const char* path, int flags);

}  // namespace cp::runtime
