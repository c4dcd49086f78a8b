#include "sim/proof/progress/progress.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/plan/canonical.h"
#include "sim/base/numbers.h"
#include "sim/proof/progress/progress_model.h"

namespace cp::sim {
namespace progress {
namespace {

enum : std::uint8_t { kEnds = 1, kHangs = 2 };

// Which of several queues goes on: any, or the one of the highest priority, where the first of all falls to
// the lowest at two times.
class Walk {
 public:
  Walk(const Model& model, bool by_priority, Numbers& numbers) : numbers_(numbers) {
    if (!by_priority) return;
    std::size_t launches = 1;
    for (const auto& of_rank : model.launches) launches += of_rank.size();
    for (std::size_t queue = 0; queue < model.queues.size(); ++queue) {
      priorities_.push_back(static_cast<std::int64_t>(numbers.next() >> 2));
    }
    for (std::size_t& change : changes_) change = numbers.below(launches);
  }

  std::int32_t pick(const std::vector<std::int32_t>& queues) {
    if (priorities_.empty()) return queues[numbers_.below(queues.size())];
    const auto highest = [&] {
      return *std::max_element(queues.begin(), queues.end(), [&](std::int32_t a, std::int32_t b) {
        return priorities_[idx(a)] < priorities_[idx(b)];
      });
    };
    for (const std::size_t change : changes_) {
      if (change == choices_) priorities_[idx(highest())] = --lowest_;
    }
    ++choices_;
    return highest();
  }

 private:
  Numbers& numbers_;
  std::vector<std::int64_t> priorities_;
  std::size_t changes_[2] = {0, 0};
  std::size_t choices_ = 0;
  std::int64_t lowest_ = 0;
};

class Search {
 public:
  Search(const Model& model, const ProgressLimits& limits, ProgressReport& report)
      : model_(model), limits_(limits), report_(report), start_(model), numbers_(limits.seed) {
    if (limits_.reduce) start_.settle(-1);
  }

  void run() {
    if (search_all()) {
      report_.exhaustive = true;
      report_.states = static_cast<std::int64_t>(memo_.size());
      const std::uint8_t found = memo_.at(start_.key());
      report_.ends = found == kEnds    ? Ends::in_all_orders
                     : found == kHangs ? Ends::never
                                       : Ends::in_some_orders;
      if (found != kEnds) follow_to_hang();
    } else {
      report_.states = limits_.states;
      memo_.clear();
      draw_orders();
    }
  }

 private:
  struct Frame {
    State state;
    std::string key;
    std::vector<std::int32_t> queues;
    std::size_t next = 0;
    std::uint8_t found = 0;
  };

  // What may be moved next: of the first rank that has a choice, since another rank's choice changes nothing
  // about this one's.
  std::vector<std::int32_t> choices(const State& state) const {
    std::vector<std::int32_t> found;
    for (const auto& queues : model_.queues_of) {
      for (const std::int32_t queue : queues) {
        if (state.can_move(queue, true)) found.push_back(queue);
      }
      if (limits_.reduce && !found.empty()) break;
    }
    return found;
  }

  State after(const State& state, std::int32_t queue) const {
    State next = state;
    const std::int32_t rank = model_.op(state.head(queue)).rank;
    if (!limits_.reduce) {
      next.move(queue, nullptr);
      return next;
    }
    std::vector<std::int32_t> woken;
    next.move(queue, &woken);
    next.settle(rank);
    for (const std::int32_t other : woken) next.settle(other);
    return next;
  }

  // States never come again on a way, since every move is one forward: depth first, each state is known when
  // its children are.
  bool search_all() {
    std::vector<Frame> stack;
    const auto push = [&](State state, std::string key) {
      std::vector<std::int32_t> queues = choices(state);
      if (queues.empty()) {
        memo_.emplace(std::move(key), state.ended() ? kEnds : kHangs);
        return false;
      }
      stack.push_back({std::move(state), std::move(key), std::move(queues)});
      return true;
    };
    push(start_, start_.key());
    while (!stack.empty()) {
      Frame& top = stack.back();
      if (top.next == top.queues.size()) {
        const std::uint8_t found = top.found;
        memo_.emplace(std::move(top.key), found);
        stack.pop_back();
        if (!stack.empty()) stack.back().found |= found;
        continue;
      }
      State next = after(top.state, top.queues[top.next++]);
      std::string key = next.key();
      const auto known = memo_.find(key);
      if (known != memo_.end()) {
        top.found |= known->second;
        continue;
      }
      if (static_cast<std::int64_t>(memo_.size() + stack.size()) >= limits_.states) return false;
      const std::size_t depth = stack.size();
      const std::string key_copy = key;
      if (!push(std::move(next), std::move(key))) stack[depth - 1].found |= memo_.at(key_copy);
    }
    return true;
  }

