#include "tests/conformance/device_suite.h"

#include <algorithm>
#include <span>

#include "shared/base/text.h"
#include "shared/kernels/host_kernels.h"
#include "shared/plan/session.h"

namespace cp::conformance {
namespace {

// Groups of a world of four: of every size, in rank order and not, with gaps.
const std::vector<Rank> kGroupShapes[] = {{2}, {0, 1}, {3, 1}, {2, 0, 3}, {0, 1, 2, 3}, {3, 0, 2, 1}};
constexpr std::int64_t kBlockSizes[] = {0, 1, 5, 64};

}  // namespace

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceConformance);

std::vector<DType> DeviceConformance::dtypes() const {
  std::vector<DType> result;
  for (const DType dtype : kDTypes) {
    if (GetParam().target.dtypes.contains(dtype)) result.push_back(dtype);
  }
  return result;
}

std::map<Rank, Contents> DeviceConformance::execute_all(const std::vector<Plan>& plans,
                                                        const std::map<Rank, Contents>& inputs) {
  std::map<Rank, const Plan*> by_rank;
  for (const Plan& plan : plans) by_rank[plan.self] = &plan;
  std::vector<Contents> outputs(kWorldSize);
  world().clear_traces();
  world().run([&](Rank rank, Device& device) {
    if (!by_rank.contains(rank)) return;
    const Plan& plan = *by_rank.at(rank);
    PlanSession session(device, plan);
    const auto given = inputs.find(rank);
    for (std::size_t id = 0; id < plan.buffers.size(); ++id) {
      if (given == inputs.end() || !given->second.contains(plan.buffers[id].name)) continue;
      session.upload(static_cast<BufferId>(id),
                     to_bytes(plan.buffers[id].dtype, given->second.at(plan.buffers[id].name)));
    }
    session.run({.trace = &world().traces()[static_cast<std::size_t>(rank)]});
    for (const BufferId id : session.outputs()) {
      const Buffer& buffer = plan.buffers[static_cast<std::size_t>(id)];
      outputs[static_cast<std::size_t>(rank)][buffer.name] = to_values(buffer.dtype, session.download(id));
    }
  });
  world().share(outputs);
  EXPECT_EQ(first_difference(world().traces(), world().traces()), std::nullopt);
  std::map<Rank, Contents> result;
  for (const auto& [rank, plan] : by_rank) result[rank] = outputs[static_cast<std::size_t>(rank)];
  return result;
}

void DeviceConformance::for_each_case(
    const std::string& collective,
    const std::function<void(DType, const std::vector<Rank>&, std::int64_t)>& run) {
  if (!has(collective)) GTEST_SKIP() << "the device has no " << collective;
  for (const DType dtype : dtypes()) {
    for (const std::vector<Rank>& ranks : kGroupShapes) {
      for (const std::int64_t numel : kBlockSizes) {
        SCOPED_TRACE(str(collective, " ", name(dtype), " on [", join(ranks), "] with blocks of ", numel));
        run(dtype, ranks, numel);
      }
    }
  }
}

void DeviceConformance::expect_outputs(const GroupCase& group_case) {
  std::vector<Plan> plans;
  std::map<Rank, Contents> inputs;
  for (std::size_t i = 0; i < group_case.ranks.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    PlanBuilder b = builder(group_case.ranks[i]);
    group_case.add(b, b.group("g", group_case.ranks), index);
    plans.push_back(std::move(b).build({}));
    inputs[group_case.ranks[i]] = group_case.inputs(index);
  }
  const auto outputs = execute_all(plans, inputs);
  for (std::size_t i = 0; i < group_case.ranks.size(); ++i) {
    EXPECT_EQ(outputs.at(group_case.ranks[i]).at("out"), group_case.expected(static_cast<std::int64_t>(i)))
        << "on rank " << group_case.ranks[i];
  }
}

double sample(ReduceOp op, Rank rank, std::int64_t place) {
  const std::int64_t mixed = (place * 7 + rank * 5 + place * rank) % 11;
  switch (op) {
    case ReduceOp::sum:
      return static_cast<double>(mixed - 5);
    case ReduceOp::avg:
      return static_cast<double>(12 * (mixed % 3));  // 2, 3 and 4 divide each sum
    case ReduceOp::min:
    case ReduceOp::max:
      return static_cast<double>(mixed - 5);
    case ReduceOp::product:
      return static_cast<double>(mixed % 3 == 0 ? -1 : mixed % 3);
  }
  return 0;
}

Values samples(ReduceOp op, Rank rank, std::int64_t numel) {
  Values values;
  for (std::int64_t place = 0; place < numel; ++place) values.push_back(sample(op, rank, place));
  return values;
}

double reduced(ReduceOp op, const std::vector<Rank>& ranks, std::int64_t place) {
  double result = sample(op, ranks.front(), place);
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    const double value = sample(op, ranks[i], place);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
        result += value;
        break;
      case ReduceOp::min:
        result = std::min(result, value);
        break;
      case ReduceOp::max:
        result = std::max(result, value);
        break;
      case ReduceOp::product:
        result *= value;
        break;
    }
  }
  return op == ReduceOp::avg ? result / static_cast<double>(ranks.size()) : result;
}

std::vector<std::byte> to_bytes(DType dtype, const Values& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_bytes(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_element(dtype, bytes.data(), static_cast<std::int64_t>(i), values[i]);
  }
  return bytes;
}

Values to_values(DType dtype, const std::vector<std::byte>& bytes) {
  Values values(bytes.size() / static_cast<std::size_t>(size_bytes(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = load_element(dtype, bytes.data(), static_cast<std::int64_t>(i));
  }
  return values;
}

}  // namespace cp::conformance
