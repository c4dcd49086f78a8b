// Scheduler: decides which rank runs and which sleeps, and notices when no rank can go on.
//
// A rank runs until nothing on its streams is ready. Then it waits for the rounds at which it has arrived. If
// every other rank already waits or has finished, nothing can ever wake it: instead of sleeping, the rank
// gets Progress::stuck, and reports the deadlock.
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

  // The host calls this while no rank runs.
  virtual void begin_run() = 0;

  // A rank calls enter() before its body, and finish() and then hand_over() after it. finish() returns stuck
  // if the other ranks all wait, so that nobody is left to wake them. hand_over() is the rank's last call.
  virtual void enter(Rank rank) = 0;
  virtual Progress finish(Rank rank) = 0;
  virtual void hand_over(Rank rank) = 0;

  // A rank calls this between two pieces of work. Other ranks may run before it returns.
  virtual void pause(Rank rank) = 0;
  // Returns one of the streams in `ready`: the one on which the rank goes on.
  virtual StreamId choose(Rank rank, std::span<const StreamId> ready) = 0;

  // Sleeps until one of the rounds is released or the run is cancelled. It may also return early, so callers
  // loop.
  virtual Progress wait(Rank rank, std::span<const Ticket> tickets) = 0;
  // Sleeps until the round is released, even if the run is cancelled. All members of the round must have
  // arrived, so that it is certain to be released.
  virtual void wait_for_release(Rank rank, Ticket ticket) = 0;
  // The last member calls this. Ends the round and wakes the ranks that wait for it.
  virtual void release(Ticket ticket) = 0;

  // Cancels the run: all ranks that wait() return, and no rank waits any more. `communicators` are all
  // communicators of the world.
  virtual void cancel(std::span<const std::unique_ptr<Communicator>> communicators) = 0;
  bool cancelled() const { return is_cancelled_.load(std::memory_order_seq_cst); }

 protected:
  int world_size() const { return size_; }
  void set_cancelled(bool cancelled) { is_cancelled_.store(cancelled, std::memory_order_seq_cst); }

 private:
  int size_;
  std::atomic<bool> is_cancelled_{false};
};

// Lets all ranks run at once, on all cores. A rank that waits for one round sleeps on the communicator, so
// that one system call wakes a whole group. A rank that waits for several rounds sleeps on a word of its own.
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

  // How many ranks run, or are about to be woken. It is never too small, because a rank that wakes another
  // one counts it first, and runs itself at that moment. So whoever brings it to 0 knows that all are stuck.
  alignas(64) std::atomic<std::int32_t> running_count_{0};
  alignas(64) std::atomic<std::int32_t> finished_count_{0};
  std::unique_ptr<RankWord[]> words_;
};

// What a scheduler that makes every choice itself asks about the ranks, while none of them runs.
class RankInspector : public TurnInspector {
 public:
  // Sets `streams` to those of the rank whose heads are ready, in ascending order.
  virtual void ready_streams(Rank rank, std::vector<StreamId>& streams) const = 0;
};

// Lets one rank run at a time. The holder of the baton passes it to a rank that it draws from those that
// could run. Only the holder touches the rest of the state, so equal seeds give equal runs.
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

  // Chooses the next holder among the ready ranks, and removes it from them.
  virtual Rank take_next();
  void await_baton(Rank rank);
  void pass_baton_to(Rank next) { baton_.pass_to(next); }
  void make_ready(Rank rank);
  // set_ready() makes the holder one of the ready ranks again; set_holder() is the other way round.
  void set_ready(Rank rank);
  void set_holder(Rank rank) { states_[static_cast<std::size_t>(rank)] = State::holder; }
  bool is_slow(Rank rank) const { return !slow_.empty() && slow_[static_cast<std::size_t>(rank)]; }
  std::vector<Rank>& ready() { return ready_; }
  // Counts and logs a turn that is about to be taken. Throws Stall if the run has taken too many.
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

// Lets one rank run at a time, and chooses each turn among all that could be taken next, of all ranks. For
// that, a rank that comes to a choice between its streams stops there. Ranks that have not yet come to such a
// choice, or to a wait, run first; then all possible turns are known, and the chooser picks one.
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
    on_its_way,  // has not yet come to a choice, a wait or its end
    choice,
    // Has come to pause() twice without taking a turn. It lets others go on, and goes on itself only when
    // they cannot.
    paused,
  };

  Rank take_next() override;
  Rank least_ready(Place place);  // the smallest ready rank at that place; -1 if there is none
  void give_way(Rank rank, Place place);
  Turn decide();

  const RankInspector& inspector_;
  std::shared_ptr<TurnChooser> chooser_;
  std::vector<Place> places_;  // by rank
  std::vector<bool> paused_;   // by rank: whether it has paused since its last turn
  StreamId decided_ = -1;      // the stream that was chosen for the rank that now gets the baton
  std::exception_ptr error_;   // what the chooser threw; that rank throws it again
  std::vector<Turn> turns_;
  std::vector<StreamId> streams_;
};

}  // namespace cp::sim
