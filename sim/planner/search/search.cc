#include "sim/planner/search/search.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "shared/base/text.h"
#include "shared/base/units.h"
#include "sim/base/number_text.h"
#include "sim/base/parallel_for.h"
#include "sim/base/stop.h"
#include "sim/planner/search/bound.h"
#include "sim/planner/search/completion.h"
#include "sim/planner/search/doubt.h"
#include "sim/planner/search/evaluate.h"
#include "sim/planner/search/first_token.h"
#include "sim/planner/search/known_parts.h"
#include "sim/planner/search/layout_space.h"
#include "sim/planner/search/least_memories.h"
#include "sim/planner/search/nothing_fits.h"
#include "sim/planner/search/overlap.h"
#include "sim/planner/search/ranking.h"

namespace cp::sim {
namespace {

// How many layouts are replayed before the mark is moved: kFirstRound at first, and up to kLastRound later.
// The numbers do not depend on the threads, so neither does the answer. Chosen: a small first round gives an
// early mark, which prunes much; large rounds later keep all threads busy. Nor has a later round more than
// kFirstRound layouts of classes that have no mark yet: nothing limits these.
constexpr std::int64_t kFirstRound = 32, kLastRound = 512;
constexpr std::size_t kOpenedAtOnce = 64;  // families whose members are bounded together; chosen
// How many of the best layouts of different kinds are certain to be found, for the report (chosen).
constexpr std::size_t kForReport = 8;

// Why members that others stand for are not looked at.
constexpr const char *kFewerLossChunks = "fewer loss chunks fit",
                     *kUnneededSavings = "fits without host memory, or in fewer pieces";

class Search {
 public:
  Search(const PlanQuestion& question, const SearchOptions& options)
      : question_(question),
        options_(options),
        threads_(options.threads > 0 ? options.threads : num_cores()),
        space_(question),
        bound_(question),
        attention_(question),
        overlap_(question, space_, attention_),
        rules_(memory_rules(question)),
        least_memories_(question, rules_),
        usable_(usable_bytes(question)) {
    const auto known = std::make_shared<KnownParts>();
    for (int thread = 0; thread < threads_; ++thread)
      evaluators_.emplace_back(question, RateFactors{}, known);
    if (question.workload.phase != Phase::decode || !question.max_ttft_ms) return;
    most_prompt_us_ = *question.max_ttft_ms * 1e3;
    prompt_ = prompt_question(question);
    if (!prompt_) return;
    for (int thread = 0; thread < threads_; ++thread) prompts_.emplace_back(*prompt_);
  }

  PlanAnswer run() {
    const auto start = std::chrono::steady_clock::now();
    const StopScope scope(options_.stop);
    unless_stopped([&] {
      bound_families();
      while (!queue_.empty() && !stopped()) {
        const std::vector<Node> round = next_round();
        if (round.empty()) break;
        replay(round);
        show();
      }
      count_the_rest();
    });
    PlanAnswer answer = finish();
    answer.counts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return answer;
  }

 private:
  struct Node {
    double bound_ns = 0;
    std::int64_t number = 0;  // of equal bounds in the order of their making
    std::size_t family = 0;
    std::optional<ParallelLayout> layout;  // none: the whole family
    double update_ns = 0;                  // of a layout, as far as it is known
    // Members of which none is looked at as long as this one fits: they take no less time.
    std::vector<ParallelLayout> dominated, unneeded;
    bool operator<(const Node& other) const {  // the queue's top is the greatest
      return std::tie(bound_ns, number) > std::tie(other.bound_ns, other.number);
    }
  };
  struct FamilyState {
    std::optional<std::string> refused;
    bool too_large = false;
    double bound_ns = 0;
    std::int64_t members = 0;
  };

  AttentionKey key_of(const ParallelLayout& layout) const { return attention_key(layout, question_.cluster); }

  bool stopped() const { return options_.stop != nullptr && options_.stop->load(); }

  // What was found until this search was stopped is its answer; a stop of the caller's own is the caller's.
  template <class Work>
  void unless_stopped(const Work& work) const {
    try {
      work();
    } catch (const Stopped&) {
      if (!stopped()) throw;
    }
  }

  // By the least that a layout needs until it is replayed, and then by what its plans declare.
  bool fits(const Memory& memory) const { return counted_bytes(memory) <= usable_; }
  Memory memory(const ParallelLayout& layout) const { return least_memories_.of(layout); }

