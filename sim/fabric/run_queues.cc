// How a rank's queues run: FabricDevice::synchronize and what it needs.
#include <algorithm>
#include <exception>
#include <variant>

#include <sched.h>

#include "shared/base/error.h"
#include "shared/kernels/host_kernels.h"
#include "shared/plan/canonical.h"
#include "shared/plan/transfer_check.h"
#include "sim/fabric/fabric_device.h"
#include "sim/fabric/matching.h"
#include "sim/fabric/movement.h"
#include "sim/fabric/transfers.h"

namespace cp::sim {
namespace {

// A member's part that is worth a second meeting: copying this much takes about as long as one wake-up.
constexpr std::int64_t kWorthwhilePartBytes = 16'384;

// How often a slow rank yields its processor before each of its steps, if no baton keeps it back. Chosen: it
// makes the rank late most times; nothing depends on how late.
constexpr int kSlowYields = 32;

// -1: a step that is not in the plan, which a body has launched itself.
StepId step_id(const Plan& plan, const Step* step) {
  for (const StepRef& ref : steps_of(plan)) {
    if (ref.step == step) return ref.id;
  }
  return -1;
}

}  // namespace

void FabricDevice::synchronize() {
  try {
    run_queues();
  } catch (const RankDied&) {
    leave_dead();
    throw;
  } catch (...) {
    // Unwinding may free memory that other members of a round still read: take back or sit out what was
    // begun.
    world_.fail(rank_, std::current_exception());
    drain();
    abandon();
    throw;
  }
  ++batch_;
}

void FabricDevice::run_queues() {
  Scheduler& scheduler = world_.scheduler();
  for (;;) {
    if (scheduler.cancelled()) world_.throw_cancelled(rank_);
    if (idle()) return;
    find_ready();
    if (ready_.empty()) {
      wait_for_others();
    } else {
      if (yields_) let_others_go_on();
      const StreamId stream = scheduler.choose(rank_, ready_);
      if (!scheduler.cancelled()) run_head(stream);
    }
    scheduler.pause(rank_);
  }
}

bool FabricDevice::is_ready(const Stream& stream) const {
  if (stream.head == stream.items.size()) return false;
  if (stream.phase != Phase::none) return stream.ticket.communicator->released(stream.ticket.round);
  const Item& item = stream.items[stream.head];
  return item.step != nullptr || has_finished(item.event);
}

// Collectives first: to arrive costs little and may let others go on.
void FabricDevice::find_ready() {
  ready_.clear();
  for (std::size_t id = 0; id < streams_.size(); ++id) {
    const Stream& stream = streams_[id];
    if (!is_ready(stream)) continue;
    const Step* step = stream.items[stream.head].step;
    const bool first = step != nullptr && std::holds_alternative<Collective>(step->work);
    ready_.insert(first ? ready_.begin() : ready_.end(), static_cast<StreamId>(id));
  }
}

void FabricDevice::run_head(StreamId id) {
  Stream& stream = stream_at(id);
  const Item item = stream.items[stream.head];
  if (stream.phase != Phase::none) {
    end_collective(stream);
  } else if (item.step == nullptr) {
    pop(stream);
  } else if (const auto* kernel = std::get_if<Kernel>(&item.step->work)) {
    run_kernel(*kernel, item.version->memory, item.iteration);
    pop(stream);
  } else {
    begin_collective(stream, item);
  }
}

void FabricDevice::pop(Stream& stream) {
  if (RebindableMemory::Version* version = stream.items[stream.head].version) --version->under_way;
  ++stream.finished;
  --queued_;
  if (++stream.head == stream.items.size()) {
    stream.items.clear();
    stream.head = 0;
  }
}

void FabricDevice::wait_for_others() {
  tickets_.clear();
  for (const Stream& stream : streams_) {
    if (stream.phase != Phase::none) tickets_.push_back(stream.ticket);
  }
  CP_INVARIANT(!tickets_.empty(), "rank ", rank_, " has ", queued_,
               " items, none ready and none waiting for others");
  if (world_.scheduler().wait(rank_, tickets_) == Progress::stuck) world_.fail_deadlocked(rank_);
}

// ---- collectives ----------------------------------------------------------------------------------------------------

void FabricDevice::begin_collective(Stream& stream, const Item& item) {
  const auto& collective = std::get<Collective>(item.step->work);
  if (world_.dies_at(rank_, item.collective)) die_before(collective, item);
  const Membership& membership = item.prepared->membership(collective);
  Communicator& communicator = *membership.communicator;
  Communicator::Slot& slot = communicator.slot(membership.index);
  slot.call = resolve(collective, item.iteration, item.version->memory, membership.index, communicator.size(),
                      stream.exchange);
  slot.call.number = item.collective;
  slot.call.inputs = item.prepared->plan->inputs;
  stream.index = membership.index;
  stream.ticket = {&communicator, slot.rounds.load(std::memory_order_relaxed)};
  stream.phase = Phase::gathering;
  enter_round(stream);
}

void FabricDevice::enter_round(Stream& stream) {
  switch (stream.ticket.communicator->arrive(stream.index)) {
    case Arrival::waiting:
      return;
    case Arrival::departed:
      return world_.fail_departed(rank_, *stream.ticket.communicator);
    case Arrival::last:
      if (stream.phase == Phase::gathering) carry_out(stream);
      world_.scheduler().release(stream.ticket);
  }
}

// What the last member to arrive does for all.
void FabricDevice::carry_out(const Stream& stream) {
  Communicator& communicator = *stream.ticket.communicator;
  Communicator::Outcome& outcome = communicator.outcome();
  outcome = {};
  if (const auto mismatch = find_mismatch(communicator)) {
    world_.fail_mismatched(rank_, *mismatch);
    outcome.failed = true;
  } else if (communicator.transfers() != nullptr) {
    world_.move_transfers(communicator);
  } else if (communicator.size() > 1 &&
             work_bytes(communicator) > communicator.size() * kWorthwhilePartBytes) {
    outcome.parts = communicator.size();
  } else {
    outcome.failed = !move(communicator, 0, 1);
  }
}

bool FabricDevice::move(Communicator& communicator, std::int32_t part, std::int32_t parts) {
  try {
    move_part(communicator, part, parts, inputs_);
    return true;
  } catch (...) {
    // The other members rely on this one to go on.
    world_.fail(rank_, std::current_exception());
    return false;
  }
}

// The round has been released. True when the collective is complete; false when it failed, or goes on in
// another round.
bool FabricDevice::leave_round(Stream& stream) {
  Communicator& communicator = *stream.ticket.communicator;
  const Communicator::Outcome outcome = communicator.outcome();
  if (stream.phase == Phase::gathering && outcome.parts > 1 && !outcome.failed) {
    move(communicator, stream.index, outcome.parts);
    stream.phase = Phase::finishing;
    ++stream.ticket.round;
    enter_round(stream);
    return false;
  }
  stream.phase = Phase::none;
  return !outcome.failed;
}

void FabricDevice::end_collective(Stream& stream) {
  Communicator& communicator = *stream.ticket.communicator;
  if (communicator.transfers() != nullptr && !communicator.transfers()->arrived(stream.index)) {
    sched_yield();
    return;  // in a later turn
  }
  if (!leave_round(stream)) return;
  if (world_.options().checksums == Checksums::each) compare_payloads(communicator, stream.index);
  if (world_.options().record_traces) {
    const Item& item = stream.items[stream.head];
    log_.add(stream_in_traces(item.prepared->lane, item.step->stream), communicator, stream.index);
  }
  ++communicator.slot(stream.index).sequence;
  pop(stream);
}

void FabricDevice::compare_payloads(Communicator& communicator, std::int32_t index) {
  const Communicator::Slot& slot = communicator.slot(index);
  const TransferPlace place{.operation = std::string(name(slot.call.operation)),
                            .group = &communicator.group(),
                            .sequence = slot.sequence,
                            .to = static_cast<std::size_t>(index)};
  if (const auto fault = communicator.transfers()->find_fault(index, place)) throw *fault;
}

// ---- faults of ranks ------------------------------------------------------------------------------------------------

void FabricDevice::let_others_go_on() {
  for (int i = 0; i < kSlowYields; ++i) sched_yield();
}

void FabricDevice::die_before(const Collective& collective, const Item& item) {
  const Group& group = item.prepared->plan->groups[static_cast<std::size_t>(group_of(collective))];
  world_.die(rank_, str(operation_name(collective), " on ", canonical_name(group), ", its collective ",
                        item.collective));
  throw RankDied();
}

// What it has arrived at and others have not is taken back; from the rest they still read.
void FabricDevice::leave_dead() {
  for (Stream& stream : streams_) {
    if (stream.phase == Phase::none) continue;
    while (!stream.ticket.communicator->retract(stream.index) &&
           !stream.ticket.communicator->released(stream.ticket.round)) {
      sched_yield();
      world_.scheduler().pause(rank_);
    }
    stream.phase = Phase::none;
  }
  abandon();
}

void FabricDevice::drain() {
  for (Stream& stream : streams_) {
    while (stream.phase != Phase::none) {
      if (stream.phase == Phase::gathering && stream.ticket.communicator->retract(stream.index)) {
        stream.phase = Phase::none;
      } else {
        world_.scheduler().wait_for_release(rank_, stream.ticket);
        leave_round(stream);
      }
    }
  }
}

// ---- for the report of a deadlock -----------------------------------------------------------------------------------

// The stream whose head keeps this one from going on: itself, or the one that its event waits for.
StreamId FabricDevice::blocker_of(StreamId id) const {
  for (;;) {
    const Stream& stream = stream_at(id);
    if (stream.phase != Phase::none) return id;
    id = stream_of(stream.items[stream.head].event);
  }
}

RankWaits FabricDevice::waits() const {
  RankWaits result{.rank = rank_, .waits = {}};
  std::vector<std::size_t> wait_of(streams_.size());
  for (std::size_t id = 0; id < streams_.size(); ++id) {
    const Stream& stream = streams_[id];
    if (stream.phase == Phase::none) continue;
    wait_of[id] = result.waits.size();
    const Item& item = stream.items[stream.head];
    result.waits.push_back(
        {.communicator = stream.ticket.communicator,
         .index = stream.index,
         .stream = item.prepared->plan->streams[static_cast<std::size_t>(item.step->stream)],
         .step = step_id(*item.prepared->plan, item.step),
         .iteration = item.iteration,
         .holds_up = {}});
  }
  for (std::size_t id = 0; id < streams_.size(); ++id) {
    const Stream& stream = streams_[id];
    if (stream.head == stream.items.size()) continue;
    auto& held =
        result.waits[wait_of[static_cast<std::size_t>(blocker_of(static_cast<StreamId>(id)))]].holds_up;
    const std::size_t behind = stream.head + (stream.phase != Phase::none ? 1 : 0);
    for (std::size_t at = behind; at < stream.items.size(); ++at) {
      const Item& item = stream.items[at];
      const auto* collective = item.step == nullptr ? nullptr : std::get_if<Collective>(&item.step->work);
      if (collective == nullptr) continue;
      const Communicator* communicator = item.prepared->membership(*collective).communicator;
      if (std::find(held.begin(), held.end(), communicator) == held.end()) held.push_back(communicator);
    }
  }
  return result;
}

}  // namespace cp::sim
