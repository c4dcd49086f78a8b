// BatonOrder: in which order ranks take turns on the fabric (FabricOptions::order), and on which of its
// streams a rank goes on.
//
// A turn runs one piece of work at the head of a stream: a kernel, a wait for an event, the arrival at a
// collective, or the end of a collective. The code of a body between its calls of synchronize() belongs to no
// turn. It runs at once, because it cannot touch anything of another rank.
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

// What a turn would do if it were taken next. explore_orders() finds out from this which turns depend on one
// another.
struct TurnDetails {
  // leaving: the round of the collective is over, and the rank leaves it. It then goes on with its stream or,
  // if leaves_to_next_round, moves its part of the bytes and arrives at another round.
  enum class Kind : std::uint8_t { event, kernel, arrival, leaving };
  struct Memory {
    const std::byte *begin = nullptr, *end = nullptr;
    bool writes = false;
  };

  Kind kind = Kind::kernel;
  std::int64_t item = 0;  // how many pieces of work the stream has finished before
  // How many synchronize() calls the rank has made before the current one. All their work has ended.
  std::int64_t batch = 0;
  // event: the turn is possible when awaited_stream has finished awaited_items pieces of work.
  StreamId awaited_stream = 0;
  std::int64_t awaited_items = 0;
  // arrival, leaving: the communicator and its round together name one collective.
  const void* communicator = nullptr;
  std::uint32_t round = 0;
  bool completes = false;             // arrival: this is the last member, which does the work of all
  bool leaves_to_next_round = false;  // leaving
  std::vector<Memory> memory;         // what the turn itself reads or writes, in the memory of any rank
};

class TurnInspector {
 public:
  virtual ~TurnInspector() = default;
  virtual TurnDetails details(const Turn& turn) const = 0;
};

// Makes every choice of a run. Calls never overlap, but they may come from different threads.
class TurnChooser {
 public:
  virtual ~TurnChooser() = default;
  // Called when Fabric::run begins; all earlier runs have ended.
  virtual void begin_run() = 0;
  // Returns an index into `turns`, which holds all turns that are possible now, in ascending order and at
  // least one. A turn that is not taken stays possible. If this throws, the exception is the error of the
  // run.
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
    // Repeats `turns`, as Fabric::turns() returned them. After the last of them, the smallest possible turn
    // is taken each time.
    given,
    chosen,  // `chooser` decides
  };
  Kind kind = Kind::random;
  std::optional<std::uint64_t> seed = {};          // random, pct; if unset, FabricOptions::seed counts
  int depth = 3;                                   // pct: at least 1
  std::int64_t expected_turns = 256;               // pct: turns of one run; see expected_turns()
  std::vector<Turn> turns = {};                    // given
  std::shared_ptr<TurnChooser> chooser = nullptr;  // chosen
  // These ranks run only when no other rank can.
  std::vector<Rank> slow_ranks = {};
  // A run that takes more turns than this ends with Stall. It finds ranks that run for ever without being
  // deadlocked. 0 means no limit.
  std::int64_t most_turns = 0;
};

// Thrown when a run takes more than BatonOrder::most_turns turns.
class Stall : public Timeout {
 public:
  using Timeout::Timeout;
};

// How many turns a run takes at most that executes each of these plans once. Use it for
// BatonOrder::expected_turns.
std::int64_t expected_turns(std::span<const Plan> plans);

}  // namespace cp::sim
