// A step that reaches Gloo with one argument changed: comparing the traces finds it.
#ifdef CP_HAVE_GLOO
#include "runtime/gloo/gloo_device.h"
#endif

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "sim/fabric/fabric.h"
#include "tests/runtime/processes.h"
#include "traces/compare.h"

namespace cp {
namespace {

#ifndef CP_HAVE_GLOO

TEST(GlooCorruption, IsTestedWhereGlooWasFound) { GTEST_SKIP() << "built without Gloo (libgloo-dev)"; }

#else

constexpr int kRanks = 3;
constexpr std::int64_t kNumel = 4 * kRanks + 4;  // of each buffer

// The arguments of one step. Groups 0 and 1 have the same ranks and other names; buffers 0 and 1 are f32, 2 and 3 i32.
struct Arguments {
  std::string operation;
  GroupId group = 0;
  BufferId in = 0, out = 1;
  std::int64_t in_offset = 0, out_offset = 0;
  std::int64_t count = 4;  // of a block
  ReduceOp op = ReduceOp::sum;
  std::int32_t root = 1;
  std::int32_t shift = 1;  // of an exchange: to the member so many places on
  StreamId stream = 0;
};

Collective collective_of(const Arguments& a, std::int32_t index) {
  const View in = flat_view(a.in, a.in_offset, a.count), out = flat_view(a.out, a.out_offset, a.count);
  const View all_in = flat_view(a.in, a.in_offset, kRanks * a.count),
             all_out = flat_view(a.out, a.out_offset, kRanks * a.count);
  if (a.operation == "all_gather") return AllGather{a.group, in, all_out};
  if (a.operation == "reduce_scatter") return ReduceScatter{a.group, a.op, all_in, out};
  if (a.operation == "all_reduce") return AllReduce{a.group, a.op, in, out};
  if (a.operation == "all_to_all") return AllToAll{a.group, all_in, all_out};
  if (a.operation == "broadcast") return Broadcast{a.group, a.root, in, out};
  std::vector<Count> counts;
  for (std::int32_t from = 0; from < kRanks; ++from)
    counts.push_back({from, (from + a.shift) % kRanks, a.count});
  return Exchange{a.group,
                  {{(index + a.shift) % kRanks, in}},
                  {{(index + kRanks - a.shift) % kRanks, out}},
                  counts_digest(counts)};
}

Plan plan_of(const std::vector<Arguments>& steps, Rank self) {
  PlanBuilder b(self, host_target());
  for (const char* name : {"g", "h"}) b.group(name, {0, 1, 2});
  b.input("x", DType::f32, kNumel), b.inout("y", DType::f32, kNumel);
  b.input("integers", DType::i32, kNumel), b.inout("more integers", DType::i32, kNumel);
  for (const char* name : {"first", "second"}) b.stream(name);
  for (const Arguments& arguments : steps) b.add(arguments.stream, collective_of(arguments, self));
  return std::move(b).build({});
}

// Small integers, different for each rank, buffer and place, in its dtype.
std::vector<std::byte> contents(Rank rank, BufferId buffer) {
  std::vector<std::byte> bytes;
  for (std::int64_t i = 0; i < kNumel; ++i) {
    const auto value = static_cast<std::int32_t>(1 + i + 20 * rank + 100 * buffer);
    const auto real = static_cast<float>(value);
    const auto* begin =
        buffer < 2 ? reinterpret_cast<const std::byte*>(&real) : reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), begin, begin + 4);
  }
  return bytes;
}

void upload_all(Rank rank, Device& device) {
  for (const BufferId buffer : {0, 1, 2, 3}) device.upload(buffer, contents(rank, buffer));
}

void add_digests(Device& device, RankTrace& trace) {
  std::vector<std::byte> bytes(4 * kNumel);
  for (const BufferId buffer : {1, 3}) {
    device.download(buffer, bytes);
    trace.digests[str("buffer ", buffer)] =
        Hasher().add(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())).digest();
  }
}

std::vector<RankTrace> run_on_fabric(const std::vector<Arguments>& steps) {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < kRanks; ++rank) plans.push_back(plan_of(steps, rank));
  sim::Fabric fabric(kRanks);
  fabric.run([&](Rank rank, Device& device) {
    const auto index = static_cast<std::size_t>(rank);
    device.prepare(plans[index], {});
    upload_all(rank, device);
    enqueue_steps(plans[index], device, &fabric.traces()[index]);
    device.synchronize();
    add_digests(device, fabric.traces()[index]);
  });
  return fabric.traces();
}

// Between the executor and the device: what the executor asks for is `asked`, what the device gets the steps of `given`.
class Corrupter final : public Device {
 public:
  Corrupter(Device& device, const Plan& asked, const Plan& given)
      : device_(device), asked_(steps_of(asked)), given_(steps_of(given)) {}

  Rank rank() const override { return device_.rank(); }
  void prepare(const Plan& plan, const Bindings& bindings) override { device_.prepare(plan, bindings); }
  void launch(const Step& step, std::int64_t iteration) override {
    for (std::size_t i = 0; i < asked_.size(); ++i) {
      if (asked_[i].step == &step && i < given_.size()) device_.launch(*given_[i].step, iteration);
    }
  }
  EventId record(StreamId stream) override { return device_.record(stream); }
  void wait(StreamId stream, EventId event) override { device_.wait(stream, event); }
  void synchronize() override { device_.synchronize(); }
  void upload(BufferId buffer, std::span<const std::byte> host) override { device_.upload(buffer, host); }
  void download(BufferId buffer, std::span<std::byte> host) override { device_.download(buffer, host); }

