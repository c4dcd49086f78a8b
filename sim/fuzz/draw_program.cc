#include "sim/fuzz/draw_program.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/plan/builder.h"
#include "shared/plan/operations.h"
#include "sim/base/numbers.h"
#include "sim/base/rebuild_plan.h"
#include "sim/fuzz/draw.h"
#include "sim/fuzz/program_flaws.h"
#include "sim/proof/exhaustive/program_oracle.h"

namespace cp::sim {
namespace {

// The largest program. Chosen, not derived: enough for any two kinds of step to meet on different ranks and
// streams, and few enough that the oracle, which is naive, judges a program in about half a millisecond
// (draw.cc).
constexpr int kMostProgramRanks = 3, kMostStreams = 3, kMostBuffers = 8, kMostItems = 16,
              kMostIterations = 12;
// How often a step is drawn until one fits. Chosen: after that the item has no step.
constexpr int kTriesToFit = 6;

void require_counts(const proto::Program& job) {
  const auto require = [](const char* what, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value < least || value > most)
      throw InvalidInput(str("program: ", what, ": ", value, " is out of range; use ", least, " to ", most));
  };
  require("ranks", job.ranks(), 1, kMostProgramRanks);
  require("streams", job.streams(), 1, kMostStreams);
  require("buffers", job.buffers(), 1, kMostBuffers);
  require("items", job.items(), 0, kMostItems);
  require("iterations", job.iterations(), 0, kMostIterations);
  require("first_rank", job.first_rank(), 0, kMostProgramRanks);
}

// ---- steps ----

class Maker {
 public:
  explicit Maker(const proto::Program& job) : job_(job) {
    Numbers numbers = source(0, 0);
    common_dtype_ = numbers.of({DType::i64, DType::f32, DType::f32, DType::i32, DType::bf16});
    repeat_begin_ = static_cast<int>(numbers.in(0, 3));
    repeat_end_ = repeat_begin_ + static_cast<int>(numbers.in(1, 6));
    for (Rank rank = 0; rank < job.ranks(); ++rank) {
      Plan plan;
      plan.self = rank;
      plan.target = host_target();
      for (int s = 0; s < job.streams(); ++s) plan.streams.push_back(str("s", s));
      for (int b = 0; b < job.buffers(); ++b) plan.buffers.push_back(buffer(b));
      drawn_.drafts.push_back(std::move(plan));
    }
    drawn_.misfits.resize(drawn_.drafts.size());
    make_groups();
  }

  DrawnProgram make() && {
    for (int i = 0; i < job_.items(); ++i) {
      if (std::find(job_.without().begin(), job_.without().end(), i) == job_.without().end()) item(i);
    }
    for (Plan& draft : drawn_.drafts) {
      std::erase_if(draft.segments, [](const Segment& segment) {
        const Repeat* repeat = std::get_if<Repeat>(&segment);
        return repeat != nullptr && repeat->steps.empty();
      });
      write_before_reading(draft);
    }
    return std::move(drawn_);
  }

 private:
  Numbers source(std::uint64_t what, std::uint64_t which) const {
    return Numbers(Numbers::combine(Numbers::combine(job_.seed(), what), which));
  }
  Numbers source(std::uint64_t what, std::int64_t which, Rank rank) const {
    return source(what, Numbers::combine(static_cast<std::uint64_t>(which),
                                         static_cast<std::uint64_t>(rank + job_.first_rank())));
  }

  Buffer buffer(int b) const {
    Numbers numbers = source(1, static_cast<std::uint64_t>(b));
    Buffer buffer;
    buffer.name = str("b", b);
    // The first one can be written, so that every program can do something.
    buffer.kind = b == 0 ? numbers.of({BufferKind::output, BufferKind::inout, BufferKind::temporary})
                         : numbers.of({BufferKind::input, BufferKind::output, BufferKind::inout,
                                       BufferKind::temporary, BufferKind::temporary});
    buffer.dtype = numbers.one_in(4)
                       ? numbers.of({DType::i64, DType::f32, DType::i32, DType::bf16, DType::f16})
                       : common_dtype_;
    buffer.numel = numbers.of({12, 24, 24, 30, 36, 48, static_cast<int>(numbers.in(1, 20))});
    return buffer;
  }

