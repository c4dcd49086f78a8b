// Programs written by hand, by what each rank issues.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/plan/plan_writer.h"

namespace cp::sim {

// One rank's program: collectives and exchanges of 4-byte elements in buffers of its own.
class HandProgram {
 public:
  explicit HandProgram(Rank self, std::vector<std::string> streams = {"main"})
      : writer_(self, std::move(streams)) {
    in_ = writer_.input("in", kNumel);
  }

  GroupId group(std::string name, std::vector<Rank> ranks) {
    return writer_.group(std::move(name), std::move(ranks));
  }

  struct To {
    std::int32_t peer = -1;
    std::int64_t numel = 1;
  };
  StepId exchange(GroupId group, const std::vector<To>& sends, const std::vector<To>& recvs,
                  StreamId stream = 0, std::vector<Edge> after = {}, Digest counts = {}) {
    Exchange made{group, {}, {}, counts};
    for (const To& to : sends) made.sends.push_back({to.peer, flat_view(in_, 0, to.numel)});
    for (const To& from : recvs) made.recvs.push_back({from.peer, out(from.numel)});
    return writer_.add(stream, Collective(made), std::move(after));
  }
  StepId send(GroupId group, std::int32_t peer, std::int64_t numel = 1, StreamId stream = 0) {
    return exchange(group, {{peer, numel}}, {}, stream);
  }
  StepId recv(GroupId group, std::int32_t peer, std::int64_t numel = 1, StreamId stream = 0) {
    return exchange(group, {}, {{peer, numel}}, stream);
  }
  StepId all_reduce(GroupId group, StreamId stream = 0, std::vector<Edge> after = {}) {
    return writer_.add(stream, Collective(AllReduce{group, ReduceOp::sum, flat_view(in_, 0, 1), out(1)}),
                       std::move(after));
  }
  StepId broadcast(GroupId group, StreamId stream = 0) {
    return writer_.add(stream, Collective(Broadcast{group, 0, flat_view(in_, 0, 1), out(1)}));
  }
  StepId fill(StreamId stream = 0, std::vector<Edge> after = {}) {
    return writer_.add(stream, Kernel(Fill{out(1), 1}), std::move(after));
  }
  cp::testing::PlanWriter& writer() { return writer_; }
  Plan finish() && { return std::move(writer_).finish(); }

 private:
  // Memory is never what keeps two steps apart.
  View out(std::int64_t numel) { return flat_view(writer_.output("out", numel), 0, numel); }

  static constexpr std::int64_t kNumel = std::int64_t{1} << 20;
  cp::testing::PlanWriter writer_;
  BufferId in_ = -1;
};

template <class AddSteps>
std::vector<Plan> programs(int world_size, AddSteps&& add_steps,
                           const std::vector<std::string>& streams = {"main"}) {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < world_size; ++rank) {
    HandProgram program(rank, streams);
    add_steps(program, rank);
    plans.push_back(std::move(program).finish());
  }
  return plans;
}

}  // namespace cp::sim
