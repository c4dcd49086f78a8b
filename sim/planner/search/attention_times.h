// AttentionTimer: the attention of one layer, or its recurrence, replayed alone on the timeline; of a model
// whose layers differ, of each kind, and the mean over its layers. Many layouts of a search have the same
// attention, so each time is computed once and kept; StepBound uses it to sharpen their bounds.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "shared/base/digest.h"
#include "shared/transformer/step_plan.h"
#include "sim/base/memo.h"
#include "sim/cost/timeline/issue_time.h"
#include "sim/planner/search/question.h"

namespace cp::sim {

struct AttentionTimes {
  struct Pass {
    double kernels_ns = 0;  // while some kernel runs
    double exposed_ns = 0;  // while no kernel runs
    double ring_ns = 0;     // of that, waiting for what moves along the ring axis
    double behind_ns = 0;   // backward, of that: until what the last kernel of attention gave is home
    // Some blocks come to this rank while it sends none (the last rank of a contiguous causal ring). Nothing
    // of its own has to be ready for that, so within a step they may come long before.
    bool may_come_early = false;
  };
  struct Passes {
    Pass forward, backward;
  };
  Passes mean;                   // over the layers of the model
  std::vector<Passes> of_kinds;  // of a layer of each kind
  // Of rows that leave each home for the other one, where layers have them at two (homes_of_layers()).
  std::array<double, kMostHomes> move_ns{};
};

// What attention depends on: sizes, the strategy with all its fields, and how far apart neighbouring cp ranks
// are. Layouts of equal keys share its times, and the order of keys is that in which a search replays them.
struct AttentionKey {
  std::int64_t micro_batch;
  int tp, cp;
  int ranks_apart;  // no more than a node or an NVLink domain has: beyond, all distances are equal
  Core core;
  int ulysses_degree, inner_ring;
  Balance::Kind balance;
  std::int64_t block;
  Strategy::Rotation rotation;
  bool ulysses_inner, send_empty, per_document, input_dtype_gradients, input_dtype_merge;
  int slots, pieces;
  Strategy::Transfers transfers;
  Strategy::Merges merges;
  Strategy::Keys keys;
  StateScan scan;
  std::optional<Core> window_core;
  std::optional<Balance::Kind> window_balance, scan_balance;  // a layout's have no blocks
  auto operator<=>(const AttentionKey&) const = default;
};
AttentionKey attention_key(const ParallelLayout& layout, const Cluster& cluster);

// How often a layer's mixer goes forward in a step, in the mean: again where the layer is computed again.
double forward_passes(const Recompute& recompute);
// Whether the mixer of such a layer takes no less in a step than alone (CoreFacts::is_least_alone). Of layers
// whose masks cut keys off that is not claimed.
bool is_least_alone(const PlanQuestion& question, const ParallelLayout& layout, const LayerKind& kind);

// Several threads may use one timer. The question must outlive it.
class AttentionTimer {
 public:
  explicit AttentionTimer(const PlanQuestion& question)
      : question_(question), software_(without_host(question.software)) {}

  // Returns the times of the rank that has most pairs, in training or in a prefill, which has no backward
  // pass, without those of moves. The reference stays valid.
  const AttentionTimes& of(const ParallelLayout& layout);
  // What attention takes at least within a step, on the rank that stands for whichever stage: with layers of
  // several kinds another rank may have most pairs there.
  AttentionTimes least(const ParallelLayout& layout);
  // The scan with which the layout's recurrences take least time, of those that are legal and that `fits`
  // takes; the layout's own where the model has none.
  using Fits = std::function<bool(const ParallelLayout&)>;
  StateScan best_scan(const ParallelLayout& layout, const Fits& fits);
  // The layout with the scan that best_scan() says, and beside it the same with a core and balances of their
  // own for layers with a window or a recurrence, of those that are legal and that `fits` takes. The first
  // one is that with which attention, recurrences and the moves between homes, replayed alone, take least, or
  // ties with it and has no choices of its own. A step tells which is the fastest, since it hides transfers
  // that nothing hides alone: behind the first one come all that might then take less. Where `plans_run` is
  // false, nothing but the scan is chosen: other software has no such choices.
  std::vector<ParallelLayout> best_mixers(const ParallelLayout& layout, const Fits& fits, bool plans_run);
  // Whether latent rows that travel are fewer bytes than the heads that they expand to, by the rule of
  // Strategy::Keys::fewer_bytes, in the first kind of layers that have attention. The layout must be one that
  // may send them (layout_space.h), whatever its keys are now.
  bool rows_are_fewer(const ParallelLayout& layout);

 private:
  // The index in its cp group of the rank that stands for the first stage, and of those for all stages.
  int first_busiest(const ParallelLayout& layout);
  const std::set<int>& all_busiest(const ParallelLayout& layout);
  // Of the rank with that index in its cp group.
  const AttentionTimes& of_rank(const ParallelLayout& layout, int cp_index);
  // Of that rank in layers with the problem, whatever scans recurrences have: computed once for each.
  AttentionTimes::Passes attention(const ParallelLayout& layout, int cp_index,
                                   const AttentionProblem& problem);
  // Of the layout's scan, on that rank; computed once for each.
  AttentionTimes::Passes recurrence(const ParallelLayout& layout, int cp_index);
  AttentionTimes::Pass replayed(const Plan& plan) const;
  double behind_ns(const Plan& plan) const;
  // The cores and the balances that best_mixers() tries; the layout's own are the first ones.
  std::vector<std::optional<Core>> own_cores(const ParallelLayout& layout) const;
  std::vector<ParallelLayout> own_balances(const ParallelLayout& layout) const;
  // What attention, recurrences and moves of all layers of a micro-batch take alone, and what is left of that
  // where the rest of a step hides what it can (StepBound::layers()).
  struct MixersTime {
    double alone_ns = 0, least_ns = 0;
  };
  MixersTime mixers_time(const ParallelLayout& layout);
  // Of the rank with that index in its cp group: AttentionTimes::move_ns.
  std::array<double, kMostHomes> moves(const ParallelLayout& layout, int cp_index);

  const PlanQuestion& question_;
  // The question's software without the host's times: replayed alone, attention would wait for the host,
  // which in a whole step is ahead by then.
  const SoftwareProfile software_;
  Memo<std::pair<AttentionKey, int>, AttentionTimes> known_;  // with the rank's index in its cp group
  Memo<Digest, AttentionTimes::Passes> attentions_;           // by problem, strategy, and where the ranks are
  Memo<std::pair<AttentionKey, int>, AttentionTimes::Passes> recurrences_;  // likewise
  Memo<AttentionKey, bool> rows_fewer_;
  // With the rank's index, whether tp ranks split rows, and where these are.
  Memo<std::tuple<AttentionKey, int, bool, AxisOrder>, std::array<double, kMostHomes>> moves_;
  Memo<std::tuple<AttentionKey, int, int>, std::set<int>> busiest_;  // with pp and virtual_stages
};

}  // namespace cp::sim
