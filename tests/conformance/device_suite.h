// The conformance suite: what every Device promises (shared/plan/device.h), tested the same way on all of
// them.
//
// To put a device under it: write a DeviceFactory and one line in a .cc of this folder,
//   INSTANTIATE_TEST_SUITE_P(Gloo, DeviceConformance, ::testing::Values(gloo_factory()), factory_name);
//
// Ranks may be threads of this process (the fabric) or processes (Gloo, process_world.h). With processes the
// whole test runs in each of them, and `run` calls the body for that process's rank alone: what bodies leave
// behind is known everywhere only after `share`.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shared/plan/builder.h"
#include "shared/plan/device.h"
#include "shared/plan/trace.h"

namespace cp::conformance {

using Values = std::vector<double>;              // of a buffer, or a part of one
using Contents = std::map<std::string, Values>;  // of a rank's buffers, by name

// Ranks, each with its device.
class DeviceWorld {
 public:
  virtual ~DeviceWorld() = default;
  // Calls body once on each rank, at the same time; returns when all have returned, and rethrows the first
  // error. On processes each calls it for its own rank; one may have none.
  virtual void run(const std::function<void(Rank, Device&)>& body) = 0;
  // Gives every process what the bodies of a run have left, by rank: each rank's entry is the one that its
  // body wrote.
  virtual void share(std::vector<Contents>& by_rank) = 0;
  // What the devices observed since the last clear, by rank; in issued goes what the bodies record. On
  // processes the own rank's alone.
  virtual std::vector<RankTrace>& traces() = 0;
  virtual void clear_traces() = 0;
};

struct DeviceFactory {
  std::string name;
  Target target;            // what the devices have
  bool host_memory = true;  // bindings are addresses of the host
  std::function<std::unique_ptr<DeviceWorld>(int world_size)> make;
  std::function<std::string()> why_not = {};  // why its tests are skipped; empty: they are not
};

inline std::ostream& operator<<(std::ostream& out, const DeviceFactory& factory) {
  return out << factory.name;
}
inline std::string factory_name(const ::testing::TestParamInfo<DeviceFactory>& info) {
  return info.param.name;
}

class DeviceConformance : public ::testing::TestWithParam<DeviceFactory> {
 protected:
  static constexpr int kWorldSize = 4;
  static constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64};

  void SetUp() override {
    const std::string why_not = GetParam().why_not ? GetParam().why_not() : "";
    if (!why_not.empty()) GTEST_SKIP() << why_not;
    world_ = GetParam().make(kWorldSize);
  }
  void TearDown() override { world_.reset(); }

  DeviceWorld& world() { return *world_; }
  PlanBuilder builder(Rank rank) const { return PlanBuilder(rank, GetParam().target); }
  bool has(const std::string& collective) const { return GetParam().target.has_collective(collective); }
  std::vector<DType> dtypes() const;  // of the five that the target has

  // Prepares each rank's plan, uploads `inputs` (by rank), executes, and downloads every output and inout.
  // Plans come in any order, for some or all ranks. Expects that what was observed is what was issued.
  std::map<Rank, Contents> execute_all(const std::vector<Plan>& plans,
                                       const std::map<Rank, Contents>& inputs);

  // One collective of a group. Functions of a member's index.
  struct GroupCase {
    std::vector<Rank> ranks;
    std::function<void(PlanBuilder&, GroupId, std::int64_t index)>
        add;  // the step and its buffers; the result is "out"
    std::function<Contents(std::int64_t index)> inputs;
    std::function<Values(std::int64_t index)> expected;
  };
  void expect_outputs(const GroupCase& group_case);

  // Calls run(dtype, ranks, elements of a block) for all of them, when the device has the collective.
  void for_each_case(const std::string& collective,
                     const std::function<void(DType, const std::vector<Rank>&, std::int64_t)>& run);

 private:
  std::unique_ptr<DeviceWorld> world_;
};

// Integers that stay exact in every dtype and reduction here: different for each rank and place.
double sample(ReduceOp op, Rank rank, std::int64_t place);
Values samples(ReduceOp op, Rank rank, std::int64_t numel);
// The reduction of the ranks' samples at `place`.
double reduced(ReduceOp op, const std::vector<Rank>& ranks, std::int64_t place);

std::vector<std::byte> to_bytes(DType dtype, const Values& values);
Values to_values(DType dtype, const std::vector<std::byte>& bytes);

}  // namespace cp::conformance
