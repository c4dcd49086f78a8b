// The checker unrolls a Repeat only as far as it must: its verdict is that on the plan with all iterations
// written out.
#include <functional>
#include <random>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/check.h"
#include "tests/plan/plan_writer.h"

namespace cp::testing {
namespace {

// Plans are written once, to a Repeat or to its iterations one after the other.
struct Body {
  struct Item {
    StreamId stream = 0;
    Work work;
    std::vector<Edge> after;  // numbers count the steps before the Repeat, the body, and the steps after it
  };
  std::vector<Item> before, body, after;
  std::int64_t iterations = 1;
};

void resolve(Work& work, std::int64_t iteration) {
  visit_operation(work, [&](auto& op) {
    visit_fields(op, [&](std::string_view, auto& field) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(field)>, View>) {
        field.offset = offset_at(field, iteration);
        field.advance = {};
      }
    });
  });
}

void write_repeat(const Body& from, PlanWriter& plan) {
  for (const Body::Item& item : from.before) plan.add(item.stream, item.work, item.after);
  plan.begin_repeat(from.iterations);
  for (const Body::Item& item : from.body) plan.add(item.stream, item.work, item.after);
  plan.end_repeat();
  for (const Body::Item& item : from.after) plan.add(item.stream, item.work, item.after);
}

void write_out(const Body& from, PlanWriter& plan) {
  const auto begin = static_cast<StepId>(from.before.size()), size = static_cast<StepId>(from.body.size());
  const auto iterations = static_cast<StepId>(from.iterations);
  // The step that an edge means, seen from an iteration; the last one for steps after the Repeat.
  const auto edges = [&](const std::vector<Edge>& after, StepId iteration) {
    std::vector<Edge> result;
    for (const Edge& edge : after) {
      const StepId turn = iteration - edge.iterations_back;
      if (edge.step < begin) {
        result.push_back(edge);
      } else if (edge.step >= begin + size) {
        result.push_back({edge.step + (iterations - 1) * size, 0});
      } else if (turn >= 0) {
        result.push_back({edge.step + turn * size, 0});
      }
    }
    return result;
  };
  const auto add = [&](const Body::Item& item, StepId iteration) {
    Work work = item.work;
    resolve(work, iteration);
    plan.add(item.stream, work, edges(item.after, iteration));
  };
  for (const Body::Item& item : from.before) add(item, 0);
  for (StepId turn = 0; turn < iterations; ++turn) {
    for (const Body::Item& item : from.body) add(item, turn);
  }
  for (const Body::Item& item : from.after)
    plan.add(item.stream, item.work, edges(item.after, iterations - 1));
}

// The kind of what check() throws; nothing where the plans are right.
std::optional<ErrorKind> verdict(const std::vector<Plan>& plans, std::string& message) {
  try {
    check(plans);
  } catch (const Error& error) {
    message = error.what();
    return error.kind();
  }
  return std::nullopt;
}

class RandomBody {
 public:
  explicit RandomBody(std::uint64_t seed) : random_(seed) {}

  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }

  // Buffers: 0 an input, 1 slots that are empty at the start, 2 a stack, 3 + stream a sink for what the
  // stream reads.
  Body make(StreamId streams) {
    streams_ = streams;
    generous_ = pick(0, 2);
    Body body;
    body.iterations = pick(1, 25);
    for (auto n = pick(0, 2); n > 0; --n) body.before.push_back(item(false));
    begin_ = static_cast<StepId>(body.before.size());
    end_ = begin_ + static_cast<StepId>(pick(1, 4));
    while (next_ < end_) body.body.push_back(item(true));
    for (auto n = pick(0, 2); n > 0; --n) body.after.push_back(item(false));
    return body;
  }

 private:
  Body::Item item(bool in_repeat) {
    const auto stream = static_cast<StreamId>(pick(0, streams_ - 1));
    const View memory = pick(0, 3) == 0 ? stack(in_repeat) : slots(in_repeat);
    const View sink = flat_view(3 + stream, 0, memory.numel());
    Body::Item made{stream, {}, edges(in_repeat)};
    if (pick(0, 1) == 0) {
      made.work = Copy{memory, sink};
    } else {
      made.work = Copy{flat_view(0, 0, memory.numel()), memory};
    }
    ++next_;
    return made;
  }

  // 6 elements: 2 slots of 3 or 3 slots of 2, and views that do not advance.
  View slots(bool in_repeat) {
    const std::int64_t period = pick(2, 3), stride = 6 / period;
    const Advance advance{
        .stride = in_repeat && pick(0, 4) > 0 ? stride : 0, .period = period, .phase = pick(0, 3)};
    const std::int64_t fixed = advance.stride == 0 ? pick(0, period - 1) * stride : 0;
    return flat_view(1, fixed, pick(1, stride), advance);
  }
  View stack(bool in_repeat) {
    if (!in_repeat) return flat_view(2, pick(0, 29), pick(1, 3));
    return pick(0, 1) == 0 ? flat_view(2, pick(0, 5), 1, {.stride = 1})
                           : flat_view(2, pick(24, 31), 1, {.stride = -1});
  }

  std::vector<Edge> edges(bool in_repeat) {
    std::vector<Edge> made;
    for (StepId step = 0; step < next_; ++step) {
      if (pick(0, 2) < generous_) made.push_back({step, 0});
    }
    if (!in_repeat) return made;
    for (StepId step = begin_; step < end_; ++step) {
      if (pick(0, 3) < generous_) made.push_back({step, static_cast<std::int32_t>(pick(1, 4))});
    }
    return made;
  }

  std::mt19937_64 random_;
  StreamId streams_ = 1;
  std::int64_t generous_ = 0;
  StepId next_ = 0, begin_ = 0, end_ = 0;
};

