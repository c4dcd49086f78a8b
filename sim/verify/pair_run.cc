#include "sim/verify/pair_run.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "shared/base/error.h"
#include "shared/plan/execute.h"
#include "shared/redistribute/lower.h"

namespace cp::sim {

namespace {

using Value = std::int64_t;

Value weight_of(std::int32_t contribution) {
  Value weight = 1;
  for (std::int32_t i = 0; i < contribution; ++i) weight *= 3;
  return weight;
}

Value value_of(std::int32_t element, Value weight) { return (element + 1) * weight; }

std::span<const std::int32_t> elements_of(const Written& written, Rank rank) {
  if (!written.layout.mesh.contains(rank)) return {};
  const std::size_t position = static_cast<std::size_t>(written.layout.mesh.index_of(rank));
  return written.holdings.boxes[static_cast<std::size_t>(written.holdings.box_of_rank[position])];
}

std::vector<Value> values_of(std::span<const std::int32_t> elements, Value weight) {
  std::vector<Value> values;
  for (const std::int32_t element : elements) values.push_back(value_of(element, weight));
  return values;
}

// What a rank must hold of each element afterwards: the sum of the contributions that agree with it along the
// axes that stay partial.
Value weight_after(const Written& from, const Written& to, Rank rank) {
  const Mesh& mesh = from.layout.mesh;
  std::set<std::int32_t> contributions;
  for (std::size_t i = 0; i < mesh.ranks().size(); ++i) {
    const auto& kept = to.holdings.partial_axes;  // none between meshes
    const bool counts = std::all_of(kept.begin(), kept.end(), [&](int axis) {
      return mesh.coordinate(mesh.ranks()[i], axis) == mesh.coordinate(rank, axis);
    });
    if (counts) contributions.insert(from.holdings.contribution_of_rank[i]);
  }
  Value weight = 0;
  for (const std::int32_t contribution : contributions) weight += weight_of(contribution);
  return weight;
}

// One rank's part of all pairs. Its input is the same for all of them.
class RankRunner {
 public:
  RankRunner(const ExhaustiveSearch& search, std::size_t source, Rank rank)
      : search_(search), from_(search.layouts()[source]), rank_(rank) {
    if (!from_.layout.mesh.contains(rank)) return;
    const std::size_t position = static_cast<std::size_t>(from_.layout.mesh.index_of(rank));
    input_ = values_of(elements_of(from_, rank), weight_of(from_.holdings.contribution_of_rank[position]));
    untouched_ = input_;
  }

  // What is wrong with the outcome, if anything.
  std::optional<std::string> run(const CheckedPair& pair, const Plan& plan, Device& device) {
    constexpr Value kGarbage = -0x0123456789abcdef;
    const Written& to = search_.layouts()[pair.target];
    const std::span<const std::int32_t> elements = elements_of(to, rank_);
    output_.assign(elements.size(), kGarbage);
    execute(plan, device, {binding(kRedistributeInput, input_), binding(kRedistributeOutput, output_)});
    if (input_ != untouched_) {
      input_ = untouched_;
      return str("rank ", rank_, "'s source is overwritten");
    }
    if (elements.empty()) return std::nullopt;
    const Value weight = weight_after(from_, to, rank_);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const Value expected = value_of(elements[i], weight);
      if (output_[i] != expected) {
        return str("rank ", rank_, " holds ", output_[i], " at position ", i, " of its shard, not ", expected,
                   " (element ", elements[i], " of the tensor)");
      }
    }
    return std::nullopt;
  }

 private:
  static Binding binding(BufferId buffer, std::vector<Value>& values) {
    return {buffer, values.data(), static_cast<std::int64_t>(values.size() * sizeof(Value))};
  }

  const ExhaustiveSearch& search_;
  const Written& from_;
  Rank rank_;
  std::vector<Value> input_, untouched_, output_;
};

// By rank of the fabric: what is wrong with each pair.
using Complaints = std::vector<std::vector<std::optional<std::string>>>;

Complaints run_all(const ExhaustiveSearch& search, std::span<const CheckedPair> pairs, Fabric& fabric) {
  Complaints complaints(static_cast<std::size_t>(fabric.world_size()),
                        std::vector<std::optional<std::string>>(pairs.size()));
  fabric.run([&](Rank rank, Device& device) {
    RankRunner runner(search, pairs.front().source, rank);
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      for (const Plan& plan : pairs[i].plans) {
        if (plan.self == rank)
          complaints[static_cast<std::size_t>(rank)][i] = runner.run(pairs[i], plan, device);
      }
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