  // What does not fit by one scan of recurrences may do so by that which needs least: in training the one
  // that hands one state on, and in serving maybe heads, which spreads what is cached. Whether these are
  // legal depends on a member's strategy and on what its family has in common.
  std::vector<StateScan> lean_scans(const ParallelLayout& layout) const {
    std::vector<StateScan> scans;
    if (!question_.model.recurrence || question_.fixed.scan || layout.cp == 1) return scans;
    ParallelLayout lean = layout;
    for (const StateScan scan : {StateScan::sequential, StateScan::heads}) {
      lean.scan = scan;
      if (!refuse(question_.model, question_.workload, lean)) scans.push_back(scan);
    }
    return scans;
  }
  Memory memory_with_any_scan(const ParallelLayout& layout, const std::vector<StateScan>& lean) const {
    Memory least = memory(layout);
    if (fits(least)) return least;
    ParallelLayout leanest = layout;
    for (const StateScan scan : lean) {
      leanest.scan = scan;
      const Memory memory = this->memory(leanest);
      if (memory.used() < least.used()) least = memory;
    }
    return least;
  }

  // ---- families ----

  void bound_families() {
    std::int64_t left_out = 0;
    try {
      families_ = space_.families(&left_out);
    } catch (const InvalidInput& error) {
      if (options_.misses != nullptr) throw;  // its owner looks for what works
      throw_with_nearest(question_, error);
    }
    if (left_out > 0) rejected_[str(framework_names(question_), " cannot say it")] += left_out;
    counts_.enumerated += left_out;
    std::vector<FamilyState> states(families_.size());
    parallel_for(families_.size(), threads_,
                 [&](std::size_t i, std::size_t) { states[i] = look_at(families_[i]); });
    for (std::size_t i = 0; i < families_.size(); ++i) {
      const FamilyState& state = states[i];
      counts_.enumerated += state.members;
      if (state.refused) {
        rejected_[*state.refused] += state.members;
        if (!misses_.refused) misses_.refused = space_.leanest_member(families_[i]);
      } else if (state.too_large) {
        counts_.out_of_memory += state.members;
        const ParallelLayout leanest = space_.leanest_member(families_[i]);
        misses_.too_large(leanest, memory(leanest).used());
      } else {
        push({state.bound_ns, 0, i, std::nullopt, 0, {}, {}});
      }
    }
    show();
  }

  FamilyState look_at(const ParallelLayout& family) const {
    FamilyState state;
    state.members = space_.num_members(family);
    const ParallelLayout leanest = space_.leanest_member(family);
    // Strategies are legal as they are made: what is refused of this one is refused for all members.
    if (const auto refusal = refuse(question_.model, question_.workload, leanest)) {
      state.refused = refusal->kind;
      return state;
    }
    const auto may_fit = [&](const ParallelLayout& layout) {
      Memory of = memory(layout);
      of.attention = 0;  // of another strategy it may be less
      return fits(of);
    };
    ParallelLayout with_rows = leanest;
    with_rows.keys = Strategy::Keys::latent;
    state.too_large = !may_fit(leanest) && !(space_.may_choose_rows(leanest) && may_fit(with_rows));
    if (!state.too_large) state.bound_ns = bound_.family_ns(family);
    return state;
  }

  // ---- the queue ----

  void push(Node node) {
    node.number = made_++;
    queue_.push(std::move(node));
  }

  // Whether replays of parts of a step sharpen bounds.
  bool sharper() const { return question_.workload.phase == Phase::training && !options_.exhaustive; }

  // What a layout may take at most to be among the best, or the best of its class.
  double limit_ns(const ParallelLayout& layout) const {
    if (options_.exhaustive) return kNever;
    const double most_ns = options_.most_us * 1e3;
    const auto of_class = class_mark_ns_.find(class_of(layout));
    if (of_class == class_mark_ns_.end()) return most_ns;
    return std::min(most_ns, std::max(mark_ns_, of_class->second) * (1 + kTie));
  }
  bool needed(double bound_ns, const ParallelLayout& layout) const { return bound_ns <= limit_ns(layout); }

  std::size_t wanted_kinds() const {
    return std::max<std::size_t>(kForReport, static_cast<std::size_t>(question_.top));
  }

