// Measured traces as files of Chrome's and of Perfetto's format, alone or beside another trace.
#pragma once

#include <optional>
#include <string>

namespace cp::cli {

enum class ExportFormat { chrome, perfetto };

// Throws InvalidInput for another word; the empty text means what the file's name ends with, .json or
// .pftrace.
ExportFormat parse_export_format(const std::string& text, const std::string& out);

// The bytes of the file for the trace at `path` (a file, or a folder of rank-N.cptrace), drawn as the
// predicted ones of `cpsim estimate --trace` are. Where it was cut off, what came before is drawn, and
// `truncation` says so in words.
//
// With `merge` the other trace comes first, and each rank's two processes follow one another: "predicted rank
// 0", "measured rank 0". It is what cpsim estimate --trace wrote in the same format (NAME.json or
// NAME.pftrace), or another .cptrace, whose processes are then called "other rank 0". Both begin at 0. Throws
// InvalidInput and BadTrace.
std::string export_trace(const std::string& path, ExportFormat format,
                         const std::optional<std::string>& merge, std::string& truncation);

// Makes the folder, with rank_N.json for each rank as PyTorch's profiler writes it: for
// HolisticTraceAnalysis, whatever the back end was. Throws as export_trace() does.
void export_folder(const std::string& path, const std::string& folder, std::string& truncation);

}  // namespace cp::cli
