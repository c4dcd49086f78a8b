// PlanBuilder: writes a Plan step by step; edges, lifetimes and places in memory are derived, not written.
//
//   PlanBuilder b(self, host_target());
//   const StreamId compute = b.stream("compute"), comm = b.stream("comm");
//   const GroupId tp = b.group("tp", {0, 1, 2, 3});
//   const BufferId x = b.input("x", DType::f32, 256), y = b.output("y", DType::f32, 1024);
//   b.add(comm, AllGather{tp, flat_view(x, 0, 256), flat_view(y, 0, 1024)}, "gather x");
//   b.begin_repeat(32);  ...  b.end_repeat();
//   Plan plan = std::move(b).build(inputs_digest);
//
// Two steps on different streams that touch a common element, at least one of them writing, are ordered as
// they were added; an edge is written only where no other edge implies it. Inside a Repeat the same holds
// between an iteration and those before it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shared/plan/plan.h"

namespace cp {

// Where a temporary prefers to lie. Chains in which each step makes a buffer from the previous one pack
// exactly when the buffers alternate between the two ends of the arena.
enum class Anchor : std::uint8_t { any, low, high };

class PlanBuilder {
 public:
  PlanBuilder(Rank self, Target target);

  StreamId stream(std::string name);  // the stream of that name, made on first use
  GroupId group(std::string name,
                std::vector<Rank> ranks);  // the group with that name and ranks, made on first use
  BufferId input(std::string name, DType dtype, std::int64_t numel);
  BufferId output(std::string name, DType dtype, std::int64_t numel);
  BufferId inout(std::string name, DType dtype, std::int64_t numel);
  BufferId temporary(std::string name, DType dtype, std::int64_t numel, Anchor anchor = Anchor::any);

  // Makes a temporary at least that large: one that several steps use in turn, each as much of it as it needs.
  void grow(BufferId temporary, std::int64_t numel);

  const Target& target() const { return plan_.target; }
  DType dtype(BufferId buffer) const { return plan_.buffers[static_cast<std::size_t>(buffer)].dtype; }

  // Appends a step. Throws InvalidInput when the target lacks the operation or a dtype (naming it), and for
  // views outside of their buffer, or of the wrong size for the operation.
  StepId add(StreamId stream, Kernel kernel, std::string label = {});
  StepId add(StreamId stream, Collective collective, std::string label = {});

  // Appends all steps of `part`, a plan of the same rank: on its streams and groups, by name, and with its temporaries as new
  // ones called `prefix` + name. `bindings` gives each other buffer of the part, by name, a contiguous window of this plan,
  // which moves with the Repeat that is open here, if one is. Edges are derived anew. Throws InvalidInput for a buffer without
  // a window or with one that is too small, not contiguous or of another dtype, and for a part with Repeats inside a Repeat.
  void splice(const Plan& part, const std::map<std::string, View>& bindings, std::string_view prefix = {});

  void begin_repeat(std::int64_t count);
  void end_repeat();

  // Derives edges, first and last uses and the arena. `inputs`: digest of what the caller built the plan
  // from.
  Plan build(const Digest& inputs) &&;

 private:
  BufferId add_buffer(std::string name, BufferKind kind, DType dtype, std::int64_t numel, Anchor anchor);
  StepId add_work(StreamId stream, Work work, std::string label);

  Plan plan_;
  std::vector<Anchor> anchors_;          // by buffer
  std::vector<StreamId> group_streams_;  // by group; -1 before its first collective
  bool in_repeat_ = false;
  StepId next_step_ = 0;
};

// Throws InvalidInput unless the step's views lie in their buffers (in every iteration), have the sizes and
// dtypes that the operation needs, and are contiguous where it needs that; the rules are written once, here,
// for builder and checker.
void validate_step(const Plan& plan, const Step& step, std::int64_t repeat_count);

}  // namespace cp
