// Where the traces of a launch go: the file that was asked for, and a folder for the ranks' parts of it.
#pragma once

#include <string>

#include "runtime/descriptor.h"

namespace cp::cli {

// Of several machines each has a file of its own: "run.cptrace" is "run.node-1.cptrace" there.
std::string trace_path(const std::string& trace, int nnodes, int node_rank);

// Throws InvalidInput, with the flag and the reason, when the file cannot be written; to be asked before
// anything runs. Empty: no file.
void require_writable(const char* flag, const std::string& path);

// In a folder of traces: the scenario as it ran, with all that was not said filled in. Rank 0 writes it.
std::string ran_scenario_path(const std::string& folder);

// A new folder beside the trace, or among the temporary files, where the ranks leave their parts: removed
// with the object, unless they are to stay. It is locked (flock) for as long as this process lives. One
// beside a trace that was asked for stays when the launcher is killed: it is what there is of that trace.
class TraceFolder {
 public:
  explicit TraceFolder(const std::string& trace);  // empty: none was asked for; throws InvalidInput
  ~TraceFolder();
  TraceFolder(const TraceFolder&) = delete;
  TraceFolder& operator=(const TraceFolder&) = delete;

  const std::string& path() const { return path_; }
  void keep() { keep_ = true; }

 private:
  bool make(const std::string& base);  // false: another process has taken it away at once

  std::string path_;
  runtime::Descriptor lock_;
  bool keep_ = false;
};

// Removes those folders among the temporary files that launchers of this user have left, since they were
// killed; not where a lock tells that the launcher lives, or the file system has no such locks.
void remove_abandoned_folders();

}  // namespace cp::cli
