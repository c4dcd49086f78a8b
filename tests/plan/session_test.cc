// PlanSession, on the fabric through a device that watches: in which order it asks for what, and what is in
// the buffers at the end.
#include "shared/plan/session.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/forwarding_device.h"
#include "sim/fabric/fabric.h"

namespace cp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using AskedCalls = std::vector<std::string>;
using Numbers = std::vector<std::int64_t>;

constexpr BufferId kOne = 0, kSum = 1, kCopy = 2;

// sum += one; copy = sum. Each run records an event and waits for it, so that its place among the calls
// shows.
Plan plan_that_counts() {
  Plan plan;
  plan.target = host_target();
  plan.streams = {"main"};
  plan.buffers = {{.name = "one", .kind = BufferKind::input, .dtype = DType::i64, .numel = 2},
                  {.name = "sum", .kind = BufferKind::inout, .dtype = DType::i64, .numel = 2},
                  {.name = "copy", .kind = BufferKind::output, .dtype = DType::i64, .numel = 2}};
  const auto view = [](BufferId buffer) { return flat_view(buffer, 0, 2); };
  plan.segments = {Step{.stream = 0,
                        .work = Kernel(Accumulate{ReduceOp::sum, view(kOne), view(kSum)}),
                        .after = {},
                        .label = {}},
                   Step{.stream = 0,
                        .work = Kernel(Copy{view(kSum), view(kCopy)}),
                        .after = {Edge{.step = 0}},
                        .label = {}}};
  return plan;
}

// Writes down what it is asked for; one kind of call fails once the device has done it.
class AskedDevice final : public ForwardingDevice {
 public:
  explicit AskedDevice(Device& device, AskedCalls& calls, std::string fails = "")
      : ForwardingDevice(device), calls_(calls), fails_(std::move(fails)) {}

  void prepare(const Plan& plan, const Bindings& bindings) override {
    ForwardingDevice::prepare(plan, bindings);
    note("prepare", str(bindings.size(), " bound"));
  }
  void wait(StreamId stream, EventId event) override {
    ForwardingDevice::wait(stream, event);
    note("steps");
  }
  void synchronize() override {
    ForwardingDevice::synchronize();
    note("synchronize");
  }
  void upload(BufferId buffer, std::span<const std::byte> host) override {
    ForwardingDevice::upload(buffer, host);
    note("upload", str(buffer));
  }
  void download(BufferId buffer, std::span<std::byte> host) override {
    ForwardingDevice::download(buffer, host);
    note("download", str(buffer));
  }

 private:
  void note(const std::string& call, const std::string& what = "") {
    calls_.push_back(what.empty() ? call : str(call, " ", what));
    if (call == fails_) throw sim::PeerLost("rank 1 was lost in " + call);
  }

  AskedCalls& calls_;
  const std::string fails_;
};

