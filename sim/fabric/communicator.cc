#include "sim/fabric/communicator.h"

#include <utility>

#include "shared/base/error.h"
#include "sim/fabric/transfers.h"

namespace cp::sim {

Communicator::Communicator(Group group)
    : group_(std::move(group)), slots_(std::make_unique<Slot[]>(group_.ranks.size())) {}

Communicator::~Communicator() = default;

void Communicator::track_transfers(bool checksums) {
  has_checksums_ = checksums;
  transfers_ = std::make_unique<Transfers>(size(), checksums);
}

Arrival Communicator::arrive(std::int32_t index) {
  FutexWord& rounds = slot(index).rounds;
  rounds.store(rounds.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  const std::uint64_t before = census_.fetch_add(kArrived, std::memory_order_acq_rel);
  if ((before & kDeparted) != 0) return Arrival::departed;
  return arrived_in(before) + 1 == size() ? Arrival::last : Arrival::waiting;
}

bool Communicator::released(std::uint32_t round) const {
  return round_in(census_.load(std::memory_order_acquire)) != (round & 0xffff);
}

bool Communicator::retract(std::int32_t index) {
  const std::uint32_t round = slot(index).rounds.load(std::memory_order_relaxed) - 1;
  std::uint64_t census = census_.load(std::memory_order_acquire);
  do {
    if (round_in(census) != (round & 0xffff) || arrived_in(census) == size()) return false;
  } while (!census_.compare_exchange_weak(census, census - kArrived, std::memory_order_acq_rel,
                                          std::memory_order_acquire));
  slot(index).rounds.store(round, std::memory_order_release);
  return true;
}

Communicator::Waiters Communicator::release(std::uint32_t round) {
  const std::uint64_t next = std::uint64_t{(round + 1) & 0xffff} * kRound;
  const std::uint64_t census = census_.exchange(next, std::memory_order_acq_rel);
  return {.sleepers = sleepers_in(census), .watched = (census & kWatched) != 0};
}

bool Communicator::announce(std::uint32_t round, std::uint64_t add, std::uint64_t flag) {
  std::uint64_t census = census_.load(std::memory_order_acquire);
  do {
    if (round_in(census) != (round & 0xffff)) return false;
  } while (!census_.compare_exchange_weak(census, (census + add) | flag, std::memory_order_acq_rel,
                                          std::memory_order_acquire));
  return true;
}

void Communicator::sleep(std::uint32_t round, bool cancellable) const {
  // The bell of the round before may still be to ring: a member may be past that round by the census alone.
  const std::uint32_t rung = (round + 1) & 0x7fffffff;
  for (;;) {
    const std::uint32_t doorbell = doorbell_.load(std::memory_order_acquire);
    const bool disturbed = (doorbell & 1) != 0;
    if (doorbell >> 1 == rung || (cancellable && disturbed)) return;
    futex_wait(doorbell_, doorbell);
  }
}

void Communicator::ring(bool anyone_sleeps) {
  doorbell_.fetch_add(2, std::memory_order_release);
  if (anyone_sleeps) futex_wake_all(doorbell_);
}

void Communicator::disturb() {
  doorbell_.fetch_or(1, std::memory_order_release);
  futex_wake_all(doorbell_);
}

bool Communicator::depart() { return arrived_in(census_.fetch_or(kDeparted, std::memory_order_acq_rel)) > 0; }

std::vector<std::int32_t> Communicator::members_where(bool has_arrived) const {
  const std::uint32_t round = round_in(census_.load(std::memory_order_acquire));
  std::vector<std::int32_t> members;
  for (std::int32_t index = 0; index < size(); ++index) {
    const std::uint32_t rounds = slot(index).rounds.load(std::memory_order_acquire);
    if (((rounds & 0xffff) != round) == has_arrived) members.push_back(index);
  }
  return members;
}

void Communicator::reset() {
  census_.store(0, std::memory_order_relaxed);
  doorbell_.store(0, std::memory_order_relaxed);
  outcome_ = {};
  if (transfers_ != nullptr) track_transfers(has_checksums_);  // without what was under way
  for (std::int32_t index = 0; index < size(); ++index)
    slot(index).rounds.store(0, std::memory_order_relaxed);
  restart_sequence();
}

void Communicator::restart_sequence() {
  for (std::int32_t index = 0; index < size(); ++index) slot(index).sequence = 0;
}

std::string ranks_text(const std::vector<Rank>& ranks) {
  constexpr std::size_t kShown = 16;
  if (ranks.size() <= kShown) return join(ranks);
  return str(join(std::vector<Rank>(ranks.begin(), ranks.begin() + kShown)), ",... (", ranks.size(),
             " ranks)");
}

std::string to_string(const Group& group) { return str(group.name, "[", ranks_text(group.ranks), "]"); }

}  // namespace cp::sim
