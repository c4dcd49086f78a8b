// A device that watches: it stands between the executor and any other device, and counts what is launched
// while columns of a tensor become rows.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "shared/plan/forwarding_device.h"
#include "shared/redistribute/dtensor.h"
#include "sim/fabric/fabric.h"

class Watching final : public cp::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  void launch(const cp::StepRef& step, std::int64_t iteration) override {
    ++launched[std::string(cp::operation_name(step.step->work))];
    ForwardingDevice::launch(step, iteration);
  }
  std::map<std::string, int> launched;
};

int main() {
  const cp::Mesh mesh = cp::Mesh::parse("tp=4");
  const cp::Layout columns = cp::parse_layout("S(1)", mesh, {8, 8}, cp::DType::f32);
  const cp::Layout rows = cp::parse_layout("S(0)", mesh, {8, 8}, cp::DType::f32);
  cp::sim::Fabric fabric(mesh.size());
  fabric.run([&](cp::Rank rank, cp::Device& device) {
    Watching watching(device);
    std::vector<float> in(16), out(16);
    cp::redistribute(watching, cp::from_local(columns, rank, in.data(), 64),
                     cp::from_local(rows, rank, out.data(), 64));
    if (rank != 0) return;
    for (const auto& [operation, times] : watching.launched) std::printf("%s %d\n", operation.c_str(), times);
  });
}
