// How often this thread has allocated, for tests of code that must not. A program that links this has
// operator new and operator delete of its own, which count.
#pragma once

#include <cstdint>

namespace cp::testing {

std::int64_t allocations_of_this_thread();

}  // namespace cp::testing
