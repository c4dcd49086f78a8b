#include "sim/proof/exhaustive/pair_run.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/plan/execute.h"
#include "shared/redistribute/gradient.h"
#include "shared/redistribute/lower.h"

namespace cp::sim {

namespace {

// What contributions hold, and what they make together, in the type of the tensor's elements.
template <class Value>
class TestData {
 public:
  TestData(ReduceOp op, std::int32_t num_contributions) : op_(op), count_(num_contributions) {}

  Value of(std::int32_t element, std::int32_t contribution) const {
    switch (op_) {
      case ReduceOp::sum:
        return static_cast<Value>(element + 1) * power_of_three(contribution);
      case ReduceOp::avg:
        return static_cast<Value>(count_) * static_cast<Value>(element + 1) * power_of_three(contribution);
      case ReduceOp::min:
      case ReduceOp::max:
        return static_cast<Value>((element + 1) * count_ + (contribution + element) % count_);
      case ReduceOp::product:
        return static_cast<Value>(odd(element, contribution));
    }
    return 0;
  }

  Value of(std::int32_t element, const std::set<std::int32_t>& contributions) const {
    Value result = of(element, *contributions.begin());
    for (auto next = std::next(contributions.begin()); next != contributions.end(); ++next) {
      const Value value = of(element, *next);
      switch (op_) {
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
          result = static_cast<Value>(static_cast<std::uint64_t>(result) * static_cast<std::uint64_t>(value));
          break;
      }
    }
    return op_ == ReduceOp::avg ? result / static_cast<Value>(contributions.size()) : result;
  }

 private:
  static Value power_of_three(std::int32_t exponent) {
    Value power = 1;
    for (std::int32_t i = 0; i < exponent; ++i) power *= 3;
    return power;
  }
  static std::uint64_t odd(std::int32_t element, std::int32_t contribution) {
    std::uint64_t bits = 0;
    for (const std::int32_t part : {element, contribution}) {
      bits = (bits + static_cast<std::uint64_t>(part) + 1) * 0x9e3779b97f4a7c15;
      bits ^= bits >> 29;
    }
    return bits | 1;
  }

  ReduceOp op_;
  std::int32_t count_;
};

std::span<const std::int32_t> elements_of(const Written& written, Rank rank) {
  if (!written.layout.mesh.contains(rank)) return {};
  const std::size_t position = static_cast<std::size_t>(written.layout.mesh.index_of(rank));
  return written.holdings.boxes[static_cast<std::size_t>(written.holdings.box_of_rank[position])];
}

// What a rank must hold the reduction of afterwards: the contributions that agree with it along the axes that
// stay partial.
std::set<std::int32_t> contributions_after(const Written& from, const Written& to, Rank rank) {
  const Mesh& mesh = from.layout.mesh;
  std::set<std::int32_t> contributions;
  for (std::size_t i = 0; i < mesh.ranks().size(); ++i) {
    const auto& kept = to.holdings.partial_axes;  // none between meshes
    const bool counts = std::all_of(kept.begin(), kept.end(), [&](int axis) {
      return mesh.coordinate(mesh.ranks()[i], axis) == mesh.coordinate(rank, axis);
    });
    if (counts) contributions.insert(from.holdings.contribution_of_rank[i]);
  }
  return contributions;
}

// One rank's part of all pairs. Its input is the same for all of them.
template <class Value>
class RankRunner {
 public:
  RankRunner(const ExhaustiveSearch& search, std::size_t source, Rank rank)
      : search_(search),
        from_(search.layouts()[source]),
        rank_(rank),
        data_(search.reduction(), from_.holdings.num_contributions) {
    if (!from_.layout.mesh.contains(rank)) return;
    const std::size_t position = static_cast<std::size_t>(from_.layout.mesh.index_of(rank));
    for (const std::int32_t element : elements_of(from_, rank))
      input_.push_back(data_.of(element, from_.holdings.contribution_of_rank[position]));
    untouched_ = input_;
  }

