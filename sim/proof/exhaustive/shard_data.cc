#include "sim/proof/exhaustive/shard_data.h"

#include <algorithm>
#include <numeric>

#include "shared/kernels/host_kernels.h"
#include "shared/plan/execute.h"
#include "shared/redistribute/lower.h"

namespace cp::sim {

Shards make_shards(const Layout& layout, const ElementValue& value) {
  Shards shards;
  for (const Rank rank : layout.mesh.ranks()) {
    const std::int64_t contribution = contribution_of(layout, rank);
    std::vector<double>& shard = shards[rank];
    for (const std::int64_t element : element_numbers(layout, rank))
      shard.push_back(value(element, contribution));
  }
  return shards;
}

double small_integer(std::uint64_t seed, std::int64_t element, std::int64_t contribution,
                     std::int64_t limit) {
  std::uint64_t bits = seed;
  for (const std::int64_t part : {element, contribution}) {
    bits = (bits + static_cast<std::uint64_t>(part) + 1) * 0x9e3779b97f4a7c15;
    bits ^= bits >> 29;
  }
  const auto choices = 2 * static_cast<std::uint64_t>(limit) + 1;
  return static_cast<double>(static_cast<std::int64_t>((bits >> 11) % choices) - limit);
}

double inner_product(const Shards& a, const Shards& b) {
  double sum = 0;
  for (const auto& [rank, shard] : a) {
    const auto other = b.find(rank);
    if (other == b.end()) continue;
    sum = std::inner_product(shard.begin(), shard.end(), other->second.begin(), sum);
  }
  return sum;
}

NamedShards run_named(std::span<const Plan> plans, const NamedShards& in) {
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
        bytes.assign(static_cast<std::size_t>(buffer.bytes()), std::byte{0xfb});  // as in run_plans()
      } else {
        bytes = encode(buffer.dtype, in.at(buffer.name).at(plan.self));
      }
    }
  }
  Fabric fabric(last + 1);
  fabric.run([&](Rank rank, Device& device) {
    const auto plan = plan_of.find(rank);
    if (plan == plan_of.end()) return;
    Bindings bindings;
    for (auto& [id, bytes] : memory.at(rank))
      bindings.push_back({id, bytes.data(), static_cast<std::int64_t>(bytes.size())});
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

Shards run_plans(std::span<const Plan> plans, const Shards& source, const FabricOptions& options) {
  Rank last = 0;
  for (const Plan& plan : plans) last = std::max(last, plan.self);
  Fabric fabric(last + 1, options);
  std::map<Rank, std::vector<std::byte>> inputs, outputs;
  std::map<Rank, const Plan*> plan_of;
  for (const Plan& plan : plans) {
    const auto buffer = [&](BufferId id) -> const Buffer& {
      return plan.buffers.at(static_cast<std::size_t>(id));
    };
    plan_of[plan.self] = &plan;
    const auto shard = source.find(plan.self);
    inputs[plan.self] = encode(buffer(kRedistributeInput).dtype,
                               shard == source.end() ? std::vector<double>{} : shard->second);
    // What nobody writes is no number that anybody expects.
    outputs[plan.self].assign(static_cast<std::size_t>(buffer(kRedistributeOutput).bytes()), std::byte{0xfb});
  }
  fabric.run([&](Rank rank, Device& device) {
    const auto plan = plan_of.find(rank);
    if (plan == plan_of.end()) return;
    const auto binding = [](BufferId id, std::vector<std::byte>& bytes) {
      return Binding{id, bytes.data(), static_cast<std::int64_t>(bytes.size())};
    };
    execute(*plan->second, device,
            {binding(kRedistributeInput, inputs.at(rank)), binding(kRedistributeOutput, outputs.at(rank))});
  });
  Shards target;
  for (const auto& [rank, plan] : plan_of)
    target[rank] = decode(plan->buffers[kRedistributeOutput].dtype, outputs.at(rank));
  return target;
}

}  // namespace cp::sim