 private:
  Device& device_;
  std::vector<StepRef> asked_, given_;
};

// What comparing the rank's traces says: the first divergence, and the digests.
std::string compare_on_gloo(const std::vector<Arguments>& asked, const std::vector<Arguments>& given,
                            const std::vector<RankTrace>& simulated, runtime::GlooDevice& device) {
  const Rank rank = device.rank();
  const Plan plan = plan_of(asked, rank), corrupt = plan_of(given, rank);
  RankTrace trace;
  Corrupter corrupter(device, plan, corrupt);
  device.prepare(corrupt, {});  // of the same groups, buffers and streams
  upload_all(rank, device);
  enqueue_steps(plan, corrupter, &trace);
  device.synchronize();
  trace.observed = device.take_observed();
  add_digests(device, trace);
  const TraceComparison result = compare_traces({simulated[static_cast<std::size_t>(rank)]}, {trace});
  std::vector<std::string> findings;
  for (const RankDivergence& divergence : result.divergences) {
    findings.push_back(divergence.fields.empty() ? "one side has ended" : join(divergence.fields, ", "));
  }
  for (const DigestDifference& difference : result.digests)
    findings.push_back("digest of " + difference.buffer);
  CP_INVARIANT(result.identical == findings.empty(), join(findings, "; "));
  return join(findings, "; ");
}

struct Corruption {
  std::string name;
  std::vector<Arguments> asked, given;
  std::string found;  // on one rank at least
};

const std::vector<std::string> kOperations = {"all_gather", "reduce_scatter", "all_reduce",
                                              "all_to_all", "broadcast",      "exchange"};

// Each argument of each operation, one at a time.
std::vector<Corruption> corrupted_arguments() {
  std::vector<Corruption> all;
  for (const std::string& operation : kOperations) {
    const auto add = [&](const char* name, const std::string& found,
                         const std::function<void(Arguments&)>& corrupt) {
      Arguments right, wrong;
      right.operation = wrong.operation = operation;
      corrupt(wrong);
      all.push_back({str(operation, ": ", name), {right}, {wrong}, found});
    };
    const bool reduces = operation == "reduce_scatter" || operation == "all_reduce";
    add("group", "group: g[0,1,2], h[0,1,2]", [](Arguments& a) { a.group = 1; });
    add("dtype", "dtype: f32, i32", [](Arguments& a) { a.in = 2, a.out = 3; });
    add("count", "bytes[", [](Arguments& a) { --a.count; });
    add("input", "digest of buffer 1", [](Arguments& a) { a.in_offset = 1; });
    add("output", "digest of buffer 1", [](Arguments& a) { a.out_offset = 1; });
    add("stream", "one side has ended", [](Arguments& a) { a.stream = 1; });
    if (reduces) {
      add("max", "reduction: sum, max", [](Arguments& a) { a.op = ReduceOp::max; });
      add("avg", "reduction: sum, avg", [](Arguments& a) { a.op = ReduceOp::avg; });
    }
    if (operation == "broadcast") add("root", "root: 1, 2", [](Arguments& a) { a.root = 2; });
    if (operation == "exchange") add("peer", "sent bytes[", [](Arguments& a) { a.shift = 2; });
    for (const std::string& other : kOperations) {
      if (other != operation)
        add(other.c_str(), str("operation: ", operation, ", ", other),
            [&](Arguments& a) { a.operation = other; });
    }
  }
  return all;
}

std::vector<Corruption> corrupted_orders() {
  Arguments gather, reduce;
  gather.operation = "all_gather", reduce.operation = "all_reduce";
  return {{"changed places", {gather, reduce}, {reduce, gather}, "operation: all_gather, all_reduce"},
          {"left out", {gather, reduce}, {gather}, "one side has ended"},
          {"twice", {gather, reduce}, {gather, gather}, "operation: all_reduce, all_gather"}};
}

void expect_found(const std::vector<Corruption>& corruptions) {
  std::vector<std::vector<RankTrace>> simulated;
  for (const Corruption& corruption : corruptions) simulated.push_back(run_on_fabric(corruption.asked));
  const testing::TemporaryDirectory store;
  const auto said = testing::run_processes(kRanks, [&](Rank rank) {
    runtime::GlooDevice device({.rank = rank, .store_directory = store.path()});
    std::string lines;
    for (std::size_t i = 0; i < corruptions.size(); ++i) {
      const Corruption& corruption = corruptions[i];
      lines += str(compare_on_gloo(corruption.asked, corruption.given, simulated[i], device), "\n");
      const std::string wrong = compare_on_gloo(corruption.asked, corruption.asked, simulated[i], device);
      CP_INVARIANT(wrong.empty(), corruption.name, ", without the corruption: ", wrong);
    }
    return lines;
  });
  std::vector<std::vector<std::string_view>> lines;
  for (const std::string& text : said) {
    lines.push_back(split(text, '\n'));
    ASSERT_EQ(lines.back().size(), corruptions.size() + 1) << text;
  }
  for (std::size_t i = 0; i < corruptions.size(); ++i) {
    std::string found;
    for (const auto& of_rank : lines) found += str(of_rank[i], "\n");
    EXPECT_THAT(found, ::testing::HasSubstr(corruptions[i].found)) << corruptions[i].name;
  }
}

TEST(GlooCorruption, EachArgumentIsFound) { expect_found(corrupted_arguments()); }

TEST(GlooCorruption, OrderAndNumberAreFound) { expect_found(corrupted_orders()); }

#endif

}  // namespace
}  // namespace cp
