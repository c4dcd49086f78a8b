// The shadow run: executes the plans of all ranks on tags instead of values, in a legal order, and enters
// into the books what it sees. It shares no code with the builders and the kernels.
//
// Each rank goes through its steps in issue order (check() has proved that every other legal order touches
// each element in the same order); a collective happens when its last member has reached it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "sim/proof/ledger/cell_book.h"
#include "sim/proof/ledger/findings.h"
#include "sim/proof/ledger/shadow_memory.h"
#include "sim/proof/ledger/tags.h"

namespace cp::sim {

// Bytes that a rank received.
struct Received {
  std::array<std::int64_t, kTensors> bytes{};  // by tensor
  std::int64_t padding = 0;                    // constants
  std::int64_t redundant_kv = 0;               // of k and v: rows that no query of the rank may see

  std::int64_t& of(Tensor tensor) { return bytes[static_cast<std::size_t>(tensor)]; }
  std::int64_t of(Tensor tensor) const { return bytes[static_cast<std::size_t>(tensor)]; }
  std::int64_t payload() const;
  std::int64_t total() const { return payload() + padding; }
};

struct ShadowWorld {
  std::span<const Plan> plans;
  const AttentionProblem& problem;
  const TagSpace& space;
  const CellWeights& weights;
  const std::vector<std::vector<bool>>&
      needed_keys;  // by plan: which keys any query that it computes may see
  ShadowMemory& memory;
  CellBook& book;
  Findings& findings;
  std::vector<Received>& received;  // by plan
  const Strategy& strategy;
  bool rounds_parts = false;  // fused attention is used, whose partial results are in the problem's dtype

  // Whether a result may be kept in this type: one that parts are still added to, each of which rounds, in
  // f32 alone unless the strategy takes the problem's; a finished one in both.
  bool may_add_up_in(DType dtype, const Tag& sum) const;
};

// Where a step is, for findings: numbers are given out in the order of execution.
class StepNames {
 public:
  explicit StepNames(std::span<const Plan> plans) : plans_(plans) {}
  std::int32_t add(std::size_t plan, StepId step, std::int64_t iteration);
  std::string text(std::int32_t number) const;  // rank 3, step 12 attention_forward "block 2"

 private:
  struct Place {
    std::size_t plan;
    StepId step;
    std::int64_t iteration;
  };
  std::span<const Plan> plans_;
  std::vector<Place> places_;
};

// The caller has put the tags of the inputs into the memory.
void shadow_run(const ShadowWorld& world, StepNames& names);

}  // namespace cp::sim
