// The operations of all ranks, and how far they have come. For sim/proof/progress only.
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

// The messages [first, last] of one operation on one channel.
struct Messages {
  std::int32_t channel = -1;
  bool sends = false;
  std::int64_t first = 0, last = 0;
};

// A step in one iteration, with what it waits for.
struct Op {
  Kind kind = Kind::kernel;
  std::int32_t rank = 0;      // the index of the plan
  std::int32_t queue = 0;     // its stream's number among the streams of all ranks
  std::int64_t position = 0;  // its place in this queue
  const Step* step = nullptr;
  StepId id = -1;
  std::int64_t iteration = 0;
  std::vector<OpId> after;
  // What follows is for collectives and exchanges only.
  std::int32_t communicator = -1;
  std::int64_t sequence = -1;  // the number of the step on its group
  std::int64_t meeting = -1;   // of a collective: its number on the communicator
  std::int64_t launch = -1;    // its number on its rank, in issue order
  std::vector<Messages> messages;
};

// A group, with the plans of its members.
struct Communicator {
  Group group;
  std::vector<std::int32_t> plans;          // by member: the index of its plan; -1 if it has none
  std::vector<std::vector<OpId>> meetings;  // by member: its collectives, in order
};

// The messages from one member of a communicator to another.
struct Channel {
  struct End {
    std::vector<OpId> ops;            // by message: the operation that has it
    std::vector<std::int64_t> up_to;  // by message: its bytes and those of all before it
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

// The number of operations of the plans, each iteration counted.
std::int64_t count_operations(std::span<const Plan> plans);
// Makes the model. Throws InvalidInput as explore_progress() does.
Model make_model(std::span<const Plan> plans, const ProgressRules& rules);
ProgressStep step_of(const Model& model, const Op& op);

// How far the head of a queue has come. When it is open, its transfers may move.
enum class Phase : std::uint8_t { waits, begun, open };

// A state of the model. The model must outlive it.
class State {
 public:
  explicit State(const Model& model);

  // Takes all that may be taken without a choice. `from` is the index of a plan to begin with; -1 means all.
  void settle(std::int32_t from);
  // Whether the queue's head can do something now. Without `choices`, the answer is no if it would begin an
  // operation while another of its rank could begin instead.
  bool can_move(std::int32_t queue, bool choices) const;
  // Moves the queue's head on by one phase. Adds to `woken`, if it is given, the ranks that may move because
  // of that.
  void move(std::int32_t queue, std::vector<std::int32_t>* woken);

  bool ended() const { return unfinished_ == 0; }
  OpId head(std::int32_t queue) const;
  Phase phase(std::int32_t queue) const { return phase_[idx(queue)]; }
  bool finished(OpId op) const;
  bool begun(OpId op) const;
  // What the rules let an operation under way wait for: that all members have come to the collective, and
  // that the messages have moved.
  bool has_met(const Op& op) const;
  bool has_room(const Messages& messages) const;
  // Whether the other ends of the messages have begun, or are not needed (of sends).
  bool is_awaited(const Messages& messages) const;
  bool may_launch(const Op& op, bool choices) const;
  bool after_is_done(const Op& op) const;
  std::int64_t launches_begun(std::int32_t rank) const { return launches_begun_[idx(rank)]; }
  std::int64_t launches_finished(std::int32_t rank) const { return launches_finished_[idx(rank)]; }

  // A text that is equal for states that go on equally.
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

// Says why the state does not go on: fills in is_cycle, waits and stuck of the report.
void explain(const Model& model, const State& state, ProgressReport& report);

}  // namespace cp::sim::progress
