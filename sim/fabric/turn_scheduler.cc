#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "sim/fabric/scheduler.h"

namespace cp::sim {

TurnScheduler::TurnScheduler(int world_size, std::uint64_t seed, const BatonOrder& order, Baton& baton,
                             const RankInspector& inspector, std::vector<Turn>* log)
    : BatonScheduler(world_size, seed, order, baton, log),
      inspector_(inspector),
      chooser_(make_chooser(order, seed)) {}

void TurnScheduler::begin_run() {
  places_.assign(static_cast<std::size_t>(world_size()), Place::on_its_way);
  paused_.assign(static_cast<std::size_t>(world_size()), false);
  error_ = nullptr;
  chooser_->begin_run();
  BatonScheduler::begin_run();
}

void TurnScheduler::give_way(Rank rank, Place place) {
  set_ready(rank);
  places_[static_cast<std::size_t>(rank)] = place;
  const Rank next = take_next();
  if (next == rank) {
    set_holder(rank);
  } else {
    pass_baton_to(next);
    await_baton(rank);
  }
  places_[static_cast<std::size_t>(rank)] = Place::on_its_way;
}

// After a turn the choice is made where the next one begins.
void TurnScheduler::pause(Rank rank) {
  if (paused_[static_cast<std::size_t>(rank)]) give_way(rank, Place::paused);
  paused_[static_cast<std::size_t>(rank)] = true;
}

StreamId TurnScheduler::choose(Rank rank, std::span<const StreamId> streams) {
  paused_[static_cast<std::size_t>(rank)] = false;
  give_way(rank, Place::choice);
  if (cancelled()) return streams.front();  // nobody takes turns any more
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  count_turn({rank, decided_});
  return decided_;
}

Progress TurnScheduler::wait(Rank rank, std::span<const Ticket> tickets) {
  paused_[static_cast<std::size_t>(rank)] = false;
  return BatonScheduler::wait(rank, tickets);
}

Rank TurnScheduler::least_ready(Place place) {
  Rank least = -1;
  for (const Rank rank : ready()) {
    if (places_[static_cast<std::size_t>(rank)] == place && (least < 0 || rank < least)) least = rank;
  }
  return least;
}

Rank TurnScheduler::take_next() {
  CP_INVARIANT(!ready().empty(), "the baton of the fabric has nowhere to go");
  Rank next = least_ready(Place::on_its_way);
  if (next < 0 && cancelled()) next = least_ready(Place::choice);
  if (next < 0 && least_ready(Place::choice) >= 0) {
    const Turn turn = decide();
    next = turn.rank;
    decided_ = turn.stream;
  }
  if (next < 0) next = least_ready(Place::paused);
  std::erase(ready(), next);
  return next;
}

// Of the ranks at their choice; none is on its way there.
Turn TurnScheduler::decide() {
  std::sort(ready().begin(), ready().end());
  const auto may_go_on = [&](Rank rank) { return places_[static_cast<std::size_t>(rank)] == Place::choice; };
  const bool slow_ones_too = std::none_of(ready().begin(), ready().end(),
                                          [&](Rank rank) { return may_go_on(rank) && !is_slow(rank); });
  turns_.clear();
  for (const Rank rank : ready()) {
    if (!may_go_on(rank) || (is_slow(rank) && !slow_ones_too)) continue;
    inspector_.ready_streams(rank, streams_);
    for (const StreamId stream : streams_) turns_.push_back({rank, stream});
  }
  CP_INVARIANT(!turns_.empty(), "a rank at its choice has none");
  // An error is thrown by a rank that holds the baton, in its synchronize, where all errors of a rank come
  // from.
  try {
    const std::size_t chosen = chooser_->choose(turns_, inspector_);
    CP_INVARIANT(chosen < turns_.size(), "choice ", chosen, " of ", turns_.size());
    return turns_[chosen];
  } catch (...) {
    error_ = std::current_exception();
    return turns_.front();
  }
}

}  // namespace cp::sim
