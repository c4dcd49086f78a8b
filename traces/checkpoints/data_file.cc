#include "traces/checkpoints/data_file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "shared/base/error.h"

namespace cp {
namespace {

int flags_of(DataFile::Mode mode) {
  switch (mode) {
    case DataFile::Mode::read:
      return O_RDONLY;
    case DataFile::Mode::write:
      return O_WRONLY;
    case DataFile::Mode::create:
      break;
  }
  return O_RDWR | O_CREAT | O_TRUNC;
}

// Calls transfer(done), which moves the next bytes and returns how many, until all are moved. Returns how
// many were, which is fewer at the end of a file; -1 after an error.
template <class Transfer>
std::int64_t all_of(std::size_t bytes, const Transfer& transfer) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t moved = transfer(done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return -1;
    if (moved == 0) break;
    done += static_cast<std::size_t>(moved);
  }
  return static_cast<std::int64_t>(done);
}

}  // namespace

DataFile::DataFile(std::string path, Mode mode)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), flags_of(mode) | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail(mode == Mode::read ? "opened" : "opened to write");
}

DataFile::~DataFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void DataFile::fail(const char* what) const {
  throw InvalidInput(str(path_, " cannot be ", what, ": ", std::generic_category().message(errno)));
}

std::int64_t DataFile::size() const {
  struct stat facts {};
  if (::fstat(descriptor_, &facts) != 0) fail("measured");
  return facts.st_size;
}

void DataFile::resize(std::int64_t bytes) {
  if (::ftruncate(descriptor_, bytes) != 0) fail("made larger");
}

void DataFile::read(std::int64_t at, std::span<std::byte> bytes) const {
  const std::int64_t done = all_of(bytes.size(), [&](std::size_t moved) {
    return ::pread(descriptor_, bytes.data() + moved, bytes.size() - moved,
                   at + static_cast<std::int64_t>(moved));
  });
  if (done < 0) fail("read");
  if (done != std::ssize(bytes))
    throw InvalidInput(
        str(path_, " ends at byte ", at + done, ", where ", std::ssize(bytes) - done, " more are expected"));
}

void DataFile::write(std::int64_t at, std::span<const std::byte> bytes) {
  const std::int64_t done = all_of(bytes.size(), [&](std::size_t moved) {
    return ::pwrite(descriptor_, bytes.data() + moved, bytes.size() - moved,
                    at + static_cast<std::int64_t>(moved));
  });
  if (done != std::ssize(bytes)) fail("written");
  constexpr std::int64_t kBegin = std::int64_t{8} << 20;  // chosen: some milliseconds of a disk's work
  in_memory_ += done;
  if (in_memory_ >= kBegin) begin_sync();
}

void DataFile::begin_sync() {
#if defined(__linux__)
  // An error shows in sync(), and a file system that cannot do it waits there.
  static_cast<void>(::sync_file_range(descriptor_, 0, 0, SYNC_FILE_RANGE_WRITE));
#endif
  in_memory_ = 0;
}

void DataFile::sync() {
  if (::fsync(descriptor_) != 0) fail("synchronised");
}

void sync_folder(const std::string& path) { DataFile(path, DataFile::Mode::read).sync(); }

DataFile write_text_file(const std::string& path, const std::string& text) {
  DataFile file(path, DataFile::Mode::create);
  file.write(0, std::as_bytes(std::span(text)));
  file.begin_sync();
  return file;
}

}  // namespace cp
