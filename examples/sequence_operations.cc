// What a context-parallel model does to its tensors along the sequence, forward and backward: 16 tokens of 4
// heads on 2 x 2 ranks.
#include <numeric>
#include <vector>

#include "shared/context_parallel/sequence.h"
#include "shared/redistribute/dtensor.h"
#include "sim/fabric/fabric.h"

int main() {
  const cp::Mesh mesh = cp::Mesh::parse("ring=2,ulysses=2");
  const cp::SequenceAxes axes{"ring", "ulysses"};
  const cp::Layout whole = cp::parse_layout("R,R", mesh, {16, 4, 2}, cp::DType::f32);
  const cp::SequenceMove in = cp::split_ring_then_ulysses(whole, axes, 0, cp::HeadTail{});  // 4 tokens each
  const cp::SequenceMove heads = cp::all_to_all(in.to, "ulysses", 1, 0);    // 8 tokens of 2 heads
  const cp::SequenceMove home = cp::all_to_all(heads.to, "ulysses", 0, 1);  // 4 tokens of 4 heads again
  const cp::SequenceMove out = cp::gather_ulysses_then_ring(home.to, axes);
  std::vector<int> right(4, 0);
  cp::sim::Fabric fabric(mesh.size());
  fabric.run([&](cp::Rank rank, cp::Device& device) {
    const auto on_rank = [&](const cp::Layout& layout, std::vector<float>& data) {
      data.resize(static_cast<std::size_t>(cp::local_numel(layout, rank)));
      return cp::from_local(layout, rank, data.data(), cp::local_bytes(layout, rank));
    };
    std::vector<float> x(128), tokens, columns, again, y, dtokens(32, 1), dx;
    std::iota(x.begin(), x.end(), 0.0F);
    cp::redistribute(device, on_rank(in.from, x), on_rank(in.to, tokens));
    cp::redistribute(device, on_rank(heads.from, tokens), on_rank(heads.to, columns));
    cp::redistribute(device, on_rank(home.from, columns), on_rank(home.to, again));
    cp::redistribute(device, on_rank(out.from, again), on_rank(out.to, y));
    // The gradient of the split: gathered, and divided by the 4 ranks, each of which counts it.
    cp::redistribute_backward(device, in.from, in.to, on_rank(in.to, dtokens), on_rank(in.from, dx),
                              cp::gradient_options(in));
    right[static_cast<std::size_t>(rank)] = x == y && tokens == again && dx == std::vector<float>(128, 0.25F);
  });
  return right == std::vector<int>(4, 1) ? 0 : 1;
}
