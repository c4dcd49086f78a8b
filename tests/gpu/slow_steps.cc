#include "tests/gpu/slow_steps.h"

#include <memory>
#include <random>
#include <thread>

#include <cuda_runtime_api.h>

#include "runtime/cuda/cuda_error.h"

namespace cp::testing {
namespace {

void sleep_for(void* microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<std::intptr_t>(microseconds)));
}

}  // namespace

void delay(CallerStream stream, std::chrono::microseconds time) {
  const auto count = static_cast<std::intptr_t>(time.count());
  void* const number = reinterpret_cast<void*>(count);  // NOLINT(performance-no-int-to-ptr): for sleep_for()
  CP_CUDA(cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), sleep_for, number));
}

BeforeStep slow_at_random(std::uint64_t seed) {
  constexpr std::uint64_t kOneIn = 4;
  constexpr std::uint64_t kLongestUs = 1'000;
  return [random = std::make_shared<std::mt19937_64>(seed)](const Step&, CallerStream stream) {
    const std::uint64_t drawn = (*random)();
    if (drawn % kOneIn != 0) return;
    delay(stream, std::chrono::microseconds(drawn / kOneIn % kLongestUs));
  };
}

}  // namespace cp::testing
