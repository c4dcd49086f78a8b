// A redistribution between meshes: a weight that four training ranks hold by rows goes to two serving ranks,
// which hold it by columns. Each element travels once.
#include <cstdio>
#include <vector>

#include "shared/redistribute/dtensor.h"
#include "sim/fabric/fabric.h"

int main() {
  const cp::Layout training = cp::parse_layout("S(0)", cp::Mesh::parse("dp=4"), {8, 6}, cp::DType::f32);
  const cp::Layout serving = cp::parse_layout("S(1)", cp::Mesh::parse("tp=2@4/5"), {8, 6}, cp::DType::f32);
  std::vector<float> last(2);
  cp::sim::Fabric fabric(6);
  fabric.run([&](cp::Rank rank, cp::Device& device) {
    const bool trains = rank < 4;
    std::vector<float> part(trains ? 12 : 24, static_cast<float>(rank));  // two rows; or three columns
    const auto bytes = static_cast<std::int64_t>(part.size() * sizeof(float));
    cp::redistribute(device,
                     trains ? cp::from_local(training, rank, part.data(), bytes) : cp::DTensor{training},
                     trains ? cp::DTensor{serving} : cp::from_local(serving, rank, part.data(), bytes));
    if (!trains) last[static_cast<std::size_t>(rank - 4)] = part.back();
  });
  const cp::Redistribution plan = cp::plan_redistribution(training, serving);
  std::printf("%zu step, %lld of %d bytes travel; the last row came from rank %.0f, and from rank %.0f\n",
              plan.steps.size(), static_cast<long long>(plan.bytes_received_total), 8 * 6 * 4, last[0],
              last[1]);
}
