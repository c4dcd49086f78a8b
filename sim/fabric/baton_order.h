// The orders in which the baton goes round: which rank goes on with which of its streams.
//
// A turn is one piece of work at the head of a stream: a kernel, an event that is waited for, the arrival at
// a collective, its end. What a body does between its calls of synchronize() belongs to no turn and is done
// at once, since it touches nothing of other ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/types.h"
#include "shared/plan/plan.h"

namespace cp::sim {

// One turn of the baton: the rank went on with the work at the head of the stream.
struct Turn {
  Rank rank = 0;
  StreamId stream = 0;
  auto operator<=>(const Turn&) const = default;
};

// What a turn that could be taken next would do.
struct TurnDetails {
  // leaving: the collective's round is over; the rank goes on, or (leaves_to_next_round) moves its part and
  // arrives at another round.
  enum class Kind : std::uint8_t { event, kernel, arrival, leaving };
  struct Memory {
    const std::byte *begin = nullptr, *end = nullptr;
    bool writes = false;
  };

  Kind kind = Kind::kernel;
  std::int64_t item = 0;   // pieces of work that the stream has finished before
  std::int64_t batch = 0;  // synchronize() calls of the rank before this one: all work of those has ended
  StreamId awaited_stream = 0;  // event: that this stream has finished so many pieces
  std::int64_t awaited_items = 0;
  const void* communicator = nullptr;  // arrival, leaving: with the round, which collective of it
  std::uint32_t round = 0;
  bool completes = false;             // arrival: of the last member, who does the work of all
  bool leaves_to_next_round = false;  // leaving
  std::vector<Memory> memory;         // that the turn itself reads or writes, of all ranks
};

class TurnInspector {
 public:
  virtual ~TurnInspector() = default;
  virtual TurnDetails details(const Turn& turn) const = 0;
};

// Takes every choice of a run. All calls come one at a time, from one thread or another.
class TurnChooser {
 public:
  virtual ~TurnChooser() = default;
  // Fabric::run begins. Whatever came before has ended.
  virtual void begin_run() = 0;
  // An index into `turns`, all that could be taken next, ascending, at least one. Turns stay possible until
  // they are taken. What it throws is the run's error.
  virtual std::size_t choose(std::span<const Turn> turns, const TurnInspector& inspector) = 0;
};

struct BatonOrder {
  enum class Kind : std::uint8_t {
    random,       // the next rank, and which of its ready streams goes on, drawn from the seed
    round_robin,  // ranks in turn, and of each its streams in turn
    // Every stream of a rank has a random priority, and the highest that is ready goes on. At depth - 1
    // random turns among the first expected_turns the one that would go on falls below all others. With n
    // streams in all and k turns, a defect that shows when `depth` turns come in a certain order is met with
    // a chance of at least 1 / (n k^(depth-1)), whatever else happens. (Burckhardt, Kothari, Musuvathi and
    // Nagarakatte, "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010.)
    pct,
    given,   // `turns`, as Fabric::turns() gave them; after the last one the least that is possible
    chosen,  // by `chooser`
  };
  Kind kind = Kind::random;
  std::optional<std::uint64_t> seed = {};          // random, pct; none: FabricOptions::seed
  int depth = 3;                                   // pct: >= 1
  std::int64_t expected_turns = 256;               // pct: of a run; see expected_turns()
  std::vector<Turn> turns = {};                    // given
  std::shared_ptr<TurnChooser> chooser = nullptr;  // chosen
  // Ranks that go on only when nobody else can.
  std::vector<Rank> slow_ranks = {};
  // A run that takes more turns than this ends with Stall, so that ranks that never come to an end are found;
  // 0: no limit.
  std::int64_t most_turns = 0;
};

// Ranks go on and on without an end.
class Stall : public Timeout {
 public:
  using Timeout::Timeout;
};

// The turns of a run of these plans, once each, at most.
std::int64_t expected_turns(std::span<const Plan> plans);

}  // namespace cp::sim
