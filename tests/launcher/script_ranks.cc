#include "tests/launcher/script_ranks.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace cp::testing {

using namespace std::chrono_literals;
using runtime::Launcher;
using runtime::LaunchOptions;

namespace {

// Even where the tests run in the background of a script, which ignores some.
[[maybe_unused]] const bool kSignalsAreOrdinary = [] {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) std::signal(number, SIG_DFL);
  return true;
}();

struct Status {
  std::string name;
  char state = 0;
  pid_t parent = 0;
};

std::optional<Status> status_of(pid_t pid) {  // "12 (name) S 1 ..."
  std::ifstream file(str("/proc/", pid, "/stat"));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name = text.find('('), name_end = text.rfind(')');
  if (name == std::string::npos || name_end == std::string::npos) return std::nullopt;
  Status status{.name = text.substr(name + 1, name_end - name - 1)};
  std::istringstream(text.substr(name_end + 1)) >> status.state >> status.parent;
  return status;
}

}  // namespace

LaunchOptions shell(const std::string& script, int nproc) {
  LaunchOptions options;
  options.argv = {"/bin/sh", "-c", script};
  options.nproc = nproc;
  options.environment = [](int index) { return std::vector<std::string>{str("RANK=", index)}; };
  options.consequence_delay = 20ms;
  options.host = "h";
  return options;
}

Launched launch(LaunchOptions options) {
  std::ostringstream out, err;
  options.out = &out;
  options.err = &err;
  Launched launched;
  launched.result = Launcher(std::move(options)).run();
  launched.out = out.str();
  launched.err = err.str();
  return launched;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

Scratch::Scratch() {
  path_ = (std::filesystem::temp_directory_path() / "cp_launcher_XXXXXX").string();
  CP_INVARIANT(mkdtemp(path_.data()) != nullptr, path_);
}

Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string Scratch::read(const std::string& name) const {
  std::ifstream file(path(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<pid_t> Scratch::pids(const std::string& name) const {
  std::vector<pid_t> pids;
  for (const std::string& line : lines_of(read(name))) pids.push_back(std::stoi(line));
  return pids;
}

bool Scratch::await_lines(const std::string& name, std::size_t count) const {
  return eventually([&] {
    const std::string text = read(name);
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) >= count;
  });
}

LauncherProcess::LauncherProcess(LaunchOptions options, const std::function<void(Launcher&)>& while_running) {
  std::ofstream output(scratch_.path("output"), std::ios::binary);
  pid_ = fork();
  CP_INVARIANT(pid_ >= 0, "fork");
  if (pid_ != 0) return;
  int code = 99;
  try {
    options.out = options.err = &output;
    Launcher launcher(std::move(options));
    std::thread thread;
    if (while_running) thread = std::thread([&] { while_running(launcher); });
    const runtime::LaunchResult result = launcher.run();
    if (thread.joinable()) thread.join();
    output << summary(result) << std::endl;
    code = result.exit_code;
  } catch (const std::exception& error) {
    output << error.what() << std::endl;
  }
  _exit(code);
}

LauncherProcess::~LauncherProcess() {
  if (pid_ <= 0) return;
  signal(SIGKILL);
  wait();
}

void LauncherProcess::signal(int number) const { kill(pid_, number); }

std::vector<pid_t> LauncherProcess::children(const std::string& name) const {
  std::vector<pid_t> found;
  static_cast<void>(eventually([&] {  // its ranks may be faster than a child that names itself
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      const auto status = pid > 0 ? status_of(pid) : std::nullopt;
      if (status && status->parent == pid_ && status->name == name) found.push_back(pid);
    }
    return !found.empty();
  }));
  return found;
}

int LauncherProcess::wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool alive(pid_t pid) {
  const auto status = status_of(pid);
  return status && status->state != 'Z' && status->state != 'X';
}

bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

bool all_end(const std::vector<pid_t>& pids) {
  return eventually([&] { return std::none_of(pids.begin(), pids.end(), alive); });
}

}  // namespace cp::testing
