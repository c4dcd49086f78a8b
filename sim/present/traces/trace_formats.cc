#include "sim/present/traces/trace_formats.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string_view>
#include <system_error>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/present/traces/chrome_trace.h"
#include "sim/present/traces/perfetto_trace.h"

namespace cp::sim {
namespace {

bool ends_with(std::string_view text, std::string_view end) { return text.ends_with(end) && text != end; }

void write_file(const std::string& path, const std::function<void(std::ostream&)>& write) {
  std::ofstream out(path, std::ios::binary);
  if (out) write(out);
  out.close();
  if (!out)
    throw InvalidInput(str("--trace: the file ", path, " cannot be written: ", std::strerror(errno),
                           "; use a path in an existing folder"));
}

}  // namespace

void require_trace_name(const std::string& path) {
  if (ends_with(path, ".json") || ends_with(path, ".pftrace") || path.ends_with('/')) return;
  throw InvalidInput(str("--trace ", path,
                         " does not say its format; use NAME.json for Chrome's, NAME.pftrace for",
                         " Perfetto's, or DIR/ for a file of each rank as PyTorch's profiler writes it"));
}

void write_trace_files(const std::string& path, const TraceSlices& slices, const Cluster& cluster) {
  require_trace_name(path);
  if (ends_with(path, ".pftrace")) {
    write_file(path, [&](std::ostream& out) { write_perfetto_trace(out, slices); });
  } else if (ends_with(path, ".json")) {
    write_file(path, [&](std::ostream& out) { write_chrome_trace(out, slices); });
  } else {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error)
      throw InvalidInput(str("--trace: the folder ", path, " cannot be made: ", error.message(),
                             "; use a path that you may write to"));
    for (std::size_t rank = 0; rank < slices.ranks.size(); ++rank) {
      write_file(str(path, "rank_", slices.ranks[rank].rank, ".json"),
                 [&](std::ostream& out) { write_profiler_trace(out, slices, cluster, rank); });
    }
  }
}

}  // namespace cp::sim
