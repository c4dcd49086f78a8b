// Scheduler: which rank runs, which sleeps, and the moment at which none can go on.
//
// A rank runs until nothing on its streams is ready, then waits for the rounds that it has arrived at. A rank
// that would be the last to wait is told so instead (Progress::stuck): every other rank waits too or has
// finished, so nothing can ever change.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "sim/base/numbers.h"
#include "sim/fabric/baton.h"
#include "sim/fabric/communicator.h"
#include "sim/fabric/fabric.h"
#include "sim/fabric/turn_choosers.h"

namespace cp::sim {

// A round at which a rank has arrived.
struct Ticket {
  Communicator* communicator = nullptr;
  std::uint32_t round = 0;
};

enum class [[nodiscard]] Progress : std::uint8_t{possible, stuck};

class Scheduler {
 public:
  explicit Scheduler(int world_size) : size_(world_size) {}
  virtual ~Scheduler() = default;

  // By the host, while no rank runs.
  virtual void begin_run() = 0;

  // By a rank's thread, before and after its body. A rank that finishes is stuck when it leaves ranks behind
  // that all wait; hand_over is its last call.
  virtual void enter(Rank rank) = 0;
  virtual Progress finish(Rank rank) = 0;
  virtual void hand_over(Rank rank) = 0;

  // Between two pieces of work of a rank: others may run here.
  virtual void pause(Rank rank) = 0;
  // One of the streams that are ready.
  virtual StreamId choose(Rank rank, std::span<const StreamId> ready) = 0;

  // Sleeps until one of the rounds is released, or the run is cancelled. May return early.
  virtual Progress wait(Rank rank, std::span<const Ticket> tickets) = 0;
  // Sleeps until the round is released, in a cancelled run too. All its members have arrived.
  virtual void wait_for_release(Rank rank, Ticket ticket) = 0;
  // Ends a round, by its last member, and wakes who waits for it.
  virtual void release(Ticket ticket) = 0;

  // From here on nobody waits. `communicators`: all there are.
  virtual void cancel(std::span<const std::unique_ptr<Communicator>> communicators) = 0;
  bool cancelled() const { return is_cancelled_.load(std::memory_order_seq_cst); }

 protected:
  int world_size() const { return size_; }
  void set_cancelled(bool cancelled) { is_cancelled_.store(cancelled, std::memory_order_seq_cst); }

 private:
  int size_;
  std::atomic<bool> is_cancelled_{false};
};

// All cores. A rank that waits for one round sleeps on the communicator, so that a whole group wakes with one
// system call; a rank that waits for several sleeps on a word of its own.
class ParallelScheduler final : public Scheduler {
 public:
  explicit ParallelScheduler(int world_size);

  void begin_run() override;
  void enter(Rank) override {}
  Progress finish(Rank) override;
  void hand_over(Rank) override {}
  void pause(Rank) override {}
  StreamId choose(Rank, std::span<const StreamId> ready) override { return ready.front(); }
  Progress wait(Rank rank, std::span<const Ticket> tickets) override;
  void wait_for_release(Rank rank, Ticket ticket) override;
  void release(Ticket ticket) override;
  void cancel(std::span<const std::unique_ptr<Communicator>> communicators) override;

 private:
  enum State : std::uint32_t { running, waiting, notified };
  struct alignas(64) RankWord {
    FutexWord state{running};
  };

  Progress stop_running();
  Progress wait_for_any(Rank rank, std::span<const Ticket> tickets);
  void notify(Rank rank);

