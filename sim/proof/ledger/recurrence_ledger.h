// Keeps the books of a recurrence: executes the plans of all ranks on tags instead of values, and finds
// whatever reaches a row that must not, and what does not reach it.
//
//   states   A state is tagged with the rows that wrote to it, and a transition with those that it goes
//            through: both are stretches of one document. A join must put a stretch behind another that ends
//            where it begins. What comes in to a step must be all rows of its document before it, and in the
//            backward pass all behind it; its document starts must be those of its rows. Each row is computed
//            once, by the rank that has it. The cached state of a sequence that is served stands for one row
//            before row 0; the plans begin with it in `state`, and end there with that of all rows.
//   bytes    what each rank receives, against what the places of the rows say: states and transitions of
//            scans, rows of heads.
//
// It shares no code with the builders and the kernels, but for row_layout(), which says where rows are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/recurrence/recurrence_plan.h"
#include "sim/proof/ledger/findings.h"

namespace cp::sim {

// Bytes that a rank receives in a pass.
struct StateBytes {
  std::int64_t states = 0, transitions = 0;
  std::int64_t rows = 0;  // of heads: rows, and the padding with which they travel
  std::int64_t total() const { return states + transitions + rows; }
  bool operator==(const StateBytes&) const = default;
};

struct RecurrenceLedger {
  Findings states, bytes;
  // By plan. Of rows that travel with padding, `expected` is without it.
  std::vector<StateBytes> received, expected;
};

// The plans are those of all ranks of the request, and have passed check().
RecurrenceLedger keep_ledger(const RecurrenceRequest& request, RecurrencePass pass,
                             std::span<const Plan> plans);

// What each rank must receive, by index among the cp ranks.
std::vector<StateBytes> expected_state_bytes(const RecurrenceRequest& request, RecurrencePass pass);

}  // namespace cp::sim