  std::vector<Node> next_round() {
    std::vector<Node> round;
    std::vector<std::size_t> families;
    // The queue gives the least bound first, and none that comes into it is less than the one it came from.
    least_left_ns_ = queue_.top().bound_ns;
    const auto size = static_cast<std::size_t>(std::clamp(counts_.replayed / 4, kFirstRound, kLastRound));
    std::int64_t unlimited = 0;
    while (!queue_.empty() && round.size() < size && !stopped()) {
      // Families that come one after the other open together.
      const bool opens = !queue_.top().layout && families.size() < kOpenedAtOnce;
      if (!opens && !families.empty()) {
        open(families);
        families.clear();
        continue;
      }
      const Node node = queue_.top();
      queue_.pop();
      const ParallelLayout& layout = node.layout ? *node.layout : families_[node.family];
      if (!needed(node.bound_ns, layout)) {
        counts_.pruned += node.layout ? 1 : space_.num_members(layout);
      } else if (node.layout) {
        round.push_back(node);
        if (!class_mark_ns_.contains(class_of(layout)) && ++unlimited == kFirstRound) break;
      } else {
        families.push_back(node.family);
      }
      if (queue_.empty()) open(std::exchange(families, {}));
    }
    open(families);
    // Those with the same attention after each other: its plans are written once.
    std::stable_sort(round.begin(), round.end(),
                     [&](const Node& a, const Node& b) { return key_of(*a.layout) < key_of(*b.layout); });
    return round;
  }

  // What becomes of a family's members.
  struct Opened {
    std::vector<Node> nodes;
    std::int64_t dominated = 0, unneeded = 0, out_of_memory = 0, pruned = 0, leanest_used = 0;
    std::optional<ParallelLayout> leanest;
  };

  void open(const std::vector<std::size_t>& families) {
    std::vector<Opened> opened(families.size());
    parallel_for(families.size(), threads_, [&](std::size_t i, std::size_t thread) {
      const ParallelLayout& family = families_[families[i]];
      // The same for all members, and what the formula of no other part falls so far behind (bound.h).
      const double update_ns = sharper() ? evaluators_[thread].update_ns(family) : 0;
      opened[i] = look_into(space_.members(family), families[i], update_ns);
    });
    for (Opened& of : opened) take(of);
  }

  void take(Opened& opened) {
    if (opened.dominated > 0) rejected_[kFewerLossChunks] += opened.dominated;
    if (opened.unneeded > 0) rejected_[kUnneededSavings] += opened.unneeded;
    counts_.out_of_memory += opened.out_of_memory, counts_.pruned += opened.pruned;
    if (opened.leanest) misses_.too_large(*opened.leanest, opened.leanest_used);
    for (Node& node : opened.nodes) push(std::move(node));
  }

  // A member whose plans need more memory than there is, `least`, stands for nobody: those that it stood for
  // are looked into, as a family of their own. More chunks of the loss help if the layers leave room.
  void take_instead_of(const Node& node, Memory least) {
    least.logits = 0;
    std::vector<ParallelLayout> members;
    const auto take_back = [&](const std::vector<ParallelLayout>& stood_for, const char* why, bool may_fit) {
      const auto count = static_cast<std::int64_t>(stood_for.size());
      if (count == 0) return;
      if ((rejected_[why] -= count) == 0) rejected_.erase(why);
      if (may_fit) members.insert(members.end(), stood_for.begin(), stood_for.end());
      if (!may_fit) counts_.out_of_memory += count;
    };
    take_back(node.dominated, kFewerLossChunks, options_.exhaustive || fits(least));
    take_back(node.unneeded, kUnneededSavings, true);
    if (members.empty()) return;
    Opened opened = look_into(members, node.family, node.update_ns);
    take(opened);
  }

  // What fits of members that differ in loss chunks, mlp_chunks and activations alone: where one does, no
  // other that takes more pieces of the MLP, or host memory where that one has none, is faster.
  class LeastSavings {
   public:
    // The place of the node, of those given, that makes this one unneeded.
    std::optional<std::size_t> unneeded_by(const ParallelLayout& layout) {
      if (!first_ || !(first_->strategy == layout.strategy) || !(first_->recompute == layout.recompute)) {
        first_ = layout;
        fitting_.clear();
      }
      for (const Fitting& one : fitting_) {
        const bool same =
            one.mlp_chunks == layout.mlp_chunks && one.host_activations == layout.host_activations;
        if (!same && one.mlp_chunks <= layout.mlp_chunks && one.host_activations <= layout.host_activations)
          return one.node;
      }
      return std::nullopt;
    }
    void fits(const ParallelLayout& layout, std::size_t node) {
      fitting_.push_back({layout.mlp_chunks, layout.host_activations, node});
    }

