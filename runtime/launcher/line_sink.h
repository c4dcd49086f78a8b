// LineSink: where the lines of all ranks go.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <string_view>

namespace cp::runtime {

// Into standard output or error without ever waiting for who reads them, since a launcher that waits there (a
// pager that shows its first page) hears no signal: what is not taken stays here. Into any other stream at
// once.
class LineSink {
 public:
  explicit LineSink(std::ostream& stream);  // which must outlive it

  void write(std::string_view lines);
  void flush();  // as much as is taken now

  bool waiting() const { return !pending_.empty(); }
  bool full() const { return pending_.size() >= kEnough; }  // who has more to say should wait as well
  int fd() const { return fd_; }                            // becomes writable while waiting

 private:
  static constexpr std::size_t kEnough = std::size_t{1} << 20;

  std::ostream& stream_;
  int fd_ = -1;  // of standard output or error
  std::string pending_;
};

}  // namespace cp::runtime
