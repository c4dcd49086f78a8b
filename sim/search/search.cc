#include "sim/search/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <queue>
#include <thread>
#include <tuple>
#include <utility>

#include "shared/base/error.h"
#include "sim/search/bound.h"
#include "sim/search/evaluate.h"
#include "sim/search/layout_space.h"

namespace cp::sim {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Layouts replayed before the mark is moved: the same for any number of threads.
constexpr std::int64_t kFirstRound = 32, kLastRound = 512;
constexpr std::size_t kOpenedAtOnce = 64;  // families
constexpr std::size_t kForReport = 8;      // best layouts of different kinds that are certain to be found

// What makes layouts different enough to stand beside each other among the best; of each, the fastest does.
using Kind = std::tuple<int, int, int, int, int, int, Core, int>;
Kind kind_of(const ParallelLayout& layout) {
  const Strategy none, &strategy = layout.cp > 1 ? layout.strategy : none;
  return {layout.dp_replicate, layout.dp_shard, layout.cp,     layout.tp,
          layout.pp,           layout.ep,       strategy.core, strategy.ulysses_degree};
}

bool faster(const Candidate& a, const Candidate& b) {
  return std::tuple(a.step_us, a.memory.used(), to_string(a.layout)) <
         std::tuple(b.step_us, b.memory.used(), to_string(b.layout));
}

// f(item, thread) for all items, a thread for each core. Throws what the first item to fail threw, when all have ended.
template <class F>
void for_all(std::size_t items, int threads, const F& f) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&](int thread) {
    try {
      for (std::size_t item = next++; item < items; item = next++) f(item, thread);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!error) error = std::current_exception();
      next = items;
    }
  };
  {
    std::vector<std::jthread> others;
    for (int thread = 1; thread < threads && static_cast<std::size_t>(thread) < items; ++thread)
      others.emplace_back(work, thread);
    work(0);
  }
  if (error) std::rethrow_exception(error);
}