   private:
    struct Fitting {
      int mlp_chunks;
      bool host_activations;
      std::size_t node;
    };
    std::optional<ParallelLayout> first_;
    std::vector<Fitting> fitting_;
  };

  // Members that differ in loss chunks alone stand together, the fewest first; the first that fits stands for
  // the others, which take less memory and no less time, but for those whose memory would count between ties.
  Opened look_into(const std::vector<ParallelLayout>& members, std::size_t family, double update_ns) const {
    // Whoever takes too long has no node, and nobody else is faster that it stands for.
    constexpr std::size_t kPruned = std::numeric_limits<std::size_t>::max();
    Opened opened;
    std::optional<ParallelLayout> chosen;
    std::int64_t chosen_step = 0;
    std::size_t chosen_node = kPruned;
    FamilyBound bound(bound_, update_ns);
    LeastSavings least;
    std::optional<Strategy> whole, in_pieces;  // of the members at hand, which stand next to each other
    bool rows_may_travel = false;              // with that strategy
    std::vector<StateScan> lean;               // likewise
    for (const ParallelLayout& layout : members) {
      look_at_stop();
      if (const auto by = least.unneeded_by(layout)) {
        ++opened.unneeded;
        if (*by != kPruned) opened.nodes[*by].unneeded.push_back(layout);
        continue;
      }
      if (whole != layout.strategy) {
        whole = layout.strategy, in_pieces = overlap_.in_most_pieces(layout).strategy;
        rows_may_travel = with_rows(space_, attention_, layout).has_value();
        lean = lean_scans(layout);
      }
      ParallelLayout cut = layout;
      cut.strategy.pieces = in_pieces->pieces;
      // What does not fit whole may do so in pieces.
      Memory memory = memory_with_any_scan(layout, lean);
      Memory without = memory;
      without.attention = without.slack = 0;
      const bool only_in_pieces =
          !fits(memory) && cut.strategy.pieces > layout.strategy.pieces && fits(without);
      if (only_in_pieces) memory = memory_with_any_scan(cut, lean);
      ParallelLayout rows = layout;
      rows.keys = Strategy::Keys::latent;
      if (rows_may_travel && !fits(memory)) {  // what does not fit with heads may do so with latent rows
        const Memory of_rows = memory_with_any_scan(rows, lean);
        if (fits(of_rows)) memory = of_rows;
      }
      if (chosen && fits(memory)) {
        chosen->loss_chunks = layout.loss_chunks;
        if (*chosen == layout && memory_step(memory, usable_) == chosen_step) {
          ++opened.dominated;
          if (chosen_node != kPruned) opened.nodes[chosen_node].dominated.push_back(layout);
          continue;
        }
      }
      if (!fits(memory)) {
        ++opened.out_of_memory;
        if (!opened.leanest || memory.used() < opened.leanest_used)
          opened.leanest = only_in_pieces ? cut : layout, opened.leanest_used = memory.used();
        continue;
      }
      chosen = layout;
      chosen_step = memory_step(memory, usable_);
      const double bound_ns = rows_may_travel ? std::min(bound.ns(cut), bound.ns(rows)) : bound.ns(cut);
      chosen_node = kPruned;
      if (needed(bound_ns, layout)) {
        chosen_node = opened.nodes.size();
        opened.nodes.push_back({bound_ns, 0, family, layout, update_ns, {}, {}});
      } else {
        ++opened.pruned;
      }
      least.fits(layout, chosen_node);
    }
    return opened;
  }

  void count_the_rest() {
    while (!queue_.empty()) {
      look_at_stop();
      const Node& node = queue_.top();
      counts_.pruned += node.layout ? 1 : space_.num_members(families_[node.family]);
      queue_.pop();
    }
  }

  // ---- on the timeline ----

  // What came of one layout, with the choices that it leaves open.
  struct Found {
    std::optional<Candidate> best;
    double prompt_us = 0;
    // Choices whose plans need more memory than there is, and what the one of them needs that needs least.
    std::vector<ParallelLayout> too_large;
    std::optional<ParallelLayout> leanest;
    Memory least;
  };

