// Pipeline schedules: when each stage runs forward and backward of which micro-batch, and how long it all
// takes.
//
// 1F1B (Narayanan et al. 2019) with one stage a rank; interleaved 1F1B (Narayanan et al. 2021, Megatron) with
// several, dealt in turn: rank r holds stages r, r + pp, ... One rank runs one chunk at a time, in the
// schedule's fixed order; a chunk begins when its input has arrived. Before forward and backward passes take
// turns rank r does pp - 1 - r forward passes, with v > 1 stages each 2 (pp - 1 - r) + (v - 1) pp, or all
// where there are fewer (Megatron core).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace cp::sim {

struct StageTimes {
  double forward_ns = 0, backward_ns = 0;
  double send_forward_ns = 0, send_backward_ns = 0;  // to the next stage, to the one before; beside computing
};

struct PipelineChunk {
  int stage = 0;  // of all stages
  std::int64_t micro_batch = 0;
  bool backward = false;
  double begin_ns = 0, end_ns = 0;
};

struct PipelineTimes {
  double time_ns = 0;
  std::vector<double> idle_ns;  // by rank, within time_ns
  std::vector<std::int64_t>
      most_in_flight;  // by rank: forward passes whose backward has not ended, of all its stages
  std::vector<std::vector<PipelineChunk>> chunks;  // by rank, in order; with keep_chunks
};

// `stages` holds ranks * virtual_stages entries, in order of the layers. What one rank sends to itself takes
// no time. Throws InvalidInput for no micro-batch, for stages that `ranks` does not divide, and with several
// virtual stages for a number of micro-batches that it does not divide (the interleaved schedule needs it; it
// names the nearest numbers). So do the functions below. Time: linear in stages * micro_batches.
PipelineTimes run_pipeline(std::span<const StageTimes> stages, int ranks, std::int64_t micro_batches,
                           bool keep_chunks = false);

// A lower bound of time_ns in constant time for each stage: the busiest rank's work, and the way to it and
// back.
double pipeline_bound_ns(std::span<const StageTimes> stages, int ranks, std::int64_t micro_batches);

}  // namespace cp::sim
