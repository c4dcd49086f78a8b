#include "tests/support/shard_data.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "shared/base/error.h"
#include "shared/plan/execute.h"
#include "shared/redistribute/lower.h"
#include "tests/placement/layout_generator.h"
#include "tests/support/values.h"

namespace cp::testing {

std::vector<std::int64_t> element_numbers(const Layout& layout, Rank rank) {
  std::vector<std::int64_t> numbers = {0};
  for (std::size_t dim = 0; dim < layout.shape.size(); ++dim) {
    const Indices indices = indices_by_elements(layout, static_cast<int>(dim), rank);
    std::vector<std::int64_t> next;
    for (const std::int64_t row : numbers) {
      for (const std::int64_t index : indices) next.push_back(row * layout.shape[dim] + index);
    }
    numbers = std::move(next);
  }
  return numbers;
}

std::int64_t contribution_of(const Layout& layout, Rank rank) {
  std::int64_t contribution = 0;
  for (int axis = 0; axis < layout.mesh.num_axes(); ++axis) {
    if (!std::holds_alternative<Partial>(layout.placements[static_cast<std::size_t>(axis)])) continue;
    contribution = contribution * layout.mesh.axis_size(axis) + layout.mesh.coordinate(rank, axis);
  }
  return contribution;
}

std::int64_t num_contributions(const Layout& layout) {
  std::int64_t last = 0;
  for (const Rank rank : layout.mesh.ranks()) last = std::max(last, contribution_of(layout, rank));
  return last + 1;
}

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

Shards run_plans(std::span<const Plan> plans, const Shards& source, const sim::FabricOptions& options) {
  Rank last = 0;
  for (const Plan& plan : plans) last = std::max(last, plan.self);
  sim::Fabric fabric(last + 1, options);
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

std::vector<const Collective*> collectives_of(const Plan& plan) {
  std::vector<const Collective*> collectives;
  for (const StepRef& ref : steps_of(plan)) {
    if (const auto* collective = std::get_if<Collective>(&ref.step->work)) collectives.push_back(collective);
  }
  return collectives;
}

}  // namespace cp::testing
