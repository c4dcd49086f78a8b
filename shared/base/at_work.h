// This layer knows neither threads nor signals. So its long computations call at_work() now and then, and a
// caller that wants to interrupt them sets a hook, which may throw an exception.
#pragma once

namespace cp {

// What at_work() calls; each thread has its own. Null: nothing.
inline thread_local void (*at_work_hook)() = nullptr;

// Takes a few instructions. Call it in loops whose iterations take longer than that.
inline void at_work() {
  if (at_work_hook != nullptr) at_work_hook();
}

}  // namespace cp