  void make_groups() {
    Numbers numbers = source(2, 0);
    const int count = job_.ranks() == 1 ? 1 : static_cast<int>(numbers.in(1, 3));
    for (int g = 0; g < count; ++g) {
      Numbers own = source(3, static_cast<std::uint64_t>(g));
      std::vector<Rank> ranks;
      for (Rank rank = 0; rank < job_.ranks(); ++rank) {
        if (g == 0 || !own.one_in(4)) ranks.push_back(rank);
      }
      own.shuffle(ranks);
      if (ranks.empty()) continue;
      Group group{str("g", g), ranks};
      for (const Rank rank : ranks) drawn_.drafts[idx(rank)].groups.push_back(group);
      groups_.push_back(std::move(group));
    }
  }
  static GroupId id_of(const Plan& plan, const Group& group) {
    return static_cast<GroupId>(std::find(plan.groups.begin(), plan.groups.end(), group) -
                                plan.groups.begin());
  }

  // ---- items ----

  bool in_repeat(int item) const {
    return job_.iterations() > 0 && item >= repeat_begin_ && item < repeat_end_;
  }

  void add(Plan& draft, int item, Step step) const {
    if (!in_repeat(item)) {
      draft.segments.emplace_back(std::move(step));
      return;
    }
    if (draft.segments.empty() || !std::holds_alternative<Repeat>(draft.segments.back()))
      draft.segments.emplace_back(Repeat{job_.iterations(), {}});
    std::get<Repeat>(draft.segments.back()).steps.push_back(std::move(step));
  }

  void item(int item) {
    Numbers numbers = source(4, static_cast<std::uint64_t>(item));
    count_ = in_repeat(item) ? job_.iterations() : 1;
    if (numbers.one_in(3)) return collective(item, numbers);
    for (Plan& draft : drawn_.drafts) {
      Numbers own = source(5, item, draft.self);
      if (own.one_in(8)) continue;
      for (int i = 0; i < kTriesToFit; ++i) {
        Step step{static_cast<StreamId>(own.below(draft.streams.size())), kernel(draft, own), {}, {}};
        if (!fits(draft, step)) continue;
        add(draft, item, std::move(step));
        break;
      }
    }
  }

  // Steps that are wrong only in what they share are kept: they must be refused.
  bool fits(const Plan& draft, const Step& step) {
    const auto refusal = refuse_step(draft, step, count_);
    if (!refusal) return true;
    if (count_ == 1 && refusal->shares_memory) drawn_.misfits[idx(draft.self)].push_back(step);
    return false;
  }

  // One that can be written, or read; -1: none.
  template <class Suits>
  static BufferId pick(const Plan& draft, Numbers& numbers, const Suits& suits) {
    std::vector<BufferId> all;
    for (std::size_t b = 0; b < draft.buffers.size(); ++b) {
      if (suits(draft.buffers[b])) all.push_back(static_cast<BufferId>(b));
    }
    return all.empty() ? -1 : all[numbers.below(all.size())];
  }

  Kernel kernel(const Plan& draft, Numbers& numbers) const {
    const auto written = [](const Buffer& buffer) { return buffer.kind != BufferKind::input; };
    const BufferId out = pick(draft, numbers, written);
    const DType dtype = draft.buffers[idx(out)].dtype;
    const auto alike = [&](const Buffer& buffer) { return buffer.dtype == dtype; };
    const BufferId in = numbers.one_in(3) ? out : pick(draft, numbers, alike);
    const std::int64_t room = std::min(draft.buffers[idx(in)].numel, draft.buffers[idx(out)].numel);
    std::int64_t numel = numbers.of({1, 2, 4, 6, 8, 12, 12, 24, 24, 0});
    while (numel > room) numel /= 2;
    const auto read = [&](BufferId buffer) { return view(draft, buffer, numel, false, numbers); };
    const auto write = [&] { return view(draft, out, numel, true, numbers); };
    switch (numbers.below(11)) {
      case 0:
        return Fill{write(), static_cast<double>(numbers.in(-3, 3))};
      case 1:
        return Cast{read(pick(draft, numbers, [&](const Buffer& b) { return b.numel >= numel; })), write()};
      case 2:
      case 3: {
        const ReduceOp op =
            numbers.of({ReduceOp::sum, ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product});
        return Accumulate{op, read(in), write()};
      }
      case 4:
        if (is_floating(dtype)) return Scale{write(), static_cast<double>(numbers.of({-1, 0, 1, 2}))};
        return Copy{read(in), write()};
      case 5:
        return product(draft, in, out, numbers);
      default:
        return Copy{read(in), write()};
    }
  }

