#include "sim/planner/search/search.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "shared/base/text.h"
#include "shared/base/units.h"
#include "sim/base/number_text.h"
#include "sim/base/parallel_for.h"
#include "sim/base/stop.h"
#include "sim/planner/search/completion.h"
#include "sim/planner/search/doubt.h"
#include "sim/planner/search/first_token.h"
#include "sim/planner/search/layout_choices.h"
#include "sim/planner/search/marks.h"
#include "sim/planner/search/member_bounds.h"
#include "sim/planner/search/nothing_fits.h"
#include "sim/planner/search/ranking.h"
#include "sim/planner/search/search_tools.h"

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
        tools_(question),
        wanted_(std::max(kForReport, static_cast<std::size_t>(question.top))),
        marks_(wanted_, options.most_us * kNsPerUs, !options.exhaustive),
        members_(tools_, marks_),
        choices_(tools_, marks_, options.exhaustive, threads_) {}

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
    std::optional<BoundedMember> member;       // none: the whole family
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

  AttentionKey key_of(const Node& node) const {
    return attention_key(node.member->layout, question_.cluster);
  }

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

  // ---- families ----

  void bound_families() {
    std::int64_t left_out = 0;
    try {
      families_ = tools_.space.families(&left_out);
    } catch (const InvalidInput& error) {
      if (options_.misses != nullptr) throw;  // its owner looks for what works
      throw_with_nearest(question_, error, threads_);
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
        if (!misses_.refused) misses_.refused = tools_.space.leanest_member(families_[i]);
      } else if (state.too_large) {
        counts_.out_of_memory += state.members;
        const ParallelLayout leanest = tools_.space.leanest_member(families_[i]);
        misses_.too_large(leanest, tools_.memories.of(leanest).used());
      } else {
        push({state.bound_ns, 0, i, std::nullopt});
      }
    }
    show();
  }

  FamilyState look_at(const ParallelLayout& family) {
    FamilyState state;
    state.members = tools_.space.num_members(family);
    const ParallelLayout leanest = tools_.space.leanest_member(family);
    // Strategies are legal as they are made: what is refused of this one is refused for all members.
    if (const auto refusal = refuse(question_.model, question_.workload, leanest)) {
      state.refused = refusal->kind;
      return state;
    }
    const auto may_fit = [&](const ParallelLayout& layout) {
      Memory of = tools_.memories.of(layout);
      of.attention = 0;  // of another strategy it may be less
      return tools_.fits(of);
    };
    ParallelLayout with_rows = leanest;
    with_rows.keys = Strategy::Keys::latent;
    state.too_large = !may_fit(leanest) && !(tools_.space.may_choose_rows(leanest) && may_fit(with_rows));
    if (!state.too_large) state.bound_ns = tools_.bound.family_ns(family);
    return state;
  }

  // ---- the queue ----

  void push(Node node) {
    node.number = made_++;
    queue_.push(std::move(node));
  }

  std::int64_t num_members(const Node& node) const {
    return node.member ? 1 : tools_.space.num_members(families_[node.family]);
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
      const bool opens = !queue_.top().member && families.size() < kOpenedAtOnce;
      if (!opens && !families.empty()) {
        open(families);
        families.clear();
        continue;
      }
      const Node node = queue_.top();
      queue_.pop();
      const ParallelLayout& layout = node.member ? node.member->layout : families_[node.family];
      if (!marks_.needed(node.bound_ns, layout)) {
        counts_.pruned += num_members(node);
      } else if (node.member) {
        round.push_back(node);
        if (!marks_.knows_class_of(layout) && ++unlimited == kFirstRound) break;
      } else {
        families.push_back(node.family);
      }
      if (queue_.empty()) open(std::exchange(families, {}));
    }
    open(families);
    // Those with the same attention after each other: its plans are written once.
    std::stable_sort(round.begin(), round.end(),
                     [&](const Node& a, const Node& b) { return key_of(a) < key_of(b); });
    return round;
  }

  void open(const std::vector<std::size_t>& families) {
    std::vector<BoundedMembers> opened(families.size());
    parallel_for(families.size(), threads_, [&](std::size_t i, std::size_t thread) {
      const ParallelLayout& family = families_[families[i]];
      // The same for all members, and what the formula of no other part falls so far behind (bound.h).
      opened[i] =
          members_.of(tools_.space.members(family), [&] { return choices_.update_ns(family, thread); });
    });
    for (std::size_t i = 0; i < families.size(); ++i) take(opened[i], families[i]);
  }

  void take(BoundedMembers& opened, std::size_t family) {
    if (opened.dominated > 0) rejected_[kFewerLossChunks] += opened.dominated;
    if (opened.unneeded > 0) rejected_[kUnneededSavings] += opened.unneeded;
    counts_.out_of_memory += opened.out_of_memory, counts_.pruned += opened.pruned;
    if (opened.leanest) misses_.too_large(*opened.leanest, opened.leanest_used);
    for (BoundedMember& member : opened.members) push({member.bound_ns, 0, family, std::move(member)});
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
    take_back(node.member->dominated, kFewerLossChunks, options_.exhaustive || tools_.fits(least));
    take_back(node.member->unneeded, kUnneededSavings, true);
    if (members.empty()) return;
    BoundedMembers opened = members_.of(members, [&] { return node.member->update_ns; });
    take(opened, node.family);
  }

  void count_the_rest() {
    while (!queue_.empty()) {
      look_at_stop();
      counts_.pruned += num_members(queue_.top());
      queue_.pop();
    }
  }

  // ---- on the timeline ----

  // The marks move only after the whole round: if a thread moved them earlier, which layouts are pruned would
  // depend on the threads' speed.
  void replay(const std::vector<Node>& round) {
    std::vector<std::optional<ReplayedLayout>> replayed(round.size());  // none: stopped before
    // Layouts with the same attention go to one thread, whose evaluator keeps the plans of attention.
    std::vector<std::size_t> groups{0};
    for (std::size_t i = 1; i < round.size(); ++i) {
      if (key_of(round[i]) != key_of(round[i - 1])) groups.push_back(i);
    }
    unless_stopped([&] {
      parallel_for(groups.size(), threads_, [&](std::size_t group, std::size_t thread) {
        const std::size_t end = group + 1 < groups.size() ? groups[group + 1] : round.size();
        for (std::size_t i = groups[group]; i < end; ++i)
          replayed[i] = choices_.replay(round[i].member->layout, round[i].member->update_ns, thread);
      });
    });
    for (std::size_t i = 0; i < round.size(); ++i) {
      if (replayed[i]) count(round[i], *replayed[i]);
    }
    marks_.move();
  }

  void count(const Node& node, ReplayedLayout& replayed) {
    const ParallelLayout& layout = node.member->layout;
    std::optional<Candidate>& candidate = replayed.best;
    if (replayed.prompt_us > choices_.most_prompt_us()) {
      ++rejected_["time to the first token"];
      misses_.too_slow(layout, replayed.prompt_us);
    } else if (!candidate && replayed.leanest) {
      ++counts_.out_of_memory;
      misses_.too_large(*replayed.leanest, replayed.least.used());
      choices_.remember_too_large(layout, replayed);
      take_instead_of(node, replayed.least);
    } else if (!candidate || candidate->step_us > options_.most_us) {
      ++counts_.pruned;
    } else {
      ++counts_.replayed;
      marks_.add(*candidate);
      all_.push_back(std::move(*candidate));
    }
  }

  void show() const {
    if (!options_.progress) return;
    const double best_ns = marks_.best_ns();
    options_.progress(
        {counts_.enumerated, made_, counts_.replayed, best_ns == kNever ? 0 : best_ns / kNsPerUs});
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
      throw_nothing_fits(question_, answer.counts, misses_, threads_);
    }
    rank_candidates(all_);
    answer.best = best_of_kinds(all_, wanted_);
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
  SearchTools tools_;
  const std::size_t wanted_;  // best layouts of different kinds
  Marks marks_;
  const MemberBounds members_;
  LayoutChoices choices_;

  std::vector<ParallelLayout> families_;
  std::priority_queue<Node> queue_;
  std::int64_t made_ = 0;
  SearchCounts counts_;
  std::map<std::string, std::int64_t> rejected_;
  NearestMisses misses_;
  std::vector<Candidate> all_;
  double least_left_ns_ = 0;  // what no layout that is not replayed takes less than
};

}  // namespace

namespace {

void require_tokens_for_experts(const Transformer& model, const Workload& workload) {
  if (workload.phase != Phase::training || !model.experts) return;
  const std::int64_t experts = model.experts->count, seq_len = workload.seq_len,
                     batch = workload.global_batch;
  if (batch >= ceil_div(experts, seq_len)) return;
  throw InvalidInput(
      str("a step has ", batch * seq_len, " tokens, and each layer ", experts,
          " experts, of which some would have none; the nearest batch that has as many tokens is "
          "--global-batch ",
          ceil_div(experts, seq_len)));
}

}  // namespace

PlanAnswer search_layouts(const PlanQuestion& question, const SearchOptions& options) {
  validate_model(question.model);
  validate_workload(question.workload);
  require_tokens_for_experts(question.model, question.workload);
  return Search(question, options).run();
}

}  // namespace cp::sim
