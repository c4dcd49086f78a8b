// PlanGraphs: the CUDA graphs of one plan that an NcclDevice keeps (NcclOptions::graphs).
//
// A graph holds the addresses of the plan's buffers. So there is one for each set of addresses that runs come
// with again, up to kMost of them:
//   the first run with these addresses     is launched step by step, which also loads and connects what only
//                                          a first run does
//   the second one                         is captured, and the graph runs
//   each later one                         is one launch of the graph
// A set of addresses that comes when there are kMost takes the place of the one that was used least recently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/cuda_graphs.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/nccl/nccl_calls.h"
#include "runtime/nccl/nccl_communicators.h"
#include "shared/plan/device.h"
#include "shared/plan/plan.h"

namespace cp::runtime {

// A collective that a graph has in it.
struct GraphCollective {
  const Collective* collective = nullptr;
  NcclCommunicator* member = nullptr;
  StepId step = 0;
  StreamId stream = 0;                    // of the device
  std::size_t first_call = 0, calls = 0;  // of NCCL, in PlanGraph::calls
};

struct PlanGraph {
  struct Launched {
    const Step* step = nullptr;
    StreamId stream = 0;  // of the device
  };
  std::vector<std::byte*> addresses;  // by BufferId
  CudaGraphs::Id id = -1;             // -1: these addresses have come once, and nothing is captured
  std::int64_t used = 0;              // when it was used last, among all
  std::vector<Launched> steps;
  std::vector<GraphCollective> collectives;  // in the order of issue
  std::vector<NcclCall> calls;
  // How many of the collectives each communicator has.
  std::vector<std::pair<NcclCommunicator*, std::size_t>> counts;

  void count();  // fills `counts`
};

// Why the plan cannot become a graph, with the numbers; empty if it may.
std::string refuse_graph(const Plan& plan);

class PlanGraphs {
 public:
  // How many graphs of a plan there are at most. Chosen: buffers that change by turns are two sets or three,
  // and a graph costs some tens of KiB for each of its kernels.
  static constexpr std::size_t kMost = 4;

  // `graphs` must outlive this object; `buffers` is how many the plan has.
  PlanGraphs(CudaGraphs& graphs, std::size_t buffers) : graphs_(graphs), buffers_(buffers) {}
  ~PlanGraphs() { clear(); }
  PlanGraphs(const PlanGraphs&) = delete;
  PlanGraphs& operator=(const PlanGraphs&) = delete;

  // That of the addresses which the buffers have now; null if they come for the first time, and are known
  // from here on. Allocates only then.
  std::shared_ptr<PlanGraph> of(const CudaMemory& memory);
  void clear();  // to be called when addresses change their meaning

  // The plan is launched step by step for ever. `why` is for people.
  void refuse(std::string why) { why_not_ = std::move(why); }
  const std::string& why_not() const { return why_not_; }  // empty: it is captured

 private:
  bool has(const PlanGraph& graph, const CudaMemory& memory) const;

  CudaGraphs& graphs_;
  const std::size_t buffers_;
  std::vector<std::shared_ptr<PlanGraph>> known_;  // a run whose times are unread holds one, too
  std::int64_t uses_ = 0;
  std::string why_not_;
};

}  // namespace cp::runtime
