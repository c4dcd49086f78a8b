// How often a thread has called CUDA and NCCL: every function of both interfaces counts once where a program
// calls it, and not where the emulation calls it itself.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace cp::emulated {

// By the function's name. A kernel of the project's is "kernel", one of cuDNN's "cudnn".
using CallCounts = std::map<std::string, std::int64_t>;

CallCounts calls_of_this_thread();      // so far
void count_call(const char* function);  // for the emulation (Inside)
std::int64_t total(const CallCounts& calls);
// What came after `before`; functions that were not called since are left out.
CallCounts since(const CallCounts& before, const CallCounts& now = calls_of_this_thread());

}  // namespace cp::emulated
