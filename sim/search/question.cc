#include "sim/search/question.h"

#include <algorithm>
#include <cmath>

namespace cp::sim {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

// Estimate: buffers that NCCL keeps for the channels of a communicator, between one of a node's (tens of MiB) and one across
// nodes (a few hundred).
constexpr std::int64_t kCommunicatorBytes = std::int64_t{128} << 20;

}  // namespace

std::int64_t usable_bytes(const PlanQuestion& question) {
  const Gpu& gpu = question.cluster.gpu;
  const double gib = std::min(question.max_memory_gib.value_or(gpu.usable_memory_gib), gpu.usable_memory_gib);
  return std::llround(gib * kGiB);
}

MemoryRules memory_rules(const PlanQuestion& question) {
  const Gpu& gpu = question.cluster.gpu;
  MemoryRules rules;
  rules.context_bytes = std::llround((gpu.memory_gib - gpu.usable_memory_gib) * kGiB);
  rules.communicator_bytes = kCommunicatorBytes;
  rules.loss_f32_copies = question.software.loss_f32_copies;
  const bool fp8 = question.software.linear_precision == LinearPrecision::fp8;
  rules.served_layer_bytes = fp8 ? 1 : size_bytes(question.workload.dtype);
  rules.slack = question.software.allocator_slack;
  return rules;
}

}  // namespace cp::sim
