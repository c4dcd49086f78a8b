// The caller's buffers of one rank in a training step (step_plan.h): parameters and states, which last from
// step to step; what belongs to one micro-batch; and slots for the activations of those micro-batches whose
// backward passes are to come, which are used again as step_order() says: one kind for what transfers between
// stages touch (holds_rows()), and one for all else. Whoever trains, and whoever proves a step, binds them to
// the plans of its parts.
//
// Data-parallel replicas have neighbouring sequences of the global batch, and of these each micro-batch has
// neighbouring ones. Of a sequence a rank has the rows that its cp index has at home.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/device_memory.h"
#include "shared/plan/prepared_plan.h"
#include "shared/plan/trace.h"
#include "shared/transformer/step_order.h"
#include "shared/transformer/step_plan.h"
#include "shared/transformer/tensor_places.h"

namespace cp {

// The data of one step. The documents of its sequences are the request's.
struct StepBatch {
  // Of the global batch, sequence after sequence: tokens, and for each the one that it is to predict, or
  // kIgnoredLabel.
  std::vector<std::int32_t> tokens, labels;
  double learning_rate = 0;
  std::int64_t step = 1;   // of the optimizer, counted from 1
  std::uint64_t seed = 0;  // of the training: what each step drops follows from it (dropout_seed())
  // What the losses of prediction layers count together, each equally, beside the model's (0.3 in most of
  // DeepSeek-V3's training).
  double prediction_weight = 0.3;
  // By how much corrections of routers' scores move, where they do (Experts::moves_corrections): 0.001 in
  // most of DeepSeek-V3's training.
  double correction_rate = 0;
};
inline constexpr std::int32_t kIgnoredLabel = -100;  // the usual one of PyTorch's cross_entropy
// What the generator of dropout has for a seed in a step of a training that has this seed: each step has
// another one, whoever runs it, and whether or not the training went on from a checkpoint.
std::int64_t dropout_seed(std::uint64_t seed, std::int64_t step);

class StepBuffers {
 public:
  // Fills in elements of a tensor in a role: 0 is the parameter, 1 and above are the optimizer's states. It
  // is asked for what the rank has, in stretches, and more than once.
  using Values = std::function<void(int role, const TensorRun& run, std::span<double> values)>;

  // Parameters and states begin with these values, gradients with zeros. Buffers are in `memory`, those of
  // the host (host_place.h) in its part of the host's, or all are the host's. The request and the memory must
  // outlive this, and the phase must be training; of the request cu_seqlens_of_sequence may change from step
  // to step. Throws InvalidInput as step_plan() does.
  StepBuffers(const StepRequest& request, Rank self, Values values, DeviceMemory* memory = nullptr);

  // The stages that the rank holds.
  const std::vector<int>& stages() const { return stages_; }
  std::int64_t micro_batches() const { return micro_batches_; }
  // What the rank does in a step.
  const StepOrder& order() const { return order_; }

  // Gradients are zeros again, and what belonged to micro-batches is forgotten. Throws InvalidInput if the
  // batch is not that of the workload, or if it has no label at all.
  void begin_step(StepBatch batch);

  // Makes room in the slots for what a plan has there. Of a rank with several stages, whose activations have
  // the same slots and differ in size, all plans must be told before the first one is bound.
  void make_room(const Plan& plan);

  // Where the plan's buffers are. Any number of plans may share them, one after the other in the order of
  // order(), or in the lanes that it says: what a slot has of a micro-batch that is over is written over.
  Bindings bind(const Plan& plan, const PartRun& run);

  // The bytes of all slots, of the device's memory or of the host's where it has the device's part: what is
  // kept of all micro-batches in flight. Slots are made when they are first bound.
  std::int64_t slot_bytes() const;

  // How many labels the batch has, on all ranks together.
  std::int64_t labelled() const;
  // What a row of the global batch has lost: the model's own loss, without its weight; 0 without a label.
  struct RowLoss {
    std::int64_t sequence, row;
    double loss;
    bool ends_shard;  // the next row of the sequence, if there is one, is another rank's
  };
  // Calls use(loss) for each of the rank's rows of the micro-batches that ran since begin_step(); never on
  // ranks without the last stage. The tp ranks have the same rows.
  void for_each_loss(const std::function<void(const RowLoss&)>& use) const;

  // The norm of all gradients, by which they were clipped, behind an update; every rank has the same.
  double norm() const;

