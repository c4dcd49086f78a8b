#include "sim/cost/timeline/critical_path.h"

#include <algorithm>

namespace cp::sim {

CriticalPath::CriticalPath(const std::vector<Program>& programs) : programs_(programs) {
  for (const Program& program : programs) records_.emplace_back(static_cast<std::size_t>(program.size()));
}

void CriticalPath::ready(std::size_t position, NodeId node, double now_ns) {
  record({position, node}).ready_ns = now_ns;
}

void CriticalPath::began(std::size_t position, NodeId node, double now_ns) {
  Record& it = record({position, node});
  if (it.begin_ns < 0) it.begin_ns = now_ns;
}

void CriticalPath::ended(std::size_t position, NodeId node, double now_ns, std::string_view bound) {
  Record& it = record({position, node});
  if (it.begin_ns < 0) it.begin_ns = now_ns;
  it.end_ns = now_ns;
  it.bound = bound;
}

Span CriticalPath::span(std::size_t position, NodeId node) const {
  const Record& it = record({position, node});
  const Program& program = programs_[position];
  return {program.step_id(node), program.iteration(node), it.ready_ns, it.begin_ns, it.end_ns};
}

std::vector<PathStep> CriticalPath::longest() const {
  Place at;
  double last = -1;
  for (std::size_t p = 0; p < records_.size(); ++p) {
    for (std::size_t node = 0; node < records_[p].size(); ++node) {
      if (records_[p][node].end_ns <= last) continue;
      last = records_[p][node].end_ns;
      at = {p, static_cast<NodeId>(node)};
    }
  }
  std::vector<PathStep> path;
  while (at.node >= 0) {
    const Record& it = record(at);
    const Program& program = programs_[at.position];
    path.push_back({program.plan().self, program.step_id(at.node), program.iteration(at.node), it.begin_ns,
                    it.end_ns, it.bound});
    // Who came late to a collective has the answer.
    at = it.late.node >= 0 ? record(it.late).before : it.before;
  }
  std::reverse(path.begin(), path.end());
  // A collective may have begun with others before the one that came late: of the chain it takes the time
  // since then.
  for (std::size_t i = 1; i < path.size(); ++i)
    path[i].begin_ns = std::max(path[i].begin_ns, path[i - 1].end_ns);
  return path;
}

}  // namespace cp::sim
