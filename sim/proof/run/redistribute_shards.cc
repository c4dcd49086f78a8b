#include "sim/proof/run/redistribute_shards.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/kernels/elements.h"
#include "shared/redistribute/lower.h"
#include "sim/proof/run/shard_runs.h"

namespace cp::sim {
namespace {

// How many elements are made or compared at a time. Chosen: 8 KiB of values, which stay in the cache.
constexpr std::int64_t kBlock = 1024;

std::int64_t bytes_on(const Layout& layout, Rank rank) {
  return layout.mesh.contains(rank) ? local_bytes(layout, rank) : 0;
}

// Calls visit(global, local, count) for blocks of at most kBlock elements of the rank's shard.
template <class Visit>
void for_each_block(const Layout& layout, Rank rank, const Visit& visit) {
  for_each_stretch(box(layout, rank), layout.shape,
                   [&](std::int64_t global, std::int64_t local, std::int64_t count) {
                     for (std::int64_t begin = 0; begin < count; begin += kBlock) {
                       visit(global + begin, local + begin, std::min(kBlock, count - begin));
                     }
                   });
}

double combine(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return a + b;
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::product:
      return a * b;
  }
  return 0;
}

// How many contributions an average is of.
double averaged_ranks(const Layout& layout) {
  double ranks = 1;
  for (const int axis : partial_axes(layout)) {
    const auto& partial = std::get<Partial>(layout.placements[static_cast<std::size_t>(axis)]);
    if (partial.op == ReduceOp::avg) ranks *= layout.mesh.axis_size(axis);
  }
  return ranks;
}

}  // namespace

Bindings RedistributeBuffers::bindings() const {
  return {{kRedistributeInput, source.get(), source_bytes},
          {kRedistributeOutput, target.get(), target_bytes}};
}

RedistributeShards::RedistributeShards(const Redistribution& redistribution, std::uint64_t seed, double scale)
    : source_(redistribution.source),
      target_(redistribution.target),
      seed_(seed),
      scale_(scale),
      values_(redistribution, seed, scale) {}

RedistributeBuffers RedistributeShards::make(Rank rank) const {
  RedistributeBuffers buffers;
  buffers.source_bytes = bytes_on(source_, rank), buffers.target_bytes = bytes_on(target_, rank);
  const auto allocate = [](std::int64_t bytes) {
    return std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
  };
  buffers.source = allocate(buffers.source_bytes), buffers.target = allocate(buffers.target_bytes);
  std::fill_n(buffers.target.get(), buffers.target_bytes, std::byte{0xfb});  // as HostMemory does
  if (buffers.source_bytes > 0) fill_source(rank, buffers.source.get());
  return buffers;
}

void RedistributeShards::fill_source(Rank rank, std::byte* source) const {
  const std::int64_t contribution = values_.contribution_of(rank);
  with_element_type(source_.dtype, [&]<class T>(std::type_identity<T>) {
    T* const data = reinterpret_cast<T*>(source);
    std::array<std::int64_t, kBlock> block;
    for_each_block(source_, rank, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
      const std::span values(block.data(), static_cast<std::size_t>(count));
      values_.fill(global, contribution, values);
      for (std::size_t i = 0; i < values.size(); ++i)
        data[static_cast<std::size_t>(local) + i] = convert<T>(values[i]);
    });
  });
}

std::vector<Rank> RedistributeShards::partners_of(Rank rank) const {
  return target_.mesh.group_of(rank, partial_axes(target_));
}

std::optional<RedistributeMismatch> RedistributeShards::compare(
    Rank first_partner, std::span<const RedistributeBuffers* const> partners) const {
  const ReduceOp op = reduction(target_).value_or(ReduceOp::sum);
  const double divisor = averaged_ranks(target_), tolerance = values_.tolerance();
  RedistributeMismatch mismatch;
  with_element_type(target_.dtype, [&]<class T>(std::type_identity<T>) {
    std::vector<const T*> shards;
    for (const RedistributeBuffers* buffers : partners)
      shards.push_back(reinterpret_cast<const T*>(buffers->target.get()));
    std::array<std::int64_t, kBlock> block;
    for_each_block(target_, first_partner, [&](std::int64_t global, std::int64_t local, std::int64_t count) {
      const std::span expected(block.data(), static_cast<std::size_t>(count));
      values_.fill_reduced(global, expected);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const std::size_t at = static_cast<std::size_t>(local) + i;
        double found = static_cast<double>(load(shards.front()[at]));
        for (std::size_t s = 1; s < shards.size(); ++s)
          found = combine(op, found, static_cast<double>(load(shards[s][at])));
        const double wanted = scale_ * static_cast<double>(expected[i]);
        if (std::abs(found / divisor - wanted) <= tolerance) continue;  // false for a NaN
        if (mismatch.count++ > 0) continue;
        const auto offset = static_cast<std::int64_t>(i);
        mismatch = {first_partner, 1, global + offset, local + offset, found / divisor, wanted};
      }
    });
  });
  if (mismatch.count == 0) return std::nullopt;
  return mismatch;
}

std::string RedistributeShards::explain(std::span<const RedistributeMismatch> mismatches) const {
  const RedistributeMismatch& first = *std::min_element(
      mismatches.begin(), mismatches.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  std::int64_t count = 0;
  for (const RedistributeMismatch& mismatch : mismatches) count += mismatch.count;
  Shape index(target_.shape.size());
  std::int64_t rest = first.global;
  for (std::size_t dim = index.size(); dim-- > 0; rest /= target_.shape[dim])
    index[dim] = rest % target_.shape[dim];
  return str(count, " elements on ", mismatches.size(), " ranks are wrong; the first one, on rank ",
             first.rank, ": output[", first.local, "], which is element (", join(index, ", "),
             ") of the tensor, ", is_partial(target_) ? "adds up to " : "is ", first.found,
             " where the index sets say ", first.expected,
             scale_ == 1 ? "" : str(", with the factor ", scale_, " of the gradient"), " (seed ", seed_, ")");
}

std::optional<Digest> RedistributeShards::digest(const RedistributeBuffers& buffers) const {
  if (!values_.is_exact()) return std::nullopt;
  Hasher hasher;
  hasher.add(
      std::span<const std::byte>(buffers.target.get(), static_cast<std::size_t>(buffers.target_bytes)));
  return hasher.digest();
}

}  // namespace cp::sim
