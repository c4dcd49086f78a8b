// The longest chain of operations of a rank's replay (rank_replay.h), by the rates that it hangs on: each
// task continues the chain of whatever ended last of all that it waited for. The times of a chain add up to
// its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/cost/timeline/rank_tasks.h"
#include "sim/cost/timeline/rate_times.h"

namespace cp::sim {

class RankChains {
 public:
  // Something that ended, and the chain that led there.
  struct Ended {
    double ns = 0;
    RateTimes path;
  };
  // What the chains were at some moment.
  struct State {
    std::vector<RateTimes> before, last;  // by stream
    std::vector<Ended> ended;             // by step
    std::int64_t host_waits = 0;
  };

  // `tasks` must outlive this. `launch_ns` is that of a kernel.
  RankChains(const RankTasks& tasks, std::size_t steps, double launch_ns)
      : tasks_(tasks), launch_ns_(launch_ns), streams_(tasks.streams.size()), ended_(steps) {}

  // The stream begins with a task that the host has issued then.
  void begin(std::size_t stream, const RankTask& task, double issued_ns);
  // It ends, after so long. Of a collective: its part between nodes ended last.
  void end(std::size_t stream, const RankTask& task, double ns, double now_ns, bool network_last);

  const Ended& last(std::size_t stream) const { return streams_[stream].last; }
  // Tasks that began later because they were not issued before.
  std::int64_t host_waits() const { return host_waits_; }

  State state() const;
  // What the chain grew since then, it grows `factor` times more, in `passed` ns: of the stream's running
  // task, of its last one, of a step.
  void extend_running(std::size_t stream, const State& then, double factor);
  void extend_last(std::size_t stream, const State& then, double factor, double passed);
  void extend_step(StepId step, const State& then, double factor, double passed);

 private:
  struct Stream {
    RateTimes before;  // of what runs: the chain up to its beginning
    Ended last;        // task
  };

  RateTimes path_to(const Stream& stream, const RankTask& task, double issued_ns);
  RateTimes path_through(const Stream& stream, const RankTask& task, double ns, bool network_last) const;

  const RankTasks& tasks_;
  const double launch_ns_;
  std::vector<Stream> streams_;
  std::vector<Ended> ended_;  // the last end of each step
  std::int64_t host_waits_ = 0;
};

}  // namespace cp::sim
