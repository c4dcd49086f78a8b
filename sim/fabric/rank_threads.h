// RankThreads: each rank has a thread of its own. The threads sleep between runs, and one system call wakes
// all of them.
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
  // Throws InvalidInput if the system does not allow so many threads.
  RankThreads(int count, std::size_t stack_bytes);
  ~RankThreads() override;

  Baton& baton() override { return baton_; }
  void run(const std::function<void(Rank)>& body) override;

 private:
  // A rank that awaits the baton sleeps on a word of its own, so that passing it wakes that rank alone.
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
  const std::function<void(Rank)>* body_ = nullptr;  // if it is null when a run starts, the threads end
  alignas(64) FutexWord runs_{0};                    // how many runs have started
  alignas(64) FutexWord busy_{0};                    // how many ranks have not ended the current run
};

}  // namespace cp::sim
