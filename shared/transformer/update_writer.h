// UpdateWriter writes the steps behind the last backward pass: gradients are added up over replicas, their
// norm is taken, and the optimizer changes the parameters.
//
// If ranks keep whole pieces although states are sharded (ZeRO-1 and -2; Rajbhandari et al. 2020), the new
// parameters are gathered here, once a step; and gradients are reduced and scattered here, unless the
// backward pass has done so.
//
// Where a rank has several stages, reductions are a part of the step before the updates (step_plan.h), since
// the norm is over all of a rank's gradients and no parameter changes before it is known.
//
// Buffers of a unit: gradients/<name>, parameters/<name> or master/<name> (f32), optimizer/<name> (all
// states); if whole pieces stay, unsharded/<name> and unsharded/gradients/<name>.
//
// The learning rate and the number of the step change from step to step, so that they are an input,
// working/schedule, or host/schedule where the host updates.
//
// Offloaded f32 parameters and states are in host memory, and the host runs the optimizer (ZeRO-Offload; Ren
// et al. 2021). Its buffers are host/gradients/<name>, host/master/<name>, host/optimizer/<name>, and
// host/parameters/<name> in `dtype`. Gradients that are complete only in the update go to the host there, on
// the stream "to_host". The optimizer runs piece by piece on the stream "host", and the computed parameters
// come back behind each piece on "from_host".
#pragma once

#include <string>
#include <vector>

#include "shared/fully_shard/unshard_writer.h"
#include "shared/transformer/step_writer.h"

namespace cp {

// A unit of parameters, and the name of the group of ranks that hold the same shard of it.
struct StepUnit {
  ShardedUnit sharded;
  std::string replica_group;
};
// The units of a stage: "layers", "experts", "embedding", and "head" (the final norm, and the head's table
// unless it is the embedding's). Pieces of one unit are equally large, so that layers with other parts are
// units of their own: "dense_layers" where other layers have experts, "recurrent_layers", "recurrence_layers"
// and "mlp_layers" of a recurrence or an MLP alone, and so on. "prediction" is what prediction layers have
// beside layers. A unit that the stage lacks has numel 0.
struct StepUnits {
  ByParts<StepUnit> layers;
  StepUnit experts, embedding, head, prediction;
  std::vector<Rank> sharing;  // the ranks among which parameters that are no experts are sharded

  explicit StepUnits(const StepContext& context);
  // Whether the backward pass itself completes the gradients of the step, so that it can send them to the
  // host.
  static bool completes_gradients(const StepContext& context, const StepUnit& unit);
  std::vector<const StepUnit*> present() const;
};

class UpdateWriter {
 public:
  UpdateWriter(StepWriter& writer, const StepUnits& units)
      : writer_(writer), context_(writer.context()), units_(units) {}
  void write();            // StepPart::update
  void write_reduction();  // StepPart::reduce

 private:
  // Reduces the gradients of all units, and takes their norm. Returns the rank's elements of each unit.
  std::vector<View> reduce(const std::vector<const StepUnit*>& units);
  // The rank's elements of a unit's gradients, completely reduced, as a flat view.
  View reduced_gradients(const StepUnit& unit);
  // Of whole gradients from `begin` on, which are replicated elements and padded others, the sums of the
  // rank's part of the latter, behind its own gradients of the former; both places advance in a Repeat.
  void scatter(const StepUnit& unit, std::int64_t begin, std::int64_t replicated, std::int64_t padded,
               const View& own, Advance wholes, Advance shards);
  // Where they are, or where they go where gradients stay whole until the update: the rank's block of them.
  View own_gradients(const StepUnit& unit);
  // Adds up, over the tp ranks, the gradients of weights that all of them hold, if the backward pass has
  // added its products to the gradients of the step directly.
  void add_up_replicated();
  // Adds up over `ranks`, in place, packed into one AllReduce.
  void add_up_packed(const std::vector<View>& views, const std::string& group, const std::vector<Rank>& ranks,
                     const char* stream, const std::string& label);
  // The sums over all that share the unit of what they do not share.
  void add_up_small(const StepUnit& unit, const View& gradients);
  // Adds up the same elements of the gradients of every piece of a unit over `ranks`, packed if they are few.
  void add_up_pieces(const StepUnit& unit, const std::string& group, const std::vector<Rank>& ranks,
                     std::int64_t begin, std::int64_t numel, const std::string& label);
  // Adds up the gradients of a table that both the first and the last stage hold.
  void add_up_tied_tables();
  // Elements begin .. end - 1 of each piece of a unit, which several ranks have that add up their norms.
  struct Copied {
    std::int64_t begin = 0, end = 0, copies = 1;
  };
  std::vector<Copied> copied(const StepUnit& unit) const;  // ascending
  // The rank's gradients of a unit, with the number of copies of each part.
  void add_to_norm(const StepUnit& unit, const View& gradients, std::vector<View>& views,
                   std::vector<std::int64_t>& copies) const;
  // The ranks of this rank's tp and pp coordinates that add up their norms: those that share the parameters,
  // or all of dp_shard x cp where experts are spread over others.
  std::vector<Rank> norm_ranks() const;
  // How many of these have the same shard of a unit.
  std::int64_t copies_among_norm_ranks(const StepUnit& unit) const;
  void take_norm(const std::vector<const StepUnit*>& units, const std::vector<View>& gradients);
  void norm_to_host();
  void optimize(const StepUnit& unit, const View& gradients);
  // The optimizer in host memory; the parameters to compute with arrive in `computes`.
  void optimize_on_host(const StepUnit& unit, const View& gradients, const View& computes);
  struct HostUnit {
    BufferId gradients = -1, master = -1, states = -1, parameters = -1;
  };
  void optimize_piece_on_host(const HostUnit& host, const View& computes, std::int64_t first,
                              std::int64_t step, std::int64_t count);
  void gather(const StepUnit& unit, const View& shard);
  // Of routers' scores, by the loads of experts.
  void move_corrections();

  BufferId whole_gradients(const StepUnit& unit);

  StepWriter& writer_;
  const StepContext& context_;
  const StepUnits& units_;
  std::vector<std::pair<const StepUnit*, BufferId>> whole_;
  View norm_, host_norm_;
  View schedule_;  // the learning rate, and the number of the step
};

}  // namespace cp
