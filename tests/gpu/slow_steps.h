// Steps that come late on the GPU. Plans of tests are small, so that their kernels last some microseconds and
// end before the host has enqueued the next step: a stream that does not wait for another one finds its data
// there all the same. With delays it does not.
//
// A delay is a function of the host in the CUDA stream (cudaLaunchHostFunc) that sleeps. So it is the same on
// real GPUs and on the emulation, and takes no multiprocessor from other kernels.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "shared/plan/device.h"
#include "shared/plan/plan.h"

namespace cp::testing {

using BeforeStep = std::function<void(const Step&, CallerStream)>;  // of NcclOptions

// What is enqueued on the stream from now on comes `time` later. Throws as check_cuda().
void delay(CallerStream stream, std::chrono::microseconds time);

// Delays one step in four by up to a millisecond: by chance, but in the same places for the same seed. That
// is longer than the steps of tests last, and a thousand steps are over in half a second.
BeforeStep slow_at_random(std::uint64_t seed);

}  // namespace cp::testing