class Search {
 public:
  Search(const PlanQuestion& question, const SearchOptions& options)
      : question_(question),
        options_(options),
        threads_(options.threads > 0 ? options.threads
                                     : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
        space_(question),
        bound_(question),
        attention_(question),
        rules_(memory_rules(question)),
        usable_(usable_bytes(question)) {
    for (int thread = 0; thread < threads_; ++thread) {
      evaluators_.emplace_back(question);
    }
    if (question.workload.phase != Phase::decode || !question.max_ttft_ms) return;
    most_prompt_us_ = *question.max_ttft_ms * 1e3;
    prompt_ = question;
    prompt_->workload.phase = Phase::prefill;
    prompt_->workload.seq_len = std::max<std::int64_t>(1, question.workload.cached);
    prompt_->workload.cached = prompt_->workload.new_tokens = 0;
    for (int thread = 0; thread < threads_; ++thread) prompts_.emplace_back(*prompt_);
  }

  PlanAnswer run() {
    const auto start = std::chrono::steady_clock::now();
    bound_families();
    while (!queue_.empty() && !stopped()) {
      const std::vector<ParallelLayout> round = next_round();
      if (round.empty()) break;
      replay(round);
      show();
    }
    count_the_rest();
    PlanAnswer answer = finish();
    answer.counts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return answer;
  }

 private:
  struct Node {
    double bound_ns = 0;
    std::int64_t number = 0;  // of equal bounds in the order of their making
    std::size_t family = 0;
    std::optional<ParallelLayout> layout;      // none: the whole family
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

  bool fits(const Memory& memory) const { return memory.used() - memory.context <= usable_; }

  // ---- families ----

  void bound_families() {
    families_ = space_.families();
    std::vector<FamilyState> states(families_.size());
    for_all(families_.size(), threads_, [&](std::size_t i, int) { states[i] = look_at(families_[i]); });
    for (std::size_t i = 0; i < families_.size(); ++i) {
      const FamilyState& state = states[i];
      counts_.enumerated += state.members;
      if (state.refused) {
        rejected_[*state.refused] += state.members;
        if (!first_refused_) first_refused_ = space_.leanest_member(families_[i]);
      } else if (state.too_large) {
        counts_.out_of_memory += state.members;
        const ParallelLayout leanest = space_.leanest_member(families_[i]);
        keep_leanest(leanest, memory_of(question_.model, question_.workload, leanest, rules_).used());
      } else {
        push({state.bound_ns, 0, i, std::nullopt});
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
    Memory memory = memory_of(question_.model, question_.workload, leanest, rules_);
    memory.attention = 0;  // of another strategy it may be less
    state.too_large = !fits(memory);
    if (!state.too_large) state.bound_ns = bound_.family_ns(family);
    return state;
  }

  // The layout that lacks least, for the message when nothing fits.
  void keep_leanest(const ParallelLayout& layout, std::int64_t used) {
    if (!leanest_ || used < leanest_used_) leanest_ = layout, leanest_used_ = used;
  }

  // ---- the queue ----

  void push(Node node) {
    node.number = made_++;
    queue_.push(std::move(node));
  }

  // Whether something bounded so may be among the best, or the best of its class.
  bool needed(double bound_ns, const ParallelLayout& layout) const {
    if (options_.exhaustive) return true;
    const auto of_class = class_mark_ns_.find(class_of(layout));
    return bound_ns <= mark_ns_ || of_class == class_mark_ns_.end() || bound_ns <= of_class->second;
  }

  std::vector<ParallelLayout> next_round() {
    std::vector<ParallelLayout> round;
    std::vector<std::size_t> families;
    const auto size = static_cast<std::size_t>(std::clamp(counts_.replayed / 4, kFirstRound, kLastRound));
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
        round.push_back(layout);
      } else {
        families.push_back(node.family);
      }
      if (queue_.empty()) open(std::exchange(families, {}));
    }
    open(families);
    // Those with the same attention after each other: its plans are written once.
    std::stable_sort(round.begin(), round.end(),
                     [&](const ParallelLayout& a, const ParallelLayout& b) { return key_of(a) < key_of(b); });
    return round;
  }

  // What becomes of a family's members.
  struct Opened {
    std::vector<Node> nodes;
    std::int64_t dominated = 0, out_of_memory = 0, pruned = 0, leanest_used = 0;
    std::optional<ParallelLayout> leanest;
  };

  void open(const std::vector<std::size_t>& families) {
    std::vector<Opened> opened(families.size());
    for_all(families.size(), threads_, [&](std::size_t i, int) { opened[i] = look_into(families[i]); });
    for (Opened& of : opened) {
      if (of.dominated > 0) rejected_["fewer loss chunks fit"] += of.dominated;
      counts_.out_of_memory += of.out_of_memory, counts_.pruned += of.pruned;
      if (of.leanest) keep_leanest(*of.leanest, of.leanest_used);
      for (Node& node : of.nodes) push(std::move(node));
    }
  }

  // Members that differ in loss chunks alone stand together, the fewest first; the first that fits stands for the others, which
  // take less memory and no less time.
  Opened look_into(std::size_t family) const {
    Opened opened;
    std::optional<ParallelLayout> chosen;
    FamilyBound bound(bound_);
    for (const ParallelLayout& layout : space_.members(families_[family])) {
      if (chosen) {
        chosen->loss_chunks = layout.loss_chunks;
        if (*chosen == layout) {
          ++opened.dominated;
          continue;
        }
      }
      const Memory memory = memory_of(question_.model, question_.workload, layout, rules_);
      if (!fits(memory)) {
        ++opened.out_of_memory;
        if (!opened.leanest || memory.used() < opened.leanest_used)
          opened.leanest = layout, opened.leanest_used = memory.used();
        continue;
      }
      chosen = layout;
      const double bound_ns = bound.ns(layout);
      if (needed(bound_ns, layout)) {
        opened.nodes.push_back({bound_ns, 0, family, layout});
      } else {
        ++opened.pruned;
      }
    }
    return opened;
  }

  void count_the_rest() {
    while (!queue_.empty()) {
      const Node& node = queue_.top();
      counts_.pruned += node.layout ? 1 : space_.num_members(families_[node.family]);
      queue_.pop();
    }
  }

  // ---- on the timeline ----

  // Those that a sharper bound does not rule out.
  void replay(const std::vector<ParallelLayout>& round) {
    std::vector<std::optional<Candidate>> found(round.size());
    std::vector<double> prompt_us(round.size(), 0);
    const auto look_at_one = [&](std::size_t i, int thread) {
      const ParallelLayout& layout = round[i];
      const auto at = static_cast<std::size_t>(thread);
      const bool sharper =
          layout.cp > 1 && question_.workload.phase == Phase::training && !options_.exhaustive;
      if (sharper && !needed(bound_.ns(layout, attention_.of(layout)), layout)) return;
      if (!prompts_.empty()) prompt_us[i] = prompts_[at].evaluate(layout).step_us;
      if (prompt_us[i] > most_prompt_us_) return;
      found[i] = evaluators_[at].evaluate(layout);
    };
    // Layouts with the same attention go to one thread.
    std::vector<std::size_t> groups{0};
    for (std::size_t i = 1; i < round.size(); ++i) {
      if (key_of(round[i]) != key_of(round[i - 1])) groups.push_back(i);
    }
    for_all(groups.size(), threads_, [&](std::size_t group, int thread) {
      const std::size_t end = group + 1 < groups.size() ? groups[group + 1] : round.size();
      for (std::size_t i = groups[group]; i < end; ++i) look_at_one(i, thread);
    });
    for (std::size_t i = 0; i < round.size(); ++i) {
      std::optional<Candidate>& candidate = found[i];
      if (prompt_us[i] > most_prompt_us_) {
        ++rejected_["time to the first token"];
        if (!fastest_prompt_ || prompt_us[i] < fastest_prompt_us_)
          fastest_prompt_ = round[i], fastest_prompt_us_ = prompt_us[i];
        continue;
      }
      if (!candidate) {
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
    const std::size_t wanted = std::max<std::size_t>(kForReport, static_cast<std::size_t>(question_.top));
    if (kinds_.size() < wanted) return;
    std::vector<double> times;
    for (const auto& [kind, ns] : kinds_) times.push_back(ns);
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(wanted - 1), times.end());
    mark_ns_ = times[wanted - 1];
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
    answer.counts = counts_;
    answer.counts.rejected.assign(rejected_.begin(), rejected_.end());
    std::stable_sort(answer.counts.rejected.begin(), answer.counts.rejected.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    if (all_.empty() && !stopped()) fail(answer.counts);
    std::sort(all_.begin(), all_.end(), faster);
    set_ranks();
    std::map<Kind, bool> shown;
    for (const Candidate& candidate : all_) {
      if (shown.try_emplace(kind_of(candidate.layout), true).second &&
          answer.best.size() < std::max<std::size_t>(kForReport, static_cast<std::size_t>(question_.top)))
        answer.best.push_back(candidate);
    }
    add_classes(answer);
    if (stopped()) answer.warnings.push_back("interrupted: the best of what was replayed so far, not of all");
    answer.all = std::move(all_);
    return answer;
  }

  // Layouts whose intervals meet that of the first of a rank share it.
  void set_ranks() {
    double high = -1;
    int rank = 0, next = 1;
    for (Candidate& candidate : all_) {
      if (candidate.low_us > high) rank = next, high = candidate.high_us;
      candidate.rank = rank;
      ++next;
    }
  }

  void add_classes(PlanAnswer& answer) {
    for (const char* name : {"pure CP", "TP + CP", "with PP", "without CP"}) {
      ClassBest best{name, std::nullopt, ""};
      for (const Candidate& candidate : all_) {
        if (class_of(candidate.layout) != name) continue;
        best.candidate = candidate;
        best.why = difference(candidate, all_.front());
        break;
      }
      if (!best.candidate) best.why = "nothing of it is legal and fits";
      answer.classes.push_back(std::move(best));
    }
    if (!question_.baseline) return;
    ClassBest baseline{"baseline", std::nullopt, ""};
    const ParallelLayout& layout = *question_.baseline;
    if (const auto refusal = refuse(question_.model, question_.workload, layout)) {
      baseline.why = refusal->reason;
    } else {
      baseline.candidate = evaluators_.front().evaluate(layout);
      baseline.candidate->rank = 0;
      baseline.why = all_.empty() ? "" : difference(*baseline.candidate, all_.front());
      if (!fits(baseline.candidate->memory)) {
        baseline.why +=
            str("; does not fit: ",
                human_bytes(baseline.candidate->memory.used() - baseline.candidate->memory.context), " of ",
                human_bytes(usable_), " a GPU");
      }
    }
    answer.classes.push_back(std::move(baseline));
  }

  [[noreturn]] void fail(const SearchCounts& counts) const {
    std::vector<std::string> reasons;
    for (const auto& [reason, number] : counts.rejected) reasons.push_back(str(reason, ": ", number));
    if (fastest_prompt_) {
      throw Infeasible(str("no layout that fits reads the prompt of ", prompt_->workload.seq_len,
                           " tokens in ", *question_.max_ttft_ms, " ms; the fastest, ",
                           to_string(*fastest_prompt_), ", takes ", std::ceil(fastest_prompt_us_ / 1e3),
                           " ms: use --ttft-max ", std::ceil(fastest_prompt_us_ / 1e3), ", or more --nodes"));
    }
    if (!leanest_) {
      const auto refusal = first_refused_ ? refuse(question_.model, question_.workload,
                                                   space_.members(*first_refused_).front())
                                          : std::nullopt;
      throw InvalidInput(str("none of ", counts.enumerated, " layouts is legal (", join(reasons, "; "),
                             "). The first one, ", first_refused_ ? to_string(*first_refused_) : "", ": ",
                             refusal ? refusal->reason : ""));
    }
    const Memory memory = memory_of(question_.model, question_.workload, *leanest_, rules_);
    const auto all_terms = terms(memory);
    const auto largest = std::max_element(all_terms.begin(), all_terms.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
    throw Infeasible(str("none of ", counts.enumerated, " layouts fits into ", human_bytes(usable_),
                         " a GPU on ", question_.cluster.num_gpus(), " GPUs of ", question_.cluster.name,
                         ". The nearest is ", to_string(*leanest_), " with ",
                         human_bytes(memory.used() - memory.context), ", of which ", largest->first, " take ",
                         human_bytes(largest->second), remedy(memory)));
  }

  // What would make the nearest layout fit.
  std::string remedy(const Memory& memory) const {
    const double ratio = static_cast<double>(memory.used() - memory.context) / static_cast<double>(usable_);
    const auto nodes = static_cast<std::int64_t>(std::ceil(question_.cluster.nodes * ratio));
    const auto length = static_cast<std::int64_t>(static_cast<double>(question_.workload.seq_len) / ratio);
    return str("; try --nodes ", std::max<std::int64_t>(nodes, question_.cluster.nodes + 1), ", --seq-len ",
               length / 1024 * 1024,
               question_.workload.phase == Phase::training && !question_.workload.optimizer.offload
                   ? ", or --optimizer adamw:offload"
                   : "");
  }

  const PlanQuestion& question_;
  const SearchOptions& options_;
  const int threads_;
  const LayoutSpace space_;
  const StepBound bound_;
  AttentionTimer attention_;
  const MemoryRules rules_;
  const std::int64_t usable_;
  std::vector<Evaluator> evaluators_;   // by thread
  std::optional<PlanQuestion> prompt_;  // decode under a limit: reading the prompt
  std::vector<Evaluator> prompts_;      // by thread
  double most_prompt_us_ = kNever, fastest_prompt_us_ = kNever;
  std::optional<ParallelLayout> fastest_prompt_;  // of those that take longer

  std::vector<ParallelLayout> families_;
  std::priority_queue<Node> queue_;
  std::int64_t made_ = 0;
  SearchCounts counts_;
  std::map<std::string, std::int64_t> rejected_;
  std::optional<ParallelLayout> leanest_, first_refused_;
  std::int64_t leanest_used_ = 0;

  std::vector<Candidate> all_;
  std::map<Kind, double> kinds_;                 // best time of each
  std::map<std::string, double> class_mark_ns_;  // the same
  double mark_ns_ = kNever;                      // what the best ones take at most
};

}  // namespace

std::string class_of(const ParallelLayout& layout) {
  if (layout.pp > 1) return "with PP";
  if (layout.cp == 1) return "without CP";
  return layout.tp > 1 ? "TP + CP" : "pure CP";
}

std::string difference(const Candidate& candidate, const Candidate& best) {
  std::map<std::string, double> parts;
  for (const TimePart& part : candidate.parts) parts[part.name] += part.us;
  for (const TimePart& part : best.parts) parts[part.name] -= part.us;
  std::vector<std::pair<std::string, double>> sorted(parts.begin(), parts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return std::abs(a.second) > std::abs(b.second); });
  std::vector<std::string> words;
  for (const auto& [name, us] : sorted) {
    if (std::abs(us) < 0.001 * best.step_us || words.size() == 4) break;
    const double size = std::abs(us), unit = size >= 1e6 ? 1e6 : size >= 1e3 ? 1e3 : 1;
    // Three digits, so that two decimals are the most.
    const double step = size >= 100 * unit ? 1 : size >= 10 * unit ? 0.1 : 0.01;
    words.push_back(str(us > 0 ? "+" : "-", std::round(size / unit / step) * step,
                        unit == 1e6   ? " s "
                        : unit == 1e3 ? " ms "
                                      : " us ",
                        name));
  }
  return join(words, ", ");
}

PlanAnswer search_layouts(const PlanQuestion& question, const SearchOptions& options) {
  validate_model(question.model);
  validate_workload(question.workload);
  return Search(question, options).run();
}

}  // namespace cp::sim
