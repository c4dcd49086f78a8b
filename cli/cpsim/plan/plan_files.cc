#include "cli/cpsim/plan/plan_files.h"

#include <filesystem>
#include <fstream>

#include "cli/common/interrupt.h"
#include "shared/base/error.h"

namespace cp::cli {

void write_text_file(const std::string& flag, const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  finish([&] {
    file << text;
    file.close();
  });
  if (!file) throw InvalidInput(str(flag, " ", path, " cannot be written; use a path in an existing folder"));
}

void require_writable(const std::string& flag, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code none;
  const fs::path folder = fs::path(path).parent_path();
  if (fs::is_directory(path, none))
    throw InvalidInput(str(flag, " ", path, " is a folder; name a file in it"));
  if (!folder.empty() && !fs::is_directory(folder, none))
    throw InvalidInput(
        str(flag, " ", path, ": the folder ", folder.string(), " does not exist; make it first"));
}

}  // namespace cp::cli
