#include "sim/cost/schedule/pipeline.h"

#include <algorithm>
#include <cstddef>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/transformer/parallel_layout.h"

namespace cp::sim {
namespace {

constexpr double kNotYet = -1;

// What each rank does, in order: the k-th forward pass and the k-th backward pass of its chunks.
class Schedule {
 public:
  Schedule(std::size_t stages, int ranks, std::int64_t micro_batches)
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

  // The n-th of the 2 * passes() chunks of a rank.
  PipelineChunk chunk(int rank, std::int64_t n) const {
    const std::int64_t first = warm_up(rank), steady = 2 * (passes() - first);
    if (n < first) return pass(rank, n, false);
    if (n >= first + steady) return pass(rank, n - first - steady + steady / 2, true);
    const std::int64_t turn = (n - first) / 2;
    return (n - first) % 2 == 0 ? pass(rank, first + turn, false) : pass(rank, turn, true);
  }

 private:
  // Each chunk takes as many micro-batches as there are ranks, then the next chunk does.
  PipelineChunk pass(int rank, std::int64_t k, bool backward) const {
    PipelineChunk chunk;
    chunk.backward = backward;
    chunk.stage = rank, chunk.micro_batch = k;
    if (virtual_stages_ == 1) return chunk;
    const std::int64_t round = k / ranks_, turn = round % virtual_stages_;
    const std::int64_t slice = backward ? virtual_stages_ - 1 - turn : turn;
    chunk.stage = static_cast<int>(slice) * ranks_ + rank;
    chunk.micro_batch = round / virtual_stages_ * ranks_ + k % ranks_;
    return chunk;
  }

  int ranks_, virtual_stages_ = 1;
  std::int64_t micro_batches_;
};

class Run {
 public:
  Run(std::span<const StageTimes> stages, int ranks, std::int64_t micro_batches, bool keep_chunks)
      : stages_(stages),
        ranks_(ranks),
        schedule_(stages.size(), ranks, micro_batches),
        micro_batches_(idx(micro_batches)),
        keep_chunks_(keep_chunks),
        ends_{std::vector<double>(stages.size() * micro_batches_, kNotYet),
              std::vector<double>(stages.size() * micro_batches_, kNotYet)},
        states_(idx(ranks)) {}

  PipelineTimes times() {
    times_.chunks.resize(keep_chunks_ ? idx(ranks_) : 0);
    times_.most_in_flight.resize(idx(ranks_));
    std::vector<int> waiting;
    for (int rank = ranks_; rank-- > 0;) waiting.push_back(rank);
    while (!waiting.empty()) {
      const int rank = waiting.back();
      waiting.pop_back();
      if (!advance(rank)) continue;
      // What it sends may be what a neighbour waits for.
      waiting.push_back((rank + 1) % ranks_);
      waiting.push_back((rank + ranks_ - 1) % ranks_);
    }
    for (const State& state : states_) times_.time_ns = std::max(times_.time_ns, state.free_ns);
    for (const State& state : states_) {
      CP_INVARIANT(state.next == 2 * schedule_.passes(), "a stage of the pipeline waits for ever");
      times_.idle_ns.push_back(times_.time_ns - state.busy_ns);
    }
    return std::move(times_);
  }

 private:
  struct State {
    std::int64_t next = 0;  // chunk
    double free_ns = 0, busy_ns = 0;
    std::int64_t in_flight = 0;
  };

  double& end_of(bool backward, std::int64_t stage, std::int64_t micro_batch) {
    return ends_[backward ? 1 : 0][idx(stage) * micro_batches_ + idx(micro_batch)];
  }

  // When the chunk's input is there; kNotYet when nobody knows.
  double input_ns(const PipelineChunk& chunk) {
    const int before = chunk.backward ? chunk.stage + 1 : chunk.stage - 1;
    if (before < 0) return 0;
    if (idx(before) == stages_.size()) return end_of(false, chunk.stage, chunk.micro_batch);
    const double end = end_of(chunk.backward, before, chunk.micro_batch);
    if (end == kNotYet || ranks_ == 1) return end;
    const StageTimes& sender = stages_[idx(before)];
    return end + (chunk.backward ? sender.send_backward_ns : sender.send_forward_ns);
  }

  // Whatever the rank can do now; whether that was anything.
  bool advance(int rank) {
    State& state = states_[idx(rank)];
    const std::int64_t before = state.next;
    for (; state.next < 2 * schedule_.passes(); ++state.next) {
      PipelineChunk chunk = schedule_.chunk(rank, state.next);
      const double input = input_ns(chunk);
      if (input == kNotYet) break;
      const StageTimes& stage = stages_[idx(chunk.stage)];
      const double ns = chunk.backward ? stage.backward_ns : stage.forward_ns;
      chunk.begin_ns = std::max(input, state.free_ns);
      chunk.end_ns = state.free_ns = chunk.begin_ns + ns;
      state.busy_ns += ns;
      end_of(chunk.backward, chunk.stage, chunk.micro_batch) = chunk.end_ns;
      state.in_flight += chunk.backward ? -1 : 1;
      times_.most_in_flight[idx(rank)] = std::max(times_.most_in_flight[idx(rank)], state.in_flight);
      if (keep_chunks_) times_.chunks[idx(rank)].push_back(chunk);
    }
    return state.next > before;
  }

  const std::span<const StageTimes> stages_;
  const int ranks_;
  const Schedule schedule_;
  const std::size_t micro_batches_;
  const bool keep_chunks_;
  std::vector<double> ends_[2];  // forward, backward; by stage, micro-batch
  std::vector<State> states_;    // by rank
  PipelineTimes times_;
};

}  // namespace

PipelineTimes run_pipeline(std::span<const StageTimes> stages, int ranks, std::int64_t micro_batches,
                           bool keep_chunks) {
  return Run(stages, ranks, micro_batches, keep_chunks).times();
}

double pipeline_bound_ns(std::span<const StageTimes> stages, int ranks, std::int64_t micro_batches) {
  const Schedule schedule(stages.size(), ranks, micro_batches);
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

}  // namespace cp::sim
