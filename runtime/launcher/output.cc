#include "runtime/launcher/output.h"

#include <array>
#include <cerrno>
#include <cstring>

#include "shared/base/text.h"

namespace cp::runtime {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;  // the capacity of a Linux pipe by default (pipe(7))
// After a process has ended, at most 4 MiB of its output are read. That is more than a pipe holds (at most 1
// MiB unless root asks for more), so if more comes, another process still writes into the pipe, and waiting
// for the end could take for ever.
constexpr std::size_t kMostDrainedBytes = 4 * 1024 * 1024;
// So much of a rank's last line is quoted in a failure. Chosen: enough for a message, and short in an error.
constexpr std::size_t kLastLineBytes = 500;

}  // namespace

std::string LineCutter::feed(std::string_view bytes) {
  std::string lines;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::size_t room = kLongestBytes - partial_.size();
    if (end <= room) {
      complete(bytes.substr(0, end), lines);
      bytes.remove_prefix(end + 1);
    } else if (bytes.size() > room) {
      complete(bytes.substr(0, room), lines);
      bytes.remove_prefix(room);
    } else {
      partial_ += bytes;
      bytes = {};
    }
  }
  return lines;
}

void LineCutter::complete(std::string_view more, std::string& lines) {
  const std::size_t begin = lines.size() + prefix_.size();
  lines.append(prefix_).append(partial_).append(more);
  partial_.clear();
  const std::string_view line = trim(std::string_view(lines).substr(begin));
  if (!line.empty()) last_line_ = line.substr(0, kLastLineBytes);
  lines += '\n';
}

std::string LineCutter::finish() {
  std::string lines;
  if (!partial_.empty()) complete("", lines);
  return lines;
}

std::string LineCutter::last_line() const {
  const std::string_view line = trim(partial_);
  return line.empty() ? last_line_ : std::string(line.substr(0, kLastLineBytes));
}

RankOutput::RankOutput(std::string prefix, LineSink& sink, const std::string& log)
    : cutter_(std::move(prefix)), sink_(&sink), log_path_(log), pipe_(make_pipe()) {
  if (!log.empty()) log_ = open_file(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC);
  fcntl(pipe_.read_end.get(), F_SETFL, O_NONBLOCK);  // the rank's end is another description, and blocks
}

bool RankOutput::read_some() {
  if (fd() < 0) return false;
  std::array<char, kReadBytes> buffer;
  const ssize_t n = read(fd(), buffer.data(), buffer.size());
  if (n < 0) return errno == EINTR;
  if (n == 0) {
    end();
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<std::size_t>(n));
  save(bytes);
  if (const std::string lines = cutter_.feed(bytes); !lines.empty()) sink_->write(lines);
  return true;
}

void RankOutput::drain() {
  for (std::size_t reads = 0; reads < kMostDrainedBytes / kReadBytes && read_some(); ++reads) {
  }
}

void RankOutput::finish() {
  drain();
  if (fd() >= 0) end();
}

void RankOutput::end() {
  pipe_.read_end.reset();
  if (const std::string lines = cutter_.finish(); !lines.empty()) sink_->write(lines);
}

void RankOutput::save(std::string_view bytes) {
  while (log_.is_open() && !bytes.empty()) {
    const ssize_t n = write(log_.get(), bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno != EINTR) {
      sink_->write(str("cannot write '", log_path_, "': ", std::strerror(errno),
                       "; the rest of the output is missing there\n"));
      log_.reset();
    }
  }
}

}  // namespace cp::runtime
