// World: what the ranks of one fabric share: communicators, the scheduler, the first error.
#pragma once

#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "shared/plan/plan.h"
#include "sim/fabric/communicator.h"
#include "sim/fabric/deadlock.h"
#include "sim/fabric/fabric.h"
#include "sim/fabric/matching.h"
#include "sim/fabric/programs.h"
#include "sim/fabric/scheduler.h"

namespace cp::sim {

class FabricDevice;

// Ends the body of a rank that dies; nobody may catch it for good.
struct RankDied {};

struct GroupHash {
  std::size_t operator()(const Group& group) const;
};

class World final : private RankInspector {
 public:
  // `baton` outlives the world.
  World(int size, FabricOptions options, Baton& baton);
  ~World() override;

  int size() const { return static_cast<int>(devices_.size()); }
  const FabricOptions& options() const { return options_; }
  Scheduler& scheduler() { return *scheduler_; }
  FabricDevice& device(Rank rank) { return *devices_[static_cast<std::size_t>(rank)]; }
  std::vector<Turn>& turns() { return turns_; }

  // The communicator of the group, made on first use and kept: its name and ranks are compared here, and
  // never again. Throws InvalidInput for a group that has no ranks, a rank twice, or one that the world
  // lacks.
  Communicator& communicator(const Group& group);

  // The first call of a run keeps the error and cancels all ranks; later ones do nothing.
  void fail(Rank rank, std::exception_ptr error);
  // No stream of any rank can advance, as `rank` found.
  void fail_deadlocked(Rank rank);
  // `rank` waits in a round of the communicator that a member has made impossible by returning.
  void fail_departed(Rank rank, const Communicator& communicator);
  // The calls of a collective on the communicator do not match.
  void fail_mismatched(Rank rank, const Mismatch& mismatch);
  // To be called when the scheduler says that the run is cancelled. The rank that failed gets its error
  // again.
  [[noreturn]] void throw_cancelled(Rank rank) const;

  // The rank's body has returned or thrown.
  void depart(Rank rank);
  // The rank dies before the collective, which it was going to issue on the group: before depart().
  void die(Rank rank, const std::string& before);

  // What the rank is about to launch: for the blame of errors.
  void publish(Rank rank, std::shared_ptr<const RankProgram> program);

  // ---- faults ----

  bool tracks_transfers() const { return options_.checksums != Checksums::off || !options_.faults.empty(); }
  bool is_slow(Rank rank) const;
  bool dies_at(Rank rank, std::int64_t collective) const;
  // Moves what the matched calls say, with the faults that are to take place in it.
  void move_transfers(Communicator& communicator);
  std::vector<bool> injected() const;

  // By the host, between runs. end_run returns the run's error, if any.
  void begin_run();
  std::exception_ptr end_run();
  void restart_sequences();

 private:
  // What the ranks' programs say of an error that `evidence` was found for: who differs, and in words.
  struct Blame {
    ErrorFacts facts;
    std::string text;  // "" or "...; "
  };
  Blame blame(const Dissent& evidence, const DeadlockReport* deadlock) const;
  void ready_streams(Rank rank, std::vector<StreamId>& streams) const override;
  TurnDetails details(const Turn& turn) const override;

  FabricOptions options_;
  std::vector<Turn> turns_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<FabricDevice>> devices_;

  mutable std::mutex mutex_;  // of what follows
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::unordered_map<Group, Communicator*, GroupHash> by_group_;
  std::vector<std::vector<Communicator*>> by_rank_;
  std::vector<Rank> departed_ranks_;
  std::map<Rank, std::string> dead_ranks_;  // of the run, and what they died before
  std::set<Rank> deaths_;                   // of all runs
  std::vector<KnownProgram> programs_;      // by rank
  std::vector<bool> injected_;              // by fault

  // Written once in a run, before the scheduler is cancelled; read without the mutex after that.
  std::exception_ptr error_;
  Rank failed_rank_ = -1;
};

}  // namespace cp::sim
