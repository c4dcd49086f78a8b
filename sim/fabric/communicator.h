// Communicator: where the members of one group meet.
//
// Each member publishes its call in its slot and arrives. The last to arrive sees all calls, carries the
// collective out (or lets every member do a part of it and meet again) and releases the round. A member has
// at most one collective in flight on a communicator, because all collectives of a group are issued on one
// stream; so a round cannot start before every member has seen the end of the previous one, and plain data
// written before arrival or release needs no lock.
//
//   member                                   last member
//   slot(i).call = ...                       slot(i).call = ...
//   arrive(i) == Arrival::waiting            arrive(i) == Arrival::last
//   ... until released(ticket) ...           compare, move, write outcome()
//   read outcome()                           release()
//
// Sleeping and waking are the Scheduler's; a communicator only counts who sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/fabric/call.h"
#include "sim/fabric/futex.h"

namespace cp::sim {

class Transfers;

enum class Arrival : std::uint8_t {
  waiting,
  last,      // all calls are in their slots: the caller carries the round out
  departed,  // the round can never be complete: the body of a member has returned
};

class Communicator {
 public:
  // A cache line, so that members do not disturb each other.
  struct alignas(64) Slot {
    Call call;
    FutexWord rounds{0};  // that the member has arrived at; the current one when ahead of the communicator's
    std::int64_t sequence = 0;  // collectives that the member has finished since it prepared its plan
  };

  // Written by the last member before release, read by the others after it.
  struct Outcome {
    std::int32_t parts = 1;  // > 1: each member moves its part, then arrives again
    bool failed = false;
  };

  // `ranks` of the group must differ from each other.
  explicit Communicator(Group group);
  ~Communicator();

  // From here on collectives are done transfer by transfer, with checksums of the payloads or without.
  void track_transfers(bool checksums);
  Transfers* transfers() { return transfers_.get(); }  // null: they are not
  const Transfers* transfers() const { return transfers_.get(); }

  const Group& group() const { return group_; }
  std::int32_t size() const { return static_cast<std::int32_t>(group_.ranks.size()); }
  Slot& slot(std::int32_t index) { return slots_[static_cast<std::size_t>(index)]; }
  const Slot& slot(std::int32_t index) const { return slots_[static_cast<std::size_t>(index)]; }
  Outcome& outcome() { return outcome_; }

  // The member's round number is slot(index).rounds before the call.
  Arrival arrive(std::int32_t index);
  bool released(std::uint32_t round) const;

  // Takes an arrival back when the round has not started; false when all have arrived and it will be, or has
  // been, released.
  bool retract(std::int32_t index);

  // Ends the round, by the last member. Returns what the scheduler needs to wake those who wait; it is to
  // call ring() next.
  struct Waiters {
    std::int32_t sleepers = 0;  // asleep, or about to be, in sleep()
    bool watched = false;       // some member sleeps elsewhere
  };
  Waiters release(std::uint32_t round);
  void ring(bool anyone_sleeps);

  // Announces that the member will sleep() / sleeps elsewhere; false when the round has been released
  // already.
  bool add_sleeper(std::uint32_t round) { return announce(round, kSleeper, 0); }
  bool add_watcher(std::uint32_t round) { return announce(round, 0, kWatched); }
  // Until the round is released, or (cancellable) disturbed.
  void sleep(std::uint32_t round, bool cancellable) const;
  // Wakes everybody; no cancellable sleep lasts from here on.
  void disturb();

  // A member's body has returned: true when others have arrived at a round that can now never be complete.
  bool depart();

  // Indices of members that have (not) arrived at the current round. Exact for members that have arrived and
  // wait.
  std::vector<std::int32_t> arrived() const { return members_where(true); }
  std::vector<std::int32_t> missing() const { return members_where(false); }

  // By the host, while no rank runs. reset: after a failure, which may have left a round half way.
  void begin_run() { census_.fetch_and(~kDeparted, std::memory_order_relaxed); }
  void reset();
  void restart_sequence();

 private:
  // The census, one word: who has arrived, who sleeps, which round (modulo 2^16), and two flags.
  static constexpr std::uint64_t kArrived = 1, kSleeper = std::uint64_t{1} << 20,
                                 kRound = std::uint64_t{1} << 40;
  static constexpr std::uint64_t kWatched = std::uint64_t{1} << 56, kDeparted = std::uint64_t{1} << 57;
  static std::int32_t arrived_in(std::uint64_t census) { return static_cast<std::int32_t>(census & 0xfffff); }
  static std::int32_t sleepers_in(std::uint64_t census) {
    return static_cast<std::int32_t>(census >> 20 & 0xfffff);
  }
  static std::uint32_t round_in(std::uint64_t census) {
    return static_cast<std::uint32_t>(census >> 40 & 0xffff);
  }

  bool announce(std::uint32_t round, std::uint64_t add, std::uint64_t flag);
  std::vector<std::int32_t> members_where(bool has_arrived) const;

  Group group_;
  std::unique_ptr<Slot[]> slots_;
  Outcome outcome_;
  std::unique_ptr<Transfers> transfers_;
  bool has_checksums_ = false;
  alignas(64) std::atomic<std::uint64_t> census_{0};
  alignas(64) FutexWord doorbell_{0};  // 2 * rounds rung (modulo 2^32), + 1 when disturbed
};

// "tp[0,1,2,3]"; long lists are cut.
std::string to_string(const Group& group);
std::string ranks_text(const std::vector<Rank>& ranks);

}  // namespace cp::sim