  // What is wrong with the outcome, if anything.
  std::optional<std::string> run(const CheckedPair& pair, const Plan& plan, Device& device) {
    constexpr Value kGarbage = static_cast<Value>(-0x0123456789abcdef);
    const Written& to = search_.layouts()[pair.target];
    const std::span<const std::int32_t> elements = elements_of(to, rank_);
    output_.assign(elements.size(), kGarbage);
    execute(plan, device, {binding(kRedistributeInput, input_), binding(kRedistributeOutput, output_)});
    if (input_ != untouched_) {
      input_ = untouched_;
      return str("rank ", rank_, "'s source is overwritten");
    }
    std::set<std::int32_t> contributions = contributions_after(from_, to, rank_);
    if (pair.regroups && !to.holdings.partial_axes.empty()) {
      reduce_output(to.layout, device);
      contributions.clear();
      for (std::int32_t c = 0; c < from_.holdings.num_contributions; ++c) contributions.insert(c);
    }
    if (elements.empty()) return std::nullopt;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const Value expected = data_.of(elements[i], contributions);
      if (output_[i] != expected) {
        return str("rank ", rank_, " holds ", output_[i], " at position ", i, " of its shard, not ", expected,
                   " (element ", elements[i], " of the tensor)");
      }
    }
    return std::nullopt;
  }

 private:
  // Where contributions were reduced on the way and new ones made, only what these make together is known.
  void reduce_output(const Layout& layout, Device& device) {
    if (!layout.mesh.contains(rank_)) return;
    const Plan plan = lower(plan_redistribution(layout, reduced_layout(layout)), rank_);
    std::vector<Value> reduced(output_.size());
    execute(plan, device, {binding(kRedistributeInput, output_), binding(kRedistributeOutput, reduced)});
    output_ = std::move(reduced);
  }

  static Binding binding(BufferId buffer, std::vector<Value>& values) {
    return {buffer, values.data(), static_cast<std::int64_t>(values.size() * sizeof(Value))};
  }

  const ExhaustiveSearch& search_;
  const Written& from_;
  Rank rank_;
  TestData<Value> data_;
  std::vector<Value> input_, untouched_, output_;
};

// By rank of the fabric: what is wrong with each pair.
using Complaints = std::vector<std::vector<std::optional<std::string>>>;

Complaints run_all(const ExhaustiveSearch& search, std::span<const CheckedPair> pairs, Fabric& fabric) {
  Complaints complaints(static_cast<std::size_t>(fabric.world_size()),
                        std::vector<std::optional<std::string>>(pairs.size()));
  const auto run_rank = [&](auto runner, Rank rank, Device& device) {
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      for (const Plan& plan : pairs[i].plans) {
        if (plan.self == rank)
          complaints[static_cast<std::size_t>(rank)][i] = runner.run(pairs[i], plan, device);
      }
    }
  };
  const std::size_t source = pairs.front().source;
  fabric.run([&](Rank rank, Device& device) {
    if (search.reduction() == ReduceOp::avg) {
      run_rank(RankRunner<float>(search, source, rank), rank, device);
    } else {
      run_rank(RankRunner<std::int64_t>(search, source, rank), rank, device);
    }
  });
  return complaints;
}

void add_complaints(const Complaints& complaints, std::span<CheckedPair> pairs) {
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto first = std::find_if(complaints.begin(), complaints.end(),
                                    [&](const auto& of_rank) { return of_rank[i].has_value(); });
    if (first != complaints.end()) pairs[i].findings.push_back({Fault::wrong, *(*first)[i]});
  }
}

}  // namespace

void run_pairs(const ExhaustiveSearch& search, std::span<CheckedPair> pairs, Fabric& fabric) {
  if (pairs.empty()) return;
  try {
    add_complaints(run_all(search, pairs, fabric), pairs);
  } catch (const Error& error) {
    if (pairs.size() == 1) {
      pairs.front().findings.push_back({Fault::wrong, error.what()});
      return;
    }
    // Some pair cannot be run: find out which by running each alone.
    for (CheckedPair& pair : pairs) run_pairs(search, {&pair, 1}, fabric);
  }
}

}  // namespace cp::sim
