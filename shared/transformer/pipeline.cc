#include "shared/transformer/pipeline.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/transformer/parallel_layout.h"

namespace cp {
namespace {

// What each rank does, in order.
class PipelineSchedule {
 public:
  PipelineSchedule(std::size_t stages, int ranks, std::int64_t micro_batches)
      : ranks_(ranks), micro_batches_(micro_batches) {
    if (ranks < 1 || stages == 0 || stages % idx(ranks) != 0) {
      throw InvalidInput(str(stages, " stages on ", ranks,
                             " ranks do not go together: every rank holds the same number of stages, at "
                             "least one; use a multiple of ",
                             std::max(ranks, 1), " stages"));
    }
    virtual_stages_ = static_cast<int>(stages / idx(ranks));
    if (micro_batches < 1)
      throw InvalidInput(str(micro_batches, " micro-batches are out of range; use at least 1"));
    if (virtual_stages_ > 1 && micro_batches % ranks != 0) {
      const std::int64_t below = micro_batches / ranks * ranks;
      throw InvalidInput(str(
          micro_batches, " micro-batches on ", ranks,
          " ranks with several stages each do not go together: the interleaved schedule needs a multiple of ",
          ranks, "; use ", below > 0 ? str(below, " or ") : "", below + ranks));
    }
  }

  int virtual_stages() const { return virtual_stages_; }
  std::int64_t passes() const { return micro_batches_ * virtual_stages_; }

  std::int64_t warm_up(int rank) const {
    return pipeline_warm_up(rank, ranks_, virtual_stages_, passes() / virtual_stages_);
  }

  // The passes of a rank in one direction, one after the other: each chunk takes as many micro-batches as
  // there are ranks, then the next chunk does. It counts on instead of dividing, since searches walk through
  // hundreds of millions of passes.
  class Passes {
   public:
    Passes(const PipelineSchedule& schedule, int rank, bool backward)
        : ranks_(schedule.ranks_),
          virtual_stages_(schedule.virtual_stages_),
          step_(backward ? -schedule.ranks_ : schedule.ranks_),
          first_(backward ? rank + (virtual_stages_ - 1) * ranks_ : rank),
          stage_(first_) {}

    int stage() const { return stage_; }
    std::int64_t micro_batch() const { return micro_batch_; }
    void next() {
      ++micro_batch_;
      if (virtual_stages_ == 1 || ++in_turn_ < ranks_) return;
      in_turn_ = 0, stage_ += step_, micro_batch_ -= ranks_;
      if (++turn_ < virtual_stages_) return;
      turn_ = 0, stage_ = first_, micro_batch_ += ranks_;
    }

   private:
    int ranks_, virtual_stages_, step_, first_, stage_;
    int in_turn_ = 0, turn_ = 0;  // micro-batches of this chunk, and chunks, since the turn began
    std::int64_t micro_batch_ = 0;
  };

 private:
  int ranks_, virtual_stages_ = 1;
  std::int64_t micro_batches_;
};

class PipelineRun {
 public:
  PipelineRun(std::span<const StageTimes> stages, int ranks, std::int64_t micro_batches, bool keep_chunks)
      : stages_(stages),
        ranks_(ranks),
        schedule_(stages.size(), ranks, micro_batches),
        micro_batches_(idx(micro_batches)),
        keep_chunks_(keep_chunks),
        ends_(2 * stages.size() * micro_batches_),
        ended_(2 * stages.size(), 0) {
    for (int rank = 0; rank < ranks; ++rank) states_.emplace_back(schedule_, rank);
  }

  PipelineTimes times() {
    walk([](int) { return false; });
    for (const State& state : states_) times_.time_ns = std::max(times_.time_ns, state.free_ns);
    for (const State& state : states_) {
      CP_INVARIANT(state.done[1] == schedule_.passes(), "a stage of the pipeline waits for ever");
      times_.idle_ns.push_back(times_.time_ns - state.busy_ns);
    }
    return std::move(times_);
  }

  double time_ns(double most_ns) {
    // Times are sums of as many terms as there are passes, each rounded to 1e-16 of them; and there are far
    // fewer than a million.
    constexpr double kRounding = 1e-9;
    const std::vector<double> behind = behind_passes();
    double least_ns = 0;
    const bool ended = walk([&](int rank) {
      const State& state = states_[idx(rank)];
      least_ns = state.free_ns - state.busy_ns + behind[idx(rank)];
      return least_ns * (1 - kRounding) > most_ns;
    });
    if (!ended) return least_ns;
    return times().time_ns;
  }

 private:
  // Lets ranks do what they can until all is done, or until `leaves` says so behind what a rank has done.
  // Returns whether all is done.
  template <class Leaves>
  bool walk(const Leaves& leaves) {
    times_.chunks.resize(keep_chunks_ ? idx(ranks_) : 0);
    times_.most_in_flight.resize(idx(ranks_));
    std::vector<int> waiting;
    for (int rank = ranks_; rank-- > 0;) waiting.push_back(rank);
    while (!waiting.empty()) {
      const int rank = waiting.back();
      waiting.pop_back();
      if (!advance(rank)) continue;
      if (leaves(rank)) return false;
      // What it sends may be what a neighbour waits for.
      waiting.push_back((rank + 1) % ranks_);
      waiting.push_back((rank + ranks_ - 1) % ranks_);
    }
    return true;
  }

