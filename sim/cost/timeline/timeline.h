// The timeline replays plans on the model of a cluster, without threads and without data.
//
// Each rank runs on the GPU of its number. A stream is a FIFO. A step begins when the step before it on its
// stream and the steps that its edges name have ended, and when the host has issued it (issue_time.h). A
// kernel takes as long as KernelCost says, and longer while a transfer of its GPU is under way, as the
// software profile says. The transfers of an Exchange are flows, which begin when both sides have arrived,
// and which share the links of the topology. Other collectives are flows too, which begin when the last
// member arrives (collective_flows.h); alone they take as long as collective_ns() says.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/network/pattern.h"
#include "sim/cost/network/topology.h"
#include "sim/cost/timeline/nccl_model.h"

namespace cp::sim {

struct TimelineOptions {
  // `folded` replays one block of the world for all that are equal to it (fold.h), if nothing makes them
  // differ and no spans are kept. The result is the same.
  Fidelity fidelity = Fidelity::folded;
  std::vector<double> gpu_slowdown;  // by GPU, >= 1: its kernels take that many times as long; empty: none
  LinkFactors links;                 // slow links, and GPUs whose links are
  CollectiveSettings collectives;    // what the library is told
  bool keep_spans = false;
};

struct Span {
  StepId step = -1;
  std::int64_t iteration = 0;
  double ready_ns = 0, begin_ns = 0, end_ns = 0;  // begin: a kernel's start; a collective's first byte
};

struct RankTimeline {
  Rank rank = 0;
  double end_ns = 0;
  double compute_ns = 0;       // some kernel runs
  double exposed_comm_ns = 0;  // a collective is under way or waited for, and no kernel runs
  double hidden_comm_ns = 0;   // both
  std::int64_t bytes_received = 0;
  std::int64_t peak_bytes = 0;
  std::vector<Span> spans;  // in the order in which they ended; with keep_spans
};

struct LinkUse {
  std::string name;
  double bytes = 0;
  double utilisation = 0;  // of its capacity over the whole time
};

// One piece of the critical path: the chain of steps, each waiting for the one before, that takes the whole
// time.
struct PathStep {
  Rank rank = 0;
  StepId step = -1;
  std::int64_t iteration = 0;
  double begin_ns = 0, end_ns = 0;
  std::string bound;  // "copy", "attention_forward beside transfers", "nic 7 tx", "all_gather"
};

struct Timeline {
  double time_ns = 0;
  std::vector<RankTimeline> ranks;  // in the order of the plans; if folded, those of the first block
  int stands_for = 1;               // how many alike each of these ranks, and each link, stands for
  std::vector<LinkUse> links;       // those that carried anything, the busiest first
  std::vector<PathStep> critical_path;
};

// `plans` are those of all ranks that meet in any group, by ascending rank, and they must have passed
// check(). Throws InvalidInput if a rank has no GPU on the cluster.
Timeline replay(std::span<const Plan> plans, const Cluster& cluster, const SoftwareProfile& software,
                const TimelineOptions& options = {});

}  // namespace cp::sim