  void follow_to_hang() {
    State state = start_;
    bool lost = report_.ends == Ends::never;
    for (std::vector<std::int32_t> queues = choices(state); !queues.empty(); queues = choices(state)) {
      std::optional<State> best;
      std::int32_t taken = -1;
      for (const std::int32_t queue : queues) {
        State next = after(state, queue);
        const std::uint8_t found = memo_.at(next.key());
        if ((found & kHangs) == 0) continue;
        if (best.has_value() && found != kHangs) continue;
        best = std::move(next);
        taken = queue;
        if (found == kHangs) break;
      }
      if (!lost && memo_.at(best->key()) == kHangs) {
        report_.lost_at = step_of(model_, model_.op(state.head(taken)));
        lost = true;
      }
      state = std::move(*best);
    }
    explain(model_, state, report_);
  }

  // ---- orders that are drawn ----

  bool walk(State& state, bool by_priority, std::vector<std::int32_t>* taken) {
    Walk walk(model_, by_priority, numbers_);
    for (std::vector<std::int32_t> queues = choices(state); !queues.empty(); queues = choices(state)) {
      const std::int32_t queue = walk.pick(queues);
      if (taken != nullptr) taken->push_back(queue);
      state = after(state, queue);
    }
    return state.ended();
  }

  void draw_orders() {
    std::optional<State> hung;
    std::vector<std::int32_t> hung_taken;
    for (int i = 0; i < limits_.walks; ++i) {
      State state = start_;
      std::vector<std::int32_t> taken;
      const bool ended = walk(state, i % 2 == 1, &taken);
      ++report_.walks;
      report_.walks_ended += ended ? 1 : 0;
      if (ended || hung.has_value()) continue;
      hung = std::move(state);
      hung_taken = std::move(taken);
    }
    if (report_.walks == 0) return;
    report_.ends = report_.walks_ended == report_.walks ? Ends::in_all_orders
                   : report_.walks_ended == 0           ? Ends::never
                                                        : Ends::in_some_orders;
    if (!hung.has_value()) return;
    if (report_.ends == Ends::in_some_orders) find_lost(hung_taken);
    explain(model_, *hung, report_);
  }

  // Where a way of choices is lost, it stays lost: so the first lost one is found by halving.
  void find_lost(const std::vector<std::int32_t>& taken) {
    std::size_t ends = 0, lost = taken.size();  // numbers of choices after which some order, and none, ends
    while (lost - ends > 1) {
      const std::size_t middle = (ends + lost) / 2;
      (ends_after(taken, middle) ? ends : lost) = middle;
    }
    State state = start_;
    for (std::size_t i = 0; i + 1 < lost; ++i) state = after(state, taken[i]);
    report_.lost_at = step_of(model_, model_.op(state.head(taken[lost - 1])));
  }

  bool ends_after(const std::vector<std::int32_t>& taken, std::size_t count) {
    State state = start_;
    for (std::size_t i = 0; i < count; ++i) state = after(state, taken[i]);
    for (int i = 0; i < limits_.walks; ++i) {
      State end = state;
      if (walk(end, i % 2 == 1, nullptr)) return true;
    }
    return false;
  }

