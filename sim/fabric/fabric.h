// The simulated fabric: one thread per rank, real bytes, every invariant checked while it runs.
//
// Streams and events behave as on a GPU: launches only enqueue. Work happens in synchronize(), on the rank's
// own thread, which runs whatever is ready at the head of any of its streams and sleeps when nothing is. A
// collective starts when its last member arrives; only then are the arguments of all members compared
// (operation, reduction, root, counts, full split vectors, dtype, peers), the bytes moved and the observed
// records written from what was delivered.
//
// Errors are found as soon as they exist, never by a timeout. When no stream of any rank can advance any
// more, that is a Deadlock, whose message shows the cycle; a CollectiveMismatch names the ranks in the
// minority and the fields that differ. The first error cancels all ranks. Error::facts() names the culprits
// as data: the ranks whose programs differ from the others' (programs.h), the dead rank, or the two ends of a
// transfer.
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
  // One rank at a time, in the order of FabricOptions::order: exactly repeatable. Ranks are fibers of the
  // thread that calls run(), unless FabricOptions say otherwise.
  baton,
};

struct FabricOptions {
  Schedule schedule = Schedule::parallel;
  std::uint64_t seed = 0;     // of the baton
  BatonOrder order = {};      // of the baton
  bool record_traces = true;  // keeps observed records, and the baton's turns; false saves time
  // What the devices say that they have. A smaller target than the host's stands for a poorer library.
  Target target = host_target();
  std::size_t stack_bytes = 524'288;  // of each rank
  // For the baton: ranks are fibers of one thread. They need threads instead if a body blocks, by other means
  // than its device, until another rank has done something. Builds for sanitizers always have threads.
  bool fibers = true;
  std::vector<InjectedFault> faults = {};  // what goes wrong (faults.h)
  // With checksums or with faults, one member moves the whole of each collective, transfer by transfer.
  Checksums checksums = Checksums::off;
};

// Thrown when a rank is dead, which is the error's culprit; the others would wait for it in vain.
using cp::PeerLost;

// What a cancelled rank's synchronize throws: "cancelled after an error on rank 3: ...".
using Cancelled = ErrorOf<ErrorKind::cancelled>;

class Fabric {
 public:
  // A fabric of the ranks 0 .. world_size-1. Its threads start here, and every run() uses them again.
  explicit Fabric(int world_size, FabricOptions options = {});
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  int world_size() const;

  // Calls body(rank, device) once on each rank's thread and returns when all have returned. When one throws,
  // the others are cancelled (their synchronize throws) and the first error is rethrown here; the fabric can
  // be used again afterwards. A body synchronizes what it enqueues. Devices keep their prepared plan from one
  // run to the next, unless a run fails.
  void run(const std::function<void(Rank, Device&)>& body);

  // What the ranks' devices observed since the last clear, by rank. Callers add their own records to
  // `issued`. A body may touch only the entry of its own rank; `observed` is complete when run() has
  // returned. Sequence numbers count a group's collectives since the traces were cleared or a run failed, as
  // the executor's do.
  std::vector<RankTrace>& traces();
  void clear_traces();

  // For each fault of the options, in their order: whether it has taken place.
  std::vector<bool> injected() const;

  // The order of the ranks' turns that the baton chose since the traces were last cleared. Give it to another
  // fabric (BatonOrder::Kind::given) to repeat it.
  const std::vector<Turn>& turns() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::sim
