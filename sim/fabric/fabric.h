// The simulated fabric: one OS thread per rank, real bytes, every invariant checked while it runs.
//
// Streams and events behave as on a GPU: launches only enqueue. Work happens in synchronize(), on the rank's
// own thread, which runs whatever is ready at the head of any of its streams and sleeps when nothing is. A
// collective starts when its last member arrives; only then are the arguments of all members compared
// (operation, reduction, root, counts, full split vectors, dtype, peers), the bytes moved and the observed
// records written from what was delivered.
//
// Errors are found when they exist, never by a timeout: the first moment at which no stream of any rank can
// advance is a Deadlock that shows the cycle; a CollectiveMismatch names the minority and the fields. The
// first error cancels all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "shared/plan/device.h"
#include "shared/plan/trace.h"

namespace cp::sim {

enum class Schedule : std::uint8_t {
  parallel,  // all cores; the order in which ranks run is the machine's
  baton,     // one rank at a time; a seeded generator picks the next one: exactly repeatable
};

struct FabricOptions {
  Schedule schedule = Schedule::parallel;
  std::uint64_t seed = 0;     // of the baton
  bool record_traces = true;  // observed records; off for speed
};

class Fabric {
 public:
  // Ranks 0 .. world_size-1. Threads start here and are reused by every run().
  explicit Fabric(int world_size, FabricOptions options = {});
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  // Calls body(rank, device) once on each rank's thread and returns when all have returned. When one throws,
  // the others are cancelled (their synchronize throws) and the first error is rethrown here; the fabric can
  // be used again afterwards.
  void run(const std::function<void(Rank, Device&)>& body);

  // What the ranks' devices observed since the last clear, by rank; in issued go the records that callers
  // add.
  std::vector<RankTrace>& traces();
  void clear_traces();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cp::sim
