// Sleeping on a word, with Linux's futex: a thread sleeps while the word has a certain value, and one system
// call wakes all threads that sleep on it.
//
// Why not std::atomic::wait: in libstdc++ 12 it spins before it sleeps, and unrelated atomics share its wait
// words. With a thousand threads on two cores, either costs more than the collective itself.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/futex.h>

namespace cp::sim {

using FutexWord = std::atomic<std::uint32_t>;
static_assert(sizeof(FutexWord) == sizeof(std::uint32_t) && FutexWord::is_always_lock_free);

// Sleeps if the word holds `expected`. It returns when it is woken, and sometimes without a reason, so
// callers check the word in a loop.
inline void futex_wait(const FutexWord& word, std::uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}
inline void futex_wake_one(const FutexWord& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}
inline void futex_wake_all(const FutexWord& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace cp::sim
