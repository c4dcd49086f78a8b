#include "tests/runtime/allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

thread_local std::int64_t g_allocations = 0;
std::atomic<bool (*)()> g_leave_out = nullptr;

[[maybe_unused]] void count() {
  const auto leave_out = g_leave_out.load();
  if (leave_out == nullptr || !leave_out()) ++g_allocations;
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

void* counted(std::size_t size) {
  count();
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}

void* counted(std::size_t size, std::align_val_t alignment) {
  ++g_allocations;
  const auto align = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(align, (size + align - 1) / align * align + (size == 0 ? align : 0)))
    return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void* operator new(std::size_t size, std::align_val_t alignment) { return counted(size, alignment); }
void* operator new[](std::size_t size, std::align_val_t alignment) { return counted(size, alignment); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#endif

namespace cp::testing {

std::int64_t allocations_of_this_thread() { return g_allocations; }
void leave_out_allocations(bool (*leave_out)()) { g_leave_out.store(leave_out); }

}  // namespace cp::testing
