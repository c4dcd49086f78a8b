#include "sim/fabric/explore_orders.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <utility>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

// What a run that can only repeat another one ends with.
struct GivenUp : std::exception {
  const char* what() const noexcept override { return "an order that repeats another one"; }
};

// By thread, a stream of a rank: how many of its turns come before.
using Clock = std::vector<std::int32_t>;
void join_clocks(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size(), 0);
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

bool meet(const std::vector<TurnDetails::Memory>& a, const std::vector<TurnDetails::Memory>& b) {
  for (const auto& mine : a) {
    for (const auto& theirs : b) {
      if ((mine.writes || theirs.writes) && mine.begin < theirs.end && theirs.begin < mine.end) return true;
    }
  }
  return false;
}

bool is_arrival(const TurnDetails& turn) {
  return turn.kind == TurnDetails::Kind::arrival || turn.leaves_to_next_round;
}

// A place where a choice was taken: the turns that were possible.
struct Node {
  std::vector<Turn> turns;
  std::vector<TurnDetails> details;  // of the run that is under way
  std::vector<bool> wanted, done, asleep;
  std::size_t chosen = 0;

  bool may_take(std::size_t i) const { return !done[i] && !asleep[i]; }
};

class Explorer final : public TurnChooser {
 public:
  explicit Explorer(const OrderLimits& limits) : limits_(limits) {}

  // ---- of one run ----

  void start() {
    executed_.clear();
    threads_.clear();
    host_.clear();
    items_.clear();
    arrivals_.clear();
    first_of_run_ = 0;
    stopped_ = went_apart_ = false;
  }

  // All that came before has ended.
  void begin_run() override {
    for (const Executed& turn : executed_) join_clocks(host_, turn.clock);
    items_.clear();
    arrivals_.clear();
    first_of_run_ = executed_.size();
  }

  std::size_t choose(std::span<const Turn> turns, const TurnInspector& inspector) override {
    const std::size_t depth = executed_.size();
    std::vector<TurnDetails> details;
    for (const Turn& turn : turns) details.push_back(inspector.details(turn));
    if (depth == nodes_.size()) {
      add_node(turns, std::move(details));
      for (std::size_t i = 0; i < turns.size(); ++i) want_before(nodes_[depth], i);
    } else if (std::equal(turns.begin(), turns.end(), nodes_[depth].turns.begin(),
                          nodes_[depth].turns.end())) {
      nodes_[depth].details = std::move(details);
    } else {
      went_apart_ = true;
      throw InvalidInput(str("turn ", depth,
                             " of a run has other choices than it had before, after the same turns; "
                             "what is explored does the same each time"));
    }
    Node& node = nodes_[depth];
    if (!node.may_take(node.chosen)) {
      stopped_ = true;
      throw GivenUp();
    }
    execute(node, node.chosen);
    return node.chosen;
  }

  bool stopped() const { return stopped_; }        // the last run was given up
  bool went_apart() const { return went_apart_; }  // it did not do what it did before
  std::vector<Turn> turns() const {
    std::vector<Turn> turns;
    for (const Executed& turn : executed_) turns.push_back(turn.turn);
    return turns;
  }

  // ---- from run to run ----

  // Sets out on another order; false when there is none.
  bool next() {
    while (!nodes_.empty()) {
      Node& node = nodes_.back();
      node.done[node.chosen] = true;
      for (std::size_t i = 0; i < node.turns.size(); ++i) {
        if (!node.wanted[i] || !node.may_take(i)) continue;
        node.chosen = i;
        return true;
      }
      nodes_.pop_back();
    }
    return false;
  }

 private:
  struct Executed {
    Turn turn;
    std::size_t thread = 0;
    TurnDetails details;
    Clock clock;  // what comes before, itself included
  };
  using Round = std::pair<const void*, std::uint32_t>;
  using Item = std::pair<std::size_t, std::int64_t>;

