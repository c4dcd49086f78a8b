#include "sim/fabric/world.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "shared/base/error.h"
#include "shared/plan/canonical.h"
#include "sim/fabric/fabric_device.h"
#include "sim/fabric/transfers.h"

namespace cp::sim {
namespace {

// The baton's order knows those that a fault makes slow.
FabricOptions with_slow_ranks(FabricOptions options, int size) {
  for (const InjectedFault& fault : options.faults) {
    if (fault.kind == FaultKind::slow_rank && fault.rank >= 0 && fault.rank < size)
      options.order.slow_ranks.push_back(fault.rank);
  }
  return options;
}

std::unique_ptr<Scheduler> make_scheduler(int size, const FabricOptions& options, Baton& baton,
                                          const RankInspector& inspector, std::vector<Turn>* log) {
  if (options.schedule == Schedule::parallel) return std::make_unique<ParallelScheduler>(size);
  if (!options.record_traces) log = nullptr;
  const std::uint64_t seed = options.order.seed.value_or(options.seed);
  if (options.order.kind == BatonOrder::Kind::random)
    return std::make_unique<BatonScheduler>(size, seed, options.order, baton, log);
  return std::make_unique<TurnScheduler>(size, seed, options.order, baton, inspector, log);
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

World::World(int size, FabricOptions options, Baton& baton)
    : options_(with_slow_ranks(std::move(options), size)),
      scheduler_(make_scheduler(size, options_, baton, *this, &turns_)) {
  by_rank_.resize(static_cast<std::size_t>(size));
  programs_.resize(static_cast<std::size_t>(size));
  injected_.resize(options_.faults.size());
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
  if (tracks_transfers()) made.track_transfers(options_.checksums != Checksums::off);
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

// The programs tell more than who waits for whom; evidence that names just one side is not outvoted.
World::Blame World::blame(const Dissent& evidence, const DeadlockReport* deadlock) const {
  std::optional<Diagnosis> diagnosis;
  {
    const std::lock_guard lock(mutex_);
    diagnosis = diagnose_programs(communicators_, programs_);
    if (!diagnosis && deadlock != nullptr) diagnosis = diagnose_order(deadlock->communicators, programs_);
  }
  if (!diagnosis) return {.facts = {.culprits = evidence.ranks, .is_tie = evidence.is_tie}, .text = ""};
  return {.facts = diagnosis->facts(), .text = str(diagnosis->text, "; ")};
}

void World::fail_deadlocked(Rank rank) {
  std::vector<RankWaits> ranks;
  for (const auto& device : devices_) ranks.push_back(device->waits());
  const DeadlockReport report = deadlock_report(ranks);
  const Blame blame = this->blame(report.dissent, &report);
  fail(rank, std::make_exception_ptr(Deadlock(str("deadlock: ", blame.text, report.text), blame.facts)));
}

void World::fail_mismatched(Rank rank, const Mismatch& mismatch) {
  ErrorFacts facts{.culprits = mismatch.dissent.ranks,
                   .is_tie = mismatch.dissent.is_tie,
                   .operation = mismatch.operation,
                   .group = mismatch.group,
                   .sequence = mismatch.sequence};
  std::string text = mismatch.text;
  if (mismatch.dissent.is_tie) {
    const Blame blame = this->blame({}, nullptr);
    const Dissent both = fit_both(mismatch.dissent, {blame.facts.culprits, blame.facts.is_tie});
    facts.culprits = both.ranks, facts.is_tie = both.is_tie;
    if (both.ranks != mismatch.dissent.ranks)
      text += str("; ", cp::ranks_text(both.ranks), " alone ", both.ranks.size() == 1 ? "differs" : "differ",
                  " in other groups too: ", blame.text.substr(0, blame.text.size() - 2));
  }
  fail(rank, std::make_exception_ptr(CollectiveMismatch(text, std::move(facts))));
}

void World::fail_departed(Rank rank, const Communicator& communicator) {
  const auto rank_of = [&](std::int32_t index) {
    return communicator.group().ranks[static_cast<std::size_t>(index)];
  };
  const std::vector<std::int32_t> arrived = communicator.arrived();
  const Communicator::Slot& slot = communicator.slot(arrived.front());
  std::vector<Rank> waiting, gone, dead;
  std::vector<std::string> before;
  for (const std::int32_t index : arrived) waiting.push_back(rank_of(index));
  {
    const std::lock_guard lock(mutex_);
    for (const std::int32_t index : communicator.missing()) {
      const auto found = std::find(departed_ranks_.begin(), departed_ranks_.end(), rank_of(index));
      if (found == departed_ranks_.end()) continue;
      gone.push_back(*found);
      const auto death = dead_ranks_.find(*found);
      if (death == dead_ranks_.end()) continue;
      dead.push_back(*found), before.push_back(death->second);
    }
  }
  const std::string wait = str(waiting.size() == 1 ? "rank " : "ranks ", ranks_text(waiting),
                               waiting.size() == 1 ? " waits in " : " wait in ", name(slot.call.operation),
                               " #", slot.sequence, " on ", to_string(communicator.group()), " for ");
  if (!dead.empty()) {
    std::sort(dead.begin(), dead.end());
    ErrorFacts facts{.culprits = dead,
                     .operation = std::string(name(slot.call.operation)),
                     .group = canonical_name(communicator.group()),
                     .sequence = slot.sequence};
    return fail(
        rank, std::make_exception_ptr(PeerLost(str(cp::ranks_text(dead), " died before ", join(before, ", "),
                                                   "; ", wait, dead.size() == 1 ? "it" : "them"),
                                               std::move(facts))));
  }
  std::sort(gone.begin(), gone.end());
  // Programs differ, and those of the others need not be known yet: the fewer are wrong, and of one and one
  // nobody can tell.
  std::sort(waiting.begin(), waiting.end());
  Dissent evidence{.ranks = waiting.size() < gone.size() ? waiting : gone};
  if (gone.size() == 1 && waiting.size() == 1 && communicator.size() > 2) {
    evidence = {.ranks = {std::min(gone.front(), waiting.front()), std::max(gone.front(), waiting.front())},
                .is_tie = true};
  }
  const Blame blame = this->blame(evidence, nullptr);
  fail(rank, std::make_exception_ptr(Deadlock(
                 str("deadlock: ", blame.text, wait, gone.size() == 1 ? "rank " : "ranks ", ranks_text(gone),
                     gone.size() == 1 ? ", whose body has returned" : ", whose bodies have returned",
                     "; all members of a group issue the same collectives"),
                 blame.facts)));
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
    programs_[static_cast<std::size_t>(rank)].is_known = true;
    for (Communicator* communicator : by_rank_[static_cast<std::size_t>(rank)]) {
      if (communicator->depart()) awaited = communicator;
    }
  }
  if (awaited != nullptr && !scheduler_->cancelled()) fail_departed(rank, *awaited);
}

void World::die(Rank rank, const std::string& before) {
  const std::lock_guard lock(mutex_);
  dead_ranks_.emplace(rank, before);
  deaths_.insert(rank);
}

void World::publish(Rank rank, std::shared_ptr<const RankProgram> program) {
  const std::lock_guard lock(mutex_);
  KnownProgram& known = programs_[static_cast<std::size_t>(rank)];
  known = {.is_known = true, .prepared = known.prepared + 1, .program = std::move(program)};
}

// ---- faults ---------------------------------------------------------------------------------------------------------

bool World::is_slow(Rank rank) const {
  return std::any_of(options_.faults.begin(), options_.faults.end(), [&](const InjectedFault& fault) {
    return fault.kind == FaultKind::slow_rank && fault.rank == rank;
  });
}

bool World::dies_at(Rank rank, std::int64_t collective) const {
  return std::any_of(options_.faults.begin(), options_.faults.end(), [&](const InjectedFault& fault) {
    return fault.kind == FaultKind::dead_rank && fault.rank == rank && fault.collective == collective;
  });
}

void World::move_transfers(Communicator& communicator) {
  const std::vector<Rank>& ranks = communicator.group().ranks;
  std::vector<TransferFaultPlace> places;
  std::vector<std::size_t> numbers;  // of the faults
  for (std::size_t i = 0; i < options_.faults.size(); ++i) {
    const InjectedFault& fault = options_.faults[i];
    const auto from = std::find(ranks.begin(), ranks.end(), fault.rank),
               to = std::find(ranks.begin(), ranks.end(), fault.peer);
    if (!is_of_transfer(fault.kind) || from == ranks.end() || to == ranks.end()) continue;
    const auto from_index = static_cast<std::int32_t>(from - ranks.begin());
    if (communicator.slot(from_index).call.number != fault.collective) continue;
    places.push_back({fault.kind, from_index, static_cast<std::int32_t>(to - ranks.begin()), fault.amount});
    numbers.push_back(i);
  }
  const std::vector<bool> took_place = communicator.transfers()->move(communicator, places);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (took_place[i]) injected_[numbers[i]] = true;
  }
}

std::vector<bool> World::injected() const {
  const std::lock_guard lock(mutex_);
  std::vector<bool> injected = injected_;
  for (std::size_t i = 0; i < injected.size(); ++i) {
    const InjectedFault& fault = options_.faults[i];
    if (fault.kind == FaultKind::dead_rank) injected[i] = deaths_.contains(fault.rank);
    if (fault.kind == FaultKind::slow_rank) injected[i] = fault.rank >= 0 && fault.rank < size();
  }
  return injected;
}

// ---- runs -----------------------------------------------------------------------------------------------------------

void World::begin_run() {
  dead_ranks_.clear();
  programs_.assign(static_cast<std::size_t>(size()), {});
  for (const auto& communicator : communicators_) communicator->begin_run();
  departed_ranks_.clear();
  scheduler_->begin_run();
}

std::exception_ptr World::end_run() {
  if (error_ == nullptr && !dead_ranks_.empty()) {  // nobody had to wait for them
    const auto& [rank, before] = *dead_ranks_.begin();
    error_ =
        std::make_exception_ptr(PeerLost(str("rank ", rank, " died before ", before), {.culprits = {rank}}));
  }
  if (error_ == nullptr) return nullptr;
  for (const auto& communicator : communicators_) communicator->reset();
  for (const auto& device : devices_) device->abandon();
  return std::exchange(error_, nullptr);
}

void World::restart_sequences() {
  for (const auto& communicator : communicators_) communicator->restart_sequence();
}

}  // namespace cp::sim
