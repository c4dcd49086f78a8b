// A thread for each rank. They sleep between runs, and wake all at once.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <pthread.h>

#include "sim/fabric/baton.h"
#include "sim/fabric/futex.h"
#include "sim/fabric/rank_carrier.h"

namespace cp::sim {

class RankThreads final : public RankCarrier {
 public:
  // Throws InvalidInput when the system does not allow so many threads.
  RankThreads(int count, std::size_t stack_bytes);
  ~RankThreads() override;

  Baton& baton() override { return baton_; }
  void run(const std::function<void(Rank)>& body) override;

 private:
  // Who awaits the baton sleeps on a word of its own.
  class SleepingBaton final : public Baton {
   public:
    explicit SleepingBaton(int count);
    void reset() override;
    void pass_to(Rank next) override;
    void await(Rank self) override;

   private:
    struct alignas(64) Word {
      FutexWord holds{0};
    };
    std::vector<Word> words_;  // by rank
  };
  struct Start {
    RankThreads* threads;
    Rank rank;
  };
  static void* thread_main(void* start);
  void stop();

  SleepingBaton baton_;
  std::vector<Start> starts_;
  std::vector<pthread_t> threads_;
  const std::function<void(Rank)>* body_ = nullptr;  // null at a start: the threads end
  alignas(64) FutexWord runs_{0};                    // runs started so far
  alignas(64) FutexWord busy_{0};                    // ranks that have not ended the current run
};

}  // namespace cp::sim
