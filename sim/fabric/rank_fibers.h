// All ranks on the thread that calls run(), each on a stack of its own: for those that take turns.
//
// To pass the baton from one to the next is a change of stacks, less than a microsecond, where two threads
// need a wake-up and a sleep of several; and a fabric starts without a thread being made. Since one rank runs
// at a time either way, the turns are the same.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "sim/fabric/rank_carrier.h"

namespace cp::sim {

// Sanitizers follow threads: programs that they instrument have a thread for each rank.
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
  // Throws InvalidInput when there is no memory for so many stacks.
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
  Rank next_ = -1;  // to whom the baton was passed; -1: whoever runs holds it
  int left_ = 0;    // ranks whose bodies have not returned
};

}  // namespace cp::sim
