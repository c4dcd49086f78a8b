// Streams, events, repeats, groups that overlap, transfers between host and device, and refusals.
#include <algorithm>
#include <cmath>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/kernels/host_kernels.h"
#include "shared/plan/execute.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/session.h"
#include "tests/conformance/device_suite.h"

namespace cp::conformance {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<Rank> all_ranks() { return {0, 1, 2, 3}; }

Values constant(std::int64_t numel, double value) { return Values(static_cast<std::size_t>(numel), value); }

View whole(BufferId buffer, std::int64_t numel) { return flat_view(buffer, 0, numel); }

// The kernels' results on a device are those of the host kernels, run in issue order.
TEST_P(DeviceConformance, KernelsGiveWhatTheHostKernelsGive) {
  const auto add_steps = [&](PlanBuilder& b) {
    const StreamId stream = b.stream("s");
    const BufferId in = b.input("in", DType::f32, 12), out = b.output("out", DType::f32, 12);
    const BufferId half = b.output("half", DType::f16, 12), product = b.output("product", DType::f32, 16);
    const auto has_kernel = [&](const char* kernel) { return GetParam().target.has_kernel(kernel); };
    b.add(stream, Copy{dense_view(in, 0, {3, 4}), View{out, 0, {3, 4}, {1, 3}, {}}}, "transpose");
    if (has_kernel("accumulate")) b.add(stream, Accumulate{ReduceOp::sum, whole(in, 12), whole(out, 12)});
    if (has_kernel("scale")) b.add(stream, Scale{whole(out, 12), 0.5});
    if (has_kernel("cast")) {
      b.add(stream, Cast{whole(out, 12), whole(half, 12)});
    } else {
      b.add(stream, Fill{whole(half, 12), 3});
    }
    if (has_kernel("matmul")) {
      b.add(stream, MatMul{View{in, 0, {4, 3}, {1, 4}, {}}, dense_view(in, 0, {3, 4}),
                           dense_view(product, 0, {4, 4}), false});
    } else {
      b.add(stream, Fill{whole(product, 16), -2});
    }
  };
  std::vector<Plan> plans;
  std::map<Rank, Contents> inputs, expected;
  for (const Rank rank : all_ranks()) {
    PlanBuilder b = builder(rank);
    add_steps(b);
    plans.push_back(std::move(b).build({}));
    inputs[rank] = {{"in", samples(ReduceOp::sum, rank, 12)}};
    std::vector<std::byte> in = to_bytes(DType::f32, inputs[rank]["in"]);
    HostMemory memory(plans.back(), {{.buffer = 0, .data = in.data(), .size_bytes = 48}});
    for (const StepRef& ref : steps_of(plans.back())) run_kernel(std::get<Kernel>(ref.step->work), memory, 0);
    for (const BufferId id : {1, 2, 3}) {
      const std::span<std::byte> bytes = memory.bytes(id);
      const Buffer& buffer = plans.back().buffers[static_cast<std::size_t>(id)];
      expected[rank][buffer.name] = to_values(buffer.dtype, {bytes.begin(), bytes.end()});
    }
  }
  EXPECT_EQ(execute_all(plans, inputs), expected);
}

// Rows go through a norm, and the loss of equal logits over all ranks' tokens is the logarithm of their
// number, whoever has the label.
TEST_P(DeviceConformance, RowKernelsAddUpALossOverRanks) {
  constexpr std::int64_t kRows = 3, kOwn = 2;
  std::vector<Plan> plans;
  std::map<Rank, Contents> inputs;
  for (const Rank rank : all_ranks()) {
    PlanBuilder b = builder(rank);
    const StreamId stream = b.stream("s");
    const GroupId group = b.group("g", all_ranks());
    const auto rows = [&](BufferId buffer, std::int64_t columns) {
      return dense_view(buffer, 0, {kRows, columns});
    };
    const View x = rows(b.input("x", DType::f32, kRows * kOwn), kOwn),
               weight = whole(b.input("weight", DType::f32, kOwn), kOwn),
               labels = whole(b.input("labels", DType::i32, kRows), kRows),
               share = whole(b.input("share", DType::f32, 1), 1),
               logits = rows(b.temporary("logits", DType::f32, kRows * kOwn), kOwn),
               maxima = rows(b.temporary("maxima", DType::f32, kRows), 1),
               sums = rows(b.temporary("sums", DType::f32, 2 * kRows), 2),
               d_logits = rows(b.output("d_logits", DType::f32, kRows * kOwn), kOwn),
               losses = whole(b.output("losses", DType::f32, kRows), kRows);
    NormRule norm;
    norm.width = kOwn;
    VocabularyRule tokens;
    tokens.first = rank * kOwn, tokens.count = kOwn;
    b.add(stream, RowKernel{RowOperation::rms_norm, {x, weight}, {logits}, {}, norm});
    b.add(stream, RowKernel{RowOperation::cross_entropy, {logits}, {maxima}, {}, tokens});
    b.add(stream, AllReduce{group, ReduceOp::max, maxima, maxima});
    b.add(stream, RowKernel{RowOperation::cross_entropy, {logits, maxima, labels}, {sums}, {}, tokens});
    b.add(stream, AllReduce{group, ReduceOp::sum, sums, sums});
    b.add(stream, RowKernel{RowOperation::cross_entropy_backward,
                            {logits, maxima, sums, labels, share},
                            {d_logits, losses},
                            {},
                            tokens});
    plans.push_back(std::move(b).build({}));
    inputs[rank] = {{"x", constant(kRows * kOwn, rank + 2)},  // its norm is 1 on every rank
                    {"weight", constant(kOwn, 3)},
                    {"labels", {5, -100, 0}},
                    {"share", {0.5}}};
  }
  constexpr double kBound = 1e-6;  // eight times the rounding of numbers near 1 in f32, at least
  for (const auto& [rank, outputs] : execute_all(plans, inputs)) {
    const Values &losses = outputs.at("losses"), &gradients = outputs.at("d_logits");
    for (const std::size_t row : {0U, 2U}) EXPECT_NEAR(losses[row], std::log(8.0), kBound) << rank;
    EXPECT_EQ(losses[1], 0);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const std::size_t row = i / kOwn, token = static_cast<std::size_t>(rank) * kOwn + i % kOwn;
      const bool label = (row == 0 && token == 5) || (row == 2 && token == 0);
      EXPECT_NEAR(gradients[i], row == 1 ? 0 : 0.5 * (1.0 / 8 - (label ? 1 : 0)), kBound) << rank << " " << i;
    }
  }
}

