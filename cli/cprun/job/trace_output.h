// Where the traces of a launch go: the file that the user asked for, and a folder in which each rank writes
// its part of it.
#pragma once

#include <string>

#include "runtime/descriptor.h"

namespace cp::cli {

// Each of several machines writes a file of its own: "run.cptrace" becomes "run.node-1.cptrace" on machine 1.
// On a single machine the path stays as it is.
std::string trace_path(const std::string& trace, int nnodes, int node_rank);

// Throws InvalidInput, with the flag and the reason, if the file cannot be written. Call it before anything
// runs. An empty path means that no file is wanted.
void require_writable(const char* flag, const std::string& path);

// The file in a folder of traces that has the scenario as it ran, with the values filled in that the user
// left open. Rank 0 writes it.
std::string ran_scenario_path(const std::string& folder);

// A new folder in which the ranks leave their parts of a trace. It is beside the trace file or, if no trace
// was asked for, among the temporary files. The destructor removes it, unless keep() was called.
//
// The folder is locked (flock) as long as this process lives, so that remove_abandoned_folders() can tell
// that it is in use. If the launcher is killed, a folder beside a trace stays: it holds all that there is of
// that trace.
class TraceFolder {
 public:
  // Empty: no trace was asked for. Throws InvalidInput if no folder can be made.
  explicit TraceFolder(const std::string& trace);
  ~TraceFolder();
  TraceFolder(const TraceFolder&) = delete;
  TraceFolder& operator=(const TraceFolder&) = delete;

  const std::string& path() const { return path_; }
  void keep() { keep_ = true; }

 private:
  // Returns false if another process removed the folder before it was locked.
  bool make(const std::string& base);

  std::string path_;
  runtime::Descriptor lock_;
  bool keep_ = false;
};

// Removes the folders that killed launchers of this user have left among the temporary files. A folder stays
// if it is locked, because its launcher lives, or if its file system has no such locks.
void remove_abandoned_folders();

}  // namespace cp::cli
