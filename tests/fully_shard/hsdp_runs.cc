#include "tests/fully_shard/hsdp_runs.h"

#include <algorithm>

#include "shared/kernels/host_kernels.h"
#include "shared/plan/check.h"
#include "shared/plan/execute.h"
#include "sim/fabric/fabric.h"
#include "tests/support/values.h"

namespace cp::testing {

NamedShards run_named(std::span<const Plan> plans, const NamedShards& in) {
  check(plans);
  Rank last = 0;
  for (const Plan& plan : plans) last = std::max(last, plan.self);
  std::map<Rank, const Plan*> plan_of;
  std::map<Rank, std::map<BufferId, std::vector<std::byte>>> memory;
  for (const Plan& plan : plans) {
    plan_of[plan.self] = &plan;
    for (std::size_t id = 0; id < plan.buffers.size(); ++id) {
      const Buffer& buffer = plan.buffers[id];
      if (buffer.kind == BufferKind::temporary) continue;
      std::vector<std::byte>& bytes = memory[plan.self][static_cast<BufferId>(id)];
      if (buffer.kind == BufferKind::output) {
        bytes.assign(static_cast<std::size_t>(buffer.bytes()), std::byte{0xfb});
      } else {
        bytes = encode(buffer.dtype, in.at(buffer.name).at(plan.self));
      }
    }
  }
  sim::Fabric fabric(last + 1);
  fabric.run([&](Rank rank, Device& device) {
    const auto plan = plan_of.find(rank);
    if (plan == plan_of.end()) return;
    Bindings bindings;
    for (auto& [id, bytes] : memory.at(rank)) {
      bindings.push_back({id, bytes.data(), static_cast<std::int64_t>(bytes.size())});
    }
    execute(*plan->second, device, bindings);
  });
  NamedShards out;
  for (const auto& [rank, buffers] : memory) {
    for (const auto& [id, bytes] : buffers) {
      const Buffer& buffer = plan_of.at(rank)->buffers[static_cast<std::size_t>(id)];
      if (buffer.kind != BufferKind::input) out[buffer.name][rank] = decode(buffer.dtype, bytes);
    }
  }
  return out;
}

}  // namespace cp::testing