// One key: the output is its value, whatever the score; two merges of equal parts change lse by log 2 at
// most.
TEST_P(DeviceConformance, AttentionToOneKeyGivesItsValue) {
  if (!GetParam().target.has_kernel("attention_forward"))
    GTEST_SKIP() << "the device has no attention_forward";
  constexpr std::int64_t kSeq = 3, kDim = 2;
  std::vector<Plan> plans;
  std::map<Rank, Contents> inputs;
  for (const Rank rank : all_ranks()) {
    PlanBuilder b = builder(rank);
    const BufferId q = b.input("q", DType::f32, kSeq * kDim), k = b.input("k", DType::f32, kDim);
    const BufferId v = b.input("v", DType::f32, kDim), out = b.output("out", DType::f32, kSeq * kDim);
    const BufferId lse = b.output("lse", DType::f32, kSeq);
    b.add(b.stream("s"), AttentionForward{dense_view(q, 0, {1, kSeq, 1, kDim}),
                                          dense_view(k, 0, {1, 1, 1, kDim}),
                                          dense_view(v, 0, {1, 1, 1, kDim}),
                                          dense_view(out, 0, {1, kSeq, 1, kDim}),
                                          dense_view(lse, 0, {1, 1, kSeq}),
                                          0.5,
                                          {MaskSlice{.q_len = kSeq, .k_len = 1}}});
    plans.push_back(std::move(b).build({}));
    inputs[rank] = {{"q", {1, 2, 3, 4, 5, 6}}, {"k", {1.0 + rank, 2}}, {"v", {7, -1.0 * rank}}};
  }
  for (const auto& [rank, contents] : execute_all(plans, inputs)) {
    EXPECT_EQ(contents.at("out"), (Values{7, -1.0 * rank, 7, -1.0 * rank, 7, -1.0 * rank}));
    for (std::size_t i = 0; i < 3; ++i) {
      const double score = 0.5 * ((1.0 + 2.0 * static_cast<double>(i)) * (1 + rank) +
                                  (2.0 + 2.0 * static_cast<double>(i)) * 2);
      EXPECT_NEAR(contents.at("lse")[i], score, 1e-5 * score);
    }
  }
}

