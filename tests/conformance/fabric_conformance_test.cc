// The simulated fabric under the conformance suite: both schedules, and as a poorer library.
#include "sim/fabric/fabric.h"
#include "tests/conformance/device_suite.h"

namespace cp::conformance {
namespace {

class FabricWorld final : public DeviceWorld {
 public:
  FabricWorld(int world_size, const sim::FabricOptions& options) : fabric_(world_size, options) {}
  void run(const std::function<void(Rank, Device&)>& body) override { fabric_.run(body); }
  void share(std::vector<Contents>&) override {}  // one process
  std::vector<RankTrace>& traces() override { return fabric_.traces(); }
  void clear_traces() override { fabric_.clear_traces(); }

 private:
  sim::Fabric fabric_;
};

DeviceFactory fabric_factory(const std::string& name, const sim::FabricOptions& options) {
  return {.name = name, .target = options.target, .host_memory = true, .make = [options](int world_size) {
            return std::make_unique<FabricWorld>(world_size, options);
          }};
}

Target poorer_target() {
  Target target = host_target();
  target.name = "poorer";
  target.collectives.erase("all_to_all");
  target.collectives.erase("exchange");
  target.kernels.erase("matmul");
  target.dtypes.erase(DType::bf16);
  return target;
}

INSTANTIATE_TEST_SUITE_P(Fabric, DeviceConformance,
                         ::testing::Values(fabric_factory("Parallel", {}),
                                           fabric_factory("Baton",
                                                          {.schedule = sim::Schedule::baton, .seed = 7}),
                                           fabric_factory("Poorer", {.target = poorer_target()})),
                         factory_name);

}  // namespace
}  // namespace cp::conformance
