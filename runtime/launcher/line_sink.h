// A LineSink writes the lines of all ranks to one stream.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <string_view>

namespace cp::runtime {

// If the stream is standard output or standard error, writing never blocks: what the reader does not take
// stays here. A launcher that blocked there (for example on a pager that shows its first page) would not hear
// signals. Lines for any other stream are written at once.
class LineSink {
 public:
  explicit LineSink(std::ostream& stream);  // which must outlive it

  void write(std::string_view lines);
  void flush();  // writes as much as the reader takes now

  bool waiting() const { return !pending_.empty(); }
  bool full() const { return pending_.size() >= kEnough; }  // who has more to say should wait as well
  int fd() const { return fd_; }                            // becomes writable while waiting

 private:
  // The number of bytes that may wait here before ranks must wait, too. Chosen: 1 MiB is far more than a pipe
  // takes at once (64 KiB), and little memory.
  static constexpr std::size_t kEnough = std::size_t{1} << 20;

  std::ostream& stream_;
  int fd_ = -1;  // of standard output or error
  std::string pending_;
};

}  // namespace cp::runtime
