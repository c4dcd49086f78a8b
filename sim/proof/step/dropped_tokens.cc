#include "sim/proof/step/dropped_tokens.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "shared/base/index.h"
#include "shared/context_parallel/sharding.h"
#include "shared/placement/index_set.h"

namespace cp::sim {
namespace {

// The rows of a sequence that each cp rank has at a home, in its order.
using RowsOfRanks = std::vector<std::vector<std::int64_t>>;

RowsOfRanks rows_at_home(const StepRequest& request, int home) {
  const ParallelLayout& layout = request.layout;
  const AttentionProblem problem =
      attention_problem(request.model, request.workload, layout, first_attention(request.model));
  const AttentionSharding sharding(problem, layout.cp, strategy_at_home(layout, home));
  RowsOfRanks all;
  for (int index = 0; index < layout.cp; ++index) {
    const IndexSet rows = sharding.home_q(index).rows;
    std::vector<std::int64_t>& of_rank = all.emplace_back();
    for (std::int64_t row = 0; row < size(rows); ++row) of_rank.push_back(to_global(rows, row));
  }
  return all;
}

// For how many rows of one rank each expert of the layer has room. A rank sends every ep rank as many slots:
// top_k for each of its tokens, times the imbalance, dealt to the ep ranks. The experts of a rank share all
// slots that it gets, ceil(slots / experts) each, so that the last ones have fewer or none; and of an
// expert's slots each sender may fill as many as every other.
std::vector<std::int64_t> room_of_experts(const StepRequest& request, std::int64_t most_rows) {
  const Experts& experts = *request.model.experts;
  const std::int64_t ep = request.layout.ep, on_rank = experts.count / ep,
                     choices = request.layout.micro_batch * most_rows * experts.top_k;
  const auto block = static_cast<std::int64_t>(
      std::ceil(static_cast<double>(choices) / static_cast<double>(ep) * request.workload.expert_imbalance));
  const std::int64_t slots = ep * block, share = (slots + on_rank - 1) / on_rank;
  std::vector<std::int64_t> room;
  for (std::int64_t expert = 0; expert < experts.count; ++expert) {
    const std::int64_t before = std::min(slots, expert % on_rank * share);
    room.push_back(std::min(share, slots - before) / ep);
  }
  return room;
}

struct Rule {
  std::vector<int> homes;  // of layers; the last one is that of prediction layers, too
  std::vector<RowsOfRanks> rows;
  std::vector<std::int64_t> room;

  explicit Rule(const StepRequest& request)
      : homes(homes_of_layers(request.model, request.workload, request.layout)) {
    for (int home = 0; home <= *std::max_element(homes.begin(), homes.end()); ++home)
      rows.push_back(rows_at_home(request, home));
    // All ranks send as much as the one with most rows at the layout's own home.
    std::int64_t most = 0;
    for (const auto& of_rank : rows.front()) most = std::max(most, std::ssize(of_rank));
    room = room_of_experts(request, most);
  }

  std::vector<bool> kept(const RoutedTokens& routed) const {
    std::vector<bool> kept(routed.experts.size());
    const int home = homes[idx(std::min(routed.layer, std::ssize(homes) - 1))];
    for (const std::vector<std::int64_t>& of_rank : rows[idx(home)]) {
      std::vector<std::int64_t> left = room;
      for (std::int64_t sequence = 0; sequence < routed.sequences; ++sequence) {
        for (const std::int64_t row : of_rank) {
          const std::int64_t first = (sequence * routed.seq_len + row) * routed.top_k;
          for (std::int64_t choice = first; choice < first + routed.top_k; ++choice)
            kept[idx(choice)] = left[idx(routed.experts[idx(choice)])]-- > 0;
        }
      }
    }
    return kept;
  }
};

}  // namespace

DropRule drops_of(const StepRequest& request) {
  return [rule = std::make_shared<const Rule>(request)](const RoutedTokens& routed) {
    return rule->kept(routed);
  };
}

}  // namespace cp::sim