  void add_node(std::span<const Turn> turns, std::vector<TurnDetails> details) {
    Node node;
    node.turns.assign(turns.begin(), turns.end());
    node.details = std::move(details);
    for (auto* flags : {&node.wanted, &node.done, &node.asleep}) flags->assign(turns.size(), false);
    if (!nodes_.empty()) {
      // What was taken before in place of the last turn, and does not depend on it, gives nothing new after
      // it.
      const Node& last = nodes_.back();
      for (std::size_t i = 0; i < last.turns.size(); ++i) {
        if (i == last.chosen || last.may_take(i) || depend(last.details[i], last.details[last.chosen]))
          continue;
        const auto same = std::find(node.turns.begin(), node.turns.end(), last.turns[i]);
        if (same != node.turns.end() && last.turns[i] != last.turns[last.chosen])
          node.asleep[static_cast<std::size_t>(same - node.turns.begin())] = true;
      }
    }
    for (std::size_t i = node.turns.size(); i-- > 0;) {
      if (node.may_take(i)) node.chosen = i;
    }
    node.wanted[node.chosen] = true;
    nodes_.push_back(std::move(node));
  }

  bool depend(const TurnDetails& a, const TurnDetails& b) const {
    if (limits_.arrivals_matter && is_arrival(a) && is_arrival(b) && a.communicator == b.communicator)
      return true;
    return meet(a.memory, b.memory);
  }

  std::size_t thread_of(const Turn& turn) {
    const auto found = std::find(threads_.begin(), threads_.end(), turn);
    if (found != threads_.end()) return static_cast<std::size_t>(found - threads_.begin());
    threads_.push_back(turn);
    return threads_.size() - 1;
  }

  // What comes before the turn in every order in which it comes at all.
  Clock before(const Turn& turn, const TurnDetails& details) {
    Clock clock = host_;
    const std::size_t thread = thread_of(turn);
    for (std::size_t i = executed_.size(); i-- > 0;) {
      if (executed_[i].thread != thread) continue;
      join_clocks(clock, executed_[i].clock);
      break;
    }
    // The work of earlier synchronize() calls of the rank.
    for (std::size_t i = first_of_run_; i < executed_.size(); ++i) {
      if (executed_[i].turn.rank == turn.rank && executed_[i].details.batch < details.batch)
        join_clocks(clock, executed_[i].clock);
    }
    if (details.kind == TurnDetails::Kind::event) {
      const auto awaited =
          items_.find({thread_of({turn.rank, details.awaited_stream}), details.awaited_items - 1});
      if (awaited != items_.end()) join_clocks(clock, awaited->second);
    }
    if (details.kind == TurnDetails::Kind::leaving || (details.completes && !limits_.arrivals_matter)) {
      const auto arrived = arrivals_.find({details.communicator, details.round});
      if (arrived != arrivals_.end()) join_clocks(clock, arrived->second);
    }
    return clock;
  }

  // Earlier turns that the turn depends on, and could come before: it is wanted there.
  void want_before(const Node& node, std::size_t index) {
    const Turn turn = node.turns[index];
    const TurnDetails& details = node.details[index];
    Clock clock = before(turn, details);
    const std::size_t thread = thread_of(turn);
    for (std::size_t i = executed_.size(); i-- > first_of_run_;) {
      const Executed& earlier = executed_[i];
      if (earlier.thread == thread || !depend(earlier.details, details)) continue;
      const bool is_before =
          earlier.thread < clock.size() && clock[earlier.thread] >= earlier.clock[earlier.thread];
      if (!is_before) want_at(nodes_[i], i, turn, clock);
      join_clocks(clock, earlier.clock);
    }
  }

  // The turn itself where it is possible, else one that has to come before it, else all.
  void want_at(Node& node, std::size_t depth, const Turn& turn, const Clock& clock) {
    std::vector<std::size_t> candidates;
    for (std::size_t i = 0; i < node.turns.size(); ++i) {
      bool leads_to_it = node.turns[i] == turn;
      for (std::size_t j = depth + 1; j < executed_.size() && !leads_to_it; ++j) {
        const Executed& later = executed_[j];
        leads_to_it = later.turn == node.turns[i] && later.thread < clock.size() &&
                      clock[later.thread] >= later.clock[later.thread];
      }
      if (leads_to_it) candidates.push_back(i);
    }
    if (candidates.empty()) {
      std::fill(node.wanted.begin(), node.wanted.end(), true);
    } else if (std::none_of(candidates.begin(), candidates.end(),
                            [&](std::size_t i) { return node.wanted[i]; })) {
      node.wanted[candidates.front()] = true;
    }
  }