// compute writes, comm gathers it, compute reads the result: two events each way, in every iteration and with
// two slots.
TEST_P(DeviceConformance, EventsOrderStreamsInARepeatWithRotatingSlots) {
  constexpr std::int64_t kBlock = 8, kCount = 7, kRanks = 4;
  std::vector<Plan> plans;
  std::map<Rank, Contents> inputs;
  for (const Rank rank : all_ranks()) {
    PlanBuilder b = builder(rank);
    const GroupId group = b.group("g", all_ranks());
    const StreamId compute = b.stream("compute"), comm = b.stream("comm");
    const BufferId x = b.inout("x", DType::f32, kBlock), sum = b.inout("sum", DType::f32, kRanks * kBlock);
    const BufferId sent = b.temporary("sent", DType::f32, 2 * kBlock);
    const BufferId gathered = b.temporary("gathered", DType::f32, 2 * kRanks * kBlock);
    const View own = flat_view(sent, 0, kBlock, {.stride = kBlock, .period = 2});
    const View all = flat_view(gathered, 0, kRanks * kBlock, {.stride = kRanks * kBlock, .period = 2});
    b.begin_repeat(kCount);
    b.add(compute, Scale{whole(x, kBlock), 2});
    b.add(compute, Copy{whole(x, kBlock), own});
    b.add(comm, AllGather{group, own, all});
    b.add(compute, Accumulate{ReduceOp::sum, all, whole(sum, kRanks * kBlock)});
    b.end_repeat();
    plans.push_back(std::move(b).build({}));
    inputs[rank] = {{"x", constant(kBlock, rank + 1)}, {"sum", constant(kRanks * kBlock, 0)}};
  }
  for (const auto& [rank, contents] : execute_all(plans, inputs)) {
    EXPECT_EQ(contents.at("x"), constant(kBlock, (rank + 1) * 128.0));
    Values expected;  // 2 + 4 + ... + 128 = 254 times each rank's value
    for (const Rank from : all_ranks()) expected.insert(expected.end(), kBlock, (from + 1) * 254.0);
    EXPECT_EQ(contents.at("sum"), expected);
  }
}

// A ring: in each iteration a slot is sent on while the slot before it is added up.
TEST_P(DeviceConformance, RingOfExchangesWithDoubleBuffering) {
  if (!has("exchange")) GTEST_SKIP() << "the device has no exchange";
  constexpr std::int64_t kBlock = 5;
  constexpr std::int32_t kRanks = 4;
  const std::vector<Rank> ring = {2, 0, 3, 1};
  std::vector<Count> counts;
  for (std::int32_t i = 0; i < kRanks; ++i) counts.push_back({i, (i + 1) % kRanks, kBlock});
  std::vector<Plan> plans;
  std::map<Rank, Contents> inputs;
  for (std::int32_t index = 0; index < kRanks; ++index) {
    PlanBuilder b = builder(ring[static_cast<std::size_t>(index)]);
    const GroupId group = b.group("ring", ring);
    const StreamId compute = b.stream("compute"), comm = b.stream("comm");
    const BufferId x = b.input("x", DType::i32, kBlock), sum = b.inout("sum", DType::i32, kBlock);
    const BufferId slots = b.temporary("slots", DType::i32, 2 * kBlock);
    const View now = flat_view(slots, 0, kBlock, {.stride = kBlock, .period = 2});
    const View next = flat_view(slots, 0, kBlock, {.stride = kBlock, .period = 2, .phase = 1});
    b.add(compute, Copy{whole(x, kBlock), flat_view(slots, 0, kBlock)});
    b.begin_repeat(kRanks - 1);
    b.add(comm, Exchange{group,
                         {{(index + 1) % kRanks, now}},
                         {{(index + kRanks - 1) % kRanks, next}},
                         counts_digest(counts)});
    b.add(compute, Accumulate{ReduceOp::sum, next, whole(sum, kBlock)});
    b.end_repeat();
    plans.push_back(std::move(b).build({}));
    const Rank rank = ring[static_cast<std::size_t>(index)];
    inputs[rank] = {{"x", samples(ReduceOp::sum, rank, kBlock)},
                    {"sum", samples(ReduceOp::sum, rank, kBlock)}};
  }
  Values expected;
  for (std::int64_t i = 0; i < kBlock; ++i) expected.push_back(reduced(ReduceOp::sum, ring, i));
  for (const auto& [rank, contents] : execute_all(plans, inputs))
    EXPECT_EQ(contents.at("sum"), expected) << "rank " << rank;
}