  // Replays the layouts of a round, except those that a sharper bound rules out. The marks move only after
  // the whole round: if a thread moved them earlier, which layouts are pruned would depend on the threads'
  // speed.
  void replay(const std::vector<Node>& round) {
    std::vector<Found> found(round.size());
    // Layouts with the same attention go to one thread, whose evaluator keeps the plans of attention.
    std::vector<std::size_t> groups{0};
    for (std::size_t i = 1; i < round.size(); ++i) {
      if (key_of(*round[i].layout) != key_of(*round[i - 1].layout)) groups.push_back(i);
    }
    std::vector<std::uint8_t> looked_at(round.size(), 0);
    unless_stopped([&] {
      parallel_for(groups.size(), threads_, [&](std::size_t group, std::size_t thread) {
        const std::size_t end = group + 1 < groups.size() ? groups[group + 1] : round.size();
        for (std::size_t i = groups[group]; i < end; ++i) {
          look_at_one(round[i], found[i], thread);
          looked_at[i] = 1;
        }
      });
    });
    for (std::size_t i = 0; i < round.size(); ++i) {
      if (looked_at[i] == 0) continue;  // stopped before
      std::optional<Candidate>& candidate = found[i].best;
      if (found[i].prompt_us > most_prompt_us_) {
        ++rejected_["time to the first token"];
        misses_.too_slow(*round[i].layout, found[i].prompt_us);
        continue;
      }
      if (!candidate && found[i].leanest) {
        ++counts_.out_of_memory;
        misses_.too_large(*found[i].leanest, found[i].least.used());
        // With latent rows other things are kept: what is known is of layouts with heads.
        if (!another_attention_may_fit(*found[i].leanest, found[i].least) &&
            found[i].leanest->keys == round[i].layout->keys)
          too_large_.try_emplace(but_for_attention(*round[i].layout), found[i].least);
        take_instead_of(round[i], found[i].least);
        continue;
      }
      if (!candidate || candidate->step_us > options_.most_us) {
        ++counts_.pruned;
        continue;
      }
      ++counts_.replayed;
      const double ns = candidate->step_us * 1e3;
      double& of_class = class_mark_ns_.try_emplace(class_of(candidate->layout), kNever).first->second;
      of_class = std::min(of_class, ns);
      double& of_kind = kinds_.try_emplace(kind_of(candidate->layout), kNever).first->second;
      of_kind = std::min(of_kind, ns);
      all_.push_back(std::move(*candidate));
    }
    // The mark is the time of the last of the kinds that the answer shows. A layout slower than that cannot
    // be among them.
    const std::size_t wanted = wanted_kinds();
    if (kinds_.size() < wanted) return;
    std::vector<double> times;
    for (const auto& [kind, ns] : kinds_) times.push_back(ns);
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(wanted - 1), times.end());
    mark_ns_ = times[wanted - 1];
  }

  void look_at_one(const Node& node, Found& found, std::size_t thread) {
    const ParallelLayout& heads = *node.layout;
    // Latent rows first where they are fewer bytes: heads come in their place only where they are faster.
    const std::optional<ParallelLayout> rows = with_rows(space_, attention_, heads);
    // What is known is of layouts with heads.
    const auto known = too_large_.find(but_for_attention(heads));
    if (known != too_large_.end() && !rows) {
      found.leanest = heads, found.least = known->second;
      return;
    }
    const auto fitting = [&](const ParallelLayout& choice) { return fits(memory(choice)); };
    if (rows && fitting(*rows)) look_at_way(*rows, node.update_ns, found, thread);
    if (!rows || fitting(heads) || fitting(overlap_.in_most_pieces(heads)))
      look_at_way(heads, node.update_ns, found, thread);
    if (!found.best) return;
    if (found.prompt_us > 0) found.best->ttft_us = found.prompt_us;
    found.prompt_us = found.best->ttft_us.value_or(0);
  }

