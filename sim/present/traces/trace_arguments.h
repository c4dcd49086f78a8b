// How a slice is called in a trace file and what is said of it. Communication has the names of NCCL's
// kernels, and its arguments those of PyTorch's profiler (ProcessGroupNCCL's), which is where tools look for
// them.
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

// "attention_forward"; "ncclDevKernel_AllGather_RING_LL".
std::string slice_name(const Step& step, const Plan& plan);

struct TraceArgument {
  std::string name;
  std::variant<std::int64_t, std::string> value;
};
// All but the device, which a plan does not know.
std::vector<TraceArgument> slice_arguments(const TraceSlice& slice, const Plan& plan);

}  // namespace cp::sim
