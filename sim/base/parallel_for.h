// Independent pieces of work on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "sim/base/stop.h"

namespace cp::sim {

inline int num_cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

// body(index, worker) for each index below `count`, on `workers` threads at most, the calling one among them;
// each has its own number below `workers`. After something is thrown no further index begins, and the first
// of it is thrown here when all have ended. A stop of the calling thread (stop.h) is looked at before each
// index, and by all threads.
template <class Body>
void parallel_for(std::size_t count, int workers, const Body& body) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const std::atomic<bool>* const stop = StopScope::current();
  const auto work = [&](std::size_t worker) {
    const StopScope scope(stop);
    try {
      for (std::size_t index = next++; index < count; index = next++) {
        look_at_stop();
        body(index, worker);
      }
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!error) error = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t worker = 1; worker < std::min(count, static_cast<std::size_t>(workers)); ++worker)
      others.emplace_back(work, worker);
    work(0);
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace cp::sim
