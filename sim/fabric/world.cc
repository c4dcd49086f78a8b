#include "sim/fabric/world.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "shared/base/error.h"
#include "sim/fabric/deadlock.h"
#include "sim/fabric/fabric_device.h"

namespace cp::sim {
namespace {

std::unique_ptr<Scheduler> make_scheduler(int size, const FabricOptions& options,
                                          const RankInspector& inspector, std::vector<Turn>* log) {
  if (options.schedule == Schedule::parallel) return std::make_unique<ParallelScheduler>(size);
  if (!options.record_traces) log = nullptr;
  if (options.order.kind == BatonOrder::Kind::random)
    return std::make_unique<BatonScheduler>(size, options.seed, options.order, log);
  return std::make_unique<TurnScheduler>(size, options.seed, options.order, inspector, log);
}

void validate(const Group& group, int world_size) {
  std::vector<Rank> ranks = group.ranks;
  std::sort(ranks.begin(), ranks.end());
  if (ranks.empty()) throw InvalidInput(str("group ", group.name, " has no ranks"));
  if (ranks.front() < 0 || ranks.back() >= world_size) {
    throw InvalidInput(str("group ", to_string(group), " has rank ",
                           ranks.front() < 0 ? ranks.front() : ranks.back(), "; the fabric has ranks 0 to ",
                           world_size - 1));
  }
  const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
  if (twice != ranks.end())
    throw InvalidInput(str("group ", to_string(group), " has rank ", *twice, " twice"));
}

std::string what(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

std::size_t GroupHash::operator()(const Group& group) const {
  std::size_t hash = std::hash<std::string>()(group.name);
  for (const Rank rank : group.ranks) hash = hash * 1099511628211 + static_cast<std::size_t>(rank) + 1;
  return hash;
}

World::World(int size, FabricOptions options)
    : options_(std::move(options)),
      target_is_restricted_(options_.target != host_target()),
      scheduler_(make_scheduler(size, options_, *this, &turns_)) {
  by_rank_.resize(static_cast<std::size_t>(size));
  for (Rank rank = 0; rank < size; ++rank) devices_.push_back(std::make_unique<FabricDevice>(*this, rank));
}

World::~World() = default;

void World::ready_streams(Rank rank, std::vector<StreamId>& streams) const {
  devices_[static_cast<std::size_t>(rank)]->ready_streams(streams);
}
TurnDetails World::details(const Turn& turn) const {
  return devices_[static_cast<std::size_t>(turn.rank)]->details(turn.stream);
}

Communicator& World::communicator(const Group& group) {
  const std::lock_guard lock(mutex_);
  const auto found = by_group_.find(group);
  if (found != by_group_.end()) return *found->second;
  validate(group, size());
  Communicator& made = *communicators_.emplace_back(std::make_unique<Communicator>(group));
  by_group_.emplace(group, &made);
  for (const Rank rank : group.ranks) by_rank_[static_cast<std::size_t>(rank)].push_back(&made);
  for (const Rank rank : departed_ranks_) {
    if (std::find(group.ranks.begin(), group.ranks.end(), rank) != group.ranks.end()) made.depart();
  }
  return made;
}

void World::fail(Rank rank, std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (error_ != nullptr) return;
  error_ = std::move(error);
  failed_rank_ = rank;
  scheduler_->cancel(communicators_);
}

void World::fail_deadlocked(Rank rank) {
  std::vector<RankWaits> ranks;
  for (const auto& device : devices_) ranks.push_back(device->waits());
  fail(rank, std::make_exception_ptr(Deadlock(deadlock_report(ranks))));
}

void World::fail_departed(Rank rank, const Communicator& communicator) {
  const auto rank_of = [&](std::int32_t index) {
    return communicator.group().ranks[static_cast<std::size_t>(index)];
  };
  const std::vector<std::int32_t> arrived = communicator.arrived();
  const Communicator::Slot& slot = communicator.slot(arrived.front());
  std::vector<Rank> waiting, gone;
  for (const std::int32_t index : arrived) waiting.push_back(rank_of(index));
  {
    const std::lock_guard lock(mutex_);
    for (const std::int32_t index : communicator.missing()) {
      const auto found = std::find(departed_ranks_.begin(), departed_ranks_.end(), rank_of(index));
      if (found != departed_ranks_.end()) gone.push_back(*found);
    }
  }
  fail(rank,
       std::make_exception_ptr(Deadlock(str(
           "deadlock: ", waiting.size() == 1 ? "rank " : "ranks ", ranks_text(waiting),
           waiting.size() == 1 ? " waits in " : " wait in ", name(slot.call.operation), " #", slot.sequence,
           " on ", to_string(communicator.group()), " for ", gone.size() == 1 ? "rank " : "ranks ",
           ranks_text(gone), gone.size() == 1 ? ", whose body has returned" : ", whose bodies have returned",
           "; all members of a group issue the same collectives"))));
}

void World::throw_cancelled(Rank rank) const {
  if (rank == failed_rank_) std::rethrow_exception(error_);
  throw Cancelled(str("cancelled after an error on rank ", failed_rank_, ": ", what(error_)));
}

void World::depart(Rank rank) {
  const Communicator* awaited = nullptr;
  {
    const std::lock_guard lock(mutex_);
    departed_ranks_.push_back(rank);
    for (Communicator* communicator : by_rank_[static_cast<std::size_t>(rank)]) {
      if (communicator->depart()) awaited = communicator;
    }
  }
  if (awaited != nullptr && !scheduler_->cancelled()) fail_departed(rank, *awaited);
}

void World::begin_run() {
  for (const auto& communicator : communicators_) communicator->begin_run();
  departed_ranks_.clear();
  scheduler_->begin_run();
}

std::exception_ptr World::end_run() {
  if (error_ == nullptr) return nullptr;
  for (const auto& communicator : communicators_) communicator->reset();
  for (const auto& device : devices_) device->abandon();
  return std::exchange(error_, nullptr);
}

void World::restart_sequences() {
  for (const auto& communicator : communicators_) communicator->restart_sequence();
}

}  // namespace cp::sim
