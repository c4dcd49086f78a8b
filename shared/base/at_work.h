// Long work of this layer, which knows neither threads nor signals, says now and then that it goes on. Who
// called it may stop it there, by an exception.
#pragma once

namespace cp {

// What at_work() calls, of each thread; null: nothing.
inline thread_local void (*at_work_hook)() = nullptr;

// A few instructions: for loops whose steps take longer than those.
inline void at_work() {
  if (at_work_hook != nullptr) at_work_hook();
}

}  // namespace cp
