#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "sim/fabric/scheduler.h"

namespace cp::sim {

BatonScheduler::BatonScheduler(int world_size, std::uint64_t seed, std::vector<Turn>* log)
    : Scheduler(world_size),
      generator_(seed),
      log_(log),
      words_(std::make_unique<RankWord[]>(static_cast<std::size_t>(world_size))) {}

// splitmix64: the same numbers in every standard library, unlike the distributions of <random>.
std::size_t BatonScheduler::draw(std::size_t count) {
  generator_ += 0x9e3779b97f4a7c15;
  std::uint64_t z = generator_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<std::size_t>((z ^ (z >> 31)) % count);
}

void BatonScheduler::begin_run() {
  set_cancelled(false);
  states_.assign(static_cast<std::size_t>(world_size()), State::waiting);
  ready_.clear();
  for (Rank rank = 0; rank < world_size(); ++rank) {
    words_[static_cast<std::size_t>(rank)].baton = 0;
    make_ready(rank);
  }
  pass_baton();
}

void BatonScheduler::await_baton(Rank rank) {
  FutexWord& baton = words_[static_cast<std::size_t>(rank)].baton;
  while (baton.load(std::memory_order_acquire) == 0) futex_wait(baton, 0);
  baton.store(0, std::memory_order_relaxed);
  states_[static_cast<std::size_t>(rank)] = State::holder;
}

void BatonScheduler::pass_baton_to(Rank next) {
  FutexWord& baton = words_[static_cast<std::size_t>(next)].baton;
  baton.store(1, std::memory_order_release);
  futex_wake_one(baton);
}

void BatonScheduler::pass_baton() {
  CP_INVARIANT(!ready_.empty(), "the baton of the fabric has nowhere to go");
  Rank& drawn = ready_[draw(ready_.size())];
  const Rank next = drawn;
  drawn = ready_.back();
  ready_.pop_back();
  pass_baton_to(next);
}

void BatonScheduler::make_ready(Rank rank) {
  State& state = states_[static_cast<std::size_t>(rank)];
  if (state != State::waiting) return;
  state = State::ready;
  ready_.push_back(rank);
}

void BatonScheduler::sleep_until_ready(Rank rank) {
  states_[static_cast<std::size_t>(rank)] = State::waiting;
  pass_baton();
  await_baton(rank);
}

void BatonScheduler::pause(Rank rank) {
  const std::size_t drawn = draw(ready_.size() + 1);
  if (drawn == ready_.size()) return;  // the rank itself
  const Rank next = std::exchange(ready_[drawn], rank);
  states_[static_cast<std::size_t>(rank)] = State::ready;
  pass_baton_to(next);
  await_baton(rank);
}

StreamId BatonScheduler::choose(Rank rank, std::span<const StreamId> ready) {
  const StreamId stream = ready[draw(ready.size())];
  if (log_ != nullptr) log_->push_back({rank, stream});
  return stream;
}

Progress BatonScheduler::wait(Rank rank, std::span<const Ticket> tickets) {
  if (cancelled() || std::any_of(tickets.begin(), tickets.end(), [](const Ticket& ticket) {
        return ticket.communicator->released(ticket.round);
      })) {
    return Progress::possible;
  }
  if (ready_.empty()) return Progress::stuck;
  sleep_until_ready(rank);
  return Progress::possible;
}

void BatonScheduler::wait_for_release(Rank rank, Ticket ticket) {
  while (!ticket.communicator->released(ticket.round)) sleep_until_ready(rank);
}

void BatonScheduler::release(Ticket ticket) {
  ticket.communicator->release(ticket.round);
  for (const Rank rank : ticket.communicator->group().ranks) make_ready(rank);
}

void BatonScheduler::cancel(std::span<const std::unique_ptr<Communicator>>) {
  set_cancelled(true);
  for (Rank rank = 0; rank < world_size(); ++rank) make_ready(rank);
}

Progress BatonScheduler::finish(Rank rank) {
  states_[static_cast<std::size_t>(rank)] = State::finished;
  const bool others_wait = std::find(states_.begin(), states_.end(), State::waiting) != states_.end();
  return ready_.empty() && others_wait ? Progress::stuck : Progress::possible;
}

void BatonScheduler::hand_over(Rank) {
  if (!ready_.empty()) pass_baton();
}

}  // namespace cp::sim
