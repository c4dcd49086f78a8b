#include "shared/plan/order.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "shared/base/index.h"
#include "shared/plan/operations.h"
#include "shared/plan/overlap.h"

namespace cp {

Position Order::next_on(StreamId stream, Position position) const {
  const std::vector<Position>& all = on_stream_[static_cast<std::size_t>(stream)];
  const auto next = std::upper_bound(all.begin(), all.end(), position);
  return next == all.end() ? num_positions_ : *next;
}

class EdgeDeriver {
 public:
  explicit EdgeDeriver(Plan& plan) : plan_(plan) { list_steps(); }

  Order derive() && {
    if (!uses_several_streams()) {
      number_in_issue_order();
      return std::move(order_);
    }
    order_.num_streams_ = static_cast<StreamId>(plan_.streams.size());
    order_.on_stream_.resize(plan_.streams.size());
    latest_.resize(plan_.buffers.size() * plan_.streams.size());
    heads_.assign(plan_.streams.size(), Clock(plan_.streams.size(), kNoPosition));
    for (std::size_t begin = 0; begin < steps_.size();) {
      std::size_t end = begin + 1;
      while (end < steps_.size() && steps_[end].segment == steps_[begin].segment) ++end;
      derive_segment(begin, end);
      begin = end;
    }
    for (const Item& item : steps_) std::sort(item.step->after.begin(), item.step->after.end());
    return std::move(order_);
  }

 private:
  using Clock = std::vector<Position>;  // by stream

  struct Item {
    Step* step = nullptr;
    StepId id = 0;
    std::int64_t count = 1;
    std::size_t segment = 0;
  };
  static constexpr std::int32_t kNone = -1;
  struct Use {
    StepId step = 0;
    const View* view = nullptr;
    std::int32_t before = kNone;  // the use before it in the same list
  };
  // Where lists of uses_ begin: at the latest use.
  struct Uses {
    std::int32_t reads = kNone, writes = kNone;
  };
  struct Candidate {
    StepId step = 0;
    std::int32_t iterations_back = 0;
    Position position = 0;
  };
  struct Farther {
    StepId step = 0, target = 0;
    Position lag = 0;  // iterations
  };

  Order::Place& place(StepId step) { return order_.places_[idx(step)]; }
  StreamId stream_of(StepId step) const { return steps_[idx(step)].step->stream; }

  void list_steps() {
    StepId id = 0;
    steps_.reserve(plan_.segments.size());
    for (std::size_t i = 0; i < plan_.segments.size(); ++i) {
      if (Step* step = std::get_if<Step>(&plan_.segments[i])) {
        steps_.push_back({step, id++, 1, i});
        continue;
      }
      Repeat& repeat = std::get<Repeat>(plan_.segments[i]);
      for (Step& step : repeat.steps) steps_.push_back({&step, id++, repeat.count, i});
    }
    for (const Item& item : steps_) item.step->after.clear();
    order_.places_.resize(steps_.size());
  }

  bool uses_several_streams() const {
    return std::any_of(steps_.begin(), steps_.end(),
                       [&](const Item& item) { return item.step->stream != steps_[0].step->stream; });
  }

  void number_in_issue_order() {
    order_.num_positions_ = static_cast<Position>(steps_.size());
    for (std::size_t begin = 0, end; begin < steps_.size(); begin = end) {
      for (end = begin; end < steps_.size() && steps_[end].segment == steps_[begin].segment; ++end) {
        const auto position = static_cast<Position>(end);
        order_.places_[end] = {steps_[end].step->stream, position, position, static_cast<Position>(begin), 0};
      }
      for (std::size_t i = begin; i < end; ++i)
        order_.places_[i].segment_last = static_cast<Position>(end) - 1;
    }
  }

  // ---- one segment: a step, or the steps of a Repeat ----

  void derive_segment(std::size_t begin, std::size_t end) {
    const Position base = order_.num_positions_;
    const auto length = static_cast<Position>(end - begin);
    for (std::size_t i = begin; i < end; ++i) {
      const Position at = base + static_cast<Position>(i - begin);
      order_.places_[i] = {steps_[i].step->stream, at, at, base, base};
      first_instance(steps_[i], at);
    }
    const std::int64_t count = steps_[begin].count;
    farther_.clear();
    Position iterations = count > 1 ? 2 : 1;
    for (Position iteration = 1; iteration < iterations; ++iteration) {
      for (std::size_t i = begin; i < end; ++i) {
        later_instance(steps_[i], steps_[begin].id, length, iteration);
      }
      if (iteration > 1) continue;
      // What is known of other streams settles after as many iterations as the edges reach back, and one for
      // each stream.
      Position reach = 1;
      for (const Farther& far : farther_) reach = std::max(reach, far.lag);
      iterations = static_cast<Position>(std::min<std::int64_t>(count, reach + 1 + order_.num_streams_));
    }
    for (std::size_t i = begin; i < end; ++i) {
      order_.places_[i].last = order_.places_[i].first + length * (iterations - 1);
      order_.places_[i].segment_last = order_.num_positions_ - 1;
    }
  }

