// Adds up where time goes.
#pragma once

#include <chrono>

namespace cp::sim {

// Calls f() and adds the seconds that it takes to `seconds`, also if it throws.
template <class F>
void timed(double& seconds, const F& f) {
  struct Stopwatch {
    double& seconds;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    ~Stopwatch() {
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
  };
  const Stopwatch stopwatch{seconds};
  f();
}

}  // namespace cp::sim
