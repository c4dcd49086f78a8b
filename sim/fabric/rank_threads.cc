#include "sim/fabric/rank_threads.h"

#include <cstring>

#include "shared/base/error.h"

namespace cp::sim {

RankThreads::SleepingBaton::SleepingBaton(int count) : words_(static_cast<std::size_t>(count)) {}

void RankThreads::SleepingBaton::reset() {
  for (Word& word : words_) word.holds = 0;
}

void RankThreads::SleepingBaton::pass_to(Rank next) {
  FutexWord& holds = words_[static_cast<std::size_t>(next)].holds;
  holds.store(1, std::memory_order_release);
  futex_wake_one(holds);
}

void RankThreads::SleepingBaton::await(Rank self) {
  FutexWord& holds = words_[static_cast<std::size_t>(self)].holds;
  while (holds.load(std::memory_order_acquire) == 0) futex_wait(holds, 0);
  holds.store(0, std::memory_order_relaxed);
}

RankThreads::RankThreads(int count, std::size_t stack_bytes) : baton_(count) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  starts_.reserve(static_cast<std::size_t>(count));
  int error = 0;
  for (Rank rank = 0; rank < count && error == 0; ++rank) {
    starts_.push_back({this, rank});
    pthread_t thread{};
    error = pthread_create(&thread, &attributes, &thread_main, &starts_.back());
    if (error == 0) threads_.push_back(thread);
  }
  pthread_attr_destroy(&attributes);
  if (error == 0) return;
  const std::size_t started = threads_.size();
  stop();
  throw InvalidInput(str("a fabric of ", count, " ranks: only ", started,
                         " threads could be started: ", std::strerror(error),
                         "; raise the limit on processes (ulimit -u), or use fewer ranks"));
}

RankThreads::~RankThreads() { stop(); }

void RankThreads::stop() {
  body_ = nullptr;
  runs_.fetch_add(1, std::memory_order_release);
  futex_wake_all(runs_);
  for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
}

void* RankThreads::thread_main(void* start) {
  const auto [threads, rank] = *static_cast<Start*>(start);
  for (std::uint32_t run = 0;; ++run) {
    while (threads->runs_.load(std::memory_order_acquire) == run) futex_wait(threads->runs_, run);
    if (threads->body_ == nullptr) return nullptr;
    (*threads->body_)(rank);
    if (threads->busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) futex_wake_one(threads->busy_);
  }
}

void RankThreads::run(const std::function<void(Rank)>& body) {
  body_ = &body;
  busy_.store(static_cast<std::uint32_t>(threads_.size()), std::memory_order_relaxed);
  runs_.fetch_add(1, std::memory_order_release);
  futex_wake_all(runs_);
  for (std::uint32_t busy = 0; (busy = busy_.load(std::memory_order_acquire)) != 0;) futex_wait(busy_, busy);
  body_ = nullptr;
}

}  // namespace cp::sim