using Groups = std::map<std::string, std::vector<Rank>>;

// Each rank joins the groups that hold it, each on a stream of its own; every group sums the same inputs,
// three times.
TEST_P(DeviceConformance, GroupsRunOnStreamsOfTheirOwn) {
  constexpr std::int64_t kNumel = 6;
  const Groups table[] = {
      {{"left", {0, 1}}, {"right", {2, 3}}},                         // disjoint
      {{"left", {0, 2}}, {"right", {3, 1}}},                         // disjoint, with gaps and permuted
      {{"a", {0, 1, 2}}, {"b", {1, 2, 3}}},                          // overlapping
      {{"a", {0, 1}}, {"b", {1, 2}}, {"c", {2, 3}}, {"d", {3, 0}}},  // a ring of overlaps
      {{"all", {0, 1, 2, 3}}, {"again", {0, 1, 2, 3}}, {"mixed", {3, 1, 0, 2}}}};  // the same ranks
  for (const Groups& groups : table) {
    std::vector<Plan> plans;
    std::map<Rank, Contents> inputs, expected;
    for (const Rank rank : all_ranks()) {
      PlanBuilder b = builder(rank);
      const BufferId in = b.input("in", DType::i64, kNumel);
      for (const auto& [group, ranks] : groups) {
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
        const BufferId out = b.output(group, DType::i64, kNumel);
        const StreamId stream = b.stream("stream of " + group);
        const GroupId id = b.group(group, ranks);
        for (int i = 0; i < 3; ++i)
          b.add(stream, AllReduce{id, ReduceOp::sum, whole(in, kNumel), whole(out, kNumel)});
        for (std::int64_t i = 0; i < kNumel; ++i)
          expected[rank][group].push_back(reduced(ReduceOp::sum, ranks, i));
      }
      plans.push_back(std::move(b).build({}));
      inputs[rank] = {{"in", samples(ReduceOp::sum, rank, kNumel)}};
    }
    EXPECT_EQ(execute_all(plans, inputs), expected);
  }
}

// ---- the device's functions one by one ------------------------------------------------------------------------------

// x += 1 on one stream; y = x on another.
struct TwoStreams {
  BufferId x = 0, one = 1, y = 2;
  Plan plan;

  explicit TwoStreams(Rank rank, const Target& target) {
    plan.self = rank;
    plan.target = target;
    plan.streams = {"first", "second"};
    plan.buffers = {Buffer{.name = "x", .kind = BufferKind::inout, .dtype = DType::f32, .numel = 4},
                    Buffer{.name = "one", .kind = BufferKind::input, .dtype = DType::f32, .numel = 4},
                    Buffer{.name = "y", .kind = BufferKind::output, .dtype = DType::f32, .numel = 4}};
    plan.segments = {Step{.stream = 0,
                          .work = Kernel(Accumulate{ReduceOp::sum, flat_view(one, 0, 4), flat_view(x, 0, 4)}),
                          .after = {},
                          .label = {}},
                     Step{.stream = 1,
                          .work = Kernel(Copy{flat_view(x, 0, 4), flat_view(y, 0, 4)}),
                          .after = {Edge{.step = 0}},
                          .label = {}}};
  }
  StepRef add() const { return steps_of(plan)[0]; }
  StepRef copy() const { return steps_of(plan)[1]; }
};

Values download(Device& device, BufferId buffer) {
  std::vector<std::byte> bytes(16);
  device.download(buffer, bytes);
  return to_values(DType::f32, bytes);
}

TEST_P(DeviceConformance, WaitHoldsAStreamBackUntilTheEvent) {
  world().run([&](Rank rank, Device& device) {
    const TwoStreams two(rank, GetParam().target);
    device.prepare(two.plan, {});
    device.upload(two.x, to_bytes(DType::f32, constant(4, 0)));
    device.upload(two.one, to_bytes(DType::f32, constant(4, 1)));
    for (int i = 0; i < 3; ++i) device.launch(two.add(), 0);
    const EventId three = device.record(0);
    device.wait(1, three);
    device.launch(two.copy(), 0);
    const EventId copied = device.record(1);
    device.wait(0, copied);
    device.launch(two.add(), 0);
    device.synchronize();
    EXPECT_EQ(download(device, two.y), constant(4, 3));
    EXPECT_EQ(download(device, two.x), constant(4, 4));

    // Events that have happened, of an empty stream, and of the stream itself hold nothing back.
    device.wait(1, three);
    device.wait(1, device.record(0));
    device.wait(1, device.record(1));
    device.launch(two.copy(), 0);
    device.synchronize();
    EXPECT_EQ(download(device, two.y), constant(4, 4));
  });
}

