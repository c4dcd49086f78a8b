// Takes what a rank writes, and passes it on line by line.
#pragma once

#include <string>
#include <string_view>

#include "runtime/descriptor.h"
#include "runtime/launcher/line_sink.h"

namespace cp::runtime {

// A LineCutter cuts a stream of bytes into lines. A line longer than kLongestBytes becomes several. The limit
// is chosen: it bounds what is kept of a program that ends no line.
class LineCutter {
 public:
  static constexpr std::size_t kLongestBytes = 64 * 1024;

  explicit LineCutter(std::string prefix) : prefix_(std::move(prefix)) {}

  // Returns the lines that these bytes complete, each with its prefix and its end.
  std::string feed(std::string_view bytes);
  // Returns the last line, if it has no end yet.
  std::string finish();
  // Returns the last line that was not blank, complete or not, but no more than some hundred bytes of it.
  std::string last_line() const;

 private:
  void complete(std::string_view more, std::string& lines);

  std::string prefix_, partial_, last_line_;
};

// One output of one rank. It goes from a pipe into the sink of all ranks, by lines, and as it is into a file.
class RankOutput {
 public:
  // `log` is the path of the file, which is overwritten; if it is empty, there is no file. The sink must
  // outlive this object. Throws InvalidInput if the file cannot be written.
  RankOutput(std::string prefix, LineSink& sink, const std::string& log);

  // The pipe's end for the rank. The caller closes it when the rank's process has it.
  Descriptor take_write_end() { return std::move(pipe_.write_end); }
  int fd() const { return pipe_.read_end.get(); }               // -1 if the output has ended
  int fd_to_poll() const { return sink_->full() ? -1 : fd(); }  // a rank whose lines are not taken must wait

  bool read_some();  // reads what is there, at most 64 KiB; returns whether there may be more
  void drain();      // reads all that is there
  void finish();     // the same, and writes the last line; nothing is read afterwards
  std::string last_line() const { return cutter_.last_line(); }

 private:
  void end();
  void save(std::string_view bytes);

  LineCutter cutter_;
  LineSink* sink_;
  std::string log_path_;
  Descriptor log_;
  Pipe pipe_;
};

}  // namespace cp::runtime
