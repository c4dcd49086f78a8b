// World: what the ranks of one fabric share: communicators, the scheduler, the first error.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/fabric/communicator.h"
#include "sim/fabric/fabric.h"
#include "sim/fabric/scheduler.h"

namespace cp::sim {

class FabricDevice;

struct GroupHash {
  std::size_t operator()(const Group& group) const;
};

class World final : private RankInspector {
 public:
  World(int size, FabricOptions options);
  ~World() override;

  int size() const { return static_cast<int>(devices_.size()); }
  const FabricOptions& options() const { return options_; }
  bool target_is_restricted() const { return target_is_restricted_; }  // to less than everything
  Scheduler& scheduler() { return *scheduler_; }
  FabricDevice& device(Rank rank) { return *devices_[static_cast<std::size_t>(rank)]; }
  std::vector<Turn>& turns() { return turns_; }

  // The communicator of the group, made on first use and kept: its name and ranks are compared here, and never again. Throws
  // InvalidInput for a group that has no ranks, a rank twice, or one that the world lacks.
  Communicator& communicator(const Group& group);

  // The first call of a run keeps the error and cancels all ranks; later ones do nothing.
  void fail(Rank rank, std::exception_ptr error);
  // No stream of any rank can advance, as `rank` found.
  void fail_deadlocked(Rank rank);
  // `rank` waits in a round of the communicator that a member has made impossible by returning.
  void fail_departed(Rank rank, const Communicator& communicator);
  // To be called when the scheduler says that the run is cancelled. The rank that failed gets its error again.
  [[noreturn]] void throw_cancelled(Rank rank) const;

  // The rank's body has returned or thrown.
  void depart(Rank rank);

  // By the host, between runs. end_run returns the run's error, if any.
  void begin_run();
  std::exception_ptr end_run();
  void restart_sequences();

 private:
  void ready_streams(Rank rank, std::vector<StreamId>& streams) const override;
  TurnDetails details(const Turn& turn) const override;

  FabricOptions options_;
  bool target_is_restricted_;
  std::vector<Turn> turns_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<FabricDevice>> devices_;

  std::mutex mutex_;  // of what follows
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::unordered_map<Group, Communicator*, GroupHash> by_group_;
  std::vector<std::vector<Communicator*>> by_rank_;
  std::vector<Rank> departed_ranks_;

  // Written once in a run, before the scheduler is cancelled; read without the mutex after that.
  std::exception_ptr error_;
  Rank failed_rank_ = -1;
};

}  // namespace cp::sim