// What plans for the device are made for says what it has, and such a plan runs.
TEST_P(DeviceConformance, RunsPlansThatAreMadeForItsTarget) {
  const Target& wanted = GetParam().target;
  world().run([&](Rank rank, Device& device) {
    const Target& target = device.target();
    EXPECT_EQ(target.collectives, wanted.collectives);
    EXPECT_EQ(target.kernels, wanted.kernels);
    EXPECT_EQ(target.dtypes, wanted.dtypes);
    PlanBuilder b(rank, target);
    const BufferId x = b.input("x", DType::f32, 4), half = b.temporary("half", DType::f32, 4),
                   y = b.output("y", DType::f32, 4);
    const StreamId stream = b.stream("s");
    b.add(stream, Copy{whole(x, 4), whole(half, 4)});
    b.add(stream, Scale{whole(half, 4), 0.5});
    b.add(stream, Copy{whole(half, 4), whole(y, 4)});
    const Plan plan = std::move(b).build({});
    device.prepare(plan, {});
    device.upload(x, to_bytes(DType::f32, constant(4, 6)));
    enqueue_steps(plan, device);
    device.synchronize();
    EXPECT_EQ(download(device, y), constant(4, 3));
    EXPECT_EQ(&device.target(), &target);  // for as long as the device lives
  });
}

TEST_P(DeviceConformance, SynchronizeWithNothingToDoReturns) {
  world().run([&](Rank rank, Device& device) {
    EXPECT_EQ(device.rank(), rank);
    const TwoStreams two(rank, GetParam().target);
    device.prepare(two.plan, {});
    device.synchronize();
    device.synchronize();
  });
}

TEST_P(DeviceConformance, APlanRunsAgainOnWhatItLeft) {
  world().run([&](Rank rank, Device& device) {
    const TwoStreams two(rank, GetParam().target);
    PlanSession session(device, two.plan);
    session.upload(two.x, to_bytes(DType::f32, constant(4, 10)));
    session.upload(two.one, to_bytes(DType::f32, constant(4, 1)));
    for (int i = 0; i < 3; ++i) session.run();
    EXPECT_EQ(download(device, two.x), constant(4, 13));
  });
}

TEST_P(DeviceConformance, AWarmUpLeavesInoutsAsItFoundThem) {
  world().run([&](Rank rank, Device& device) {
    const TwoStreams two(rank, GetParam().target);
    PlanSession session(device, two.plan);
    session.upload(two.x, to_bytes(DType::f32, constant(4, 10)));
    session.upload(two.one, to_bytes(DType::f32, constant(4, 1)));
    session.run({.warm_up = 2});
    EXPECT_EQ(download(device, two.x), constant(4, 11));
    EXPECT_EQ(download(device, two.y), constant(4, 11));
  });
}

TEST_P(DeviceConformance, BindingsAreTheCallersOwnMemory) {
  if (!GetParam().host_memory) GTEST_SKIP() << "the device's memory is not the host's";
  world().run([&](Rank rank, Device& device) {
    const TwoStreams two(rank, GetParam().target);
    std::vector<std::byte> x = to_bytes(DType::f32, constant(4, rank)),
                           one = to_bytes(DType::f32, constant(4, 1));
    execute(two.plan, device,
            {{.buffer = two.x, .data = x.data(), .size_bytes = 16},
             {.buffer = two.one, .data = one.data(), .size_bytes = 16}});
    EXPECT_EQ(to_values(DType::f32, x), constant(4, rank + 1));
  });
}

// ---- refusals -------------------------------------------------------------------------------------------------------

