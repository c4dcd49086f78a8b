// Runs the built cpsim as a process.
#pragma once

#include <chrono>
#include <string>
#include <sys/types.h>
#include <vector>

namespace cp::cli {

struct Finished {
  int exit_code = -1;  // 128 + n when signal n ended it, as a shell says
  std::string out, err;
};

// A cpsim that runs. Its standard input is empty.
class CpsimProcess {
 public:
  enum class Terminal { none, standard_error };

  explicit CpsimProcess(const std::vector<std::string>& arguments, Terminal terminal = Terminal::none);
  ~CpsimProcess();  // kills it when it still runs
  CpsimProcess(const CpsimProcess&) = delete;
  CpsimProcess& operator=(const CpsimProcess&) = delete;

  void signal(int number) const;
  // Reads standard error until it holds the text; false when the process ends or the time is over before.
  bool wait_for_error_text(const std::string& text, std::chrono::seconds limit = std::chrono::seconds(240));
  Finished finish();

 private:
  bool read_some(std::chrono::milliseconds limit);  // false: nothing more will come

  pid_t child_ = -1;
  int out_ = -1, err_ = -1;  // -1 once they are at their ends
  Finished finished_;
};

using Words = std::vector<std::string>;

Finished cpsim(const Words& arguments);

// The words, and `more` behind them.
Words with(Words words, const Words& more);

// A folder of its own for the files of one test; removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace cp::cli
