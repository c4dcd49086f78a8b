// How a slice is called in a trace file, and what the file says of it. There are two forms.
//
// One is in words for people, whatever ran the slice. The other is what PyTorch's profiler would say, for
// tools that recognise communication by the names of NCCL's kernels and the arguments of ProcessGroupNCCL.
// The second form claims kernels that a run on CPUs never had, so it is written only if somebody asks for it
// (trace_formats.h).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "sim/present/traces/trace_slices.h"

namespace cp::sim {

// The number of a stream in a trace. HolisticTraceAnalysis takes numbers above 0 for streams of a GPU. 7 is
// how CUDA's default stream shows up in traces of PyTorch's profiler.
constexpr std::int64_t trace_stream(int row) { return 7 + row; }

struct TraceArgument {
  std::string name;
  std::variant<std::int64_t, std::string> value;
};

// The name in words: "attention_forward: layer 3", "all_gather: k and v, group cp, 1.5 MiB". A step without a
// label is called "step 7". The bytes are those of the larger buffer; of an exchange, what is sent or
// received in all.
std::string slice_name(const TraceSlice& slice, const Plan& plan);
std::vector<TraceArgument> slice_arguments(const TraceSlice& slice, const Plan& plan);

// The profiler's name: "attention_forward", "ncclDevKernel_AllGather_RING_LL".
std::string profiler_name(const Step& step, const Plan& plan);
// All of the profiler's arguments but the device, which a plan does not know.
std::vector<TraceArgument> profiler_arguments(const TraceSlice& slice, const Plan& plan);

}  // namespace cp::sim