  Kernel product(const Plan& draft, BufferId in, BufferId out, Numbers& numbers) const {
    const std::int64_t rows = numbers.in(1, 4), columns = numbers.in(1, 4), depth = numbers.in(1, 4);
    return MatMul{matrix(draft, in, rows, depth, numbers), matrix(draft, in, depth, columns, numbers),
                  matrix(draft, out, rows, columns, numbers), numbers.one_in(2)};
  }
  static View matrix(const Plan& draft, BufferId buffer, std::int64_t rows, std::int64_t columns,
                     Numbers& numbers) {
    View view{buffer, 0, {rows, columns}, {}, {}};
    const std::int64_t gap = numbers.in(0, 2);
    view.strides = numbers.one_in(2) ? Shape{columns + gap, 1} : Shape{1, rows + gap};
    const std::int64_t span = (rows - 1) * view.strides[0] + (columns - 1) * view.strides[1] + 1;
    view.offset = numbers.in(0, draft.buffers[idx(buffer)].numel - span);
    return view;
  }

  static Shape shape_of(std::int64_t numel, Numbers& numbers) {
    Shape shape;
    for (const std::int64_t most = numbers.in(1, 3); static_cast<std::int64_t>(shape.size()) + 1 < most;) {
      std::vector<std::int64_t> divisors;
      for (std::int64_t d = 1; d <= numel; ++d) {
        if (numel % d == 0) divisors.push_back(d);
      }
      if (divisors.empty()) break;
      shape.push_back(divisors[numbers.below(divisors.size())]);
      numel /= shape.back();
    }
    shape.push_back(numel);
    numbers.shuffle(shape);
    return shape;
  }

  // In any order of dimensions, with gaps where there is room. What is read may repeat elements.
  View view(const Plan& draft, BufferId buffer, std::int64_t numel, bool written, Numbers& numbers) const {
    const std::int64_t room = draft.buffers[idx(buffer)].numel;
    View view{buffer, 0, shape_of(numel, numbers), {}, {}};
    std::vector<std::size_t> inner_first(view.shape.size());
    for (std::size_t dim = 0; dim < inner_first.size(); ++dim)
      inner_first[dim] = inner_first.size() - 1 - dim;
    if (numbers.one_in(2)) numbers.shuffle(inner_first);
    std::int64_t span = 1;
    for (const bool dense : {false, true}) {
      view.strides.assign(view.shape.size(), 1);
      std::int64_t reach = 0;
      for (const std::size_t dim : inner_first) {
        const std::int64_t gap = dense || numbers.one_in(2) ? 0 : numbers.in(0, 3);
        view.strides[dim] = !written && !dense && numbers.one_in(12) ? 0 : reach + 1 + gap;
        reach += std::max<std::int64_t>(view.shape[dim] - 1, 0) * view.strides[dim];
      }
      span = reach + 1;
      if (span <= room) break;
    }
    view.offset = numbers.in(0, room - span);
    if (count_ > 1 && numbers.one_in(2)) advance(view, span, room, numbers);
    return view;
  }

  void advance(View& view, std::int64_t span, std::int64_t room, Numbers& numbers) const {
    Advance move;
    move.period = numbers.of({0, 2, 2, 3});
    move.phase = numbers.in(0, 2);
    const std::int64_t first = move.period == 0 ? move.phase : 0;
    const std::int64_t last = move.period == 0 ? move.phase + count_ - 1 : move.period - 1;
    move.stride = numbers.of({std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, span,
                              (room - span) / std::max<std::int64_t>(last, 1)});
    if (move.stride == 0 || move.stride * last + span > room) return;
    // So that the least place is in the buffer, and the last one.
    if (numbers.one_in(3)) {
      move.stride = -move.stride;
      view.offset = numbers.in(-move.stride * last, room - span - move.stride * first);
    } else {
      view.offset = numbers.in(-move.stride * first, room - span - move.stride * last);
    }
    view.advance = move;
  }

  // ---- collectives ----

  struct Wanted {
    int kind = 0;
    std::int64_t block = 1, members = 1;
    DType dtype = DType::f32;
    ReduceOp op = ReduceOp::sum;
    std::int32_t root = 0;
    std::vector<Count> transfers;
  };

