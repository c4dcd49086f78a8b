// The operations of all ranks, and how far they have come. Inside of sim/proof/progress only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shared/base/index.h"
#include "shared/plan/plan.h"
#include "sim/proof/progress/progress.h"

namespace cp::sim::progress {

using OpId = std::int32_t;
inline constexpr OpId kNone = -1;
enum class Kind : std::uint8_t { kernel, collective, exchange };

// What one operation has on one channel: its messages [first, last].
struct Messages {
  std::int32_t channel = -1;
  bool sends = false;
  std::int64_t first = 0, last = 0;
};

struct Op {
  Kind kind = Kind::kernel;
  std::int32_t rank = 0;      // index of the plan
  std::int32_t queue = 0;     // among the streams of all ranks
  std::int64_t position = 0;  // in the queue
  const Step* step = nullptr;
  StepId id = -1;
  std::int64_t iteration = 0;
  std::vector<OpId> after;
  // Collectives and exchanges:
  std::int32_t communicator = -1;
  std::int64_t sequence = -1;  // of the step on its group
  std::int64_t meeting = -1;   // collectives: which of the communicator
  std::int64_t launch = -1;    // which of its rank, in issue order
  std::vector<Messages> messages;
};

struct Communicator {
  Group group;
  std::vector<std::int32_t> plans;          // by member; -1: it has none
  std::vector<std::vector<OpId>> meetings;  // by member: its collectives, in order
};

// The messages from one member of a communicator to another.
struct Channel {
  struct End {
    std::vector<OpId> ops;            // by message
    std::vector<std::int64_t> up_to;  // bytes of it and all before it
  };
  std::int32_t communicator = -1, from = -1, to = -1;
  End sends, receives;
};

struct Model {
  std::span<const Plan> plans;
  ProgressRules rules;
  std::vector<Op> ops;
  std::vector<std::vector<OpId>> queues;             // each stream of each rank
  std::vector<std::vector<std::int32_t>> queues_of;  // by plan
  std::vector<std::vector<OpId>> launches;           // by plan: collectives and exchanges in issue order
  std::vector<Communicator> communicators;
  std::vector<Channel> channels;
  std::string mismatch;

  const Op& op(OpId id) const { return ops[idx(id)]; }
};

// Operations of the plans, iterations counted each.
std::int64_t count_operations(std::span<const Plan> plans);
Model make_model(std::span<const Plan> plans, const ProgressRules& rules);
ProgressStep step_of(const Model& model, const Op& op);

// How far a queue's head has come. open: its transfers may move.
enum class Phase : std::uint8_t { waits, begun, open };

class State {
 public:
  explicit State(const Model& model);

  // Takes all that may be taken without a choice. `from`: a rank to begin with, -1: all.
  void settle(std::int32_t from);
  // The queues whose heads can do something now; without `choices` none that would begin an operation of
  // several that could.
  bool can_move(std::int32_t queue, bool choices) const;
  // Moves the queue's head by one phase. Pushes the ranks that may move because of that onto `woken`, if
  // given.
  void move(std::int32_t queue, std::vector<std::int32_t>* woken);

  bool ended() const { return unfinished_ == 0; }
  OpId head(std::int32_t queue) const;
  Phase phase(std::int32_t queue) const { return phase_[idx(queue)]; }
  bool finished(OpId op) const;
  bool begun(OpId op) const;
  // Of what is under way: what the rules let it wait for.
  bool has_met(const Op& op) const;
  bool has_room(const Messages& messages) const;  // the messages have moved
  // Whether the other ends have begun, or (sends) are not needed.
  bool is_awaited(const Messages& messages) const;
  bool may_launch(const Op& op, bool choices) const;
  bool after_is_done(const Op& op) const;
  std::int64_t launches_begun(std::int32_t rank) const { return launches_begun_[idx(rank)]; }
  std::int64_t launches_finished(std::int32_t rank) const { return launches_finished_[idx(rank)]; }

  // Equal for states that go on equally.
  std::string key() const;

 private:
  const Model* model_;
  std::vector<std::int32_t> at_;                                  // by queue
  std::vector<Phase> phase_;                                      // by queue
  std::vector<std::int32_t> launches_begun_, launches_finished_;  // by rank
  std::vector<std::vector<std::int32_t>> arrived_;                // by communicator and meeting
  std::vector<std::int64_t> sent_, received_;                     // by channel: messages that are open
  std::int64_t unfinished_ = 0;                                   // queues
};

// Why the state does not go on: fills is_cycle, waits and stuck.
void explain(const Model& model, const State& state, ProgressReport& report);

}  // namespace cp::sim::progress