  // Chooses again without a choice whose plans need too much memory, until one fits, none is left, or no
  // attention would be lean enough.
  void look_at_way(const ParallelLayout& way, double update_ns, Found& found, std::size_t thread) {
    std::size_t known = 0;
    do {
      known = found.too_large.size();
      const auto fitting = [&](const ParallelLayout& choice) { return may_fit(choice, found); };
      for (const ParallelLayout& mixers : attention_.best_mixers(way, fitting, space_.runs_plans()))
        look_at_choices(mixers, update_ns, found, thread);
    } while (found.too_large.size() > known && another_attention_may_fit(way, found.least));
  }
  // Another scan may keep less of the states that come in to two chunks and go on, of each layer, for all
  // passes in flight. An exhaustive search asks each choice itself.
  bool another_attention_may_fit(const ParallelLayout& layout, Memory memory) const {
    if (options_.exhaustive) return true;
    memory.attention = 0;
    if (question_.model.recurrence && layout.cp > 1 && !question_.fixed.scan) {
      const RecurrenceProblem problem = recurrence_problem(question_.model, question_.workload, layout);
      const std::int64_t passes =
          layout.pp == 1 || question_.workload.phase != Phase::training
              ? 1
              : in_flight(0, layout.pp, layout.virtual_stages, accumulation(question_.workload, layout));
      memory.activations -= 2 * (problem.state_numel() + problem.transition_numel()) *
                            size_bytes(DType::f32) * question_.model.layers * passes;
    }
    return fits(memory);
  }

  // What needs the same memory but for attention: layouts that differ in nothing but its core, what this
  // moves in how many pieces, and scans.
  static Digest but_for_attention(ParallelLayout layout) {
    Strategy other;
    other.ulysses_degree = layout.strategy.ulysses_degree, other.balance = layout.strategy.balance;
    layout.strategy = other;
    layout.window_core.reset(), layout.window_balance.reset(), layout.scan_balance.reset();
    layout.scan = {};
    Hasher hasher;
    return hash(hasher, layout).digest();
  }

  bool may_fit(const ParallelLayout& choice, const Found& found) const {
    // Recurrences have more at work than attention: whatever attention does, their scan needs too much.
    const bool by_scan = question_.model.recurrence && !options_.exhaustive;
    const auto is_known = [&](const ParallelLayout& known) {
      return by_scan ? known.scan == choice.scan && known.scan_balance == choice.scan_balance
                     : known == choice;
    };
    return std::none_of(found.too_large.begin(), found.too_large.end(), is_known) && fits(memory(choice));
  }

  void look_at_choices(const ParallelLayout& asked, double update_ns, Found& found, std::size_t thread) {
    const auto fitting = [&](const ParallelLayout& choice) { return may_fit(choice, found); };
    const bool sharper = this->sharper();
    if (sharper && !needed(least_ns(asked, update_ns), asked)) return;
    const auto matters = [&](const ParallelLayout& choice, const AttentionTimes& least) {
      return !sharper || needed(sharp_ns(choice, least, update_ns), choice);
    };
    for (const ParallelLayout& layout : overlap_.best_of(asked, bound_.ns(asked), {fitting, matters})) {
      if (!fitting(layout)) continue;
      if (sharper && !needed(sharp_ns(layout, attention_.least(layout), update_ns), layout)) continue;
      // Fewer tokens than ranks are read in no time that a limit could be meant for.
      if (prompt_ && !refuse(prompt_->model, prompt_->workload, layout))
        found.prompt_us = prompts_[thread].evaluate(layout).step_us;
      if (found.prompt_us > most_prompt_us_) return;
      PipelineBound least;
      if (sharper && layout.pp > 1) least = bound_.pipeline(layout, attention_.least(layout), update_ns);
      std::optional<Candidate> one = evaluators_[thread].evaluate(layout, limit_ns(layout), least);
      if (!one) continue;
      if (!fits(one->memory)) {
        found.too_large.push_back(layout);
        if (!found.leanest || one->memory.used() < found.least.used())
          found.leanest = layout, found.least = one->memory;
        if (!another_attention_may_fit(layout, one->memory)) return;
      } else if (!found.best || one->step_us * (1 + kTie) < found.best->step_us) {
        found.best = std::move(one);
      }
    }
  }

  double sharp_ns(const ParallelLayout& layout, const AttentionTimes& least, double update_ns) const {
    return bound_.ns(layout, least, update_ns, limit_ns(layout));
  }

  // A bound of the layout with any pieces and slots, by its attention alone without them (overlap.h).
  double least_ns(const ParallelLayout& layout, double update_ns) const {
    const ParallelLayout cut = overlap_.in_most_pieces(layout);
    return sharp_ns(cut, OverlapChoice::least_times(layout, attention_.least(layout), cut), update_ns);
  }