  const Model& model_;
  const ProgressLimits& limits_;
  ProgressReport& report_;
  State start_;
  Numbers numbers_;
  std::unordered_map<std::string, std::uint8_t> memo_;
};

std::string words(Ends ends) {
  switch (ends) {
    case Ends::in_all_orders:
      return "ends in all orders";
    case Ends::in_some_orders:
      return "ends in some orders";
    case Ends::never:
      return "never ends";
    case Ends::unknown:
      break;
  }
  return "unknown";
}

std::string coverage(const ProgressReport& report) {
  if (report.ends == Ends::unknown) return "more operations than the limit, none was looked at";
  if (report.exhaustive) {
    return report.states == 1 ? std::string("the rules leave no choice, one order stands for all")
                              : str("all orders, ", report.states, " states");
  }
  return str("a sample: there are more states than ", report.states, "; of ", report.walks, " orders drawn ",
             report.walks_ended, " ended");
}

// The step without its rank and stream.
std::string short_text(const ProgressStep& step) {
  std::string text = str("step ", step.step, " ", step.operation);
  if (step.sequence >= 0) text += str(" #", step.sequence, " on ", canonical_name(step.group));
  if (step.iteration > 0) text += str(" (iteration ", step.iteration, ")");
  return text;
}

std::string line(const ProgressWait& wait) {
  const std::string at = str(to_string(wait.at), " waits for rank ", wait.awaited_rank);
  if (!wait.awaited.has_value()) return str(at, ", which never issues the other end");
  return str(at, ": its ", short_text(*wait.awaited),
             wait.behind.empty() ? std::string() : str(" comes later ", wait.behind));
}

}  // namespace
}  // namespace progress

ProgressRules nccl_rules(std::optional<std::int64_t> buffer_bytes) {
  const std::string buffers =
      !buffer_bytes.has_value() ? "without a bound" : str("of ", *buffer_bytes, " bytes");
  return {.name = str("nccl, buffers ", buffers),
          .launch = Launch::one_in_order,
          .meeting = Meeting::peers,
          .buffer_bytes = buffer_bytes};
}
ProgressRules gloo_rules() {
  return {.name = "gloo", .launch = Launch::any, .meeting = Meeting::transfers, .buffer_bytes = 0};
}
ProgressRules fabric_rules() {
  return {.name = "fabric, one at a time",
          .launch = Launch::one_in_order,
          .meeting = Meeting::members,
          .buffer_bytes = 0};
}
std::vector<ProgressRules> all_rules() {
  return {nccl_rules(), nccl_rules(std::int64_t{1} << 20), nccl_rules(std::nullopt), gloo_rules(),
          fabric_rules()};
}

ProgressReport explore_progress(std::span<const Plan> plans, const ProgressRules& rules,
                                const ProgressLimits& limits) {
  ProgressReport report;
  report.rules = rules;
  if (progress::count_operations(plans) > limits.operations) return report;
  const progress::Model model = progress::make_model(plans, rules);
  report.mismatch = model.mismatch;
  progress::Search(model, limits, report).run();
  return report;
}

std::vector<ProgressReport> explore_progress(std::span<const Plan> plans,
                                             std::span<const ProgressRules> rules,
                                             const ProgressLimits& limits) {
  std::vector<ProgressReport> reports;
  for (const ProgressRules& each : rules) reports.push_back(explore_progress(plans, each, limits));
  return reports;
}

std::string to_string(const ProgressStep& step) {
  return str("rank ", step.rank, " ", progress::short_text(step), " (stream ", step.stream, ")");
}

std::string to_string(const ProgressReport& report) {
  using namespace progress;
  std::string text = str(report.rules.name, ": ", words(report.ends), " (", coverage(report), ")");
  if (!report.mismatch.empty()) text += str("\n  what meets differs: ", report.mismatch);
  if (report.waits.empty()) return text;
  text += report.is_cycle ? "\n  the cycle:" : "\n  the chain:";
  for (const ProgressWait& wait : report.waits) text += str("\n    ", line(wait));
  std::vector<Rank> stuck;
  for (const ProgressStep& step : report.stuck) stuck.push_back(step.rank);
  text += str("\n  ranks that do not end: ", join(stuck));
  if (report.ends == Ends::never) {
    text += report.exhaustive ? "\n  no order could have ended from the start on"
                              : "\n  none of the orders drawn ended";
  } else if (report.lost_at.has_value()) {
    text += str("\n  after ", to_string(*report.lost_at), " had begun, no order ",
                report.exhaustive ? "could have ended" : "that was drawn ended");
  }
  return text;
}

std::string to_string(std::span<const ProgressReport> reports) {
  std::vector<std::string> ends, hangs, texts;
  for (const ProgressReport& report : reports) {
    if (report.ends == Ends::in_all_orders) ends.push_back(report.rules.name);
    if (report.ends == Ends::never || report.ends == Ends::in_some_orders) hangs.push_back(report.rules.name);
    texts.push_back(to_string(report));
  }
  std::string head;
  if (!ends.empty() && !hangs.empty()) {
    head =
        str("the plans end under: ", join(ends, "; "), "\nand hang, or may hang, under: ", join(hangs, "; "),
            "\nso whether they end depends on the library; do not rely on it\n");
  }
  return head + join(texts, "\n");
}

}  // namespace cp::sim
