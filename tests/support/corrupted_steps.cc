#include "tests/support/corrupted_steps.h"

#include <cstddef>
#include <functional>
#include <string_view>
#include <utility>

#include "shared/base/error.h"
#include "shared/kernels/host_kernels.h"
#include "shared/plan/builder.h"
#include "shared/plan/forwarding_device.h"
#include "shared/plan/session.h"
#include "sim/fabric/fabric.h"
#include "tests/support/values.h"
#include "traces/compare.h"

namespace cp::testing {
namespace {

using Arguments = CollectiveArguments;
constexpr std::int64_t kNumel = 4 * kCorruptedRanks + 4;  // of each buffer

Collective collective_of(const Arguments& a, std::int32_t index) {
  const View in = flat_view(a.in, a.in_offset, a.count), out = flat_view(a.out, a.out_offset, a.count);
  const View all_in = flat_view(a.in, a.in_offset, kCorruptedRanks * a.count),
             all_out = flat_view(a.out, a.out_offset, kCorruptedRanks * a.count);
  if (a.operation == "all_gather") return AllGather{a.group, in, all_out};
  if (a.operation == "reduce_scatter") return ReduceScatter{a.group, a.op, all_in, out};
  if (a.operation == "all_reduce") return AllReduce{a.group, a.op, in, out};
  if (a.operation == "all_to_all") return AllToAll{a.group, all_in, all_out};
  if (a.operation == "broadcast") return Broadcast{a.group, a.root, in, out};
  std::vector<Count> counts;
  for (std::int32_t from = 0; from < kCorruptedRanks; ++from)
    counts.push_back({from, (from + a.shift) % kCorruptedRanks, a.count});
  return Exchange{a.group,
                  {{(index + a.shift) % kCorruptedRanks, in}},
                  {{(index + kCorruptedRanks - a.shift) % kCorruptedRanks, out}},
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

bool is_corrupted(const Corruption& corruption, Rank rank) {
  return !corruption.only || *corruption.only == rank;
}

// Small integers, different for each rank, buffer and place, in its dtype.
std::vector<std::byte> contents(Rank rank, BufferId buffer, bool other_data) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < kNumel; ++i)
    values.push_back(static_cast<double>(1 + i + 20 * rank + 100 * buffer));
  if (other_data) values.front() += 1;
  return encode(buffer < 2 ? DType::f32 : DType::i32, values);
}

void upload_all(Rank rank, PlanSession& session, bool other_data = false) {
  for (const BufferId buffer : {0, 1, 2, 3})
    session.upload(buffer, contents(rank, buffer, other_data && buffer == 0));
}

void add_digests(PlanSession& session, RankTrace& trace) {
  for (const BufferId buffer : {1, 3}) {
    const std::vector<std::byte> bytes = session.download(buffer);
    trace.digests[str("buffer ", buffer)] =
        Hasher().add(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())).digest();
  }
}

std::vector<RankTrace> run_on_fabric(const std::vector<Arguments>& steps) {
  std::vector<Plan> plans;
  for (Rank rank = 0; rank < kCorruptedRanks; ++rank) plans.push_back(plan_of(steps, rank));
  sim::Fabric fabric(kCorruptedRanks);
  fabric.run([&](Rank rank, Device& device) {
    const auto index = static_cast<std::size_t>(rank);
    PlanSession session(device, plans[index]);
    upload_all(rank, session);
    session.run({.trace = &fabric.traces()[index]});
    add_digests(session, fabric.traces()[index]);
  });
  return fabric.traces();
}

std::vector<Corruption> simulated(std::vector<Corruption> corruptions) {
  for (Corruption& corruption : corruptions) corruption.simulated = run_on_fabric(corruption.asked);
  return corruptions;
}

// Between the executor and the device: the device prepares `given`, which is of the same groups, buffers and
// streams, and where the executor asks for a step of its plan, it gets that of `given`, if it has one.
class Corrupter final : public ForwardingDevice {
 public:
  Corrupter(Device& device, const Plan& given)
      : ForwardingDevice(device), plan_(given), given_(steps_of(given)) {}

  void prepare(const Plan&, const Bindings& bindings) override { ForwardingDevice::prepare(plan_, bindings); }

  void launch(const StepRef& step, std::int64_t iteration) override {
    const auto id = static_cast<std::size_t>(step.id);
    if (id < given_.size()) ForwardingDevice::launch(given_[id], iteration);
  }

