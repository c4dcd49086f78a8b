#include "runtime/launcher/folders.h"

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include <dirent.h>

namespace cp::runtime {

bool each_entry(const char* path, VisitEntry visit, void* context) noexcept {
  const int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return false;
  alignas(dirent64) char buffer[8192];
  ssize_t size = 0;
  bool goes_on = true;
  while (goes_on && (size = getdents64(folder, buffer, sizeof buffer)) > 0) {
    for (ssize_t at = 0; goes_on && at < size;) {
      const auto* entry = reinterpret_cast<const dirent64*>(buffer + at);
      at += entry->d_reclen;
      const char* const name = entry->d_name;
      if (std::strcmp(name, ".") != 0 && std::strcmp(name, "..") != 0) goes_on = visit(context, folder, name);
    }
  }
  close(folder);
  return size >= 0;
}

// Removes a folder that has files only. Removing an entry while the folder is read may make the reading skip
// another one, so it is read again until it is empty; kMostRounds (chosen) ends that if somebody keeps adding
// files.
bool remove_flat_folder(const char* path) noexcept {
  constexpr int kMostRounds = 16;
  for (int round = 0; round < kMostRounds; ++round) {
    each_entry(path, [](int folder, const char* name) {
      unlinkat(folder, name, 0);
      return true;
    });
    if (rmdir(path) == 0 || errno == ENOENT) return true;
    if (errno != ENOTEMPTY && errno != EEXIST) return false;
  }
  return false;
}

}  // namespace cp::runtime
