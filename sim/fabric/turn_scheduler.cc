#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "sim/fabric/scheduler.h"

namespace cp::sim {

TurnScheduler::TurnScheduler(int world_size, std::uint64_t seed, const BatonOrder& order,
                             const RankInspector& inspector, std::vector<Turn>* log)
    : BatonScheduler(world_size, seed, order, log),
      inspector_(inspector),
      chooser_(make_chooser(order, seed)) {}

void TurnScheduler::begin_run() {
  at_choice_.assign(static_cast<std::size_t>(world_size()), false);
  error_ = nullptr;
  chooser_->begin_run();
  BatonScheduler::begin_run();
}

StreamId TurnScheduler::choose(Rank rank, std::span<const StreamId> streams) {
  set_ready(rank);
  at_choice_[static_cast<std::size_t>(rank)] = true;
  const Rank next = take_next();
  if (next == rank) {
    set_holder(rank);
  } else {
    pass_baton_to(next);
    await_baton(rank);
  }
  at_choice_[static_cast<std::size_t>(rank)] = false;
  if (cancelled()) return streams.front();  // nobody takes turns any more
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  count_turn({rank, decided_});
  return decided_;
}

Rank TurnScheduler::take_next() {
  CP_INVARIANT(!ready().empty(), "the baton of the fabric has nowhere to go");
  Rank next = -1;
  for (const Rank rank : ready()) {
    if ((cancelled() || !at_choice_[static_cast<std::size_t>(rank)]) && (next < 0 || rank < next))
      next = rank;
  }
  if (next < 0) {
    const Turn turn = decide();
    next = turn.rank;
    decided_ = turn.stream;
  }
  std::erase(ready(), next);
  return next;
}

// All ranks that could run are at their choice.
Turn TurnScheduler::decide() {
  std::sort(ready().begin(), ready().end());
  const bool all_slow = std::all_of(ready().begin(), ready().end(), [&](Rank rank) { return is_slow(rank); });
  turns_.clear();
  for (const Rank rank : ready()) {
    if (is_slow(rank) && !all_slow) continue;
    inspector_.ready_streams(rank, streams_);
    for (const StreamId stream : streams_) turns_.push_back({rank, stream});
  }
  CP_INVARIANT(!turns_.empty(), "a rank at its choice has none");
  // An error is thrown by a rank that holds the baton, in its synchronize, where all errors of a rank come from.
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
