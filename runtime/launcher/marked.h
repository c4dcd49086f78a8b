// Finds the processes that a launcher's processes have started, wherever they have gone: even in a group or a
// session of their own, and after their parents have died.
//
// Each process gets an environment variable that nobody else has, the mark. Its descendants inherit it,
// unless they begin with an empty environment. (A cgroup would hold those, too. But an ordinary login session
// may not make one, and a cgroup stays behind if the process that made it is killed.)
//
// All functions but make_mark() call only what a signal handler may call, so that a forked child of a process
// with threads may call them.
#pragma once

#include <string>
#include <sys/types.h>

namespace cp::runtime {

// Makes a new mark, "CPRUN_MARK=1f3a5c7d9e0b2a4c-". A process carries it with its index behind it.
std::string make_mark();

// Calls visit(context, pid, index) for each process that carries the mark and runs or is stopped. It cannot
// find zombies, which have no environment, nor processes whose environment this user may not read.
using VisitProcess = void (*)(void* context, pid_t pid, int index);
void each_marked(const char* mark, VisitProcess visit, void* context) noexcept;

// The same for each child of this process that runs or is stopped; `index` is -1.
void each_child(VisitProcess visit, void* context) noexcept;

template <class F>
void each_marked(const char* mark, F f) noexcept {
  each_marked(
      mark, [](void* context, pid_t pid, int index) { (*static_cast<F*>(context))(pid, index); }, &f);
}
template <class F>
void each_child(F f) noexcept {
  each_child([](void* context, pid_t pid, int) { (*static_cast<F*>(context))(pid); }, &f);
}

}  // namespace cp::runtime