  void collective(int item, Numbers& numbers) {
    const Group& group = groups_[numbers.below(groups_.size())];
    Wanted wanted;
    wanted.kind = static_cast<int>(numbers.below(6));
    wanted.members = static_cast<std::int64_t>(group.ranks.size());
    const Plan& any = drawn_.drafts.front();
    const BufferId out =
        pick(any, numbers, [](const Buffer& buffer) { return buffer.kind != BufferKind::input; });
    wanted.dtype = any.buffers[idx(out)].dtype;
    wanted.block = std::min(numbers.in(1, 4), any.buffers[idx(out)].numel / wanted.members);
    wanted.op = numbers.of({ReduceOp::sum, ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product});
    wanted.root = static_cast<std::int32_t>(numbers.below(group.ranks.size()));
    if (wanted.block < 1) return;
    for (std::int32_t from = 0; from < wanted.members; ++from) {
      for (std::int32_t to = 0; to < wanted.members; ++to) {
        for (std::int64_t i = from == to ? 0 : numbers.in(0, 2); i > 0; --i)
          wanted.transfers.push_back({from, to, numbers.in(1, 3)});
      }
    }
    std::vector<std::pair<Plan*, Step>> steps;
    for (std::size_t index = 0; index < group.ranks.size(); ++index) {
      Plan& draft = drawn_.drafts[idx(group.ranks[index])];
      const GroupId id = id_of(draft, group);
      Numbers own = source(5, item, draft.self);
      // A group has one stream.
      const auto stream =
          static_cast<StreamId>(source(6, id_of(draft, group), draft.self).below(draft.streams.size()));
      std::optional<Step> step;
      for (int i = 0; i < kTriesToFit && !step; ++i) {
        const auto work = part(draft, wanted, id, static_cast<std::int32_t>(index), own);
        if (work) step = Step{stream, *work, {}, {}};
        if (step && !fits(draft, *step)) step.reset();
      }
      if (!step) return;
      steps.emplace_back(&draft, *std::move(step));
    }
    for (auto& [draft, step] : steps) add(*draft, item, std::move(step));
  }

  std::optional<Collective> part(const Plan& draft, const Wanted& wanted, GroupId group, std::int32_t index,
                                 Numbers& numbers) const {
    bool has_room = true;
    const auto run = [&](std::int64_t numel, bool written) {
      const BufferId buffer = pick(draft, numbers, [&](const Buffer& b) {
        return b.dtype == wanted.dtype && b.numel >= numel && !(written && b.kind == BufferKind::input);
      });
      if (buffer < 0) {
        has_room = false;
        return View{};
      }
      View view = flat_view(buffer, 0, numel);
      if (numel % 2 == 0 && numbers.one_in(2)) view = dense_view(buffer, 0, {2, numel / 2});
      view.offset = numbers.in(0, draft.buffers[idx(buffer)].numel - numel);
      if (count_ > 1 && numbers.one_in(2)) advance(view, numel, draft.buffers[idx(buffer)].numel, numbers);
      return view;
    };
    const std::int64_t n = wanted.members, block = wanted.block;
    const bool in_place = numbers.one_in(3);
    const auto flat_part = [&](const View& whole, std::int64_t start) {
      return flat_view(whole.buffer, whole.offset + start, block, whole.advance);
    };
    std::optional<Collective> work;
    switch (wanted.kind) {
      case 0: {
        const View out = run(n * block, true);
        work = AllGather{group, in_place ? flat_part(out, index * block) : run(block, false), out};
        break;
      }
      case 1: {
        if (!in_place) {
          work = ReduceScatter{group, wanted.op, run(n * block, false), run(block, true)};
          break;
        }
        const View in = run(n * block, true);
        work = ReduceScatter{group, wanted.op, in, flat_part(in, index * block)};
        break;
      }
      case 2: {
        const View out = run(block, true);
        work = AllReduce{group, wanted.op, in_place ? out : run(block, false), out};
        break;
      }
      case 3:
        work = AllToAll{group, run(n * block, false), run(n * block, true)};
        break;
      case 4: {
        const View out = run(block, true);
        const View in = index != wanted.root ? View{} : in_place ? out : run(block, false);
        work = Broadcast{group, wanted.root, in, out};
        break;
      }
      default: {
        Exchange exchange{group, {}, {}, counts_digest(wanted.transfers)};
        for (const Count& transfer : wanted.transfers) {
          if (transfer.from == index) exchange.sends.push_back({transfer.to, run(transfer.numel, false)});
          if (transfer.to == index) exchange.recvs.push_back({transfer.from, run(transfer.numel, true)});
        }
        work = std::move(exchange);
      }
    }
    return has_room ? work : std::nullopt;
  }

  // ---- contents ----

