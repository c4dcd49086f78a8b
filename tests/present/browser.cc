#include "tests/present/browser.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "shared/base/text.h"

namespace cp::testing {
namespace {

constexpr std::chrono::seconds kLimit{55};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

}  // namespace

std::optional<std::string> find_browser() {
  const char* path = std::getenv("PATH");
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    for (const std::string_view folder : split(path ? path : "/usr/bin", ':')) {
      const std::string program = str(folder, "/", name);
      if (access(program.c_str(), X_OK) == 0) return program;
    }
  }
  return std::nullopt;
}

// Runs in a process group of its own, so that all of its processes end with it.
Visit Browser::run(const std::vector<std::string>& arguments) const {
  std::vector<std::string> words = {program,
                                    "--headless",
                                    "--no-sandbox",  // root has none
                                    "--disable-gpu",
                                    "--disable-dev-shm-usage",
                                    "--no-first-run",
                                    "--disable-extensions",
                                    "--disable-background-networking",
                                    "--disable-component-update",
                                    "--proxy-server=127.0.0.1:9",  // whatever it would load fails
                                    "--hide-scrollbars",
                                    "--enable-logging=stderr",
                                    "--virtual-time-budget=8000",
                                    str("--user-data-dir=", folder, "/profile"),
                                    str("--window-size=", width, ",", height)};
  if (dark) words.push_back("--force-dark-mode");
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string out = folder + "/out", log = folder + "/log";

  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    setpgid(0, 0);
    setenv("HOME", folder.c_str(), 1);
    dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
    dup2(::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  Visit visit;
  int status = 0;
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      kill(-child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  kill(-child, SIGKILL);  // helpers that outlived it
  visit.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  visit.document = read_file(out);
  visit.log = read_file(log);
  for (const std::string_view line : split(visit.log, '\n')) {
    if (line.find(":CONSOLE:") != std::string_view::npos) visit.console += str(line, "\n");
  }
  return visit;
}

Visit Browser::open(const std::string& html_file) const { return run({"--dump-dom", "file://" + html_file}); }

Visit Browser::picture(const std::string& html_file, const std::string& png_file) const {
  return run({"--screenshot=" + png_file, "file://" + html_file});
}

}  // namespace cp::testing
