// What the writers of trace files draw: the spans of replayed plans as slices, with one row for each rank and
// stream.
//
// Times are whole nanoseconds. They are rounded, so that slices that follow each other on a stream never
// overlap. The slice of a kernel is its run. The slice of a collective begins when the rank arrives, as
// NCCL's kernel does, so it contains the time of waiting for the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/cost/cluster/cluster.h"
#include "sim/cost/timeline/timeline.h"

namespace cp::sim {

// A replay to be drawn. Passes are drawn one after another. Plans and timeline must outlive the TraceSlices
// made of them.
struct TracedPass {
  std::string name;                    // "forward"
  std::span<const Plan> plans;         // the plans that were replayed
  const Timeline* timeline = nullptr;  // replayed with keep_spans
};

struct TraceSlice {
  std::size_t pass = 0;
  const Step* step = nullptr;  // the step in the plan, which owns it
  StepId id = -1;
  std::int64_t iteration = 0;
  // Only of a collective: its number on its group in its pass, from 0.
  std::int64_t sequence = -1;
  int row = 0;                   // index into TraceRank::streams
  std::int64_t correlation = 0;  // its number among all slices of all ranks, from 1
  std::int64_t begin_ns = 0, end_ns = 0;
  std::int64_t waited_ns = 0;  // of a collective: the wait before its first byte
};

struct TraceRank {
  Rank rank = 0;
  std::string place;                 // "node 1, GPU 3", "host a"; empty: unknown
  std::vector<std::string> streams;  // of all passes, in order of appearance
  std::vector<std::string> titles;   // what each stream is: "communication stream of group cp (comm)"
  std::vector<TraceSlice> slices;    // in issue order, which is a stream's order in time
};

// A transfer of an Exchange, from a slice of one rank to a slice of another. It begins to flow when both
// ranks have arrived.
struct TraceFlow {
  // Indices into TraceSlices::ranks, and into the slices of these ranks.
  std::size_t from_rank = 0, from_slice = 0, to_rank = 0, to_slice = 0;
  std::int64_t at_ns = 0, bytes = 0;
};

struct TraceSlices {
  std::vector<TracedPass> passes;
  // When each pass begins, and last when the last one ends. They are rounded up to whole microseconds,
  // because HolisticTraceAnalysis cuts begins and ends to these.
  std::vector<std::int64_t> begin_ns;
  std::vector<TraceRank> ranks;
  std::vector<TraceFlow> flows;
  std::string backend = "simulated";

  Rank world_size() const;  // one more than the highest rank
  const Plan& plan(std::size_t rank, const TraceSlice& slice) const { return passes[slice.pass].plans[rank]; }
};

// The name of a rank's process: "rank 3 (node 0, GPU 3)".
std::string process_name(const TraceRank& rank);
// Sets the place of each rank, as the cluster has it.
void name_places(TraceSlices& slices, const Cluster& cluster);

// Makes slices of the passes. A timeline may have only the first ranks, which then stand for all (its world
// is folded); these are drawn again and again. Throws InvalidInput if the passes differ in their ranks, or a
// timeline has no spans.
TraceSlices trace_slices(std::span<const TracedPass> passes);

}  // namespace cp::sim
