#include "tests/cprun/run_program.h"

#include <algorithm>
#include <arpa/inet.h>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp::testing {
namespace {

namespace fs = std::filesystem;

std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> merged_environment(const std::vector<std::string>& additions) {
  std::map<std::string, std::string> merged;  // by name
  const auto add = [&](const std::string& variable) {
    merged[variable.substr(0, variable.find('='))] = variable;
  };
  for (char** variable = environ; *variable != nullptr; ++variable) add(*variable);
  for (const std::string& variable : additions) add(variable);
  std::vector<std::string> result;
  result.reserve(merged.size());
  for (const auto& [name, variable] : merged) result.push_back(variable);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// With ordinary signals, whatever the tests were started from.
pid_t start(std::vector<std::string> argv, std::vector<std::string> environment, const std::string& folder) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, (folder + "/out").c_str(), O_WRONLY | O_CREAT,
                                   0600);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, (folder + "/err").c_str(), O_WRONLY | O_CREAT,
                                   0600);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t all, none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv.front().c_str(), &files, &attributes, pointers(argv).data(),
                                 pointers(environment).data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  CP_INVARIANT(error == 0, "cannot run ", argv.front(), ": errno ", error);
  return pid;
}

std::uint16_t next_candidate() {
  // Below those that the kernel gives away (32768 on); test programs that run at once begin at different
  // ones.
  static std::atomic<unsigned> next{static_cast<unsigned>(getpid()) * 61};
  return static_cast<std::uint16_t>(12'000 + next++ % 20'000);
}

}  // namespace

Program::Program(std::vector<std::string> argv, const std::vector<std::string>& environment) {
  folder_ = (fs::temp_directory_path() / "cprun-test-XXXXXX").string();
  CP_INVARIANT(mkdtemp(folder_.data()) != nullptr, folder_);
  marker_ = "CP_PROGRAM_OF_A_TEST=" + folder_;
  std::vector<std::string> additions = environment;
  additions.push_back(marker_);
  pid_ = start(std::move(argv), merged_environment(additions), folder_);
}

Program::~Program() {
  kill_processes();
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void Program::signal(int number) const {
  if (pid_ > 0) kill(pid_, number);  // kill(-1) means everybody
}

std::string Program::read(const std::string& name) const { return read_whole(file(name)); }

ProgramEnd Program::finish(std::chrono::milliseconds limit) {
  int status = 0;
  const bool ended = within(limit, [&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
  ProgramEnd end{.when = std::chrono::steady_clock::now()};
  if (ended) {
    pid_ = -1;
    end.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  } else {
    kill_processes();
  }
  end.out = read("out");
  end.err = read("err");
  return end;
}

std::vector<pid_t> Program::processes() const {
  std::vector<pid_t> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    // A zombie's is empty.
    if (read_whole(entry.path().string() + "/environ").find(marker_ + '\0') != std::string::npos)
      found.push_back(static_cast<pid_t>(parse_int(name, "pid")));
  }
  return found;
}

void Program::kill_processes() const {
  for (const pid_t pid : processes()) kill(pid, SIGKILL);
}

std::vector<pid_t> Program::children(const std::string& name) const {
  std::vector<pid_t> found;
  for (const pid_t pid : processes()) {
    // "12 (name) S 1 ...": the parent comes fourth.
    const std::string status = read_whole(str("/proc/", pid, "/stat"));
    if (status.find(str("(", name, ")")) == std::string::npos) continue;
    const std::vector<std::string_view> words =
        split(std::string_view(status).substr(status.rfind(')') + 1), ' ');
    if (words.size() > 2 && words[2] == str(pid_)) found.push_back(pid);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string built(const std::string& program) { return CP_BIN_DIR "/" + program; }

ProgramEnd run(std::vector<std::string> argv, const std::vector<std::string>& environment) {
  return Program(std::move(argv), environment).finish();
}

ProgramEnd cprun(std::vector<std::string> arguments, const std::vector<std::string>& environment) {
  arguments.insert(arguments.begin(), built("cprun"));
  return run(std::move(arguments), environment);
}

ProgramEnd run_with_cue(std::vector<std::string> argv, const std::vector<std::string>& environment,
                        const std::string& text, const std::string& file) {
  Program program(std::move(argv), environment);
  if (within(std::chrono::seconds(60), [&] { return program.read("err").find(text) != std::string::npos; }))
    std::ofstream{file};
  return program.finish();
}

void sleep_for(std::chrono::milliseconds duration) { std::this_thread::sleep_for(duration); }

bool is_free(std::uint16_t port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool is_free = bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                       listen(descriptor, 1) == 0;
  close(descriptor);
  return is_free;
}

std::uint16_t free_port() {
  std::uint16_t port = next_candidate();
  while (!is_free(port)) port = next_candidate();
  return port;
}

}  // namespace cp::testing