// The message of the error of that type; any other goes on.
template <class E, class F>
std::string error_text_of(const F& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

struct HostNumbers {
  Numbers one = {1, 2}, sum = {10, 20}, copy = {0, 0};
  HostBuffers host(bool bound) {
    return {{{kOne, one.data(), 16}, {kSum, sum.data(), 16}, {kCopy, copy.data(), 16}}, bound};
  }
};

// The body's device is an AskedDevice on a fabric of one rank.
template <class Body>
AskedCalls asked_of(const Body& body, const std::string& fails = "") {
  AskedCalls calls;
  sim::Fabric fabric(1);
  fabric.run([&](Rank, Device& device) {
    AskedDevice watch(device, calls, fails);
    body(watch);
  });
  return calls;
}

TEST(PlanSession, CopiesUpRunsAndCopiesDown) {
  const Plan plan = plan_that_counts();
  HostNumbers buffers;
  const AskedCalls calls =
      asked_of([&](Device& device) { run_on_host_buffers(device, plan, buffers.host(false)); });
  EXPECT_THAT(calls, ElementsAre("prepare 0 bound", "upload 0", "upload 1", "steps", "synchronize",
                                 "download 1", "download 2"));
  EXPECT_EQ(buffers.one, (Numbers{1, 2}));
  EXPECT_EQ(buffers.sum, (Numbers{11, 22}));
  EXPECT_EQ(buffers.copy, (Numbers{11, 22}));
}

TEST(PlanSession, CopiesNothingThatTheDeviceWorksIn) {
  const Plan plan = plan_that_counts();
  HostNumbers buffers;
  const AskedCalls calls =
      asked_of([&](Device& device) { run_on_host_buffers(device, plan, buffers.host(true)); });
  EXPECT_THAT(calls, ElementsAre("prepare 3 bound", "steps", "synchronize"));
  EXPECT_EQ(buffers.sum, (Numbers{11, 22}));
  EXPECT_EQ(buffers.copy, (Numbers{11, 22}));
}

// The runs that count begin with what the caller gave, and the caller's functions are called between the
// right things.
TEST(PlanSession, WarmsUpWithoutATrace) {
  const Plan plan = plan_that_counts();
  for (const bool bound : {false, true}) {
    HostNumbers buffers;
    RankTrace trace;
    AskedCalls calls;
    RunOptions options{.warm_up = 2, .iterations = 3, .trace = &trace};
    options.ready = [&] { calls.emplace_back("ready"); };
    options.issued = [&] { calls.emplace_back("issued"); };
    sim::Fabric fabric(1);
    fabric.run([&](Rank, Device& device) {
      AskedDevice watch(device, calls);
      PlanSession session(watch, plan, buffers.host(bound));
      session.upload();
      calls.clear();
      session.run(options);
      session.download();
    });
    AskedCalls expected = {"download 1", "steps", "synchronize", "steps", "synchronize", "upload 1",
                           "ready",      "steps", "steps",       "steps", "issued",      "synchronize"};
    if (!bound) expected.insert(expected.end(), {"download 1", "download 2"});
    EXPECT_EQ(calls, expected);
    EXPECT_EQ(trace.issued.size(), 3u * 2u);
    EXPECT_EQ(buffers.sum, (Numbers{13, 26})) << "three times, not five";
    EXPECT_EQ(buffers.copy, (Numbers{13, 26}));
  }
}

// The device prepares nothing then, and has the plan no longer when the session has ended.
TEST(PlanSession, OfAKeptPlanDoesTheSame) {
  const Plan plan = plan_that_counts();
  for (const bool bound : {false, true}) {
    HostNumbers buffers;
    RankTrace trace;
    const AskedCalls calls = asked_of([&](Device& device) {
      run_on_host_buffers(device, plan, buffers.host(bound),
                          {.kept = true, .warm_up = 2, .iterations = 3, .trace = &trace});
      EXPECT_THROW(device.use(1, {}), InvalidInput);
    });
    EXPECT_THAT(calls, ::testing::Each(::testing::Not(HasSubstr("prepare"))));
    EXPECT_EQ(trace.issued.size(), 3u * 2u);
    EXPECT_EQ(buffers.sum, (Numbers{13, 26})) << "three times, not five";
    EXPECT_EQ(buffers.copy, (Numbers{13, 26}));
  }
}

TEST(PlanSession, EachRunFindsWhatTheOneBeforeLeft) {
  const Plan plan = plan_that_counts();
  const auto bytes_of = [](const Numbers& values) { return std::as_bytes(std::span(values)); };
  Numbers sum(2), copy(2);
  const AskedCalls calls = asked_of([&](Device& device) {
    PlanSession session(device, plan);  // the device allocates the buffers
    EXPECT_THAT(session.inputs(), ElementsAre(kOne, kSum));
    EXPECT_THAT(session.outputs(), ElementsAre(kSum, kCopy));
    session.upload(kOne, bytes_of({5, 7}));
    session.upload(kSum, bytes_of({0, 1}));
    session.upload(), session.download();  // no buffers of the host: of no effect
    session.run();
    session.run({.warm_up = 1});
    session.download(kSum, std::as_writable_bytes(std::span(sum)));
    const std::vector<std::byte> bytes = session.download(kCopy);
    ASSERT_EQ(bytes.size(), 16u);
    std::memcpy(copy.data(), bytes.data(), bytes.size());
  });
  EXPECT_EQ(sum, (Numbers{10, 15}));
  EXPECT_EQ(copy, (Numbers{10, 15}));
  EXPECT_THAT(calls, ElementsAre("prepare 0 bound", "upload 0", "upload 1", "steps", "synchronize",
                                 "download 1", "steps", "synchronize", "upload 1", "steps", "synchronize",
                                 "download 1", "download 2"));
}

// What happens between the last launch and the end counts for the run, and not for issuing it.
TEST(PlanSession, TellsTheTimeToIssueFromThatToRun) {
  const Plan plan = plan_that_counts();
  static constexpr double kAsleep = 0.02;
  RunTimes times;
  asked_of([&](Device& device) {
    RunOptions options;
    options.issued = [] { std::this_thread::sleep_for(std::chrono::duration<double>(kAsleep)); };
    times = PlanSession(device, plan).run(options);
  });
  EXPECT_GT(times.issue_seconds, 0);
  EXPECT_GE(times.seconds, times.issue_seconds + kAsleep);
}

// The error is the device's own, and nothing is asked of the device behind it.
TEST(PlanSession, ErrorsOfTheDeviceGoThrough) {
  const Plan plan = plan_that_counts();
  const std::vector<std::pair<std::string, AskedCalls>> cases = {
      {"prepare", {"prepare 0 bound"}},
      {"upload", {"prepare 0 bound", "upload 0"}},
      {"synchronize", {"prepare 0 bound", "upload 0", "upload 1", "steps", "synchronize"}},
      {"download", {"prepare 0 bound", "upload 0", "upload 1", "steps", "synchronize", "download 1"}},
  };
  for (const auto& [fails, expected] : cases) {
    HostNumbers buffers;
    std::string said;
    const AskedCalls calls = asked_of(
        [&](Device& device) {
          said =
              error_text_of<sim::PeerLost>([&] { run_on_host_buffers(device, plan, buffers.host(false)); });
        },
        fails);
    EXPECT_EQ(said, "rank 1 was lost in " + fails);
    EXPECT_EQ(calls, expected);
    EXPECT_EQ(buffers.copy, (Numbers{0, 0}));
  }
}

TEST(PlanSession, RefusesWhatItCannotRun) {
  const Plan plan = plan_that_counts();
  HostNumbers buffers;
  const auto refused = [&](const auto& change) {
    HostBuffers given = buffers.host(false);
    change(given.bindings);
    std::string said;
    const AskedCalls calls = asked_of([&](Device& device) {
      said = error_text_of<InvalidInput>([&] { run_on_host_buffers(device, plan, given); });
    });
    EXPECT_THAT(calls, IsEmpty()) << "the device was prepared all the same";
    return said;
  };
  EXPECT_THAT(refused([](Bindings& all) { all[kSum].size_bytes = 8; }),
              AllOf(HasSubstr("8 bytes"), HasSubstr("sum")));
  EXPECT_THAT(refused([](Bindings& all) { all[kSum].buffer = 3; }), HasSubstr("buffer 3"));
  EXPECT_THAT(refused([](Bindings& all) { all[kCopy].buffer = kSum; }), HasSubstr("two bindings"));

  asked_of([&](Device& device) {
    PlanSession session(device, plan);
    EXPECT_THAT(error_text_of<InvalidInput>([&] { session.run({.iterations = 0}); }),
                HasSubstr("run 0 times"));
    EXPECT_THAT(error_text_of<InvalidInput>([&] { session.run({.warm_up = -1}); }),
                HasSubstr("after -1 warm-up runs"));
  });
}

}  // namespace
}  // namespace cp
