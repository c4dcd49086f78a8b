// Writes the scan of a recurrence's states into the plan of one rank: how each chunk gets the state that
// comes in to it, from what every chunk alone makes of a state. Internal to shared/recurrence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared/plan/builder.h"
#include "shared/recurrence/chunks.h"
#include "shared/recurrence/recurrence_plan.h"

namespace cp::detail {

// A chunk's place in the order of a scan. Forward that is the order of the sequence; the backward pass goes
// from its end to its begin, and what comes in there is the gradient of the state behind the chunk.
struct ScanPlace {
  int index = 0;                                         // of the chunk's rank among the cp ranks
  bool receives = false, sends = false, passes = false;  // passes: what comes in goes out again
};
std::vector<ScanPlace> scan_order(const std::vector<Chunk>& chunks, RecurrencePass pass);

// What one of the rank's own chunks has, by place. All views are [batch, value_heads, key_dim, value_dim], or
// the same with a transition's sizes, and dense.
struct ScanViews {
  View state;       // where it sends: what its rows alone send on; the scan may write there
  View transition;  // where it passes
  View incoming;    // where it receives: written by the scan
};

class StateScanWriter {
 public:
  // `views` are by place; those of other ranks' chunks are absent. `index` is the rank's among `ranks`.
  StateScanWriter(PlanBuilder& builder, const RecurrenceRequest& request, RecurrencePass pass,
                  std::vector<ScanPlace> places, std::vector<ScanViews> views, int index);

  void write();

 private:
  // A state, and a transition with it where there is one, on its way from one place's rank to another's.
  struct Way {
    std::size_t from, to;
    bool with_transition;
    View state, transition;  // where they arrive, if that is this rank; a transition only if there is one
  };

  void sequential();
  void recursive_doubling();
  void all_gather();

  bool own(std::size_t place) const { return places_[place].index == index_; }
  View temporary(const char* name, std::int64_t rows, std::int64_t columns);
  View new_state(const char* name) { return temporary(name, problem_.key_dim, problem_.value_dim); }
  View new_transition(const char* name) {
    return temporary(name, problem_.transition_dim(), problem_.transition_dim());
  }
  // One exchange for all ways; those within a rank are copies. Nothing if there are none.
  void exchange(const std::vector<Way>& ways, const std::string& label);
  // out += T in, for the transition of a place.
  void join(const View& transition, const View& in, const View& out, const std::string& label);
  std::string text(std::size_t place) const;

  PlanBuilder& builder_;
  const RecurrenceRequest& request_;
  const RecurrenceProblem& problem_;
  const RecurrencePass pass_;
  const std::vector<ScanPlace> places_;
  std::vector<ScanViews> views_;
  std::vector<std::size_t> first_;  // by place: the first one whose state reaches the place behind it
  const int index_;
  const StreamId compute_;
};

}  // namespace cp::detail
