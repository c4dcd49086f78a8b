// A Pack is what one access of a thread reads or writes.
#pragma once

#include <cstdint>

namespace cp::runtime {

// Neighbouring elements that are read or written by one access.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

template <class Address>
bool is_aligned(const Address* address, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(bytes) == 0;
}

}  // namespace cp::runtime
