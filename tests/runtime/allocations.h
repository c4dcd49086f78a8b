// How often this thread has allocated, for tests of code that must not. A program that links this has
// operator new and operator delete of its own, which count.
#pragma once

#include <cstdint>

namespace cp::testing {

// A sanitizer has operators of its own, and finds fault with memory that one gave and another takes back.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCountsAllocations = false;
#else
inline constexpr bool kCountsAllocations = true;
#endif

std::int64_t allocations_of_this_thread();  // 0 where they are not counted

// What is allocated while leave_out() returns true is not counted. It is asked on the thread that allocates.
void leave_out_allocations(bool (*leave_out)());

}  // namespace cp::testing
