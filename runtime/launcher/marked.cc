#include "runtime/launcher/marked.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <unistd.h>

#include "runtime/launcher/folders.h"
#include "shared/base/text.h"

namespace cp::runtime {
namespace {

// The digits of an index, which has at most 9 so that it fits into an int, and the character that ends it.
constexpr std::size_t kMostDigits = 10;

// Returns 0 if the text is not a number.
pid_t pid_of(const char* name) noexcept {
  std::int64_t pid = 0;
  for (; *name != '\0'; ++name) {
    // Far above Linux's largest pid (2^22), and below where the next digit would leave an int's range.
    if (*name < '0' || *name > '9' || pid > 400'000'000) return 0;
    pid = 10 * pid + (*name - '0');
  }
  return static_cast<pid_t>(pid);
}

// Returns the number behind the mark, if one begins at `at` and all of it is there; else -1.
int index_at(const char* at, const char* end) noexcept {
  int index = 0;
  std::size_t digits = 0;
  for (; at != end && *at >= '0' && *at <= '9' && digits < kMostDigits - 1; ++at, ++digits)
    index = 10 * index + (*at - '0');
  return digits > 0 && at != end && *at == '\0' ? index : -1;
}

// Returns the number that a process carries behind the mark, or -1 if it carries none.
int index_in(int environment, const char* mark) noexcept {
  const std::size_t size = std::strlen(mark), kept = size + kMostDigits + 1;
  char buffer[8192];
  std::size_t have = 1;
  buffer[0] = '\0';  // a zero stands before every variable; so it does before the first
  while (true) {
    const ssize_t more = read(environment, buffer + have, sizeof buffer - have);
    if (more <= 0) return -1;
    have += static_cast<std::size_t>(more);
    const char *at = buffer, *const end = buffer + have;
    while ((at = static_cast<const char*>(memmem(at, static_cast<std::size_t>(end - at), mark, size))) !=
           nullptr) {
      const int index = at != buffer && at[-1] == '\0' ? index_at(at + size, end) : -1;
      if (index >= 0) return index;
      ++at;
    }
    const std::size_t rest = std::min(have, kept);
    std::memmove(buffer, end - rest, rest);
    have = rest;
  }
}

int open_of(int processes, const char* pid, const char* what) noexcept {
  char path[64];
  if (std::strlen(pid) + std::strlen(what) + 2 > sizeof path) return -1;
  std::strcpy(path, pid);
  std::strcat(path, what);
  return openat(processes, path, O_RDONLY | O_CLOEXEC);
}

// Reads the parent from the text of /proc/PID/stat, "12 (name) S 1 ...". The name may have any characters, so
// the last parenthesis counts. Returns 0 for a zombie.
pid_t parent_in(int status) noexcept {
  char text[1024];
  const ssize_t size = read(status, text, sizeof text - 1);
  if (size <= 0) return 0;
  text[size] = '\0';
  const char* const name_end = std::strrchr(text, ')');
  if (name_end == nullptr || std::strlen(name_end) < 5 || name_end[2] == 'Z' || name_end[2] == 'X') return 0;
  pid_t parent = 0;
  for (const char* digit = name_end + 4; *digit >= '0' && *digit <= '9'; ++digit)
    parent = 10 * parent + (*digit - '0');
  return parent;
}

}  // namespace

std::string make_mark() {
  std::random_device random;
  std::string mark = "CPRUN_MARK=";
  for (int i = 0; i < 16; ++i) mark += "0123456789abcdef"[random() % 16];
  return mark + "-";
}

void each_marked(const char* mark, VisitProcess visit, void* context) noexcept {
  each_entry("/proc", [&](int processes, const char* name) {
    const pid_t pid = pid_of(name);
    const int environment = pid > 0 ? open_of(processes, name, "/environ") : -1;
    if (environment < 0) return true;
    const int index = index_in(environment, mark);
    close(environment);
    if (index >= 0) visit(context, pid, index);
    return true;
  });
}

void each_child(VisitProcess visit, void* context) noexcept {
  const pid_t self = getpid();
  each_entry("/proc", [&](int processes, const char* name) {
    const pid_t pid = pid_of(name);
    const int status = pid > 0 ? open_of(processes, name, "/stat") : -1;
    if (status < 0) return true;
    const pid_t parent = parent_in(status);
    close(status);
    if (parent == self) visit(context, pid, -1);
    return true;
  });
}

}  // namespace cp::runtime
