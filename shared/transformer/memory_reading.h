// MemoryReading reads a layout's memory off the plans of its step: what they declare of the caller's buffers,
// and the arena, in which values share bytes when they do not live at once. Nothing is told of the model
// here: a new kind of layer is counted as soon as its writers say where its values lie.
//
// Terms come from the names of buffers (step_plan.h). Those of an arena are what is alive at its fullest
// moment among layers and at the fullest one of the loss; holes between them count as `working`, or as
// `logits` where the loss needs more. A rank of a pipeline has the caller's activations in as many slots as
// it has micro-batches in flight, and what transfers touch in slots_of_rows(), as StepBuffers has them: each
// buffer as large as the largest one of that name among the rank's stages.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/transformer/memory.h"
#include "shared/transformer/step_plan.h"

namespace cp {

// What one plan declares on the GPU.
struct PlanMemory {
  // What of the arena is alive at one moment. Of the loss `logits` is all but activations.
  struct Moment {
    std::int64_t activations = 0, unsharded = 0, working = 0, attention = 0, logits = 0;
    std::int64_t sum() const { return activations + unsharded + working + attention + logits; }
  };
  struct Callers {
    std::string name;
    std::int64_t bytes = 0;
  };
  std::vector<Callers> callers;  // buffers of the caller
  Moment layers, loss;           // the fullest ones; the fuller one of both is the arena
};
PlanMemory memory_of_plan(const Plan& plan);

class MemoryReading {
 public:
  // Both must outlive this.
  MemoryReading(const StepRequest& request, const MemoryRules& rules);

  // Takes what the plan of one rank for a part of the step declares. Stages that are alike (first_alike())
  // need one plan. In training, what lasts as long as the step is the update's.
  void add(StepPart part, int stage, PlanMemory declared);
  bool has(StepPart part, int stage) const;
  // Of the pipeline rank that needs most. All parts must have been added.
  Memory memory() const;

 private:
  using Stage = std::vector<std::optional<PlanMemory>>;  // by StepPart
  // What a rank has of one of its stages.
  struct OfStage {
    // For as long as the step lasts. `working` are ids, labels and losses, and `activations` the positions,
    // which all stages of a rank share.
    Memory owned;
    // Activations of one micro-batch that wait for the backward pass: bytes by the buffer's name.
    std::map<std::string_view, std::int64_t> slot;
  };

  std::int64_t loss_copies() const;
  std::int64_t counted(const PlanMemory::Callers& buffer) const;  // in the formats of whoever serves
  PlanMemory::Moment loss_of(const PlanMemory& part) const;       // with what its implementation adds
  OfStage of_stage(const Stage& stage) const;
  Memory of_rank(int rank, const std::vector<OfStage>& stages) const;

  const StepRequest& request_;
  const MemoryRules& rules_;
  const bool training_;
  const std::vector<int> alike_;  // of each stage the first that is like it
  std::vector<Stage> stages_;     // those first ones have been added
};

// Of a layout, whose plans are made for it. Of each stage those of the busiest rank are read; and where other
// cp ranks have more rows at home than that one, of queries or of keys, or more comes in to them for
// recurrences and convolutions, those of one of these, too. Throws InvalidInput with the reason of refuse()
// if the layout is not legal.
Memory memory_of(const StepRequest& request, const MemoryRules& rules, MixerPlanCache* cache = nullptr);
// The same, where the memory of the busiest ranks is known. `read` says what the plan of one rank for a part
// of a stage declares: memory_of_plan(), or somebody who keeps what has been read.
using ReadPlan = std::function<PlanMemory(StepPart part, int stage, Rank self)>;
Memory with_fuller_ranks(const Memory& of_busiest, const StepRequest& request, const MemoryRules& rules,
                         const ReadPlan& read);

}  // namespace cp
