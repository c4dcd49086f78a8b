// How a slice is called in a trace file and what is said of it: in words for people, whatever ran it, and as
// PyTorch's profiler would say it, for tools that know communication by the names of NCCL's kernels and by
// the arguments of ProcessGroupNCCL. The second claims kernels that a run on CPUs never had, so that it is
// written only where somebody asked for it (trace_formats.h).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "sim/present/traces/trace_slices.h"

namespace cp::sim {

// The number of a stream in a trace. HolisticTraceAnalysis takes those above 0 for a GPU's; CUDA's default
// stream shows up as 7.
constexpr std::int64_t trace_stream(int row) { return 7 + row; }

struct TraceArgument {
  std::string name;
  std::variant<std::int64_t, std::string> value;
};

// "attention_forward: layer 3", "all_gather: k and v, group cp, 1.5 MiB"; a step without a label is called
// "step 7". The bytes are those of the larger buffer, of an exchange what is sent or received in all.
std::string slice_name(const TraceSlice& slice, const Plan& plan);
std::vector<TraceArgument> slice_arguments(const TraceSlice& slice, const Plan& plan);

// "attention_forward"; "ncclDevKernel_AllGather_RING_LL".
std::string profiler_name(const Step& step, const Plan& plan);
// All but the device, which a plan does not know.
std::vector<TraceArgument> profiler_arguments(const TraceSlice& slice, const Plan& plan);

}  // namespace cp::sim