  // Iteration 0 is straight-line code: it finds the edges to steps before the Repeat and inside the
  // iteration. Both hold in all later iterations too; those to before the Repeat by the streams' order alone.
  void first_instance(const Item& item, Position at) {
    Clock& clock = clock_ = heads_[idx(item.step->stream)];
    candidates_.clear();
    const auto lag_of = [&](const View& view, const Use& use) -> std::optional<std::int64_t> {
      const Item& other = steps_[idx(use.step)];
      const bool conflict = other.segment == item.segment
                                ? overlaps_at_lag(view, *use.view, 0, item.count)
                                : ever_overlaps(view, item.count, *use.view, other.count);
      return conflict ? std::optional<std::int64_t>(0) : std::nullopt;
    };
    find_conflicts(item, clock, 0, lag_of);
    add_edges(item, clock);
    finish(item, at, clock);
    for_each_access(plan_, item.step->work, [&](const Access& access) {
      Uses& uses = uses_of(access.view->buffer, item.step->stream);
      std::int32_t& latest = access.writes ? uses.writes : uses.reads;
      uses_.push_back({item.id, access.view, latest});
      latest = static_cast<std::int32_t>(uses_.size()) - 1;
    });
  }

  // Iteration i > 0: the edges so far, then those that reach back to iteration 0. Edges with a smaller reach
  // were found in earlier iterations. An order that other edges imply is implied here as well: all instances
  // on the way exist.
  void later_instance(const Item& item, StepId begin, Position length, Position iteration) {
    Clock& clock = clock_ = heads_[idx(item.step->stream)];
    for (const Edge& edge : item.step->after) {
      if (edge.step < begin) continue;
      merge(clock, place(edge.step).first + (iteration - edge.iterations_back) * length,
            stream_of(edge.step));
    }
    candidates_.clear();
    if (iteration == 1) {
      const auto lag_of = [&](const View& view, const Use& use) {
        const auto lag = least_overlapping_lag(view, *use.view, 1, item.count);
        if (lag && *lag > 1) farther_.push_back({item.id, use.step, static_cast<Position>(*lag)});
        return lag == 1 ? lag : std::nullopt;
      };
      find_conflicts(item, clock, begin, lag_of);
    }
    for (const Farther& far : farther_) {
      if (far.lag == iteration && far.step == item.id) {
        candidates_.push_back({far.target, iteration, place(far.target).first});
      }
    }
    add_edges(item, clock);
    finish(item, place(item.id).first + iteration * length, clock);
  }

  // ---- conflicts ----

  Uses& uses_of(BufferId buffer, StreamId stream) {
    return latest_[idx(buffer) * plan_.streams.size() + idx(stream)];
  }

  // On each other stream, the latest conflicting use that the clock does not cover becomes a candidate.
  // `lag_of` tells how many iterations back a use conflicts, if it does. Steps before `begin` are left out.
  template <class LagOf>
  void find_conflicts(const Item& item, const Clock& clock, StepId begin, const LagOf& lag_of) {
    for_each_access(plan_, item.step->work, [&](const Access& access) {
      for (StreamId stream = 0; stream < order_.num_streams_; ++stream) {
        if (stream == item.step->stream) continue;
        const Uses& uses = uses_of(access.view->buffer, stream);
        find_latest(uses.writes, *access.view, clock[idx(stream)], begin, lag_of);
        if (access.writes) find_latest(uses.reads, *access.view, clock[idx(stream)], begin, lag_of);
      }
    });
  }

  template <class LagOf>
  void find_latest(std::int32_t latest, const View& view, Position known, StepId begin, const LagOf& lag_of) {
    for (; latest != kNone && uses_[idx(latest)].step >= begin; latest = uses_[idx(latest)].before) {
      const Use& use = uses_[idx(latest)];
      const Position position = place(use.step).last;
      if (position <= known) return;
      if (const auto lag = lag_of(view, use)) {
        candidates_.push_back({use.step, static_cast<std::int32_t>(*lag), position});
        return;
      }
    }
  }

  // The latest ones first: nothing implies a step but what was issued after it.
  void add_edges(const Item& item, Clock& clock) {
    std::sort(candidates_.begin(), candidates_.end(),
              [](const Candidate& a, const Candidate& b) { return a.position > b.position; });
    for (const Candidate& candidate : candidates_) {
      const StreamId stream = stream_of(candidate.step);
      if (clock[idx(stream)] >= candidate.position) continue;
      item.step->after.push_back({candidate.step, candidate.iterations_back});
      merge(clock, candidate.position, stream);
    }
  }

  void merge(Clock& clock, Position position, StreamId stream) const {
    for (StreamId other = 0; other < order_.num_streams_; ++other) {
      clock[idx(other)] = std::max(clock[idx(other)], order_.clock(position, other));
    }
    clock[idx(stream)] = std::max(clock[idx(stream)], position);
  }

  void finish(const Item& item, Position position, Clock& clock) {
    order_.clocks_.insert(order_.clocks_.end(), clock.begin(), clock.end());
    order_.num_positions_ = position + 1;
    order_.on_stream_[idx(item.step->stream)].push_back(position);
    clock[idx(item.step->stream)] = position;
    std::swap(heads_[idx(item.step->stream)], clock);
  }

  Plan& plan_;
  Order order_;
  std::vector<Item> steps_;
  std::vector<Use> uses_;     // in issue order
  std::vector<Uses> latest_;  // by buffer, then stream
  std::vector<Clock> heads_;  // by stream: what is known to have finished when its latest instance has
  Clock clock_;               // of the instance at hand
  std::vector<Candidate> candidates_;  // likewise
  std::vector<Farther> farther_;       // of the Repeat at hand: conflicts more than one iteration back
};

Order derive_edges(Plan& plan) { return EdgeDeriver(plan).derive(); }

}  // namespace cp
