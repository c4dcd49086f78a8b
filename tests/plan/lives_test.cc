#include "shared/plan/lives.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/plan/check.h"
#include "tests/plan/plan_model.h"
#include "tests/support/any_case.h"

namespace cp {
namespace {

constexpr std::int64_t kNumel = 8, kBytes = kNumel * 4;

// x is the caller's; a, b and c are temporaries, each of 8 elements in f32.
struct Writer : PlanBuilder {
  Writer() : PlanBuilder(0, shape_target()) {}
  StreamId compute = stream("compute"), comm = stream("comm");
  BufferId x = inout("x", DType::f32, 64);
  BufferId a = temporary("a", DType::f32, kNumel), b = temporary("b", DType::f32, kNumel),
           c = temporary("c", DType::f32, kNumel);

  void copy(BufferId from, BufferId to) { copy(compute, whole(from), whole(to)); }
  void copy(StreamId on, View from, View to) { add(on, Copy{std::move(from), std::move(to)}); }
  static View whole(BufferId buffer) { return flat_view(buffer, 0, kNumel); }
  Plan build() { return std::move(*this).PlanBuilder::build({}); }
};

const Buffer& buffer(const Plan& plan, BufferId id) { return plan.buffers[idx(id)]; }
std::pair<StepId, StepId> life(const Plan& plan, BufferId id) {
  return {buffer(plan, id).first_use, buffer(plan, id).last_use};
}
bool share(const Plan& plan, BufferId a, BufferId b) {
  const std::int64_t apart = buffer(plan, a).offset_bytes - buffer(plan, b).offset_bytes;
  return -buffer(plan, a).bytes() < apart && apart < buffer(plan, b).bytes();
}

// Of x -> a -> b -> c -> x two live at once.
TEST(Lives, WhatAnIterationWritesFirstLivesAnewInEach) {
  Writer w;
  w.begin_repeat(3);
  w.copy(w.x, w.a), w.copy(w.a, w.b), w.copy(w.b, w.c), w.copy(w.c, w.x);
  w.end_repeat();
  const Plan plan = w.build();
  EXPECT_EQ(life(plan, w.a), std::pair(0, 1));
  EXPECT_EQ(life(plan, w.b), std::pair(1, 2));
  EXPECT_EQ(life(plan, w.c), std::pair(2, 3));
  EXPECT_TRUE(share(plan, w.a, w.c));
  EXPECT_EQ(plan.arena_bytes, 2 * kBytes);
  EXPECT_NO_THROW(check(std::vector<Plan>{plan}));
}

// a comes from before, and c is read behind the Repeat: both live through all of it.
TEST(Lives, WhatIsUsedOutsideTooLivesThroughTheRepeat) {
  Writer w;
  const BufferId unused = w.temporary("unused", DType::f32, kNumel);
  w.copy(w.x, w.a);
  w.begin_repeat(3);
  w.add(w.compute, Scale{Writer::whole(w.x), 2});
  w.copy(w.a, w.b), w.copy(w.b, w.c);
  w.end_repeat();
  w.copy(w.c, w.x);
  const Plan plan = w.build();
  EXPECT_EQ(life(plan, w.a), std::pair(0, 3));
  EXPECT_EQ(life(plan, w.b), std::pair(2, 3));
  EXPECT_EQ(life(plan, w.c), std::pair(1, 4));
  EXPECT_EQ(life(plan, unused), std::pair(-1, -1));
  EXPECT_EQ(plan.arena_bytes, 3 * kBytes);
}

// The body adds to a before it writes a; the half of b that is read first is that of the iteration before.
TEST(Lives, WhatIsReadBeforeItIsWrittenIsCarried) {
  Writer w;
  w.begin_repeat(3);
  w.add(w.compute, Accumulate{ReduceOp::sum, Writer::whole(w.x), Writer::whole(w.a)});
  w.copy(w.compute, flat_view(w.x, 0, 4), flat_view(w.b, 0, 4));
  w.copy(w.b, w.x);
  w.copy(w.x, w.c), w.copy(w.c, w.x);
  w.end_repeat();
  const Plan plan = w.build();
  EXPECT_EQ(life(plan, w.a), std::pair(0, 4));
  EXPECT_EQ(life(plan, w.b), std::pair(0, 4));
  EXPECT_EQ(life(plan, w.c), std::pair(3, 4));
  EXPECT_EQ(plan.arena_bytes, 3 * kBytes);
}

// Two parts of columns are the whole matrix; rows of which one is missing are not.
TEST(Lives, PartsThatFillABufferWriteIt) {
  for (const bool fills : {true, false}) {
    Writer w;
    const auto columns = [&](std::int64_t first, std::int64_t count) {
      return View{w.a, first, {2, count}, {4, 1}, {}};
    };
    w.begin_repeat(3);
    w.copy(w.compute, flat_view(w.x, 0, 2), columns(0, 1));
    w.copy(w.compute, flat_view(w.x, 0, fills ? 6 : 4), columns(1, fills ? 3 : 2));
    w.copy(w.a, w.x);
    w.copy(w.x, w.b), w.copy(w.b, w.x);
    w.end_repeat();
    const Plan plan = w.build();
    EXPECT_EQ(life(plan, w.a), fills ? std::pair(0, 2) : std::pair(0, 4));
    EXPECT_EQ(share(plan, w.a, w.b), fills);
  }
}

// A slot that takes turns is the iteration's own if the iteration reads what it has written. If every one
// reads the first slot, every other one reads what the iteration before has left there.
TEST(Lives, SlotsAreCarriedIfAnotherIterationReadsThem) {
  for (const bool carried : {false, true}) {
    Writer w;
    const BufferId slots = w.temporary("slots", DType::f32, 2 * kNumel);
    const View slot = flat_view(slots, 0, kNumel, {kNumel, 2, 0}), first = flat_view(slots, 0, kNumel);
    w.begin_repeat(4);
    w.copy(w.compute, Writer::whole(w.x), slot);
    w.copy(w.compute, carried ? first : slot, Writer::whole(w.x));
    w.copy(w.x, w.a), w.copy(w.a, w.x);
    w.end_repeat();
    const Plan plan = w.build();
    EXPECT_EQ(life(plan, slots), carried ? std::pair(0, 3) : std::pair(0, 1));
    EXPECT_EQ(plan.arena_bytes, (carried ? 3 : 2) * kBytes);
    EXPECT_NO_THROW(check(std::vector<Plan>{plan}));
  }
}

// The other stream reads a while the body goes on. Only if the next iteration's b waits for that reading, as
// the last step makes it do, may b have a's bytes.
TEST(Lives, TheNextIterationMustWaitForTheOtherStream) {
  const auto expect_shared = [](std::int64_t iterations, bool waits, bool shared) {
    Writer w;
    const BufferId sent = w.inout("sent", DType::f32, kNumel);
    w.begin_repeat(iterations);
    w.copy(w.x, w.b), w.copy(w.b, w.x);
    w.copy(w.x, w.a);
    w.copy(w.comm, Writer::whole(w.a), Writer::whole(sent));
    if (waits) w.copy(sent, w.x);
    w.end_repeat();
    const Plan plan = w.build();
    EXPECT_EQ(share(plan, w.a, w.b), shared);
    EXPECT_EQ(test::trouble_in_arena(plan), "");
    EXPECT_NO_THROW(check(std::vector<Plan>{plan}));
  };
  expect_shared(5, false, false);
  expect_shared(5, true, true);
  expect_shared(1, false, true);  // nothing comes behind the only iteration
}

// Behind the Repeat, on another stream, c waits for x alone, which is written before a is read.
TEST(Lives, WhatComesBehindWaitsForTheLastIteration) {
  for (const bool waits : {false, true}) {
    Writer w;
    const BufferId sent = w.inout("sent", DType::f32, kNumel);
    w.begin_repeat(5);
    w.copy(w.x, w.a);
    w.copy(w.compute, Writer::whole(w.a), Writer::whole(sent));
    w.end_repeat();
    const BufferId from = waits ? sent : w.inout("y", DType::f32, kNumel);
    w.copy(w.comm, Writer::whole(from), Writer::whole(w.c));
    const Plan plan = w.build();
    EXPECT_EQ(share(plan, w.a, w.c), waits);
    EXPECT_EQ(test::trouble_in_arena(plan), "");
  }
}

// ---- against the model ----

// A Repeat between a step before it and one behind it, in which every step writes a temporary, or both halves
// of one, and reads some that are written: mostly in this iteration, sometimes before the Repeat. Slots take
// turns. Nothing is read that is not written.
Plan random_body(bool turns) {
  return pick_case("plan", [=] {
    const auto draw = [](int begin, int end) {
      return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(begin, end));
    };
    PlanBuilder builder(0, shape_target());
    std::vector<StreamId> streams;
    for (int i = draw(1, 4); i > 0; --i) streams.push_back(builder.stream(str("stream", i)));
    const BufferId x = builder.inout("x", DType::f32, 64);
    std::vector<BufferId> temporaries;
    std::vector<std::int64_t> numels;
    std::vector<bool> written, has_slots;
    for (int i = draw(2, 8); i > 0; --i) {
      has_slots.push_back(turns && draw(0, 3) == 0);
      numels.push_back(std::int64_t{4} * draw(1, 4) * (has_slots.back() ? 2 : 1));
      temporaries.push_back(
          builder.temporary(str("t", i), DType::f32, numels.back(), static_cast<Anchor>(draw(0, 3))));
      written.push_back(false);
    }
    const auto any = [&] { return static_cast<std::size_t>(draw(0, static_cast<int>(temporaries.size()))); };
    const auto on = [&] {
      return streams[static_cast<std::size_t>(draw(0, static_cast<int>(streams.size())))];
    };
    // All of a temporary, or the slot of this iteration; `parts` of as many.
    const auto view = [&](std::size_t which, bool inside, int part, int parts) {
      const bool slots = has_slots[which] && inside;
      const std::int64_t all = numels[which] / (slots ? 2 : 1), each = all / parts;
      return flat_view(temporaries[which], part * each, each, slots ? Advance{all, 2, 0} : Advance{});
    };
    const auto write = [&](std::size_t which, bool inside, int part, int parts) {
      RowKernel kernel{RowOperation::gated_norm, {}, {view(which, inside, part, parts)}, {}};
      for (int reads = draw(0, 3); reads > 0; --reads) {
        const std::size_t other = any();
        if (!written[other] || other == which) continue;
        View read = view(other, inside, draw(0, 2), 2);
        if (draw(0, 3) == 0) read.advance = {};  // the first slot, whose turn it may not be
        kernel.reads.push_back(std::move(read));
      }
      const View element =
          flat_view(x, draw(0, 8), 1, inside && draw(0, 2) == 0 ? Advance{8, 0, 0} : Advance{});
      if (draw(0, 2) == 0) kernel.updates.push_back(element);
      builder.add(on(), std::move(kernel), str("write ", which));
    };
    if (const std::size_t first = any(); draw(0, 2) == 0) write(first, false, 0, 1), written[first] = true;
    builder.begin_repeat(draw(1, 6));
    for (int steps = draw(1, 9); steps > 0; --steps) {
      const std::size_t which = any();
      const int parts = draw(0, 3) == 0 ? 2 : 1;
      for (int part = 0; part < parts; ++part) write(which, true, part, parts);
      written[which] = true;
    }
    builder.end_repeat();
    if (const std::size_t last = any(); written[last] && !has_slots[last] && draw(0, 2) == 0) {
      builder.add(on(),
                  RowKernel{RowOperation::gated_norm, {view(last, false, 0, 1)}, {}, {flat_view(x, 0, 1)}});
    }
    return std::move(builder).build({});
  });
}

RC_GTEST_PROP(Lives, BuffersOfABodyShareBytesOnlyInTurn, ()) {
  const Plan plan = random_body(pick("turns", rc::gen::element(false, true)));
  RC_ASSERT(test::trouble_in_arena(plan) == "");
  check(std::vector<Plan>{plan});
}

// Views that move in different ways are taken to be carried, even if so few iterations never show it.
RC_GTEST_PROP(Lives, ABufferLivesThroughTheRepeatIfItIsCarried, ()) {
  const bool turns = pick("turns", rc::gen::element(false, true));
  const Plan plan = random_body(turns);
  const std::vector<test::Instance> instances = test::instances_of(plan);
  const std::vector<StepRef> steps = steps_of(plan);
  for (std::size_t id = 0; id < plan.buffers.size(); ++id) {
    const Buffer& buffer = plan.buffers[id];
    if (buffer.kind != BufferKind::temporary || buffer.first_use < 0) continue;
    StepId first = -1, last = -1;
    for (const StepRef& ref : steps) {
      for (const Access& access : accesses(ref.step->work)) {
        if (idx(access.view->buffer) != id) continue;
        if (first < 0) first = ref.id;
        last = ref.id;
      }
    }
    const bool carried = test::carried(instances, static_cast<BufferId>(id));
    const bool exact = buffer.first_use == first && buffer.last_use == last;
    if (carried) {  // whole segments; RC_ASSERT would look at both sides of an `or`
      const bool begins =
          buffer.first_use == 0 || steps[idx(buffer.first_use) - 1].segment != steps[idx(first)].segment;
      const bool ends = idx(buffer.last_use) + 1 == steps.size() ||
                        steps[idx(buffer.last_use) + 1].segment != steps[idx(last)].segment;
      RC_ASSERT(begins && ends);
    } else {
      RC_ASSERT(exact || turns);
    }
  }
}

}  // namespace
}  // namespace cp