Plan write(const Body& body, StreamId streams, const std::function<void(const Body&, PlanWriter&)>& form) {
  const std::vector<std::string> names = {"s0", "s1", "s2"};
  PlanWriter plan(0, {names.begin(), names.begin() + streams});
  plan.input("x", 3);
  plan.temporary("slots", 6);
  plan.inout("stack", 32);
  for (StreamId stream = 0; stream < streams; ++stream)
    plan.inout(names[static_cast<std::size_t>(stream)], 3);
  form(body, plan);
  return std::move(plan).finish();
}

bool verdicts_agree(std::uint64_t seed, std::string& explanation, std::optional<ErrorKind>& found) {
  RandomBody random(seed);
  const auto streams = static_cast<StreamId>(random.pick(1, 3));
  const Body body = random.make(streams);
  std::string short_message, long_message;
  found = verdict({write(body, streams, write_repeat)}, short_message);
  const std::optional<ErrorKind> written_out = verdict({write(body, streams, write_out)}, long_message);
  explanation =
      str("a Repeat of ", body.iterations, ": '", short_message, "', written out: '", long_message, "'");
  return found == written_out;
}

RC_GTEST_PROP(CheckUnrolling, OrderAndContentsAreThoseOfAllIterations, (std::uint64_t seed)) {
  std::string explanation;
  std::optional<ErrorKind> found;
  const bool agree = verdicts_agree(seed, explanation, found);
  RC_LOG() << explanation << "\n";
  RC_ASSERT(agree);
}

TEST(CheckUnrolling, ManySeeds) {
  int clean = 0, wrong = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    std::string explanation;
    std::optional<ErrorKind> found;
    ASSERT_TRUE(verdicts_agree(seed, explanation, found)) << "seed " << seed << ": " << explanation;
    ++(found ? wrong : clean);
  }
  EXPECT_GT(clean, 1000);
  EXPECT_GT(wrong, 1000);
}

// ---- progress: what the ranks issue on their groups, in Repeats and written out ----

struct Issue {
  // By rank: parts that each run `iterations` times, as numbers of groups.
  struct Part {
    std::int64_t iterations = 1;
    std::vector<std::size_t> groups;
  };
  std::vector<std::vector<Part>> ranks;
};

constexpr std::int64_t kDrift = 9;

// Groups of two ranks each around a ring; each group is issued in one Repeat, at a random place of its
// members' plans.
Issue random_issue(std::size_t ranks, std::mt19937_64& random) {
  Issue issue;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::vector<std::size_t> groups = {r, (r + ranks - 1) % ranks};  // group g: ranks g and g + 1
    if (random() % 2 == 0) std::swap(groups[0], groups[1]);
    if (random() % 2 == 0) {
      issue.ranks.push_back({{kDrift, groups}});
    } else {
      issue.ranks.push_back({{kDrift, {groups[0]}}, {kDrift, {groups[1]}}});
    }
  }
  return issue;
}

std::vector<Plan> write_issue(const Issue& issue, bool repeats) {
  std::vector<Plan> plans;
  const std::size_t ranks = issue.ranks.size();
  for (std::size_t r = 0; r < ranks; ++r) {
    PlanWriter plan(static_cast<Rank>(r));
    std::vector<GroupId> ids(ranks, -1);
    for (const std::size_t g : {r, (r + ranks - 1) % ranks}) {
      ids[g] = plan.group(str("g", g), {static_cast<Rank>(g), static_cast<Rank>((g + 1) % ranks)});
    }
    const View x = flat_view(plan.inout("x", 1), 0, 1);
    for (const Issue::Part& part : issue.ranks[r]) {
      if (repeats) plan.begin_repeat(part.iterations);
      for (std::int64_t turn = 0; turn < (repeats ? 1 : part.iterations); ++turn) {
        for (const std::size_t g : part.groups) plan.add(0, AllReduce{ids[g], ReduceOp::sum, x, x});
      }
      if (repeats) plan.end_repeat();
    }
    plans.push_back(std::move(plan).finish());
  }
  return plans;
}

TEST(CheckUnrolling, ProgressIsThatOfAllIterations) {
  std::mt19937_64 random(1);
  int clean = 0, stuck = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    const Issue issue = random_issue(3 + random() % 4, random);
    std::string short_message, long_message;
    const std::optional<ErrorKind> found = verdict(write_issue(issue, true), short_message);
    ASSERT_EQ(found, verdict(write_issue(issue, false), long_message))
        << short_message << " / " << long_message;
    ++(found ? stuck : clean);
  }
  EXPECT_GT(clean, 100);
  EXPECT_GT(stuck, 100);
}

}  // namespace
}  // namespace cp::testing
