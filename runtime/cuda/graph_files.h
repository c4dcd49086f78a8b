// GraphFiles keeps bytes in a folder, a file for each name: the graphs of fused calls with the kernels that
// were compiled for them, so that the next process need not compile them again. Several processes may use one
// folder: a file appears whole, by being renamed, and the last to write it wins.
//
// A file says what it is, by its name, its size and a checksum. A file that is torn, or of something else, is
// left out, and written again when the graph is built; the first of each kind is noted. What is in the folder
// runs on the GPU. So a folder that others than its owner may write to, or that another user owns, is not
// used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/base/digest.h"

namespace cp::runtime {

// What the environment says: CP_GRAPH_CACHE, which may be empty; else cpsim in XDG_CACHE_HOME, else in .cache
// of HOME. Empty: graphs are not kept in files.
std::filesystem::path graph_folder_of_environment();

class GraphFiles {
 public:
  // Chosen: graphs are some 100 KB each, so that this has room for thousands.
  static constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 30;

  using OnNote = std::function<void(const std::string&)>;
  // The folder is made by the first write. Beyond `most_bytes`, a write deletes the files that were read or
  // written longest ago. `on_note` may be null; any thread that reads or writes calls it.
  explicit GraphFiles(std::filesystem::path folder, OnNote on_note = {},
                      std::uintmax_t most_bytes = kMostBytes);

  struct Name {
    Digest key;
    std::string version;  // of all that the bytes depend on
  };
  // Any thread may call these. Errors of the file system are noted and do no more.
  std::optional<std::vector<std::byte>> read(const Name& name);
  void write(const Name& name, std::span<const std::byte> bytes);
  // Says that what read() returned is of no use.
  void reject(const Name& name, const std::string& reason);

  std::filesystem::path path_of(const Name& name) const;

 private:
  bool is_usable();  // the folder
  void note(const std::string& text);
  void make_room(const std::filesystem::path& newest);

  const std::filesystem::path folder_;
  const OnNote on_note_;
  const std::uintmax_t most_bytes_;
  std::mutex mutex_;
  bool has_noted_file_ = false, has_noted_folder_ = false;
};

}  // namespace cp::runtime
