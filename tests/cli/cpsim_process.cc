#include "tests/cli/cpsim_process.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

namespace cp::cli {
namespace {

int checked(int result, const char* what) {
  if (result < 0) throw std::runtime_error(std::string(what) + " failed: errno " + std::to_string(errno));
  return result;
}

// The two ends of a pipe, or of a terminal: what is written to the second is read from the first.
std::array<int, 2> make_channel(bool terminal) {
  std::array<int, 2> ends{};
  if (!terminal) {
    checked(pipe2(ends.data(), O_CLOEXEC), "pipe2");
    return ends;
  }
  ends[0] = checked(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), "posix_openpt");
  checked(grantpt(ends[0]), "grantpt");
  checked(unlockpt(ends[0]), "unlockpt");
  ends[1] = checked(open(ptsname(ends[0]), O_RDWR | O_NOCTTY | O_CLOEXEC), "open of a terminal");
  return ends;
}

}  // namespace

CpsimProcess::CpsimProcess(const std::vector<std::string>& arguments, Terminal terminal) {
  std::string program = CP_BIN_DIR "/cpsim";
  std::vector<std::string> words = arguments;
  std::vector<char*> argv = {program.data()};
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const auto out = make_channel(false), err = make_channel(terminal == Terminal::standard_error);
  const int in = checked(open("/dev/null", O_RDONLY | O_CLOEXEC), "open of /dev/null");
  child_ = checked(fork(), "fork");
  if (child_ == 0) {
    ::signal(SIGINT, SIG_DFL);
    dup2(in, STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(in);
  close(out[1]);
  close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

CpsimProcess::~CpsimProcess() {
  for (const int end : {out_, err_}) {
    if (end >= 0) close(end);
  }
  if (child_ < 0) return;
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
}

void CpsimProcess::signal(int number) const {
  if (child_ <= 0)
    throw std::logic_error("a signal to a process that has finished");  // kill(-1) means everybody
  checked(kill(child_, number), "kill");
}

bool CpsimProcess::read_some(std::chrono::milliseconds limit) {
  std::array<pollfd, 2> ends = {{{out_, POLLIN, 0}, {err_, POLLIN, 0}}};
  if (out_ < 0 && err_ < 0) return false;
  poll(ends.data(), ends.size(), static_cast<int>(limit.count()));
  for (const pollfd& end : ends) {
    if (end.revents == 0) continue;
    std::array<char, 4096> buffer;
    const ssize_t count = read(end.fd, buffer.data(), buffer.size());
    int& mine = end.fd == out_ ? out_ : err_;
    if (count > 0) {
      (&mine == &out_ ? finished_.out : finished_.err).append(buffer.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {  // a terminal ends with EIO
      close(mine);
      mine = -1;
    }
  }
  return true;
}

bool CpsimProcess::wait_for_error_text(const std::string& text, std::chrono::seconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (finished_.err.find(text) == std::string::npos) {
    if (std::chrono::steady_clock::now() > deadline || !read_some(std::chrono::milliseconds(100)))
      return false;
  }
  return true;
}

Finished CpsimProcess::finish() {
  while (read_some(std::chrono::milliseconds(1000))) {
  }
  int status = 0;
  checked(waitpid(child_, &status, 0), "waitpid");
  child_ = -1;
  finished_.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return finished_;
}

Finished cpsim(const Words& arguments) { return CpsimProcess(arguments).finish(); }

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "cpsim-test-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + pattern);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() { std::filesystem::remove_all(path_); }

}  // namespace cp::cli
