// Sleeping on a word, as Linux offers it: a thread sleeps while the word has a value, one call wakes all who
// sleep on it.
//
// std::atomic::wait would do, but libstdc++ 12 spins first and shares its wait words between unrelated
// atomics: with a thousand threads on two cores both cost more than the collective itself.
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

// Sleeps when the word holds `expected`; returns at a wake-up, and sometimes for no reason: callers loop over
// the word.
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
