// The trace files of a run: one file for all its ranks, or a folder with one file for each, such as
// rank-3.cptrace.
#pragma once

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "traces/trace_proto.h"

namespace cp {

// "folder/rank-3.cptrace".
std::string rank_trace_path(const std::string& folder, Rank rank);

// Reads a file, or all rank-N.cptrace of a folder as one trace, by ascending rank. Throws BadTrace as
// read_trace_file() does, and if the folder has no such files or two of them hold the same rank. `truncation`
// names every file that was cut off.
TraceFile read_trace_path(const std::string& path);

// Writes the records of all given files into one. Records stay as they are to the byte, so that fields and
// kinds of records that this program does not know are kept. All files are read and checked first: throws
// BadTrace for a file that read_trace_path() would refuse or that was cut off, and InvalidInput if `out` is
// one of them. The end record is written last; if writing fails, as on a full disk, the file is removed.
void merge_trace_files(const std::vector<std::string>& paths, const std::string& out);
// The trace files of a folder, in the order of their ranks.
std::vector<std::string> trace_files_of(const std::string& path);

// Writes a trace file while its ranks run. What was appended is in the file and can be read, whatever happens
// to the process later.
class TraceFileWriter {
 public:
  // Throws BadTrace if the file cannot be written.
  explicit TraceFileWriter(std::string path);
  // Writes a rank's trace, or what was added to it since the last call, and flushes.
  void append(const RankTrace& part);
  // Writes the end record. Without it, the file counts as cut off.
  void finish();

 private:
  std::string path_;
  std::ofstream out_;
  RecordWriter records_;
};

}  // namespace cp
