#include "sim/cost/timeline/rank_chains.h"

#include <algorithm>

#include "shared/base/index.h"

namespace cp::sim {
namespace {

// By what the chain grew since then, so many times more. It may have become another chain of the same length:
// what that has less of is not taken away more than once.
void lengthen(RateTimes& path, const RateTimes& then, double factor) {
  RateTimes grown;
  double all = 0, more = 0;
  for (std::size_t i = 0; i < kNumRates; ++i) {
    const double by = path.of[i] - then.of[i];
    all += by, more += std::max(by, 0.0);
    grown.of[i] = std::max(by, 0.0);
  }
  if (more > 0) path.add(grown, factor * all / more);
}

}  // namespace

void RankChains::begin(std::size_t stream, const RankTask& task, double issued_ns) {
  streams_[stream].before = path_to(streams_[stream], task, issued_ns);
}

void RankChains::end(std::size_t stream, const RankTask& task, double ns, double now_ns, bool network_last) {
  Stream& on = streams_[stream];
  on.last = {now_ns, path_through(on, task, ns, network_last)};
  ended_[idx(task.step)] = on.last;
}

// It begins now because something that it waits for has just ended. That may be an earlier iteration's end of
// a step that has ended again since; then both did so now, and either chain takes the whole time.
RateTimes RankChains::path_to(const Stream& stream, const RankTask& task, double issued_ns) {
  const Ended* latest = &stream.last;
  for (std::size_t n = task.first_need; n < task.first_need + task.num_needs; ++n) {
    const Ended& need = ended_[idx(tasks_.needs[n].step)];
    if (need.ns > latest->ns) latest = &need;
  }
  if (issued_ns > latest->ns) {
    ++host_waits_;
    RateTimes of_host;
    of_host[Rate::host] = issued_ns;
    return of_host;
  }
  return latest->path;
}

// With the task that ends now.
RateTimes RankChains::path_through(const Stream& stream, const RankTask& task, double ns,
                                   bool network_last) const {
  RateTimes path = stream.before;
  const auto add = [&](Rate first, double first_ns, Rate rest) {
    first_ns = std::min(first_ns, ns);
    path[first] += first_ns, path[rest] += ns - first_ns;
  };
  if (!task.collective) {
    add(Rate::launch, launch_ns_, task.rate);
  } else if (!network_last) {
    add(Rate::latency, task.load.inside.delay_ns, Rate::inside);
  } else {
    add(Rate::latency, task.load.network.delay_ns, Rate::network);
  }
  return path;
}

RankChains::State RankChains::state() const {
  State state;
  for (const Stream& stream : streams_) {
    state.before.push_back(stream.before), state.last.push_back(stream.last.path);
  }
  state.ended = ended_;
  state.host_waits = host_waits_;
  return state;
}

void RankChains::extend_running(std::size_t stream, const State& then, double factor) {
  lengthen(streams_[stream].before, then.before[stream], factor);
}

void RankChains::extend_last(std::size_t stream, const State& then, double factor, double passed) {
  Ended& last = streams_[stream].last;
  last.ns += passed;
  lengthen(last.path, then.last[stream], factor);
}

void RankChains::extend_step(StepId step, const State& then, double factor, double passed) {
  Ended& ended = ended_[idx(step)];
  ended.ns += passed;
  lengthen(ended.path, then.ended[idx(step)].path, factor);
}

}  // namespace cp::sim
