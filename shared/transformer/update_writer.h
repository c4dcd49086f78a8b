// UpdateWriter: the steps behind the last backward pass: gradients are added up among replicas, their norm is
// taken, and the optimizer changes the parameters.
//
// Where ranks keep whole pieces although states are sharded, the new parameters are gathered here, once a
// step, and gradients are reduced and scattered, unless the backward pass has done so (ZeRO-1 and -2;
// Rajbhandari et al. 2020).
//
// Buffers of a unit: gradients/<name>, parameters/<name> or master/<name> (f32), optimizer/<name> (all
// states); unsharded/<name> and unsharded/gradients/<name> where whole pieces stay.
//
// Offloaded f32 parameters and states lie in host memory, where the host runs the optimizer (ZeRO-Offload;
// Ren et al. 2021): buffers host/gradients/<name>, host/master/<name>, host/optimizer/<name> and
// host/parameters/<name>, in `dtype`. Gradients that only the update completes go there in it, on the stream
// "to_host"; the optimizer runs piece by piece on "host", and what computes comes back behind each piece on
// "from_host".
#pragma once

#include <string>
#include <vector>

#include "shared/fully_shard/unshard_writer.h"
#include "shared/transformer/step_writer.h"

namespace cp {

// A unit of parameters, and what the group of those that hold the same shard of it is called.
struct StepUnit {
  ShardedUnit sharded;
  std::string replica_group;
};
// Of the stage: "layers"; "experts"; "embedding"; "head", the final norm and a table of its own. Those that
// it lacks have numel 0.
struct StepUnits {
  StepUnit layers, experts, embedding, head;

  explicit StepUnits(const StepContext& context);
  // Whether the backward pass itself leaves the gradients of the step behind, and can send them to the host.
  static bool completes_gradients(const StepContext& context, const StepUnit& unit);
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
  // In host memory; what computes comes to `computes`.
  void optimize_on_host(const StepUnit& unit, const View& gradients, const View& computes);
  struct HostUnit {
    BufferId gradients = -1, master = -1, states = -1, parameters = -1;
  };
  void optimize_piece_on_host(const HostUnit& host, const View& computes, std::int64_t first,
                              std::int64_t step, std::int64_t count);
  void gather(const StepUnit& unit, const View& shard);

  BufferId whole_gradients(const StepUnit& unit);

  StepWriter& writer_;
  const StepContext& context_;
  const StepUnits& units_;
  std::vector<std::pair<const StepUnit*, BufferId>> whole_;
  View norm_, host_norm_;
};

}  // namespace cp
