// Writes measured traces as files of Chrome's or Perfetto's format, alone or beside another trace.
#pragma once

#include <optional>
#include <string>

namespace cp::cli {

enum class ExportFormat { chrome, perfetto };

// Reads "chrome" or "perfetto". If `text` is empty, the end of the file's name `out` decides: .json or
// .pftrace. Throws InvalidInput if neither says the format.
ExportFormat parse_export_format(const std::string& text, const std::string& out);

// Returns the bytes of the file for the trace at `path`, which is a file or a folder of rank-N.cptrace. It
// looks like the predicted traces of `cpsim estimate --trace`. If the trace was cut off, what came before the
// cut is drawn, and `truncation` says so in words; otherwise `truncation` becomes empty.
//
// With `merge`, the other trace comes first, and the two processes of each rank follow one another:
// "predicted rank 0", "measured rank 0". `merge` is a file that cpsim estimate --trace wrote in the same
// format (NAME.json or NAME.pftrace), or another .cptrace, whose processes are then called "other rank 0".
// Both begin at time 0.
//
// Throws InvalidInput if a trace has no times or is no such file, and BadTrace if it cannot be read.
std::string export_trace(const std::string& path, ExportFormat format,
                         const std::optional<std::string>& merge, std::string& truncation);

// Makes the folder and writes rank_N.json for each rank into it, in the form of PyTorch's profiler, so that
// HolisticTraceAnalysis reads them whatever the back end was. Sets `truncation` and throws as export_trace()
// does.
void export_folder(const std::string& path, const std::string& folder, std::string& truncation);

}  // namespace cp::cli
