#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "sim/fabric/scheduler.h"

namespace cp::sim {

BatonScheduler::BatonScheduler(int world_size, std::uint64_t seed, const BatonOrder& order, Baton& baton,
                               std::vector<Turn>* log)
    : Scheduler(world_size), baton_(baton), generator_(seed), most_turns_(order.most_turns), log_(log) {
  if (most_turns_ < 0)
    throw InvalidInput(
        str("a run cannot have at most ", most_turns_, " turns; use 0 for any number of turns"));
  for (const Rank rank : order.slow_ranks) {
    if (rank < 0 || rank >= world_size) {
      throw InvalidInput(str("rank ", rank, " cannot be slow: the fabric has ranks 0 to ", world_size - 1,
                             "; use one of them"));
    }
    slow_.resize(static_cast<std::size_t>(world_size));
    slow_[static_cast<std::size_t>(rank)] = true;
  }
}

// Any of the ready ranks; a slow one where there is no other.
std::size_t BatonScheduler::draw_ready() {
  const auto slow = std::count_if(ready_.begin(), ready_.end(), [&](Rank rank) { return is_slow(rank); });
  const std::size_t others = ready_.size() - static_cast<std::size_t>(slow);
  if (slow == 0 || others == 0) return generator_.below(ready_.size());
  std::size_t left = generator_.below(others), index = 0;
  while (is_slow(ready_[index]) || left-- > 0) ++index;
  return index;
}

void BatonScheduler::count_turn(const Turn& turn) {
  if (log_ != nullptr) log_->push_back(turn);
  ++turns_;
  if (most_turns_ == 0 || turns_ <= most_turns_) return;
  throw Stall(str("rank ", turn.rank, " takes turn ", turns_, " of a run that may take ", most_turns_,
                  ": either its ranks go on without an end, or most_turns is too small for it"));
}

void BatonScheduler::begin_run() {
  set_cancelled(false);
  states_.assign(static_cast<std::size_t>(world_size()), State::waiting);
  ready_.clear();
  turns_ = 0;
  baton_.reset();
  for (Rank rank = 0; rank < world_size(); ++rank) make_ready(rank);
  pass_baton();
}

void BatonScheduler::await_baton(Rank rank) {
  baton_.await(rank);
  states_[static_cast<std::size_t>(rank)] = State::holder;
}

Rank BatonScheduler::take_next() {
  CP_INVARIANT(!ready_.empty(), "the baton of the fabric has nowhere to go");
  Rank& drawn = ready_[draw_ready()];
  const Rank next = drawn;
  drawn = ready_.back();
  ready_.pop_back();
  return next;
}

void BatonScheduler::make_ready(Rank rank) {
  State& state = states_[static_cast<std::size_t>(rank)];
  if (state != State::waiting) return;
  state = State::ready;
  ready_.push_back(rank);
}

void BatonScheduler::set_ready(Rank rank) {
  states_[static_cast<std::size_t>(rank)] = State::ready;
  ready_.push_back(rank);
}

void BatonScheduler::sleep_until_ready(Rank rank) {
  states_[static_cast<std::size_t>(rank)] = State::waiting;
  pass_baton();
  await_baton(rank);
}

void BatonScheduler::pause(Rank rank) {
  ready_.push_back(rank);
  const std::size_t drawn = draw_ready();
  ready_.pop_back();
  if (drawn == ready_.size()) return;  // the rank itself
  const Rank next = std::exchange(ready_[drawn], rank);
  states_[static_cast<std::size_t>(rank)] = State::ready;
  pass_baton_to(next);
  await_baton(rank);
}

StreamId BatonScheduler::choose(Rank rank, std::span<const StreamId> ready) {
  const StreamId stream = ready[generator_.below(ready.size())];
  count_turn({rank, stream});
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
