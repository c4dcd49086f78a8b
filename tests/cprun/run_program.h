// Runs cprun, or another program that the project built, as a process of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <sys/types.h>
#include <vector>

namespace cp::testing {

struct ProgramEnd {
  int exit_code = -1;  // 128 + n when signal n ended it; -1: it did not end in time, and was killed
  std::string out = {}, err = {};
  std::chrono::steady_clock::time_point when = {};
};

// A program that runs, with its output in files. All its descendants inherit a variable by which they are
// found again.
class Program {
 public:
  // "NAME=value" over this process's environment. argv: looked up in PATH. For any thread.
  explicit Program(std::vector<std::string> argv, const std::vector<std::string>& environment = {});
  ~Program();  // kills it and all that is left of it
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // For files that the program shall write; removed with the object.
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  std::string read(const std::string& name) const;  // empty when there is none
  // A machine may be ten times slower.
  ProgramEnd finish(std::chrono::milliseconds limit = std::chrono::seconds(240));

  // Processes that it started, itself among them, and that run or are stopped; zombies do not count.
  std::vector<pid_t> processes() const;
  void kill_processes() const;
  std::vector<pid_t> children(
      const std::string& name) const;  // its own that run the program of this name, by pid

 private:
  std::string folder_, marker_;
  pid_t pid_ = -1;
};

std::string built(const std::string& program);  // its path

ProgramEnd run(std::vector<std::string> argv, const std::vector<std::string>& environment = {});
ProgramEnd cprun(std::vector<std::string> arguments, const std::vector<std::string>& environment = {});

// Creates the file once standard error holds the text: for a program that waits for a file until something
// has been said.
ProgramEnd run_with_cue(std::vector<std::string> argv, const std::vector<std::string>& environment,
                        const std::string& text, const std::string& file);

// Whether the condition holds within the time; asked again and again.
template <class Condition>
bool within(std::chrono::milliseconds limit, const Condition& condition);

void sleep_for(std::chrono::milliseconds duration);

// A port of 127.0.0.1 that is free, and that the kernel gives to nobody who asks for any.
std::uint16_t free_port();
bool is_free(std::uint16_t port);  // for a server, as the next job would listen

template <class Condition>
bool within(std::chrono::milliseconds limit, const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

}  // namespace cp::testing
