#include "runtime/cuda/graph_files.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "shared/base/checksum.h"
#include "shared/base/error.h"

namespace cp::runtime {
namespace {

namespace fs = std::filesystem;

// The first line of a file. What follows: lines with the version, the key, the size of the bytes and their
// checksum, and the bytes.
constexpr std::string_view kFormat = "cpsim graph 1";
constexpr std::string_view kEnding = ".graph", kBeingWritten = ".part";
// Chosen: nobody takes so long to write a file, so one that is older was left by a process that ended.
constexpr std::chrono::hours kAbandoned{1};

std::string header(const GraphFiles::Name& name, std::span<const std::byte> bytes) {
  return str(kFormat, '\n', name.version, '\n', to_string(name.key), '\n', bytes.size(), '\n',
             checksum(bytes), '\n');
}

// A name that no other thread or process writes to.
fs::path part_of(const fs::path& path) {
  static std::atomic<std::uint64_t> number{0};
  fs::path part = path;
  part += str('.', ::getpid(), '.', number++, kBeingWritten);
  return part;
}

// Why the file is not what its name says, or its content in `bytes`.
std::string unpack(const std::string& content, const GraphFiles::Name& name, std::vector<std::byte>& bytes) {
  std::size_t begin = 0;
  for (int line = 0; line < 5; ++line) {
    const std::size_t end = content.find('\n', begin);
    if (end == std::string::npos) return "it is torn";
    const std::string_view text(content.data() + begin, end - begin);
    if (line == 0 && text != kFormat) return "it is no graph of this program's";
    if (line == 1 && text != name.version) return str("it is of ", text);
    if (line == 2 && text != to_string(name.key)) return "it is of another graph";
    begin = end + 1;
  }
  const auto* const first = reinterpret_cast<const std::byte*>(content.data());
  const std::span<const std::byte> rest(first + begin, content.size() - begin);
  if (content.compare(0, begin, header(name, rest)) != 0) return "it is torn";
  bytes.assign(rest.begin(), rest.end());
  return "";
}

}  // namespace

fs::path graph_folder_of_environment() {
  if (const char* own = std::getenv("CP_GRAPH_CACHE")) return own;
  if (const char* caches = std::getenv("XDG_CACHE_HOME"); caches != nullptr && *caches == '/')
    return fs::path(caches) / "cpsim";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    return fs::path(home) / ".cache" / "cpsim";
  return {};
}

GraphFiles::GraphFiles(fs::path folder, OnNote on_note, std::uintmax_t most_bytes)
    : folder_(std::move(folder)), on_note_(std::move(on_note)), most_bytes_(most_bytes) {}

fs::path GraphFiles::path_of(const Name& name) const {
  const Digest of_both = Hasher().add(name.key).add(std::string_view(name.version)).digest();
  return folder_ / str(to_string(of_both), kEnding);
}

void GraphFiles::note(const std::string& text) {
  if (on_note_) on_note_(text);
}

bool GraphFiles::is_usable() {
  struct stat found {};
  if (::stat(folder_.c_str(), &found) != 0) return false;
  const bool is_own = found.st_uid == ::geteuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  if (S_ISDIR(found.st_mode) && is_own) return true;
  const std::lock_guard lock(mutex_);
  if (!std::exchange(has_noted_folder_, true))
    note(str("graphs are not kept in ", folder_.string(),
             ", which is no folder that only its owner, who runs this, may write to; name one by "
             "CP_GRAPH_CACHE"));
  return false;
}

std::optional<std::vector<std::byte>> GraphFiles::read(const Name& name) {
  if (!is_usable()) return {};
  const fs::path path = path_of(name);
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes;
  if (const std::string why = unpack(content, name, bytes); !why.empty()) {
    reject(name, why);
    return {};
  }
  std::error_code ignored;  // it may have been deleted just now
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
  return bytes;
}

void GraphFiles::reject(const Name& name, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(has_noted_file_, true))
    note(str("the kept graph ", path_of(name).string(), " is left out and made again: ", reason));
}

void GraphFiles::write(const Name& name, std::span<const std::byte> bytes) {
  std::error_code error;
  fs::create_directories(folder_.parent_path(), error);
  if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST)
    error = std::error_code(errno, std::generic_category());
  if (!error && !is_usable()) return;
  const fs::path path = path_of(name), part = part_of(path);
  if (!error) {
    std::ofstream file(part, std::ios::binary);
    const std::string head = header(name, bytes);
    file.write(head.data(), static_cast<std::streamsize>(head.size()));
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) fs::rename(part, path, error);
  if (!error) return make_room(path);
  std::error_code ignored;
  fs::remove(part, ignored);
  const std::lock_guard lock(mutex_);
  if (!std::exchange(has_noted_folder_, true))
    note(str("a graph could not be kept in ", folder_.string(), ": ", error.message(),
             "; name another folder by CP_GRAPH_CACHE, or none"));
}

void GraphFiles::make_room(const fs::path& newest) {
  struct File {
    fs::file_time_type used;
    std::uintmax_t size = 0;
    fs::path path;
  };
  const std::lock_guard lock(mutex_);
  std::vector<File> files;
  std::uintmax_t total = 0;
  std::error_code error;  // other processes delete, too, so that any file may be gone
  for (fs::directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;
    File file{fs::last_write_time(at->path(), gone), 0, at->path()};
    file.size = gone ? 0 : fs::file_size(file.path, gone);
    if (gone) continue;
    if (file.path.extension() == kBeingWritten) {
      if (file.used + kAbandoned < fs::file_time_type::clock::now()) fs::remove(file.path, gone);
      continue;
    }
    if (file.path.extension() != kEnding) continue;
    total += file.size;
    if (file.path != newest) files.push_back(std::move(file));
  }
  std::ranges::sort(files, {}, &File::used);
  for (const File& file : files) {
    if (total <= most_bytes_) break;
    std::error_code gone;
    fs::remove(file.path, gone);
    total -= file.size;
  }
}

}  // namespace cp::runtime