  // What the rank owns of a unit: elements of a tensor, the f32 parameter of each, and the optimizer's
  // states, one after the other, in its dtype; of a unit that is not trained there are none.
  struct Owned {
    const UnitTensors& unit;
    const TensorRun& run;
    const float* parameters;
    std::vector<const std::byte*> states;
    DType state_dtype;
    // An element of the run in a role, as Values count them.
    double value(int role, std::int64_t at) const;
  };
  // Calls use(owned) for all of them, behind an update.
  void for_each_owned(int stage, const std::function<void(const Owned&)>& use) const;

 private:
  // Of the host, or of the device's memory.
  struct Place {
    std::span<std::byte> host;  // of `own`, or what the device's copies reach
    std::vector<std::byte> own;
    void* device = nullptr;
    std::int64_t size = 0;
    bool is_input = false;  // filled anew for each micro-batch that uses it
    bool is_filled = false;
    bool is_of_last_step = false;  // of a micro-batch: this step has not bound it yet
  };
  using Bytes = std::map<std::string, Place>;  // by the buffer's name

  std::vector<double> initial(const Buffer& buffer, int stage, std::int64_t micro_batch) const;
  void fill(Place& place, const Buffer& buffer, int stage, std::int64_t micro_batch);
  Place& place_of(const Buffer& buffer, const PartRun& run);
  // What it holds; `copy` has it if it is the device's.
  std::span<const std::byte> bytes_of(const Place& place, std::vector<std::byte>& copy) const;
  void fill_tensors(const Buffer& buffer, int stage, std::span<std::byte> bytes) const;
  void fill_run(int role, const TensorRun& run, std::int64_t first, DType dtype,
                std::span<std::byte> bytes) const;
  void fill_whole(const UnitTensors& unit, DType dtype, std::span<std::byte> bytes) const;
  void fill_owned(const UnitTensors& unit, int role, std::int64_t first, DType dtype,
                  std::span<std::byte> bytes) const;
  std::vector<std::int32_t> rows(const std::vector<std::int32_t>& of_batch, int home,
                                 std::int64_t micro_batch, std::int64_t distance, std::int32_t missing) const;

  const StepRequest& request_;
  const Values values_;
  DeviceMemory* const memory_;
  const std::int64_t micro_batches_;
  std::int64_t first_sequence_ = 0;  // of the global batch that is the rank's
  std::vector<int> stages_;
  std::map<int, std::vector<UnitTensors>> units_;   // by stage
  std::vector<std::vector<std::int64_t>> rows_at_;  // at each home: the positions of a sequence's rows
  int first_home_ = 0, last_home_ = 0;
  StepBatch batch_;
  std::map<int, Bytes> lasting_;                           // by stage
  std::map<std::pair<int, std::int64_t>, Bytes> passing_;  // by stage and micro-batch
  std::map<std::pair<int, std::int64_t>, Bytes> leaving_;  // by stage, and which of kLeavingGradients
  std::vector<Bytes> slots_, row_slots_;
  std::map<std::string, std::int64_t> slot_sizes_;  // by the buffer's name, in bytes
  StepOrder order_;
};

// Gives the plan of the rank for a part of the step.
using PlanOfPart = std::function<const Plan&(StepPart part, int stage, std::int64_t micro_batch)>;
// Runs a plan on these buffers of the host, and returns when they have its results: execute() on a device
// that works in memory of the host, run_on_host_buffers() (session.h) on any.
using RunPlan = std::function<void(const Plan& plan, const Bindings& buffers)>;

// Runs all parts of a step, one after the other in the order of step_order(). It is a collective call of all
// ranks. Throws what run() throws.
void run_step(const PlanOfPart& plans, const RunPlan& run, StepBuffers& buffers);
// The same on a device that works in memory of the host and keeps plans: transfers are beside the passes.
void run_step(const PlanOfPart& plans, Device& device, StepBuffers& buffers);

// Gives the plan of a run, which the device keeps in lane_of(run.part), and may make it ready first.
using PreparePart = std::function<PreparedPlan&(const PartRun& run)>;
// Enqueues runs of one list of the order, each behind those that it waits for. Appends what it issues to the
// trace, if there is one.
void enqueue_parts(const std::vector<PartRun>& runs, const PreparePart& prepare, StepBuffers& buffers,
                   RankTrace* trace = nullptr);

}  // namespace cp
