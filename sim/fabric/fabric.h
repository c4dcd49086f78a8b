// The simulated fabric: one thread per rank, real bytes, every invariant checked while it runs.
//
// Streams and events behave as on a GPU: launches only enqueue. Work happens in synchronize(), on the rank's
// own thread, which runs whatever is ready at the head of any of its streams and sleeps when nothing is. A
// collective starts when its last member arrives; only then are the arguments of all members compared
// (operation, reduction, root, counts, full split vectors, dtype, peers), the bytes moved and the observed
// records written from what was delivered.
//
// Errors are found when they exist, never by a timeout: the first moment at which no stream of any rank can
// advance is a Deadlock that shows the cycle; a CollectiveMismatch names the minority and the fields. The
// first error cancels all ranks. Its culprits are data, Error::facts(): the ranks whose programs differ from
// the others' (programs.h), the dead one, the two ends of a transfer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "shared/base/error.h"
#include "shared/plan/device.h"
#include "shared/plan/target.h"
#include "shared/plan/trace.h"
#include "shared/plan/transfer_check.h"
#include "sim/fabric/baton_order.h"
#include "sim/fabric/faults.h"

namespace cp::sim {

enum class Schedule : std::uint8_t {
  // All cores; the order in which ranks run is the machine's.
  parallel,
  // One rank at a time, in the order of FabricOptions::order: exactly repeatable. Ranks are fibers of the thread that calls run(),
  // unless FabricOptions say otherwise.
  baton,
};

struct FabricOptions {
  Schedule schedule = Schedule::parallel;
  std::uint64_t seed = 0;         // of the baton
  BatonOrder order = {};          // of the baton
  bool record_traces = true;      // observed records, and the baton's turns; off for speed
  Target target = host_target();  // what the devices admit to have; less than all stands for a poorer library
  std::size_t stack_bytes = 524'288;  // of each rank
  // Of the baton. A body that blocks until another rank has done something, by other means than its device, needs threads.
  // Builds for sanitizers have threads always.
  bool fibers = true;
  std::vector<InjectedFault> faults = {};  // what goes wrong (faults.h); none of a program
  // With these or with faults one member moves the whole of each collective, transfer by transfer.
  Checksums checksums = Checksums::off;
};

// A rank is dead: its culprit. The others wait for it in vain.
using cp::PeerLost;

// What a cancelled rank's synchronize throws: "cancelled after an error on rank 3: ...".
using Cancelled = ErrorOf<ErrorKind::cancelled>;

class Fabric {
 public:
  // Ranks 0 .. world_size-1. Threads start here and are reused by every run().
  explicit Fabric(int world_size, FabricOptions options = {});
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  int world_size() const;

  // Calls body(rank, device) once on each rank's thread and returns when all have returned. When one throws, the others are
  // cancelled (their synchronize throws) and the first error is rethrown here; the fabric can be used again afterwards.
  // A body synchronizes what it enqueues. Devices keep their prepared plan from one run to the next, unless a run fails.
  void run(const std::function<void(Rank, Device&)>& body);

  // What the ranks' devices observed since the last clear, by rank; in issued go the records that callers add. Inside a body
  // only the own rank's entry may be touched; `observed` is complete when run() has returned.
  // Sequence numbers count a group's collectives since the traces were cleared (or a run failed), as the executor's do.
  std::vector<RankTrace>& traces();
  void clear_traces();

  // Which of the options' faults have taken place, in their order.
  std::vector<bool> injected() const;

  // The interleaving that the baton chose since the last clear of the traces. Given again (BatonOrder::Kind::given), it is repeated.
  const std::vector<Turn>& turns() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::sim
