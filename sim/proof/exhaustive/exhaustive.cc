#include "sim/proof/exhaustive/exhaustive.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <set>
#include <utility>

#include "shared/base/text.h"
#include "sim/proof/exhaustive/layouts.h"

namespace cp::sim {

namespace {

constexpr std::int64_t kNoTime = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kNoLabel = std::numeric_limits<std::size_t>::max();

// Two layouts with equal keys need no move between them: every rank holds the same elements in the same
// order, of the same contribution. A rank outside of a mesh holds nothing.
using HoldingsKey = std::pair<std::vector<int>, std::map<Rank, std::vector<std::int32_t>>>;

HoldingsKey key_of(const Written& written) {
  HoldingsKey key;
  key.first = written.holdings.partial_axes;
  for (std::size_t i = 0; i < written.layout.mesh.ranks().size(); ++i) {
    const auto& box = written.holdings.boxes[static_cast<std::size_t>(written.holdings.box_of_rank[i])];
    if (!box.empty()) key.second[written.layout.mesh.ranks()[i]] = box;
  }
  return key;
}

std::pair<std::string, std::string> name_of(const Layout& layout) {
  return {layout.mesh.to_string(), placements_to_string(layout)};
}

}  // namespace

ExhaustiveSearch::ExhaustiveSearch(const Mesh& source, const Mesh& target, const Shape& shape, DType dtype,
                                   const CostModel& cost, double max_memory_factor, ReduceOp reduction)
    : same_mesh_(source == target),
      reduction_(reduction),
      world_(source, target),
      max_memory_factor_(max_memory_factor) {
  for (const Layout& layout : all_layouts(source, shape, dtype, reduction)) layouts_.emplace_back(layout);
  num_sources_ = layouts_.size();
  if (!same_mesh_) {
    for (const Layout& layout : all_layouts(target, shape, dtype, std::nullopt))
      layouts_.emplace_back(layout);
  }
  for (std::size_t i = 0; i < layouts_.size(); ++i) number_of_[name_of(layouts_[i].layout)] = i;
  find_classes();
  find_moves(cost);
}

void ExhaustiveSearch::find_classes() {
  std::map<HoldingsKey, std::size_t> known;
  for (const Written& written : layouts_) {
    class_of_.push_back(known.try_emplace(key_of(written), known.size()).first->second);
  }
}

void ExhaustiveSearch::find_moves(const CostModel& cost) {
  const std::size_t num_layouts = layouts_.size();
  moves_.resize(num_layouts);
  straight_.resize(num_layouts);
  for (std::size_t from = 0; from < num_layouts; ++from) {
    for (std::size_t to = 0; to < num_layouts; ++to) {
      const Written& old_layout = layouts_[from];
      const Written& new_layout = layouts_[to];
      if (old_layout.layout.mesh == new_layout.layout.mesh) {
        for (const MoveForm& form : moves_between(old_layout.layout, new_layout.layout)) {
          moves_[from].push_back({form.kind, to, cost_of(form, old_layout, new_layout, world_, cost)});
        }
      }
      if (to < first_target() || class_of_[from] == class_of_[to]) continue;
      if (const std::optional<MoveForm> form = straight_move(old_layout.layout, new_layout.layout)) {
        straight_[from].push_back({form->kind, to, cost_of(*form, old_layout, new_layout, world_, cost)});
      }
    }
  }
}

double ExhaustiveSearch::bound_bytes(std::size_t source, std::size_t target) const {
  const auto bytes = [&](std::size_t layout) {
    return layouts_[layout].holdings.max_size() * size_bytes(layouts_[layout].layout.dtype);
  };
  return max_memory_factor_ * 2 * static_cast<double>(std::max(bytes(source), bytes(target)));
}

// A chain on its way.
struct ExhaustiveSearch::Label {
  std::int64_t time_ps = 0;
  std::size_t layout = 0;
  std::size_t previous = 0;         // label
  MoveKind kind = MoveKind::slice;  // that led here
  bool superseded = false;
};

// One search: from a source to some targets, all with the same bound on temporaries.
class ExhaustiveSearch::Run {
 public:
  Run(const ExhaustiveSearch& search, std::size_t source, const std::vector<std::size_t>& targets,
      double bound_bytes)
      : search_(search),
        targets_(targets),
        bound_bytes_(bound_bytes),
        waiting_(search.layouts_.size(), kNoLabel) {
    for (const std::size_t target : targets) answers_[search.class_of_[target]] = {};
    add_label({0, source, 0, MoveKind::slice, false});
    if (const auto answer = answers_.find(search.class_of_[source]); answer != answers_.end()) {
      answer->second = {0, 0, std::nullopt};
    }
    while (!queue_.empty() && std::get<0>(queue_.top()) < slowest_answer()) {
      const std::size_t label = std::get<1>(queue_.top());
      queue_.pop();
      if (!labels_[label].superseded) follow(label);
    }
  }

  std::optional<Chain> chain_to(std::size_t target) const {
    const Answer& answer = answers_.at(search_.class_of_[target]);
    if (answer.time_ps == kNoTime) return std::nullopt;
    Chain chain;
    chain.time_ps = answer.time_ps;
    if (answer.last)
      chain.steps.push_back({answer.last->first, labels_[answer.label].layout, answer.last->second});
    for (std::size_t label = answer.label; label != 0; label = labels_[label].previous) {
      const std::size_t previous = labels_[label].previous;
      chain.steps.push_back({labels_[label].kind, labels_[previous].layout, labels_[label].layout});
    }
    std::reverse(chain.steps.begin(), chain.steps.end());
    return chain;
  }

