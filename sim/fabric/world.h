// World: what the ranks of one fabric share. It owns their devices, the communicators and the scheduler, and
// keeps the first error of a run.
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

// Thrown to end the body of a rank that dies (FaultKind::dead_rank). Whoever catches it must throw it again.
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

  // Returns the communicator of the group. It is made at first use and kept, so that names and ranks of
  // groups are compared here and nowhere else. Throws InvalidInput if the group has no ranks, a rank twice,
  // or a rank that the world does not have.
  Communicator& communicator(const Group& group);

  // The first call in a run keeps the error and cancels all ranks. Later calls do nothing.
  void fail(Rank rank, std::exception_ptr error);
  // `rank` has found that no stream of any rank can advance.
  void fail_deadlocked(Rank rank);
  // `rank` waits in a round of the communicator that a member has made impossible by returning.
  void fail_departed(Rank rank, const Communicator& communicator);
  // The calls of a collective on the communicator do not match.
  void fail_mismatched(Rank rank, const Mismatch& mismatch);
  // A rank calls this when the scheduler says that the run is cancelled. Throws Cancelled, or, on the rank
  // that failed, its own error again.
  [[noreturn]] void throw_cancelled(Rank rank) const;

  // The rank's body has returned or thrown.
  void depart(Rank rank);
  // The rank dies; `before` is the text of the collective that it was going to issue. Call it before
  // depart().
  void die(Rank rank, const std::string& before);

  // Tells what the rank is about to launch. If the run fails, blame() compares these programs.
  void publish(Rank rank, std::shared_ptr<const RankProgram> program);

  // ---- faults ----

  bool tracks_transfers() const { return options_.checksums != Checksums::off || !options_.faults.empty(); }
  bool is_slow(Rank rank) const;
  bool dies_at(Rank rank, std::int64_t collective) const;
  // Moves the bytes of a collective whose calls match, with the faults whose place it is.
  void move_transfers(Communicator& communicator);
  std::vector<bool> injected() const;

  // The host calls these between runs. end_run() returns the error of the run, or null.
  void begin_run();
  std::exception_ptr end_run();
  void restart_sequences();

 private:
  // Who is to blame for an error, by the ranks' programs. `evidence` is what was found without them.
  struct Blame {
    ErrorFacts facts;
    std::string text;  // empty, or ends with "; "
  };
  Blame blame(const Dissent& evidence, const DeadlockReport* deadlock) const;
  void ready_streams(Rank rank, std::vector<StreamId>& streams) const override;
  TurnDetails details(const Turn& turn) const override;

  FabricOptions options_;
  std::vector<Turn> turns_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<FabricDevice>> devices_;

  mutable std::mutex mutex_;  // guards the members up to injected_
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::unordered_map<Group, Communicator*, GroupHash> by_group_;
  std::vector<std::vector<Communicator*>> by_rank_;
  std::vector<Rank> departed_ranks_;
  std::map<Rank, std::string> dead_ranks_;  // of this run, with the collective that each died before
  std::set<Rank> deaths_;                   // ranks that have died in any run
  std::vector<KnownProgram> programs_;      // by rank
  std::vector<bool> injected_;              // by fault

  // Written once in a run, before the scheduler is cancelled; read without the mutex after that.
  std::exception_ptr error_;
  Rank failed_rank_ = -1;
};

}  // namespace cp::sim
