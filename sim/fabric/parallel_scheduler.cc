#include "sim/fabric/scheduler.h"

namespace cp::sim {

ParallelScheduler::ParallelScheduler(int world_size)
    : Scheduler(world_size), words_(std::make_unique<RankWord[]>(static_cast<std::size_t>(world_size))) {}

void ParallelScheduler::begin_run() {
  set_cancelled(false);
  running_count_ = world_size();
  finished_count_ = 0;
  for (int rank = 0; rank < world_size(); ++rank) words_[static_cast<std::size_t>(rank)].state = running;
}

Progress ParallelScheduler::finish(Rank) {
  finished_count_.fetch_add(1, std::memory_order_relaxed);
  const bool last = running_count_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  const bool others_wait = finished_count_.load(std::memory_order_relaxed) < world_size();
  return last && others_wait && !cancelled() ? Progress::stuck : Progress::possible;
}

Progress ParallelScheduler::stop_running() {
  const bool last = running_count_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  return last && !cancelled() ? Progress::stuck : Progress::possible;
}

Progress ParallelScheduler::wait(Rank rank, std::span<const Ticket> tickets) {
  if (tickets.size() > 1) return wait_for_any(rank, tickets);
  const Ticket& ticket = tickets.front();
  // The order matters: once announced, whoever releases the round counts this rank as running again.
  if (!ticket.communicator->add_sleeper(ticket.round)) return Progress::possible;
  if (stop_running() == Progress::stuck) return Progress::stuck;
  ticket.communicator->sleep(ticket.round, /*cancellable=*/true);
  return Progress::possible;
}

Progress ParallelScheduler::wait_for_any(Rank rank, std::span<const Ticket> tickets) {
  FutexWord& state = words_[static_cast<std::size_t>(rank)].state;
  // `waiting` is visible before the flag is read, and cancel() sets the flag before it reads the state: one
  // sees the other.
  state.store(waiting, std::memory_order_seq_cst);
  bool go_on = cancelled();
  for (const Ticket& ticket : tickets) go_on = go_on || !ticket.communicator->add_watcher(ticket.round);
  if (go_on) {
    // Whoever notified in the meantime has counted this rank a second time.
    if (state.exchange(running, std::memory_order_acq_rel) == notified) running_count_.fetch_sub(1);
    return Progress::possible;
  }
  if (stop_running() == Progress::stuck) return Progress::stuck;
  while (state.load(std::memory_order_acquire) == waiting) futex_wait(state, waiting);
  state.store(running, std::memory_order_relaxed);
  return Progress::possible;
}

void ParallelScheduler::wait_for_release(Rank, Ticket ticket) {
  if (ticket.communicator->add_sleeper(ticket.round))
    ticket.communicator->sleep(ticket.round, /*cancellable=*/false);
}

void ParallelScheduler::release(Ticket ticket) {
  const Communicator::Waiters waiters = ticket.communicator->release(ticket.round);
  if (waiters.sleepers > 0) running_count_.fetch_add(waiters.sleepers, std::memory_order_acq_rel);
  ticket.communicator->ring(waiters.sleepers > 0);
  if (waiters.watched) {
    for (const Rank rank : ticket.communicator->group().ranks) notify(rank);
  }
}

// A rank may be notified for a round that it has seen the end of by itself; then it looks around and waits
// again.
void ParallelScheduler::notify(Rank rank) {
  FutexWord& state = words_[static_cast<std::size_t>(rank)].state;
  if (state.load(std::memory_order_seq_cst) != waiting) return;
  running_count_.fetch_add(1, std::memory_order_acq_rel);
  std::uint32_t expected = waiting;
  if (state.compare_exchange_strong(expected, notified, std::memory_order_acq_rel)) {
    futex_wake_one(state);
  } else {
    running_count_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

void ParallelScheduler::cancel(std::span<const std::unique_ptr<Communicator>> communicators) {
  set_cancelled(true);
  for (const auto& communicator : communicators) communicator->disturb();
  for (Rank rank = 0; rank < world_size(); ++rank) notify(rank);
}

}  // namespace cp::sim
