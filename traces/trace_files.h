// The trace files of a run: one for all its ranks, or a folder with one for each, rank-3.cptrace.
#pragma once

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "traces/trace_proto.h"

namespace cp {

// "folder/rank-3.cptrace".
std::string rank_trace_path(const std::string& folder, Rank rank);

// A file, or all rank-N.cptrace of a folder as one trace, by ascending rank. Throws BadTrace as
// read_trace_file does, for a folder without such files, and for a rank that two of them hold. `truncation`
// names every file that was cut off.
TraceFile read_trace_path(const std::string& path);

// One file of all records of the given ones, which stay as they are to the byte: with the fields and the
// kinds of records that this program does not know. All are read and checked first; throws BadTrace for one
// that read_trace_path would not take and for one that was cut off, and InvalidInput when `out` is one of
// them. Writes the end record last; where that fails, as on a full disk, nothing stays of the file.
void merge_trace_files(const std::vector<std::string>& paths, const std::string& out);
// Those of a folder, in the order of their ranks.
std::vector<std::string> trace_files_of(const std::string& path);

// Writes a file while its ranks run: what was appended is in the file, and can be read, whatever happens to
// the process later.
class TraceFileWriter {
 public:
  // Throws BadTrace when the file cannot be written.
  explicit TraceFileWriter(std::string path);
  // The rank's trace, or what was added to it since the last call. Flushes.
  void append(const RankTrace& part);
  // Writes the end record; without it the file counts as cut off.
  void finish();

 private:
  std::string path_;
  std::ofstream out_;
  RecordWriter records_;
};

}  // namespace cp
