// UpdateWriter: the steps behind the last backward pass: gradients are added up among replicas, their norm is taken, and the
// optimizer changes the parameters.
//
// Where pipeline stages keep whole pieces although parameters are sharded, gradients are reduced and scattered here, and the new
// parameters gathered, once a step (ZeRO-1; Rajbhandari et al. 2020).
//
// Buffers of a unit: gradients/<name>, parameters/<name> or master/<name> (f32), optimizer/<name> (all states); unsharded/<name> and
// unsharded/gradients/<name> where whole pieces stay. Offloaded f32 parameters and states lie elsewhere: the optimizer reads
// gradients and writes what computes.
#pragma once

#include <string>
#include <vector>

#include "shared/fully_shard/unshard_writer.h"
#include "shared/transformer/step_writer.h"

namespace cp {

// A unit of parameters, and who holds the same shard of it.
struct StepUnit {
  ShardedUnit sharded;
  std::vector<Rank> replicas;
  std::string replica_group;
};
// Of the stage: "layers"; "experts"; "embedding"; "head", the final norm and a table of its own. Those that it lacks have numel 0.
struct StepUnits {
  StepUnit layers, experts, embedding, head;

  explicit StepUnits(const StepContext& context);
  std::vector<const StepUnit*> present() const;
};

class UpdateWriter {
 public:
  UpdateWriter(StepWriter& writer, const StepUnits& units)
      : writer_(writer), context_(writer.context()), units_(units) {}
  void write();

 private:
  // The rank's elements of a unit's gradients, as a flat view.
  View reduced_gradients(const StepUnit& unit);
  // Of weights that several tp ranks hold, where the backward pass has added to the gradients of the step.
  void add_up_replicated();
  // Equal pieces of all layers' gradients, packed into one AllReduce.
  void add_up_pieces(const std::string& group, const std::vector<Rank>& ranks, std::int64_t begin,
                     std::int64_t numel, const std::string& label);
  // Of the embedding's table, which first and last stage both have.
  void add_up_tied_tables();
  void take_norm(const std::vector<View>& gradients);
  void optimize(const StepUnit& unit, const View& gradients);

  BufferId whole_gradients(const StepUnit& unit);

  StepWriter& writer_;
  const StepContext& context_;
  const StepUnits& units_;
  std::vector<std::pair<const StepUnit*, BufferId>> whole_;
  View norm_;
};

}  // namespace cp
