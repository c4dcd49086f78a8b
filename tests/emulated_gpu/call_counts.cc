#include "tests/emulated_gpu/call_counts.h"

#include <functional>
#include <string_view>

namespace cp::emulated {
namespace {

using Counts = std::map<std::string, std::int64_t, std::less<>>;

// Streams that live as long as a program are destroyed when the values of its first thread are gone.
thread_local bool has_ended = false;
struct CountsOfThread {
  Counts counts;
  CountsOfThread() = default;
  CountsOfThread(const CountsOfThread&) = delete;
  CountsOfThread& operator=(const CountsOfThread&) = delete;
  ~CountsOfThread() { has_ended = true; }
};

Counts& counts() {
  thread_local CountsOfThread of_thread;
  return of_thread.counts;
}

}  // namespace

void count_call(const char* function) {
  if (has_ended) return;
  const auto found = counts().find(std::string_view(function));
  if (found != counts().end()) {
    ++found->second;
  } else {
    counts().emplace(function, 1);
  }
}

CallCounts calls_of_this_thread() { return {counts().begin(), counts().end()}; }

std::int64_t total(const CallCounts& calls) {
  std::int64_t sum = 0;
  for (const auto& [function, count] : calls) sum += count;
  return sum;
}

CallCounts since(const CallCounts& before, const CallCounts& now) {
  CallCounts made;
  for (const auto& [function, count] : now) {
    const auto earlier = before.find(function);
    const std::int64_t more = count - (earlier != before.end() ? earlier->second : 0);
    if (more != 0) made.emplace(function, more);
  }
  return made;
}

}  // namespace cp::emulated