  // By rank: all its passes, and the way of its last micro-batch back from its first stage.
  std::vector<double> behind_passes() const {
    std::vector<double> behind(idx(ranks_), 0);
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      behind[stage % idx(ranks_)] +=
          static_cast<double>(micro_batches_) * (stages_[stage].forward_ns + stages_[stage].backward_ns);
    }
    double back = 0;
    for (std::size_t rank = 0; rank < behind.size(); ++rank) {
      if (rank > 0) back += stages_[rank].send_backward_ns;
      behind[rank] += back;
      back += stages_[rank].backward_ns;
    }
    return behind;
  }

  // Of a rank. Of each direction, forward and then backward, its next pass, and how many are done.
  struct State {
    State(const PipelineSchedule& schedule, int rank)
        : passes{PipelineSchedule::Passes(schedule, rank, false),
                 PipelineSchedule::Passes(schedule, rank, true)},
          warm_up(schedule.warm_up(rank)) {}

    std::array<PipelineSchedule::Passes, 2> passes;
    std::int64_t warm_up;
    std::array<std::int64_t, 2> done = {};
    double free_ns = 0, busy_ns = 0;
  };

  // Behind the warm-up, forward and backward passes take turns while there are forward ones.
  bool goes_backward(const State& state) const {
    const auto [forward, backward] = state.done;
    return forward == schedule_.passes() || (forward >= state.warm_up && backward < forward - state.warm_up);
  }

  // When the input of a pass is there; nothing when nobody knows. Each stage has its passes of a direction in
  // the order of the micro-batches.
  std::optional<double> input_ns(bool backward, int stage, std::int64_t micro_batch) const {
    const int before = backward ? stage + 1 : stage - 1;
    if (before < 0) return 0;
    const bool turns = idx(before) == stages_.size();  // the last stage goes back from what it made itself
    const std::size_t from = turns ? row(false, stage) : row(backward, before);
    if (micro_batch >= ended_[from]) return std::nullopt;
    const double end = ends_[from * micro_batches_ + idx(micro_batch)];
    if (turns || ranks_ == 1) return end;
    const StageTimes& sender = stages_[idx(before)];
    return end + (backward ? sender.send_backward_ns : sender.send_forward_ns);
  }

  // Whatever the rank can do now; whether that was anything.
  bool advance(int rank) {
    State& state = states_[idx(rank)];
    std::int64_t& most_in_flight = times_.most_in_flight[idx(rank)];
    bool any = false;
    while (state.done[1] < schedule_.passes()) {
      const bool backward = goes_backward(state);
      PipelineSchedule::Passes& pass = state.passes[backward ? 1 : 0];
      const int stage = pass.stage();
      const std::int64_t micro_batch = pass.micro_batch();
      const std::optional<double> input = input_ns(backward, stage, micro_batch);
      if (!input) break;
      const StageTimes& times = stages_[idx(stage)];
      const double ns = backward ? times.backward_ns : times.forward_ns,
                   begin_ns = std::max(*input, state.free_ns);
      state.free_ns = begin_ns + ns, state.busy_ns += ns;
      const std::size_t own = row(backward, stage);
      ends_[own * micro_batches_ + idx(micro_batch)] = state.free_ns;
      ended_[own] = micro_batch + 1;
      ++state.done[backward ? 1 : 0];
      most_in_flight = std::max(most_in_flight, state.done[0] - state.done[1]);
      if (keep_chunks_)
        times_.chunks[idx(rank)].push_back({stage, micro_batch, backward, begin_ns, state.free_ns});
      pass.next();
      any = true;
    }
    return any;
  }

  // Of ends_ and ended_.
  std::size_t row(bool backward, int stage) const { return idx(stage) + (backward ? stages_.size() : 0); }

  const std::span<const StageTimes> stages_;
  const int ranks_;
  const PipelineSchedule schedule_;
  const std::size_t micro_batches_;
  const bool keep_chunks_;
  std::vector<double> ends_;         // by row, micro-batch
  std::vector<std::int64_t> ended_;  // by row: how many micro-batches have ended
  std::vector<State> states_;        // by rank
  PipelineTimes times_;
};

}  // namespace

PipelineTimes run_pipeline(std::span<const StageTimes> stages, int ranks, std::int64_t micro_batches,
                           bool keep_chunks) {
  return PipelineRun(stages, ranks, micro_batches, keep_chunks).times();
}

double pipeline_ns(std::span<const StageTimes> stages, int ranks, std::int64_t micro_batches,
                   double most_ns) {
  return PipelineRun(stages, ranks, micro_batches, /*keep_chunks=*/false).time_ns(most_ns);
}

double pipeline_bound_ns(std::span<const StageTimes> stages, int ranks, std::int64_t micro_batches) {
  const PipelineSchedule schedule(stages.size(), ranks, micro_batches);
  const auto sends = [&](double ns) { return ranks == 1 ? 0 : ns; };
  std::vector<double> work(idx(ranks), 0);
  double one_batch = 0;  // all stages, there and back
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const StageTimes& stage = stages[s];
    work[s % idx(ranks)] += stage.forward_ns + stage.backward_ns;
    one_batch += stage.forward_ns + stage.backward_ns;
    if (s + 1 < stages.size()) one_batch += sends(stage.send_forward_ns);
    if (s > 0) one_batch += sends(stage.send_backward_ns);
  }
  double bound = one_batch, there = 0, back = 0;
  for (std::size_t rank = 0; rank < idx(ranks); ++rank) {
    if (rank > 0) back += sends(stages[rank].send_backward_ns);
    bound = std::max(bound, there + static_cast<double>(micro_batches) * work[rank] + back);
    there += stages[rank].forward_ns + sends(stages[rank].send_forward_ns);
    back += stages[rank].backward_ns;
  }
  return bound;
}

}  // namespace cp