  // Each buffer gets one fill at most: what is read too early is filled before, an output that stays
  // unwritten at the start.
  void write_before_reading(Plan& draft) const {
    while (const auto unwritten = find_unwritten(draft)) {
      Numbers numbers = source(7, unwritten->buffer, draft.self);
      const std::int64_t numel = draft.buffers[idx(unwritten->buffer)].numel;
      Step fill{static_cast<StreamId>(numbers.below(draft.streams.size())),
                Kernel(Fill{flat_view(unwritten->buffer, 0, numel), static_cast<double>(numbers.in(-3, 3))}),
                {},
                {}};
      std::int32_t segment = 0;
      if (unwritten->step >= 0) segment = steps_of(draft)[idx(unwritten->step)].segment;
      draft.segments.emplace_back(std::move(fill));
      std::rotate(draft.segments.begin() + segment, draft.segments.end() - 1, draft.segments.end());
    }
  }

  const proto::Program& job_;
  DType common_dtype_ = DType::f32;
  int repeat_begin_ = 0, repeat_end_ = 0;
  std::int64_t count_ = 1;  // iterations of the item at hand
  std::vector<Group> groups_;
  DrawnProgram drawn_;
};

// Edges that nothing needs: to the step before, and into earlier iterations.
void add_edges(Plan& plan, Numbers numbers) {
  StepId id = 0;
  for (Segment& segment : plan.segments) {
    Repeat* repeat = std::get_if<Repeat>(&segment);
    const StepId begin = id, size = repeat != nullptr ? static_cast<StepId>(repeat->steps.size()) : 1;
    for (; id < begin + size; ++id) {
      Step& step = repeat != nullptr ? repeat->steps[idx(id - begin)] : std::get<Step>(segment);
      if (numbers.one_in(3) && id > 0) step.after.push_back({static_cast<StepId>(numbers.in(0, id - 1)), 0});
      if (numbers.one_in(3) && repeat != nullptr)
        step.after.push_back({static_cast<StepId>(begin + numbers.in(0, size - 1)),
                              static_cast<std::int32_t>(numbers.in(1, 3))});
    }
  }
}

}  // namespace

proto::Program draw_program(Numbers& numbers, const Swarm& swarm) {
  proto::Program job;
  job.set_seed(numbers.next() % 1'000'000'000);
  job.set_ranks(
      swarm.choose<int>(numbers, {{"program.ranks.1", 1}, {"program.ranks.2", 2}, {"program.ranks.3", 3}}));
  job.set_streams(swarm.choose<int>(
      numbers, {{"program.streams.1", 1}, {"program.streams.2", 2}, {"program.streams.3", 3}}));
  job.set_buffers(static_cast<int>(numbers.in(1, 5)));
  job.set_items(static_cast<int>(numbers.in(1, numbers.one_in(4) ? 12 : 6)));
  if (swarm.take(numbers, "program.repeat"))
    job.set_iterations(static_cast<int>(numbers.in(1, numbers.one_in(4) ? 9 : 4)));
  job.set_edges(
      swarm.choose<proto::Program::Edges>(numbers, {{"program.edges.conflicts", proto::Program::conflicts},
                                                    {"program.edges.builder", proto::Program::builder},
                                                    {"program.edges.more", proto::Program::more}}));
  if (numbers.one_in(2)) return job;
  job.set_flaw(static_cast<proto::Program::Flaw>(numbers.in(1, proto::Program::Flaw_MAX)));
  // The flaws that most of the checker's rules are about come more often.
  if (numbers.one_in(3))
    job.set_flaw(
        numbers.of({proto::Program::drop_edge, proto::Program::drop_step, proto::Program::swap_steps}));
  job.set_place(numbers.next() % 1000);
  return job;
}

DrawnProgram make_program(const proto::Program& job) {
  require_counts(job);
  DrawnProgram drawn = Maker(job).make();
  plant_step_flaw(job, drawn.drafts);
  return drawn;
}

std::vector<Plan> build_program(const proto::Program& job, const std::vector<Plan>& drafts) {
  std::vector<Plan> plans;
  for (const Plan& draft : drafts) {
    plans.push_back(rebuild_plan(draft, [](PlanBuilder& builder, const Step& step, StepId) {
      std::visit([&](const auto& work) { builder.add(step.stream, work, step.label); }, step.work);
    }));
    if (job.edges() != proto::Program::builder) order_conflicts(plans.back());
    if (job.edges() == proto::Program::more)
      add_edges(plans.back(),
                Numbers(Numbers::combine(job.seed(), 0x65646765 + static_cast<std::uint64_t>(draft.self))));
  }
  return plans;
}

}  // namespace cp::sim
