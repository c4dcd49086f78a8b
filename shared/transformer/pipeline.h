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

namespace cp {

struct StageTimes {
  double forward_ns = 0, backward_ns = 0;
  // Transfers to the next stage, and to the one before. They run beside computing.
  double send_forward_ns = 0, send_backward_ns = 0;
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

// `stages` has ranks * virtual_stages entries, in the order of the layers. What a rank sends to itself takes
// no time. Throws InvalidInput if there is no micro-batch, or if `ranks` does not divide the number of
// stages. With several virtual stages it also throws, and names the nearest numbers, if `ranks` does not
// divide the number of micro-batches: the interleaved schedule needs that. The functions below throw the
// same. Takes time in proportion to stages * micro_batches.
PipelineTimes run_pipeline(std::span<const StageTimes> stages, int ranks, std::int64_t micro_batches,
                           bool keep_chunks = false);

// Returns time_ns; or, where that is above `most_ns`, what it surely is at least, which is above it, too: the
// schedule is left as soon as that is clear.
double pipeline_ns(std::span<const StageTimes> stages, int ranks, std::int64_t micro_batches, double most_ns);

// Returns a lower bound of time_ns: the work of the busiest rank, and the way of the first micro-batch to it
// and of the last one back. Takes constant time for each stage.
double pipeline_bound_ns(std::span<const StageTimes> stages, int ranks, std::int64_t micro_batches);

}  // namespace cp