  void show() const {
    if (!options_.progress) return;
    SearchProgress progress{counts_.enumerated, made_, counts_.replayed, 0};
    for (const auto& [name, ns] : class_mark_ns_) {
      progress.best_us = progress.best_us == 0 ? ns / 1e3 : std::min(progress.best_us, ns / 1e3);
    }
    options_.progress(progress);
  }

  // ---- the answer ----

  PlanAnswer finish() {
    PlanAnswer answer;
    answer.question = question_;
    answer.warnings = question_.warnings;
    answer.counts = counts_;
    answer.counts.rejected.assign(rejected_.begin(), rejected_.end());
    std::stable_sort(answer.counts.rejected.begin(), answer.counts.rejected.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    if (all_.empty() && options_.most_us < kNever && counts_.pruned > 0) return answer;
    if (all_.empty() && !stopped()) {
      if (options_.misses != nullptr) *options_.misses = misses_;
      throw_nothing_fits(question_, answer.counts, misses_);
    }
    rank_candidates(all_);
    answer.best = best_of_kinds(all_, wanted_kinds());
    answer.classes = best_of_classes(all_);
    answer.all = std::move(all_);
    weigh(answer, threads_);
    if (question_.baseline) {
      unless_stopped([&] { answer.classes.push_back(baseline(*question_.baseline, answer.all)); });
    }
    unless_stopped([&] { add_first_tokens(answer, threads_); });
    if (!stopped()) return answer;
    answer.least_left_us = least_left_ns_ / 1e3;
    answer.warnings.push_back(interrupted(answer));
    return answer;
  }

  // With how much better what was not replayed may be, by its bounds.
  static std::string interrupted(const PlanAnswer& answer) {
    std::string text = "interrupted: the best of what was replayed so far, not of all";
    if (answer.best.empty() || answer.least_left_us == 0) return text;
    const double gain = 1 - answer.least_left_us / answer.best.front().step_us;
    if (gain <= 0) return text + "; nothing that is left is faster";
    return text + fmt::format("; what is left takes {} or more, {:.1f} % less than the fastest below",
                              human_us(answer.least_left_us), 100 * gain);
  }

  ClassBest baseline(const PartialLayout& asked, const std::vector<Candidate>& all) {
    SearchOptions options;
    options.threads = options_.threads, options.stop = options_.stop;
    Completion completion = complete(question_, asked, options);
    ClassBest baseline{"baseline", std::move(completion.candidate), completion.reason, completion.found};
    if (completion.kind == Completion::Kind::rejected) return baseline;
    baseline.why = all.empty() ? "" : difference(*baseline.candidate, all.front());
    if (completion.kind == Completion::Kind::too_large) baseline.why += str("; ", completion.reason);
    return baseline;
  }

  const PlanQuestion& question_;
  const SearchOptions& options_;
  const int threads_;
  const LayoutSpace space_;
  const StepBound bound_;
  mutable AttentionTimer attention_;
  const OverlapChoice overlap_;
  const MemoryRules rules_;
  mutable LeastMemories least_memories_;
  const std::int64_t usable_;
  std::vector<Evaluator> evaluators_;   // by thread
  std::optional<PlanQuestion> prompt_;  // decode under a limit: reading the prompts
  std::vector<Evaluator> prompts_;      // by thread
  double most_prompt_us_ = kNever;

  std::vector<ParallelLayout> families_;
  std::priority_queue<Node> queue_;
  std::int64_t made_ = 0;
  SearchCounts counts_;
  std::map<std::string, std::int64_t> rejected_;
  NearestMisses misses_;

  std::map<Digest, Memory> too_large_;  // whatever the attention, by but_for_attention()
  std::vector<Candidate> all_;
  std::map<LayoutKind, double> kinds_;           // best time of each
  std::map<std::string, double> class_mark_ns_;  // the same
  double mark_ns_ = kNever;                      // what the best ones take at most
  double least_left_ns_ = 0;                     // what no layout that is not replayed takes less than
};

}  // namespace

PlanAnswer search_layouts(const PlanQuestion& question, const SearchOptions& options) {
  validate_model(question.model);
  validate_workload(question.workload);
  return Search(question, options).run();
}

}  // namespace cp::sim
