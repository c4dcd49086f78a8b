// The shadow run executes the plans of all ranks on tags instead of values, in a legal order, and enters into
// the books what it sees. It shares no code with the builders and the kernels.
//
// Each rank goes through its steps in issue order (check() has proved that every other legal order touches
// each element in the same order). A collective happens when its last member has reached it.
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

// The bytes that a rank received in a pass.
struct Received {
  std::array<std::int64_t, kTensors> bytes{};  // by tensor
  std::int64_t padding = 0;                    // constants instead of elements
  std::int64_t redundant_kv = 0;               // of k and v: rows that no query of the rank may see

  std::int64_t& of(Tensor tensor) { return bytes[static_cast<std::size_t>(tensor)]; }
  std::int64_t of(Tensor tensor) const { return bytes[static_cast<std::size_t>(tensor)]; }
  std::int64_t payload() const;  // of all tensors
  std::int64_t total() const { return payload() + padding; }
};

// What a shadow run works on. The caller owns all of it.
struct ShadowWorld {
  std::span<const Plan> plans;
  const AttentionProblem& problem;
  const TagSpace& space;
  const CellWeights& weights;
  // By plan: which keys any query may see that it computes.
  const std::vector<std::vector<bool>>& needed_keys;
  ShadowMemory& memory;
  CellBook& book;
  Findings& findings;
  std::vector<Received>& received;  // by plan
  const Strategy& strategy;
  bool rounds_parts = false;  // whether fused attention rounds partial results to the problem's dtype
  // Whether latent rows travel: gradients of keys and values are then parts of those of the rows, and are
  // rounded before they are contracted.
  bool latent_travels = false;

  // Whether a result may be kept in this type. A finished one may be in f32 or the problem's dtype. One that
  // parts are still added to, each of which rounds, must be in f32, unless the strategy takes the problem's
  // dtype.
  bool may_add_up_in(DType dtype, const Tag& sum) const;
};

// Names of steps in findings. Each step that is executed gets the next number, with its rank and iteration.
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

// Runs all plans. The caller has put the tags of the inputs into the memory. What is wrong goes into
// `findings`.
void shadow_run(const ShadowWorld& world, StepNames& names);

}  // namespace cp::sim
