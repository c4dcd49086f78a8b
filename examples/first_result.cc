// The first program of docs/embedding.md: four ranks turn a tensor sharded by rows into one sharded by
// columns.
#include <vector>

#include "shared/redistribute/dtensor.h"
#include "sim/fabric/fabric.h"

int main() {
  const cp::Mesh mesh = cp::Mesh::parse("dp=2,tp=2");
  const cp::Layout rows = cp::parse_layout("S(0),S(0)", mesh, {8, 8}, cp::DType::f32);
  const cp::Layout columns = cp::parse_layout("S(1),S(1)", mesh, {8, 8}, cp::DType::f32);
  std::vector<int> right(4, 0);
  cp::sim::Fabric fabric(mesh.size());
  fabric.run([&](cp::Rank rank, cp::Device& device) {
    std::vector<float> in(16, static_cast<float>(rank)), out(16);  // two rows; two columns
    cp::redistribute(device, cp::from_local(rows, rank, in.data(), 64),
                     cp::from_local(columns, rank, out.data(), 64));
    // From the first and last rank.
    right[static_cast<std::size_t>(rank)] = out.front() == 0 && out.back() == 3;
  });
  return right == std::vector<int>(4, 1) ? 0 : 1;
}
