// FabricDevice: the Device of one rank. launch() and wait() only put work into queues, one for each stream;
// synchronize() runs it. All functions are for the rank's own thread unless they say otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/kept_plans.h"
#include "shared/plan/lane_arenas.h"
#include "shared/plan/lanes.h"
#include "shared/plan/rebindable_memory.h"
#include "sim/fabric/call.h"
#include "sim/fabric/communicator.h"
#include "sim/fabric/deadlock.h"
#include "sim/fabric/records.h"
#include "sim/fabric/scheduler.h"
#include "sim/fabric/world.h"

namespace cp::sim {

class FabricDevice final : public Device {
 public:
  FabricDevice(World& world, Rank rank)
      : world_(world),
        rank_(rank),
        yields_(world.is_slow(rank) && world.options().schedule == Schedule::parallel) {}

  Rank rank() const override { return rank_; }
  const Target& target() const override { return world_.options().target; }
  void prepare(const Plan& plan, const Bindings& bindings) override;
  void launch(const StepRef& step, std::int64_t iteration) override;
  EventId record(StreamId stream) override;
  void wait(StreamId stream, EventId event) override;
  void synchronize() override;
  void upload(BufferId buffer, std::span<const std::byte> host) override;
  void download(BufferId buffer, std::span<std::byte> host) override;

  // Kept plans. The rank's work runs while somebody waits, so await() runs all that is enqueued, on all
  // lanes.
  PreparedId keep(const Plan& plan, const Bindings& bindings, LaneId lane) override;
  void use(PreparedId prepared, const Bindings& changed) override;
  void release(PreparedId prepared) override;
  bool has_happened(EventId event) override { return has_finished(event); }
  void await(EventId event) override;
  void begin_run(CallerStream caller) override;
  void begin_run_after(std::span<const EventId> events) override;
  void end_run(CallerStream caller, EventId end) override;

  bool idle() const { return queued_ == 0; }
  DeliveryLog& log() { return log_; }

  // These two are for schedulers that make every choice themselves (RankInspector). No rank runs meanwhile.
  // details() is for a stream whose head is ready.
  void ready_streams(std::vector<StreamId>& streams) const;
  TurnDetails details(StreamId stream) const;

  // For the report of a deadlock. No rank runs meanwhile.
  RankWaits waits() const;
  // Forgets the plan and what is queued. Called after a failed run.
  void abandon();

 private:
  struct Prepared;
  // A step in one of its iterations or, if `step` is null, an event to wait for.
  struct Item {
    const Step* step = nullptr;
    std::int64_t iteration = 0;
    EventId event = -1;
    std::int64_t collective = -1;  // its number, if it is one
    Prepared* prepared = nullptr;  // the plan of the step
    RebindableMemory::Version* version = nullptr;
  };

  // A collective at the head of a stream.
  enum class Phase : std::uint8_t {
    none,
    gathering,  // arrived; waits for the other members
    finishing,  // has moved its part; waits for the other parts
  };

  struct Stream {
    std::vector<Item> items;  // those from `head` on are not finished
    std::size_t head = 0;
    std::int64_t launched = 0;  // items ever enqueued
    std::int64_t finished = 0;
    Phase phase = Phase::none;
    Ticket ticket;           // of the round that the rank is in, unless the phase is none
    std::int32_t index = 0;  // the rank's place in the communicator
    ExchangeCall exchange;
  };

  // A group of the prepared plan.
  struct Membership {
    Communicator* communicator = nullptr;  // null if the rank is not a member
    std::int32_t index = -1;
    StreamId stream = -1;  // the stream that issues the group's collectives
  };

  // A plan that is ready to run.
  struct Prepared {
    const Plan* plan = nullptr;
    LaneId lane = 0;
    RebindableMemory memory;
    std::vector<Membership> memberships;  // by GroupId
    std::shared_ptr<const RankProgram> program;
    std::vector<StreamId> streams;  // of the device, by the plan's StreamId

    const Membership& membership(const Collective& collective) const {
      return memberships[static_cast<std::size_t>(group_of(collective))];
    }
  };

  // An event says how many items a stream must have finished: the stream in the upper 24 bits, the count in
  // the lower 40, which is room for 10^12 launches.
  static constexpr int kEventBits = 40;
  static EventId make_event(StreamId stream, std::int64_t launched) {
    return std::int64_t{stream} << kEventBits | launched;
  }
  static StreamId stream_of(EventId event) { return static_cast<StreamId>(event >> kEventBits); }
  static std::int64_t launched_of(EventId event) { return event & ((std::int64_t{1} << kEventBits) - 1); }

  // By the device's number, which is that of streams_.
  Stream& stream_at(StreamId stream) { return streams_[static_cast<std::size_t>(stream)]; }
  const Stream& stream_at(StreamId stream) const { return streams_[static_cast<std::size_t>(stream)]; }
  // The device's number of a stream of the plan in use.
  StreamId device_stream(StreamId stream) const;
  void require_prepared(const char* what) const;
  void require_idle(const char* what) const;
  void require_recorded(EventId event) const;

  std::unique_ptr<Prepared> make_ready(const Plan& plan, LaneId lane, HostMemory memory);
  // Makes the arena that of the lane's plans, if it is greater than theirs.
  void share(LaneId lane, const std::shared_ptr<HostArena>& arena);
  Membership membership_of(const Group& group);
  static std::shared_ptr<const RankProgram> program_of(const Prepared& prepared);
  static void check_step(Prepared& prepared, const Step& step, std::int64_t repeat_count);

  std::span<std::byte> callers_buffer(const char* what, BufferId buffer, std::size_t size_bytes) const;

  void enqueue(Stream& stream, const Item& item);
  bool has_finished(EventId event) const;
  bool is_ready(const Stream& stream) const;
  void find_ready();
  void run_queues();
  void run_head(StreamId stream);
  void pop(Stream& stream);
  void wait_for_others();

  void begin_collective(Stream& stream, const Item& item);
  void die_before(const Collective& collective, const Item& item);
  void let_others_go_on();
  void compare_payloads(Communicator& communicator, std::int32_t index);
  void leave_dead();
  void end_collective(Stream& stream);
  void enter_round(Stream& stream);
  bool leave_round(Stream& stream);
  void carry_out(const Stream& stream);
  bool move(Communicator& communicator, std::int32_t part, std::int32_t parts);
  void drain();
  StreamId blocker_of(StreamId id) const;

  World& world_;
  Rank rank_;
  bool yields_;
  Prepared* used_ = nullptr;  // the plan in use
  KeptPlans<Prepared> prepared_;
  std::unordered_map<Group, Membership, GroupHash> known_groups_;
  Lanes lanes_;
  LaneArenas<HostArena> arenas_;  // of plans that are kept
  // Those of lanes_; never shrinks, so that events of earlier plans stay valid.
  std::deque<Stream> streams_;
  std::int64_t queued_ = 0;       // items on all streams
  std::int64_t collectives_ = 0;  // launched so far (faults.h)
  std::int64_t batch_ = 0;        // synchronize() calls so far
  DeliveryLog log_;
  // Scratch space, kept from call to call to avoid allocations.
  std::vector<StreamId> ready_;
  std::vector<Ticket> tickets_;
  std::vector<const std::byte*> inputs_;
};

}  // namespace cp::sim
