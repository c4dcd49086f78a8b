// RankFibers: all ranks run on the thread that calls run(), each on a stack of its own. Only for ranks that
// take turns.
//
// Passing the baton is then a change of stacks, which takes less than a microsecond; with threads it takes a
// wake-up and a sleep, several microseconds. A fabric also starts without making a thread. One rank runs at a
// time either way, so the order of turns is the same as with RankThreads.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "sim/fabric/rank_carrier.h"

namespace cp::sim {

// Sanitizers can follow threads, but not changes of stacks. Programs built with one have a thread for each
// rank.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasFibers = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
constexpr bool kHasFibers = false;
#else
constexpr bool kHasFibers = true;
#endif
#else
constexpr bool kHasFibers = true;
#endif

class RankFibers final : public RankCarrier, private Baton {
 public:
  // Throws InvalidInput if there is no memory for so many stacks.
  RankFibers(int count, std::size_t stack_bytes);
  ~RankFibers() override;

  Baton& baton() override { return *this; }
  void run(const std::function<void(Rank)>& body) override;

 private:
  struct Fiber;

  void reset() override { next_ = -1; }
  void pass_to(Rank next) override { next_ = next; }
  void await(Rank self) override;
  static void fiber_main(unsigned high, unsigned low, Rank self);
  void go_on(Fiber& from, Fiber& to);

  std::vector<Fiber> fibers_;    // by rank
  std::unique_ptr<Fiber> host_;  // whoever calls run()
  const std::function<void(Rank)>* body_ = nullptr;
  Rank next_ = -1;  // the rank that the baton was passed to; -1 if the rank that runs holds it
  int left_ = 0;    // how many ranks' bodies have not returned
};

}  // namespace cp::sim