 private:
  struct Answer {
    std::int64_t time_ps = kNoTime;
    std::size_t label = 0;                                 // before the last step
    std::optional<std::pair<MoveKind, std::size_t>> last;  // and the layout it leads to
  };

  std::int64_t slowest_answer() const {
    std::int64_t slowest = 0;
    for (const auto& [number, answer] : answers_) slowest = std::max(slowest, answer.time_ps);
    return slowest;
  }

  void follow(std::size_t label) {
    const std::size_t layout = labels_[label].layout;
    for (const Edge& edge : search_.moves_[layout]) {
      try_as_last(label, edge);
      try_as_next(label, edge);
    }
    for (const Edge& edge : search_.straight_[layout]) {
      try_as_last(label, edge);
      if (may_arrive_at(edge)) try_as_next(label, edge);
    }
  }

  // Whether the chain may go on after a crossing.
  bool may_arrive_at(const Edge& edge) const {
    if (search_.same_mesh_ || edge.kind != MoveKind::exchange) return false;
    return std::any_of(targets_.begin(), targets_.end(), [&](std::size_t target) {
      return splits_further(search_.layouts_[edge.to].layout, search_.layouts_[target].layout);
    });
  }

  bool fits(std::size_t label, const Edge& edge, bool new_is_temporary) const {
    const bool old_is_temporary = label != 0;
    return static_cast<double>(edge.cost.temporary_bytes[old_is_temporary][new_is_temporary]) <= bound_bytes_;
  }

  void try_as_last(std::size_t label, const Edge& edge) {
    const auto answer = answers_.find(search_.class_of_[edge.to]);
    if (answer == answers_.end() || !fits(label, edge, false)) return;
    const std::int64_t time_ps = labels_[label].time_ps + slowest(edge);
    if (time_ps < answer->second.time_ps) answer->second = {time_ps, label, std::pair(edge.kind, edge.to)};
  }

  void try_as_next(std::size_t label, const Edge& edge) {
    if (!fits(label, edge, true)) return;
    Label next{labels_[label].time_ps + slowest(edge), edge.to, label, edge.kind, false};
    if (next.time_ps < slowest_answer()) add_label(next);
  }

  // A move is over when its slowest rank is.
  static std::int64_t slowest(const Edge& edge) {
    return *std::max_element(edge.cost.time_ps.begin(), edge.cost.time_ps.end());
  }

  // A chain with source and temporaries at its ends differs in what it may do next from one without, but the
  // source is nobody's next layout.
  void add_label(Label next) {
    std::size_t& known = waiting_[next.layout];
    if (known != kNoLabel) {
      if (labels_[known].time_ps <= next.time_ps) return;
      labels_[known].superseded = true;
    }
    known = labels_.size();
    queue_.emplace(next.time_ps, labels_.size());
    labels_.push_back(next);
  }

  const ExhaustiveSearch& search_;
  const std::vector<std::size_t>& targets_;
  double bound_bytes_;
  std::vector<Label> labels_;         // 0: the source
  std::vector<std::size_t> waiting_;  // label by layout
  using Entry = std::pair<std::int64_t, std::size_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  std::map<std::size_t, Answer> answers_;  // by class
};

std::vector<std::optional<ExhaustiveSearch::Chain>> ExhaustiveSearch::cheapest(std::size_t source) const {
  // Targets with the same bound on temporaries share a search; between meshes each has its own, because a
  // chain may go on in layouts that depend on the target.
  std::map<std::pair<double, std::size_t>, std::vector<std::size_t>> groups;
  for (std::size_t target = first_target(); target < layouts_.size(); ++target) {
    if (!is_legal_pair(layouts_[source].layout, layouts_[target].layout)) continue;
    groups[{bound_bytes(source, target), same_mesh_ ? 0 : target}].push_back(target);
  }
  std::vector<std::optional<Chain>> chains(layouts_.size() - first_target());
  for (const auto& [key, targets] : groups) {
    const Run run(*this, source, targets, key.first);
    for (const std::size_t target : targets) chains[target - first_target()] = run.chain_to(target);
  }
  return chains;
}

std::vector<const MoveCost*> ExhaustiveSearch::costs_of(const Move& move, bool is_last) const {
  std::vector<const MoveCost*> costs;
  const auto from = number_of_.find(name_of(move.from)), to = number_of_.find(name_of(move.to));
  if (from == number_of_.end() || to == number_of_.end()) return costs;
  // A chain may end in any layout that is equivalent to the target, which is the one that its last move
  // names.
  const auto leads_there = [&](std::size_t layout) {
    return layout == to->second || (is_last && class_of_[layout] == class_of_[to->second]);
  };
  const auto add = [&](const std::vector<Edge>& edges) {
    for (const Edge& edge : edges) {
      if (edge.kind == move.kind && leads_there(edge.to)) costs.push_back(&edge.cost);
    }
  };
  add(moves_[from->second]);
  // A crossing may also arrive on the way to the target.
  if (is_last || move.from.mesh != move.to.mesh) add(straight_[from->second]);
  return costs;
}

std::string ExhaustiveSearch::to_string(const Chain& chain) const {
  std::vector<std::string> steps;
  for (const Step& step : chain.steps) {
    steps.push_back(str(name(step.kind), " ", placements_to_string(layouts_[step.from].layout), " -> ",
                        placements_to_string(layouts_[step.to].layout)));
  }
  return steps.empty() ? "no step" : join(steps, "; ");
}

}  // namespace cp::sim