 private:
  const Plan& plan_;
  std::vector<StepRef> given_;
};

// What comparing the rank's traces says: the first divergence, and the digests.
std::string findings(const Corruption& corruption, bool corrupted, runtime::ProcessDevice& device) {
  const Rank rank = device.rank();
  const Plan asked = plan_of(corruption.asked, rank),
             given = plan_of(corrupted ? corruption.given : corruption.asked, rank);
  RankTrace trace;
  Corrupter corrupter(device, given);
  PlanSession session(corrupter, asked);
  upload_all(rank, session, corrupted && corruption.other_data);
  session.run({.trace = &trace});
  trace.observed = device.take_observed();
  add_digests(session, trace);
  const TraceComparison result =
      compare_traces({corruption.simulated[static_cast<std::size_t>(rank)]}, {trace});
  std::vector<std::string> found;
  for (const RankDivergence& divergence : result.divergences)
    found.push_back(divergence.fields.empty() ? "one side has ended" : join(divergence.fields, ", "));
  for (const DigestDifference& difference : result.digests) found.push_back("digest of " + difference.buffer);
  CP_INVARIANT(result.identical == found.empty(), join(found, "; "));
  return join(found, "; ");
}

const std::vector<std::string> kOperations = {"all_gather", "reduce_scatter", "all_reduce",
                                              "all_to_all", "broadcast",      "exchange"};

}  // namespace

std::vector<Corruption> corrupted_arguments() {
  std::vector<Corruption> all;
  for (const std::string& operation : kOperations) {
    const auto add = [&](const char* name, const std::string& found,
                         const std::function<void(Arguments&)>& corrupt) {
      Arguments right, wrong;
      right.operation = wrong.operation = operation;
      corrupt(wrong);
      all.push_back({.name = str(operation, ": ", name), .asked = {right}, .given = {wrong}, .found = found});
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
  return simulated(std::move(all));
}

std::vector<Corruption> corrupted_orders() {
  Arguments gather, reduce;
  gather.operation = "all_gather", reduce.operation = "all_reduce";
  const auto corruption = [&](const char* name, std::vector<Arguments> given, const char* found) {
    return Corruption{.name = name, .asked = {gather, reduce}, .given = std::move(given), .found = found};
  };
  return simulated({corruption("changed places", {reduce, gather}, "operation: all_gather, all_reduce"),
                    corruption("left out", {gather}, "one side has ended"),
                    corruption("twice", {gather, gather}, "operation: all_reduce, all_gather")});
}

std::vector<Corruption> corrupted_ranks() {
  std::vector<Corruption> all;
  for (const std::string& operation : kOperations) {
    Arguments right;
    right.operation = operation;
    Arguments reads = right, writes = right;
    reads.in_offset = 1, writes.out_offset = 1;
    const auto add = [&](const char* name, const Arguments& given, bool other_data) {
      all.push_back({.name = str(operation, ": ", name, " of rank 1"),
                     .asked = {right},
                     .given = {given},
                     .only = 1,
                     .other_data = other_data,
                     .found = "digest of buffer 1"});
    };
    add("input", reads, false), add("output", writes, false), add("data", right, true);
  }
  return simulated(std::move(all));
}

std::string lines_of_findings(const std::vector<Corruption>& corruptions, runtime::ProcessDevice& device) {
  std::string lines;
  for (const Corruption& corruption : corruptions) {
    lines += findings(corruption, is_corrupted(corruption, device.rank()), device) + "\n";
    const std::string wrong = findings(corruption, false, device);
    if (!wrong.empty()) throw CheckFailure(str(corruption.name, ", without the corruption: ", wrong));
  }
  return lines;
}

std::vector<std::string> missed(const std::vector<Corruption>& corruptions,
                                const std::vector<std::string>& said) {
  std::vector<std::string> all;
  std::vector<std::string> found(corruptions.size());
  for (const std::string& text : said) {
    const std::vector<std::string_view> lines = split(text, '\n');
    if (lines.size() != corruptions.size() + 1) {
      all.push_back(text);  // what ended it
      continue;
    }
    for (std::size_t i = 0; i < corruptions.size(); ++i) found[i] += str(lines[i], "\n");
  }
  if (!all.empty()) return all;
  for (std::size_t i = 0; i < corruptions.size(); ++i) {
    if (found[i].find(corruptions[i].found) == std::string::npos)
      all.push_back(str(corruptions[i].name, ": '", corruptions[i].found, "' is not in: ", found[i]));
  }
  return all;
}

}  // namespace cp::testing
