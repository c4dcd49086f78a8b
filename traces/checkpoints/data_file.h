// A file that is read and written at places, by several processes at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace cp {

class DataFile {
 public:
  enum class Mode : std::uint8_t {
    read,
    write,   // of a file that is there
    create,  // anew; what was there is gone
  };
  // Throws InvalidInput with the system's reason, as all functions here do.
  DataFile(std::string path, Mode mode);
  DataFile(DataFile&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;
  ~DataFile();

  const std::string& path() const { return path_; }
  std::int64_t size() const;
  void resize(std::int64_t bytes);
  // Reads or writes all of the bytes. A file that ends before is an error.
  void read(std::int64_t at, std::span<std::byte> bytes) const;
  // What was written begins to move to the disk soon, while more is written: sync() has less to wait for.
  void write(std::int64_t at, std::span<const std::byte> bytes);
  // The rest begins to move, too. Waits for nothing.
  void begin_sync();
  // Returns when what was written will be there after a loss of power.
  void sync();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  int descriptor_ = -1;
  std::int64_t in_memory_ = 0;  // bytes written that may be there alone
};

// The same of a folder: names that were made, changed or removed in it.
void sync_folder(const std::string& path);

// Writes a small file whole, and begins to synchronise it.
DataFile write_text_file(const std::string& path, const std::string& text);

}  // namespace cp
