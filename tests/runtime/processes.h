// Runs a test's body in several processes at once.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "shared/base/types.h"

namespace cp::testing {

// Forks one process for each rank, which calls body(rank) and ends. Returns what went wrong, by rank: the
// text that the body returned or the message of its exception, "killed by signal ..." or "timed out"; empty
// when nothing did. No other thread may exist at the call, since only the calling one would survive in the
// children.
std::vector<std::string> run_processes(int count, const std::function<std::string(Rank)>& body,
                                       std::chrono::seconds timeout = std::chrono::seconds(60));

// A directory that is removed with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace cp::testing
