// CriticalPath: notes what each step waited for last. Following these notes back from the last step gives the
// chain of steps that takes the whole time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/timeline/program.h"
#include "sim/cost/timeline/timeline.h"

namespace cp::sim {

class CriticalPath {
 public:
  explicit CriticalPath(const std::vector<Program>& programs);  // must outlive this

  void ready(std::size_t position, NodeId node,
             double now_ns);  // nothing of its own rank keeps it from starting any more
  void began(std::size_t position, NodeId node, double now_ns);  // the first time counts
  void ended(std::size_t position, NodeId node, double now_ns, std::string_view bound);
  // `node` could begin because `before`, of the same rank, ended. If called several times, the last call
  // counts.
  void after(std::size_t position, NodeId node, NodeId before) {
    record({position, node}).before = {position, before};
  }
  // A collective went on because the member `late_node` of rank position `late` arrived. The last call
  // counts.
  void met(std::size_t position, NodeId node, std::size_t late, NodeId late_node) {
    record({position, node}).late = {late, late_node};
  }

  Span span(std::size_t position, NodeId node) const;
  std::vector<PathStep> longest() const;  // in order of time

 private:
  struct Place {
    std::size_t position = 0;
    NodeId node = -1;
  };
  struct Record {
    double ready_ns = 0, begin_ns = -1, end_ns = -1;
    Place before, late;
    std::string bound;
  };
  const Record& record(Place at) const { return records_[at.position][static_cast<std::size_t>(at.node)]; }
  Record& record(Place at) { return records_[at.position][static_cast<std::size_t>(at.node)]; }

  const std::vector<Program>& programs_;
  std::vector<std::vector<Record>> records_;  // by position, node
};

}  // namespace cp::sim
