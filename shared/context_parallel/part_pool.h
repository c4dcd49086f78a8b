// PartPool gives places to partial results that wait for their merge. Internal to shared/context_parallel.
//
// Where merges run in turn with attention, on its stream, each part is a temporary of its own: all of them
// end where the next begins, so that they share their bytes.
//
// Beside attention (Strategy::merges) that is not so. Nothing but the merge itself says when a part is over,
// and temporaries share bytes only where one happens before the other; a part for each step of a ring would
// take memory for each step. So parts of one name take turns in a few layers. A layer is one temporary, and a
// place is used again as soon as its merge is written down: the builder sees that the next part writes what
// that merge reads, and lets it wait.
//
//   attention   part 1 -> A | part 2 -> B      | part 3 -> A: waits for merge A
//   merge                     merge A into sum | merge B into sum | ...
//
// Waiting is no loss where a whole attention lies between. So of the places that are free, those whose merge
// was written down behind the last part of this name do not count: it would be that merge that the next
// attention waits for. If no other is left, there is a new layer. There are thus as many layers as parts wait
// at once, and one: never more for more steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "shared/context_parallel/tensor.h"
#include "shared/plan/builder.h"

namespace cp::detail {

class PartPool {
 public:
  // `in_layers`: for merges beside attention.
  PartPool(PlanBuilder& builder, bool in_layers) : builder_(builder), in_layers_(in_layers) {}

  struct Place {
    BufferId buffer = -1;
    std::int64_t offset = 0;  // where the part's elements begin
    std::int64_t number = 0;
  };
  // A place for elements of a part; it is taken until it is given back. In a layer it lies where `elements`
  // says, so that parts of other elements share the layer; elsewhere at the beginning of a temporary.
  Place take(const std::string& name, DType dtype, Range elements);
  // To be called when the merge of the part is in the plan.
  void give_back(const Place& place);

 private:
  struct Area {
    Range elements;
    std::int64_t number = 0;  // of its part
    bool taken = true;
    std::int64_t given_back = 0;  // the number of parts that there had been by then
  };
  struct Layer {
    BufferId buffer = -1;
    std::vector<Area> areas;  // no two taken ones meet
  };
  struct Layers {
    std::vector<Layer> all;
    std::int64_t parts = 0;  // so far
  };
  bool is_ready(const Layer& layer, Range elements, std::int64_t parts) const;

  PlanBuilder& builder_;
  const bool in_layers_;
  std::int64_t parts_ = 0;  // of all names
  std::map<std::pair<std::string, DType>, Layers> layers_;
};

}  // namespace cp::detail
