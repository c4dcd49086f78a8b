#include "sim/fabric/turn_choosers.h"

#include <algorithm>
#include <utility>

#include "sim/base/numbers.h"

namespace cp::sim {
namespace {

class RoundRobin final : public TurnChooser {
 public:
  void begin_run() override {
    last_rank_ = -1;
    last_streams_.clear();
  }

  std::size_t choose(std::span<const Turn> turns, const TurnInspector&) override {
    auto at =
        std::find_if(turns.begin(), turns.end(), [&](const Turn& turn) { return turn.rank > last_rank_; });
    if (at == turns.end()) at = turns.begin();
    const Rank rank = last_rank_ = at->rank;
    if (last_streams_.size() <= static_cast<std::size_t>(rank))
      last_streams_.resize(static_cast<std::size_t>(rank) + 1, -1);
    StreamId& last = last_streams_[static_cast<std::size_t>(rank)];
    const auto end = std::find_if(at, turns.end(), [&](const Turn& turn) { return turn.rank != rank; });
    const auto later = std::find_if(at, end, [&](const Turn& turn) { return turn.stream > last; });
    if (later != end) at = later;
    last = at->stream;
    return static_cast<std::size_t>(at - turns.begin());
  }

 private:
  Rank last_rank_ = -1;
  std::vector<StreamId> last_streams_;  // by rank
};

class Pct final : public TurnChooser {
 public:
  Pct(const BatonOrder& order, std::uint64_t seed)
      : generator_(seed), depth_(order.depth), expected_turns_(order.expected_turns) {
    if (depth_ < 1)
      throw InvalidInput(str("a pct order cannot have depth ", depth_, "; use at least 1, better 2 or 3"));
    if (expected_turns_ < 1) {
      throw InvalidInput(str("a pct order cannot expect ", expected_turns_,
                             " turns; use at least 1, as expected_turns() says for plans"));
    }
  }

  void begin_run() override {
    high_.clear();
    low_.clear();
    change_at_.clear();
    for (int i = 1; i < depth_; ++i) {
      change_at_.push_back(
          static_cast<std::int64_t>(generator_.below(static_cast<std::size_t>(expected_turns_))));
    }
    std::sort(change_at_.begin(), change_at_.end());
    turn_ = 0;
    next_change_ = 0;
  }

  std::size_t choose(std::span<const Turn> turns, const TurnInspector&) override {
    for (const Turn& turn : turns) add(turn);
    while (next_change_ < change_at_.size() && change_at_[next_change_] <= turn_) {
      lower(*highest(turns));
      ++next_change_;
    }
    ++turn_;
    return static_cast<std::size_t>(highest(turns) - turns.begin());
  }

 private:
  // A stream that is new gets any of the places with equal chance: so all permutations have one.
  void add(const Turn& turn) {
    for (const auto* known : {&high_, &low_}) {
      if (std::find(known->begin(), known->end(), turn) != known->end()) return;
    }
    const std::size_t place = generator_.below(high_.size() + 1);
    high_.insert(high_.begin() + static_cast<std::ptrdiff_t>(place), turn);
  }

  void lower(Turn turn) {
    for (auto* known : {&high_, &low_}) std::erase(*known, turn);
    low_.push_back(turn);
  }

  std::span<const Turn>::iterator highest(std::span<const Turn> turns) const {
    for (const auto* known : {&high_, &low_}) {
      for (const Turn& stream : *known) {
        const auto found = std::find(turns.begin(), turns.end(), stream);
        if (found != turns.end()) return found;
      }
    }
    return turns.begin();
  }

  Numbers generator_;
  int depth_;
  std::int64_t expected_turns_;
  std::vector<Turn> high_,
      low_;  // streams by descending priority; the low ones are below all of the high ones
  std::vector<std::int64_t> change_at_;
  std::size_t next_change_ = 0;
  std::int64_t turn_ = 0;
};

class Given final : public TurnChooser {
 public:
  explicit Given(std::vector<Turn> turns) : turns_(std::move(turns)) {}

  void begin_run() override {}

  std::size_t choose(std::span<const Turn> turns, const TurnInspector&) override {
    if (next_ == turns_.size()) return 0;
    const auto found = std::find(turns.begin(), turns.end(), turns_[next_]);
    if (found == turns.end()) {
      std::vector<std::string> possible;
      for (const Turn& turn : turns) possible.push_back(words(turn));
      throw InvalidInput(str("turn ", next_, " of the given order, ", words(turns_[next_]),
                             ", is not possible; possible are ", join(possible, "; "),
                             "; an order fits the plans and the body that it was taken from"));
    }
    ++next_;
    return static_cast<std::size_t>(found - turns.begin());
  }

 private:
  static std::string words(const Turn& turn) { return str("rank ", turn.rank, " stream ", turn.stream); }

  std::vector<Turn> turns_;
  std::size_t next_ = 0;
};

}  // namespace

std::shared_ptr<TurnChooser> make_chooser(const BatonOrder& order, std::uint64_t seed) {
  switch (order.kind) {
    case BatonOrder::Kind::round_robin:
      return std::make_shared<RoundRobin>();
    case BatonOrder::Kind::pct:
      return std::make_shared<Pct>(order, seed);
    case BatonOrder::Kind::given:
      return std::make_shared<Given>(order.turns);
    case BatonOrder::Kind::chosen:
      if (order.chooser == nullptr)
        throw InvalidInput("an order of the kind chosen without a chooser; give it one");
      return order.chooser;
    case BatonOrder::Kind::random:
      break;
  }
  CP_INVARIANT(false, "a random order has no chooser");
  return nullptr;
}

std::int64_t expected_turns(std::span<const Plan> plans) {
  std::int64_t turns = 0;
  for (const Plan& plan : plans) {
    for (const StepRef& ref : steps_of(plan)) {
      const auto events = static_cast<std::int64_t>(ref.step->after.size());
      turns += ref.count * ((is_collective(*ref.step) ? 2 : 1) + events);
    }
  }
  return turns;
}

}  // namespace cp::sim
