// PlanBuilder writes a Plan step by step. The caller adds steps; the builder derives the edges between them,
// how long temporaries live, and where they lie in the arena.
//
//   PlanBuilder b(self, host_target());
//   const StreamId compute = b.stream("compute"), comm = b.stream("comm");
//   const GroupId tp = b.group("tp", {0, 1, 2, 3});
//   const BufferId x = b.input("x", DType::f32, 256), y = b.output("y", DType::f32, 1024);
//   b.add(comm, AllGather{tp, flat_view(x, 0, 256), flat_view(y, 0, 1024)}, "gather x");
//   b.begin_repeat(32);  ...  b.end_repeat();
//   Plan plan = std::move(b).build(inputs_digest);
//
// If two steps on different streams touch a common element, and at least one of them writes it, they run in
// the order in which they were added. The builder writes an edge for that only where no other edge implies
// it. Inside a Repeat the same holds between an iteration and the iterations before it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shared/plan/plan.h"

namespace cp {

// At which end of the arena a temporary prefers to lie. In a chain each step makes a buffer from the previous
// one, so that two of them live at once: placed at the two ends in turn, they leave no hole between them.
enum class Anchor : std::uint8_t { any, low, high };

struct UnplacedPlan;

class PlanBuilder {
 public:
  PlanBuilder(Rank self, Target target);

  // The stream of that name, and the group with that name and those ranks. Each is made on its first use.
  StreamId stream(std::string name);
  // Throws InvalidInput if there is one that differs in `copy_engine`.
  GroupId group(std::string name, std::vector<Rank> ranks, bool copy_engine = false);
  BufferId input(std::string name, DType dtype, std::int64_t numel);
  BufferId output(std::string name, DType dtype, std::int64_t numel);
  BufferId inout(std::string name, DType dtype, std::int64_t numel);
  BufferId temporary(std::string name, DType dtype, std::int64_t numel, Anchor anchor = Anchor::any);
  // A symmetric temporary. The plans of all ranks must add equally large ones in the same order: the places
  // follow from that alone, one behind the other, so that no two share bytes. check() proves that they agree.
  BufferId symmetric(std::string name, DType dtype, std::int64_t numel);

  // Makes a temporary at least `numel` elements large. This is for one that several steps use in turn, each
  // of them only as much of it as it needs.
  void grow(BufferId temporary, std::int64_t numel);

  const Target& target() const { return plan_.target; }
  bool is_symmetric(BufferId buffer) const {
    return plan_.buffers[static_cast<std::size_t>(buffer)].symmetric;
  }
  DType dtype(BufferId buffer) const { return plan_.buffers[static_cast<std::size_t>(buffer)].dtype; }
  StepId next_step() const { return next_step_; }  // the number of the step that is added next

  // Appends a step and returns its number. Throws InvalidInput if the target lacks the operation or a dtype,
  // which the message names, if a view reaches beyond its buffer, or if its size does not fit the operation.
  StepId add(StreamId stream, Kernel kernel, std::string label = {});
  StepId add(StreamId stream, Collective collective, std::string label = {});

  // Appends all steps of `part`, which is a plan of the same rank. Its streams and groups are found here by
  // name, and its temporaries become new ones called `prefix` + name. For each other buffer of the part,
  // `bindings` gives by name a contiguous window of this plan, which moves with the Repeat that is open here,
  // if one is. Edges are derived anew. Throws InvalidInput if a buffer has no window, or one that is too
  // small, not contiguous or of another dtype, and if a part with Repeats is spliced into a Repeat.
  void splice(const Plan& part, const std::map<std::string, View>& bindings, std::string_view prefix = {});

  // The steps that are added between these two run `count` times. Repeats do not nest.
  void begin_repeat(std::int64_t count);
  void end_repeat();

  // Derives the edges, the first and last uses and the arena, and gives out the plan; the builder is used up
  // then. `inputs` is the digest of what the caller built the plan from, and so is equal on all ranks.
  Plan build(const Digest& inputs) &&;
  // The same without lives and places, which take long to find, for whoever asks how long the plan takes and
  // maybe nothing else.
  UnplacedPlan build_unplaced(const Digest& inputs) &&;

 private:
  BufferId add_buffer(std::string name, BufferKind kind, DType dtype, std::int64_t numel, Anchor anchor);
  StepId add_work(StreamId stream, Work work, std::string label);

  Plan plan_;
  std::vector<Anchor> anchors_;          // by buffer
  std::vector<StreamId> group_streams_;  // by group; -1 before its first collective
  bool in_repeat_ = false;
  StepId next_step_ = 0;
};

}  // namespace cp