// The message of the InvalidInput that f throws.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const InvalidInput& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST_P(DeviceConformance, AnOperationThatTheDeviceLacksIsRefusedByName) {
  const Target everything = host_target();
  const auto refused = [&](Rank rank, Device& device, const std::function<void(PlanBuilder&)>& add) {
    PlanBuilder b(rank, everything);
    add(b);
    const Plan plan = std::move(b).build({});
    return refusal([&] { device.prepare(plan, {}); });
  };
  world().run([&](Rank rank, Device& device) {
    for (const std::string& operation : everything.collectives) {
      if (has(operation)) continue;
      const auto add = [&](PlanBuilder& b) {
        const GroupId group = b.group("g", all_ranks());
        const View in = whole(b.input("in", DType::f32, 4), 4),
                   out = whole(b.output("out", DType::f32, 4), 4);
        const StreamId s = b.stream("s");
        if (operation == "all_gather") b.add(s, AllGather{group, flat_view(in.buffer, 0, 1), out});
        if (operation == "reduce_scatter")
          b.add(s, ReduceScatter{group, ReduceOp::sum, in, flat_view(out.buffer, 0, 1)});
        if (operation == "all_reduce") b.add(s, AllReduce{group, ReduceOp::sum, in, out});
        if (operation == "all_to_all") b.add(s, AllToAll{group, in, out});
        if (operation == "broadcast") b.add(s, Broadcast{group, 0, in, out});
        if (operation == "exchange") b.add(s, Exchange{group, {}, {}, counts_digest({})});
      };
      EXPECT_THAT(refused(rank, device, add), HasSubstr(operation));
    }
    if (!GetParam().target.has_kernel("matmul")) {
      EXPECT_THAT(refused(rank, device,
                          [](PlanBuilder& b) {
                            const BufferId a = b.input("a", DType::f32, 4),
                                           out = b.output("out", DType::f32, 4);
                            b.add(b.stream("s"), MatMul{dense_view(a, 0, {2, 2}), dense_view(a, 0, {2, 2}),
                                                        dense_view(out, 0, {2, 2}), false});
                          }),
                  HasSubstr("matmul"));
    }
    for (const DType dtype : kDTypes) {
      if (GetParam().target.dtypes.contains(dtype)) continue;
      EXPECT_THAT(refused(rank, device,
                          [&](PlanBuilder& b) {
                            b.add(b.stream("s"), Fill{whole(b.output("out", dtype, 4), 4), 1});
                          }),
                  HasSubstr(std::string(name(dtype))));
    }
    // The device is as good as before.
    const TwoStreams two(rank, GetParam().target);
    device.prepare(two.plan, {});
    device.synchronize();
  });
}

// In the same words on every device.
TEST_P(DeviceConformance, APlanThatIsNotForItIsRefusedBeforeAnythingRuns) {
  world().run([&](Rank rank, Device& device) {
    const Rank other = (rank + 1) % kWorldSize;
    const TwoStreams others(other, GetParam().target);
    EXPECT_THAT(refusal([&] { device.prepare(others.plan, {}); }),
                AllOf(StartsWith(str("the plan of rank ", other, " cannot run on the ")),
                      EndsWith(str(" device of rank ", rank, "; a device runs the plans of its own rank"))));
    PlanBuilder b(rank, shape_target());
    const View x = whole(b.inout("x", DType::f32, 4), 4);
    b.add(b.stream("s"), Scale{x, 2});
    b.add(b.stream("s"), RowKernel{RowOperation::gated_norm, {}, {}, {x}}, "turn");
    const Plan lacking = std::move(b).build({});
    EXPECT_THAT(
        refusal([&] { device.prepare(lacking, {}); }),
        AllOf(HasSubstr(str(" device of rank ", rank,
                            " has no operation gated_norm without a rule (step 1 \"turn\"); its target ")),
              HasSubstr(str(device.target().name, " has ", join(device.target().kernels, ", ")))));
    // The device is as good as before.
    const TwoStreams own(rank, GetParam().target);
    device.prepare(own.plan, {});
    device.synchronize();
  });
}

TEST_P(DeviceConformance, WrongSizesAndBuffersAreRefused) {
  world().run([&](Rank rank, Device& device) {
    TwoStreams two(rank, GetParam().target);
    std::vector<std::byte> bytes(12);
    EXPECT_THAT(refusal([&] {
                  device.prepare(two.plan, {{.buffer = two.x, .data = bytes.data(), .size_bytes = 12}});
                }),
                HasSubstr("12 bytes"));
    device.prepare(two.plan, {});
    EXPECT_THAT(refusal([&] { device.upload(two.x, bytes); }), HasSubstr("12 bytes"));
    EXPECT_THAT(refusal([&] { device.download(two.x, bytes); }), HasSubstr("12 bytes"));
    EXPECT_THAT(refusal([&] { device.upload(3, bytes); }), HasSubstr("buffer 3"));
  });
}

}  // namespace
}  // namespace cp::conformance
