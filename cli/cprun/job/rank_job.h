// One rank's part of a scenario, on whatever device it has: its plans, its data, and what it came to. And the whole scenario on the
// simulated fabric, to compare with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "shared/base/digest.h"
#include "shared/plan/device.h"
#include "shared/plan/plan.h"
#include "shared/plan/trace.h"
#include "traces/scenario.pb.h"

namespace cp::cli {

class RankJob {
 public:
  virtual ~RankJob() = default;

  // Plans that run one after the other. The rank may have no part in any, and still knows what they are made from.
  const std::vector<Plan>& passes() const { return passes_; }
  const std::vector<Digest>& inputs() const { return inputs_; }  // of each pass, on every rank

  // The caller's buffers of a pass, made on first use; passes are bound in order.
  virtual Bindings bind(std::size_t pass) = 0;
  // Of a pass that ran: outputs that are exact in every world, by buffer name.
  virtual std::map<std::string, Digest> digests(std::size_t pass) const = 0;
  // After all passes: what is wrong with this rank's results, in words; empty when nothing is. Makes the results of one device, which
  // takes time and memory.
  virtual std::vector<std::string> findings() const = 0;

 protected:
  std::vector<Plan> passes_;
  std::vector<Digest> inputs_;
};

// Ranks 0 .. n-1 that the scenario needs. Throws InvalidInput as the functions that read its fields do, and for a scenario that is not
// for ranks, or of several strategies.
int world_size_of(const proto::Scenario& scenario);

// Bytes of the host's memory that one rank takes: its inputs, what its plans declare (which on GPUs is the GPU's), and, where its
// results are checked, those of one device. Nothing is allocated. Throws as world_size_of().
struct RankMemory {
  std::int64_t inputs = 0, plans = 0, results = 0;
};
RankMemory rank_memory(const proto::Scenario& scenario, Rank rank);

// `device`: the target of the rank's device, for which plans are made where the scenario names none; equal on all ranks.
std::unique_ptr<RankJob> make_rank_job(const proto::Scenario& scenario, Rank rank,
                                       const Target& device = host_target());

// The traces of all ranks on the simulated fabric, of the same plans, everything checked: throws CheckFailure and what runs throw.
std::vector<RankTrace> simulate(const proto::Scenario& scenario, const Target& device = host_target());

}  // namespace cp::cli
