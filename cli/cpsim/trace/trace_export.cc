#include "cli/cpsim/trace/trace_export.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "cli/cpsim/trace/trace_measured.h"
#include "cli/cpsim/trace/trace_merge.h"
#include "shared/base/error.h"
#include "sim/present/traces/chrome_trace.h"
#include "sim/present/traces/perfetto_trace.h"
#include "sim/present/traces/trace_formats.h"
#include "traces/trace_files.h"

namespace cp::cli {
namespace {

std::string measured_chrome(const MeasuredRun& run) {
  std::ostringstream out;
  sim::write_chrome_trace(out, run.slices());
  return out.str();
}

std::string measured_perfetto(const MeasuredRun& run) {
  std::ostringstream out;
  sim::write_perfetto_trace(out, run.slices());
  return out.str();
}

MeasuredRun read_run(const std::string& path, std::string& truncation) {
  const TraceFile file = read_trace_path(path);
  if (file.truncation) truncation += str(truncation.empty() ? "" : "; ", *file.truncation);
  return measured_run(file.ranks, path);
}

std::string measured(const std::string& path, ExportFormat format, std::string& truncation) {
  const MeasuredRun run = read_run(path, truncation);
  return format == ExportFormat::chrome ? measured_chrome(run) : measured_perfetto(run);
}

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in)
    throw InvalidInput(str("--merge ", path, " cannot be opened: ", std::strerror(errno),
                           "; name a file that cpsim estimate --trace wrote"));
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

LabelledTrace other_trace(const std::string& path, ExportFormat format, std::string& truncation) {
  if (path.ends_with(".cptrace") || std::filesystem::is_directory(path)) {
    return {"other", measured(path, format, truncation), path};
  }
  return {"predicted", contents(path), path};
}

}  // namespace

ExportFormat parse_export_format(const std::string& text, const std::string& out) {
  if (text == "chrome" || (text.empty() && out.ends_with(".json"))) return ExportFormat::chrome;
  if (text == "perfetto" || (text.empty() && out.ends_with(".pftrace"))) return ExportFormat::perfetto;
  if (!text.empty()) throw InvalidInput(str("--format ", text, " is unknown; use chrome or perfetto"));
  throw InvalidInput(str(
      "-o ", out,
      " does not say the format of the file; add --format chrome or --format perfetto, or use NAME.json, ",
      "NAME.pftrace or DIR/"));
}

void export_folder(const std::string& path, const std::string& folder, std::string& truncation) {
  truncation.clear();
  const MeasuredRun run = read_run(path, truncation);
  sim::write_trace_files(folder, run.slices(), run.cluster);
}

std::string export_trace(const std::string& path, ExportFormat format,
                         const std::optional<std::string>& merge, std::string& truncation) {
  truncation.clear();
  std::string bytes = measured(path, format, truncation);
  if (!merge) return bytes;
  const LabelledTrace first = other_trace(*merge, format, truncation),
                      second{"measured", std::move(bytes), path};
  return format == ExportFormat::chrome ? merge_chrome(first, second) : merge_perfetto(first, second);
}

}  // namespace cp::cli
