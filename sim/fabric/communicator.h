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
    // At how many rounds the member has arrived. If this is ahead of the communicator's own count, the member
    // has arrived at the current round.
    FutexWord rounds{0};
    std::int64_t sequence = 0;  // how many collectives the member has finished since it prepared its plan
  };

  // Written by the last member before release, read by the others after it.
  struct Outcome {
    std::int32_t parts = 1;  // > 1: each member moves its part, then arrives again
    bool failed = false;
  };

  // `ranks` of the group must differ from each other.
  explicit Communicator(Group group);
  ~Communicator();

  // After this call, collectives are carried out transfer by transfer, with checksums of the payloads if
  // `checksums`.
  void track_transfers(bool checksums);
  Transfers* transfers() { return transfers_.get(); }  // null if track_transfers() was not called
  const Transfers* transfers() const { return transfers_.get(); }

  const Group& group() const { return group_; }
  std::int32_t size() const { return static_cast<std::int32_t>(group_.ranks.size()); }
  Slot& slot(std::int32_t index) { return slots_[static_cast<std::size_t>(index)]; }
  const Slot& slot(std::int32_t index) const { return slots_[static_cast<std::size_t>(index)]; }
  Outcome& outcome() { return outcome_; }

  // The member's round number is slot(index).rounds before the call.
  Arrival arrive(std::int32_t index);
  bool released(std::uint32_t round) const;

  // Takes an arrival back. Returns false if that is too late: all members have arrived, and the round will be
  // released or has been.
  bool retract(std::int32_t index);

  // The last member calls this to end the round. It returns what the scheduler needs to wake the members that
  // wait; the scheduler must call ring() next.
  struct Waiters {
    std::int32_t sleepers = 0;  // asleep, or about to be, in sleep()
    bool watched = false;       // some member sleeps elsewhere
  };
  Waiters release(std::uint32_t round);
  void ring(bool anyone_sleeps);

  // Announce that the member is about to sleep(), or that it sleeps somewhere else. Both return false if the
  // round has been released already: then the member must not sleep.
  bool add_sleeper(std::uint32_t round) { return announce(round, kSleeper, 0); }
  bool add_watcher(std::uint32_t round) { return announce(round, 0, kWatched); }
  // Sleeps until the round is released. A cancellable sleep also ends at disturb().
  void sleep(std::uint32_t round, bool cancellable) const;
  // Wakes all members. From now on cancellable sleeps return at once.
  void disturb();

  // To be called when a member's body has returned. Returns true if other members have arrived at a round,
  // which can then never be complete.
  bool depart();

  // The indices of the members that have arrived at the current round, and of those that have not. A member
  // that has arrived and waits is always among the former; one that is arriving may be in either.
  std::vector<std::int32_t> arrived() const { return members_where(true); }
  std::vector<std::int32_t> missing() const { return members_where(false); }

  // The host calls these while no rank runs. reset() is for after a failure, which may have left a round
  // half done.
  void begin_run() { census_.fetch_and(~kDeparted, std::memory_order_relaxed); }
  void reset();
  void restart_sequence();

 private:
  // The census is one word, so that all of it changes in one atomic step. Bits 0-19 count the members that
  // have arrived, bits 20-39 those that sleep, bits 40-55 are the round modulo 2^16; bits 56 and 57 are
  // flags. 20 bits count a million members, each of which is a thread or has a stack: more than a machine can
  // carry.
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
  // Twice the number of rounds that were rung, modulo 2^32; odd once disturb() was called.
  alignas(64) FutexWord doorbell_{0};
};

// "tp[0,1,2,3]". Long lists of ranks are cut.
std::string to_string(const Group& group);
std::string ranks_text(const std::vector<Rank>& ranks);

}  // namespace cp::sim