  // Ranks that run, or that somebody has set out to wake. Never too small: whoever wakes a rank counts it
  // first, and runs.
  alignas(64) std::atomic<std::int32_t> running_count_{0};
  alignas(64) std::atomic<std::int32_t> finished_count_{0};
  std::unique_ptr<RankWord[]> words_;
};

// What a scheduler that takes every choice itself asks about the ranks, while none of them runs.
class RankInspector : public TurnInspector {
 public:
  // The streams whose heads are ready, ascending.
  virtual void ready_streams(Rank rank, std::vector<StreamId>& streams) const = 0;
};

// One rank at a time. Whoever holds the baton passes it to a rank drawn from those that could run; all other
// state is touched by the holder alone, so that equal seeds give equal runs.
class BatonScheduler : public Scheduler {
 public:
  // `baton` outlives the scheduler.
  BatonScheduler(int world_size, std::uint64_t seed, const BatonOrder& order, Baton& baton,
                 std::vector<Turn>* log);

  void begin_run() override;
  void enter(Rank rank) override { await_baton(rank); }
  Progress finish(Rank rank) override;
  void hand_over(Rank rank) override;
  void pause(Rank rank) override;
  StreamId choose(Rank rank, std::span<const StreamId> ready) override;
  Progress wait(Rank rank, std::span<const Ticket> tickets) override;
  void wait_for_release(Rank rank, Ticket ticket) override;
  void release(Ticket ticket) override;
  void cancel(std::span<const std::unique_ptr<Communicator>> communicators) override;

 protected:
  enum class State : std::uint8_t { ready, holder, waiting, finished };

  // Takes the next holder, one of the ready ranks, out of them.
  virtual Rank take_next();
  void await_baton(Rank rank);
  void pass_baton_to(Rank next) { baton_.pass_to(next); }
  void make_ready(Rank rank);
  // Who holds the baton becomes one of the ready ranks, and the other way round.
  void set_ready(Rank rank);
  void set_holder(Rank rank) { states_[static_cast<std::size_t>(rank)] = State::holder; }
  bool is_slow(Rank rank) const { return !slow_.empty() && slow_[static_cast<std::size_t>(rank)]; }
  std::vector<Rank>& ready() { return ready_; }
  // The rank takes the turn. Throws Stall when the run has taken too many.
  void count_turn(const Turn& turn);

 private:
  std::size_t draw_ready();  // an index into ready_
  void pass_baton() { pass_baton_to(take_next()); }
  void sleep_until_ready(Rank rank);

  Baton& baton_;
  Numbers generator_;
  std::vector<bool> slow_;  // by rank; empty: none
  std::int64_t most_turns_, turns_ = 0;
  std::vector<Turn>* log_;  // null: none is kept
  std::vector<State> states_;
  std::vector<Rank> ready_;
};

// One rank at a time, and each turn chosen from all that could be taken. A rank that has the choice between
// its streams stops there until the choice falls on it; ranks that are on their way to such a choice, or to a
// wait, go first.
class TurnScheduler final : public BatonScheduler {
 public:
  // `baton` and `inspector` outlive the scheduler.
  TurnScheduler(int world_size, std::uint64_t seed, const BatonOrder& order, Baton& baton,
                const RankInspector& inspector, std::vector<Turn>* log);

  void begin_run() override;
  void pause(Rank rank) override;
  StreamId choose(Rank rank, std::span<const StreamId> ready) override;
  Progress wait(Rank rank, std::span<const Ticket> tickets) override;

 private:
  // Where a rank that does not hold the baton sleeps.
  enum class Place : std::uint8_t {
    on_its_way,  // to a choice, a wait or its end
    choice,
    // Again, without having taken a turn: it wants others to go on, and does so itself when they cannot.
    paused,
  };

  Rank take_next() override;
  Rank least_ready(Place place);  // -1: none
  void give_way(Rank rank, Place place);
  Turn decide();

  const RankInspector& inspector_;
  std::shared_ptr<TurnChooser> chooser_;
  std::vector<Place> places_;  // by rank
  std::vector<bool> paused_;   // by rank: since its last turn
  StreamId decided_ = -1;      // of the rank that was given the baton at its choice
  std::exception_ptr error_;   // of the chooser, for that rank to throw
  std::vector<Turn> turns_;
  std::vector<StreamId> streams_;
};

}  // namespace cp::sim
