// What a rank writes, line by line.
#pragma once

#include <string>
#include <string_view>

#include "runtime/descriptor.h"
#include "runtime/launcher/line_sink.h"

namespace cp::runtime {

// LineCutter: cuts a stream of bytes into lines. A line longer than kLongestBytes (chosen, to bound what is
// kept of a program that ends no line) becomes several.
class LineCutter {
 public:
  static constexpr std::size_t kLongestBytes = 64 * 1024;

  explicit LineCutter(std::string prefix) : prefix_(std::move(prefix)) {}

  // The lines that these bytes complete, each with its prefix and its end.
  std::string feed(std::string_view bytes);
  // The last line, where it had no end yet.
  std::string finish();
  // The last line that was not blank, complete or not, and no more than some hundred bytes of it.
  std::string last_line() const;

 private:
  void complete(std::string_view more, std::string& lines);

  std::string prefix_, partial_, last_line_;
};

// One output of one rank: from its pipe into the sink of all ranks, by lines, and as it is into a file.
class RankOutput {
 public:
  // No file where log is empty: an existing one is overwritten. The sink must outlive it. Throws
  // InvalidInput.
  RankOutput(std::string prefix, LineSink& sink, const std::string& log);

  Descriptor take_write_end() {
    return std::move(pipe_.write_end);
  }                                                             // for the rank; closed here when it has it
  int fd() const { return pipe_.read_end.get(); }               // -1: ended
  int fd_to_poll() const { return sink_->full() ? -1 : fd(); }  // a rank whose lines are not taken waits

  bool read_some();  // what is there, 64 KiB at most; whether there may be more
  void drain();      // all that is there
  void finish();     // the same, and the last line; reads no more
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