  void execute(const Node& node, std::size_t index) {
    const Turn turn = node.turns[index];
    Executed done{.turn = turn, .thread = thread_of(turn), .details = node.details[index], .clock = {}};
    done.clock = before(turn, done.details);
    for (std::size_t i = first_of_run_; i < executed_.size(); ++i) {
      if (depend(executed_[i].details, done.details)) join_clocks(done.clock, executed_[i].clock);
    }
    if (done.clock.size() <= done.thread) done.clock.resize(done.thread + 1, 0);
    ++done.clock[done.thread];
    items_[{done.thread, done.details.item}] = done.clock;
    if (is_arrival(done.details)) {
      const std::uint32_t round = done.details.round + (done.details.leaves_to_next_round ? 1 : 0);
      join_clocks(arrivals_[{done.details.communicator, round}], done.clock);
    }
    executed_.push_back(std::move(done));
  }

  const OrderLimits& limits_;
  std::vector<Node> nodes_;  // by turn, of the run that is under way or was the last one
  // Of the run:
  std::vector<Executed> executed_;
  std::vector<Turn> threads_;
  Clock host_;
  std::map<Item, Clock> items_;  // the turn that ended this piece of work of the thread
  std::map<Round, Clock> arrivals_;
  std::size_t first_of_run_ = 0;
  bool stopped_ = false, went_apart_ = false;
};

std::string result_of(const std::function<std::string(const BatonOrder&)>& run, const BatonOrder& order,
                      const Explorer& explorer) {
  try {
    return run(order);
  } catch (const GivenUp&) {
    return "";
  } catch (const Error& error) {
    if (explorer.went_apart()) throw;
    return str("error ", name(error.kind()), ": ", error.what());
  } catch (const std::exception& error) {
    return str("error: ", error.what());
  }
}

std::string turns_text(const std::vector<Turn>& turns) {
  std::vector<std::string> words;
  for (const Turn& turn : turns) words.push_back(str(turn.rank, ".", turn.stream));
  return join(words, " ");
}

}  // namespace

OrdersReport explore_orders(const std::function<std::string(const BatonOrder&)>& run,
                            const OrderLimits& limits) {
  OrdersReport report;
  const auto explorer = std::make_shared<Explorer>(limits);
  const BatonOrder order{
      .kind = BatonOrder::Kind::chosen, .chooser = explorer, .most_turns = limits.most_turns};
  do {
    if (report.orders + report.cut_short >= limits.orders) return report;
    explorer->start();
    std::string result = result_of(run, order, *explorer);
    if (explorer->stopped()) {
      ++report.cut_short;
      continue;
    }
    ++report.orders;
    if (!report.first.has_value()) {
      report.first = {explorer->turns(), std::move(result)};
    } else if (result != report.first->result) {
      report.different = {explorer->turns(), std::move(result)};
      return report;
    }
  } while (explorer->next());
  report.all = true;
  return report;
}

std::string to_string(const OrdersReport& report) {
  std::string text = str(report.orders, report.orders == 1 ? " order was taken" : " orders were taken");
  if (report.different.has_value()) {
    return str(text, ", and two of them differ.\n  the order ", turns_text(report.first->turns), " gives ",
               report.first->result, "\n  the order ", turns_text(report.different->turns), " gives ",
               report.different->result, "\n(turns as rank.stream)");
  }
  text += report.all ? ", all that can matter" : str(", not all that can matter: the limit was reached");
  if (report.cut_short > 0) text += str("; ", report.cut_short, " more were given up as repetitions");
  return text;
}

}  // namespace cp::sim
