#include "cli/cprun/job/trace_output.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "runtime/launcher/folders.h"
#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = "cprun.ranks-";

std::string temporary_folder() { return fs::temp_directory_path().string(); }

runtime::Descriptor open_folder(const std::string& path) {
  return runtime::Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

}  // namespace

std::string trace_path(const std::string& trace, int nnodes, int node_rank) {
  if (trace.empty() || nnodes == 1) return trace;
  const fs::path path(trace);
  return (path.parent_path() / str(path.stem().string(), ".node-", node_rank, path.extension().string()))
      .string();
}

void require_writable(const char* flag, const std::string& path) {
  if (path.empty()) return;
  const bool existed = fs::exists(path);
  errno = 0;
  if (std::ofstream(path, std::ios::binary | std::ios::app)) {
    std::error_code ignored;
    if (!existed) fs::remove(path, ignored);
    return;
  }
  throw InvalidInput(str(flag, " ", path, " cannot be written: ", std::generic_category().message(errno)));
}

std::string ran_scenario_path(const std::string& folder) { return folder + "/scenario.txtpb"; }

TraceFolder::TraceFolder(const std::string& trace) {
  const std::string base = trace.empty() ? str(temporary_folder(), "/", kTemporary) : trace + ".ranks-";
  // Chosen: a folder is lost only if another process cleans up in the moment before it is locked. A hundred
  // losses in a row are no accident.
  constexpr int kMostTries = 100;
  for (int i = 0; i < kMostTries; ++i) {
    if (make(base)) return;
  }
  throw InvalidInput(str(
      "something removes the folders for the ranks' traces (", base, "XXXXXX) as soon as cprun makes them; ",
      trace.empty() ? "set TMPDIR to another folder" : "use --trace with a path in another folder"));
}

// Until it is locked, a new folder looks as if its launcher were dead, and another launcher may remove it. So
// the name must still lead to the folder that was locked.
bool TraceFolder::make(const std::string& base) {
  path_ = base + "XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) {
    throw InvalidInput(str("cannot make the folder ", path_,
                           " for the ranks' traces: ", std::generic_category().message(errno),
                           base.ends_with(kTemporary) ? "; set TMPDIR to a folder that can be written"
                                                      : "; use --trace with a path that can be written"));
  }
  lock_ = open_folder(path_);
  if (!lock_.is_open()) return false;
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  struct stat locked = {}, named = {};
  return ::fstat(lock_.get(), &locked) == 0 && ::stat(path_.c_str(), &named) == 0 &&
         locked.st_ino == named.st_ino;
}

TraceFolder::~TraceFolder() {
  std::error_code ignored;
  if (!keep_) fs::remove_all(path_, ignored);
}

void remove_abandoned_folders() {
  std::error_code error;
  const std::string temporary = fs::temp_directory_path(error).string();
  if (error) return;  // whoever needs one says so
  runtime::each_entry(temporary.c_str(), [&](int, const char* name) {
    if (!std::string_view(name).starts_with(kTemporary)) return true;
    const std::string path = temporary + "/" + name;
    const runtime::Descriptor folder = open_folder(path);
    struct stat info = {};
    if (folder.is_open() && ::fstat(folder.get(), &info) == 0 && info.st_uid == ::geteuid() &&
        ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0)
      runtime::remove_flat_folder(path.c_str());
    return true;
  });
}

}  // namespace cp::cli
