#include "sim/planner/search/question.h"

#include <algorithm>
#include <cmath>

#include "shared/base/text.h"
#include "sim/base/number_text.h"

namespace cp::sim {
namespace {

// Estimate: buffers that NCCL keeps for the channels of a communicator, between one of a node's (tens of MiB)
// and one across nodes (a few hundred).
constexpr std::int64_t kCommunicatorBytes = std::int64_t{128} << 20;

// Four bits, and a scale of eight bits for 16 elements.
constexpr double kNvfp4Bytes = 0.5 + 1.0 / 16;

}  // namespace

namespace {

// Calls use(choice of a layout, what is fixed of it) for all of them. A field that is added to ShardChoices
// does not compile until it is here.
template <class FixedKeys, class Use>
void for_each_shard_choice(ShardChoices& choices, FixedKeys& fixed, const Use& use) {
  auto& [reshard, sync_once, prefetch, bucket, threshold] = choices;
  use(reshard, fixed.reshard), use(sync_once, fixed.sync_once), use(prefetch, fixed.prefetch);
  use(bucket, fixed.bucket), use(threshold, fixed.threshold);
}

}  // namespace

ShardChoices Fixed::shard_choices() const {
  ShardChoices choices;
  for_each_shard_choice(choices, *this,
                        [](auto& choice, const auto& fixed) { choice = fixed.value_or(choice); });
  return choices;
}

void Fixed::reset_shard_choices() {
  ShardChoices choices;
  for_each_shard_choice(choices, *this, [](const auto&, auto& fixed) { fixed.reset(); });
}

std::int64_t usable_bytes(const PlanQuestion& question) {
  const Gpu& gpu = question.cluster.gpu;
  const double gib = std::min(question.max_memory_gib.value_or(gpu.usable_memory_gib), gpu.usable_memory_gib);
  return std::llround(gib * kGiB);
}

std::int64_t counted_bytes(const Memory& memory) { return memory.used() - memory.context; }

bool fp8_products(const PlanQuestion& question) {
  return question.software.linear_precision != LinearPrecision::b16 && question.cluster.gpu.tflops_fp8 > 0;
}

bool fp8_attention(const PlanQuestion& question) {
  return question.software.attention_precision == LinearPrecision::fp8;
}

std::string_view linear_dtype_name(const PlanQuestion& question) {
  if (!fp8_products(question)) return name(question.workload.dtype);
  return question.software.linear_precision == LinearPrecision::nvfp4 ? "nvfp4" : "fp8";
}

std::string_view cache_dtype_name(const PlanQuestion& question) {
  return question.software.fp8_cache ? "fp8" : name(question.workload.kv_dtype);
}

std::string framework_names(const PlanQuestion& question) {
  std::vector<std::string_view> names;
  for (const Framework framework : question.frameworks) names.push_back(name(framework));
  return join(names, " and ");
}

MemoryRules memory_rules(const PlanQuestion& question) {
  const Gpu& gpu = question.cluster.gpu;
  MemoryRules rules;
  rules.context_bytes = std::llround((gpu.memory_gib - gpu.usable_memory_gib) * kGiB);
  rules.communicator_bytes = kCommunicatorBytes;
  rules.loss_f32_copies = question.software.loss_f32_copies;
  rules.served_layer_bytes = static_cast<double>(size_bytes(question.workload.dtype));
  if (fp8_products(question))
    rules.served_layer_bytes = question.software.linear_precision == LinearPrecision::nvfp4 ? kNvfp4Bytes : 1;
  if (question.software.fp8_cache) rules.cached_bytes = 1;
  rules.slack = question.software.allocator_slack;
  return rules;
}

}  // namespace cp::sim
