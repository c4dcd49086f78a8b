#include "cli/cprun/trace_output.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::cli {
namespace {

namespace fs = std::filesystem;

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
  path_ = (trace.empty() ? (fs::temp_directory_path() / "cprun").string() : trace) + ".ranks-XXXXXX";
  if (::mkdtemp(path_.data()) == nullptr) {
    throw InvalidInput(str(
        "cannot make a folder for the ranks' traces, ", path_, ": ", std::generic_category().message(errno),
        trace.empty() ? "; TMPDIR says where" : "; use --trace with a path that can be written"));
  }
}

TraceFolder::~TraceFolder() {
  std::error_code ignored;
  if (!keep_) fs::remove_all(path_, ignored);
}

}  // namespace cp::cli
