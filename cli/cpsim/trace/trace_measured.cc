#include "cli/cpsim/trace/trace_measured.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "shared/base/error.h"
#include "shared/plan/operations.h"
#include "traces/record_file.h"
#include "traces/trace_times.h"

namespace cp::cli {
namespace {

constexpr std::array kDTypes = {DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64};
// The most bytes of one collective on a rank. Chosen: sums of a few such numbers stay within 64 bits.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

template <std::size_t kIndex = 0>
std::optional<Kernel> kernel_named(const std::string& name) {
  if constexpr (kIndex == std::variant_size_v<Kernel>) {
    for (const auto& [operation, text] : kRowOperations) {
      if (text == name) return Kernel(RowKernel{operation, {}, {}, {}});
    }
    return std::nullopt;
  } else {
    using Op = std::variant_alternative_t<kIndex, Kernel>;
    if (kOperationName<Op> == name && !std::is_same_v<Op, RowKernel>) return Kernel(Op{});
    return kernel_named<kIndex + 1>(name);
  }
}

// Makes the plan of one rank, step by step.
class PlanOfRecords {
 public:
  explicit PlanOfRecords(Rank rank) {
    plan_.self = rank;
    for (const DType dtype : kDTypes) {
      Buffer buffer;
      buffer.name = std::string(name(dtype));
      buffer.dtype = dtype;
      plan_.buffers.push_back(std::move(buffer));
    }
  }

  // Rows stand in the order of the streams' numbers.
  void add_streams(const std::vector<OpRecord>& records) {
    for (const OpRecord& record : records) rows_[record.stream] = 0;
    for (auto& [stream, row] : rows_) {
      row = static_cast<StreamId>(plan_.streams.size());
      plan_.streams.push_back(str("plan stream ", stream));
    }
  }

  void add(const OpRecord& record, const std::string& label) {
    plan_.segments.emplace_back(Step{rows_.at(record.stream), work_of(record), {}, label});
  }

  Plan take() { return std::move(plan_); }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const OpRecord& record, const Parts&... parts) const {
    throw BadTrace(str("rank ", plan_.self, ": ", to_string(record), ": ", parts...));
  }

  Work work_of(const OpRecord& record) {
    if (record.sequence >= 0) return collective_of(record);
    if (const std::optional<Kernel> kernel = kernel_named(record.operation)) return *kernel;
    fail(record, "this version knows no kernel of that name");
  }

  Collective collective_of(const OpRecord& record) {
    const std::vector<Rank>& ranks = record.group.ranks;
    const auto n = static_cast<std::int64_t>(ranks.size());
    if (std::find(ranks.begin(), ranks.end(), plan_.self) == ranks.end()) {
      fail(record, "the rank is not in the group");
    }
    if (record.sent.size() != ranks.size() || record.received.size() != ranks.size()) {
      fail(record, "it names bytes to ", record.sent.size(), " and from ", record.received.size(),
           " peers, but the group has ", n);
    }
    const std::int64_t sent = most(record, record.sent), received = most(record, record.received);
    const GroupId group = group_of(record.group);
    if (record.operation == "all_gather")
      return AllGather{group, whole(record, sent), whole(record, sent * n)};
    if (record.operation == "reduce_scatter") {
      return ReduceScatter{group, reduction(record), whole(record, sent * n), whole(record, sent)};
    }
    if (record.operation == "all_reduce") {
      return AllReduce{group, reduction(record), whole(record, sent), whole(record, sent)};
    }
    if (record.operation == "all_to_all") {
      return AllToAll{group, whole(record, sent * n), whole(record, sent * n)};
    }
    if (record.operation == "broadcast") {
      if (record.root < 0 || record.root >= n) fail(record, "the root is not in the group");
      const View data = whole(record, std::max(sent, received));
      return Broadcast{group, record.root, data, data};
    }
    if (record.operation == "exchange") {
      return Exchange{group, transfers(record, record.sent), transfers(record, record.received), {}};
    }
    fail(record, "this version knows no collective of that name");
  }

  std::int64_t most(const OpRecord& record, const std::vector<std::int64_t>& bytes) const {
    const std::int64_t result = *std::max_element(bytes.begin(), bytes.end());
    const std::int64_t limit = kMostBytes / static_cast<std::int64_t>(bytes.size());
    if (result > limit) fail(record, "it moves more than ", limit, " bytes for one peer");
    return result;
  }

  ReduceOp reduction(const OpRecord& record) const { return record.reduction.value_or(ReduceOp::sum); }

  static View view(DType dtype, std::int64_t elements) {
    const auto at = std::find(kDTypes.begin(), kDTypes.end(), dtype) - kDTypes.begin();
    return flat_view(static_cast<BufferId>(at), 0, elements);
  }
  static View whole(const OpRecord& record, std::int64_t bytes) {
    return view(record.dtype, bytes / size_bytes(record.dtype));
  }

  // The type of an exchange is that of its first transfer. A transfer of another type may have bytes that are
  // no multiple of it; the rest is then counted in f16.
  std::vector<Transfer> transfers(const OpRecord& record, const std::vector<std::int64_t>& bytes) const {
    std::vector<Transfer> result;
    const std::int64_t element = size_bytes(record.dtype);
    for (std::size_t peer = 0; peer < bytes.size(); ++peer) {
      const auto index = static_cast<std::int32_t>(peer);
      if (bytes[peer] >= element) result.push_back({index, view(record.dtype, bytes[peer] / element)});
      const std::int64_t rest = bytes[peer] % element / size_bytes(DType::f16);
      if (rest > 0) result.push_back({index, view(DType::f16, rest)});
    }
    return result;
  }

  GroupId group_of(const Group& group) {
    const auto [found, is_new] =
        groups_.try_emplace({group.name, group.ranks}, static_cast<GroupId>(plan_.groups.size()));
    if (is_new) plan_.groups.push_back(group);
    return found->second;
  }

  Plan plan_;
  std::map<StreamId, StreamId> rows_;
  std::map<std::pair<std::string, std::vector<Rank>>, GroupId> groups_;
};

// A cluster whose nodes have as many GPUs as ranks share the first rank's host.
sim::Cluster cluster_of(const std::vector<RankTrace>& ranks) {
  sim::Cluster cluster;
  const auto host = [](const RankTrace& trace) {
    return trace.environment ? trace.environment->host : std::string();
  };
  const auto same = std::count_if(ranks.begin(), ranks.end(),
                                  [&](const RankTrace& trace) { return host(trace) == host(ranks.front()); });
  cluster.node.gpus = static_cast<int>(same);
  cluster.gpu.name = "measured";
  return cluster;
}

}  // namespace

sim::TraceSlices MeasuredRun::slices() const {
  const sim::TracedPass pass{"measured", plans, &timeline};
  sim::TraceSlices slices = sim::trace_slices({&pass, 1});
  slices.backend = backend.empty() ? "unknown" : backend;
  for (std::size_t i = 0; i < slices.ranks.size(); ++i) {
    if (!hosts[i].empty()) slices.ranks[i].place = "host " + hosts[i];
  }
  return slices;
}

MeasuredRun measured_run(std::vector<RankTrace> ranks, const std::string& name) {
  std::sort(ranks.begin(), ranks.end(),
            [](const RankTrace& a, const RankTrace& b) { return a.rank < b.rank; });
  const auto has = [&](std::vector<TimedOp> RankTrace::*times) {
    return std::any_of(ranks.begin(), ranks.end(),
                       [&](const RankTrace& trace) { return !(trace.*times).empty(); });
  };
  const bool issued = has(&RankTrace::issued_times);
  if (!issued && !has(&RankTrace::observed_times)) {
    throw InvalidInput(str(name,
                           " has no times, so there is nothing to draw; use a trace of a real run (cprun), ",
                           "or draw predicted times with `cpsim estimate --trace`"));
  }
  // Issued times are those of all steps, kernels among them; observed ones are of collectives only, and stand
  // in if a trace has nothing else.
  const auto times = issued ? &RankTrace::issued_times : &RankTrace::observed_times;
  const auto records = issued ? &RankTrace::issued : &RankTrace::observed;
  // Times of a rank count from its own start; the offset leads to the start that all ranks have in common.
  // The earliest step of all ranks is drawn at 0.
  std::int64_t start_ns = std::numeric_limits<std::int64_t>::max();
  for (const RankTrace& trace : ranks) {
    for (const TimedOp& time : trace.*times)
      start_ns = std::min(start_ns, time.begin_ns + trace.clock_offset_ns);
  }
  MeasuredRun run;
  run.cluster = cluster_of(ranks);
  for (const RankTrace& trace : ranks) {
    if (trace.environment && run.backend.empty()) run.backend = trace.environment->backend;
    PlanOfRecords plan(trace.rank);
    plan.add_streams(trace.*records);
    sim::RankTimeline timeline;
    timeline.rank = trace.rank;
    const std::vector<const TimedOp*> timed = times_of_records(trace.*records, trace.*times, trace.rank);
    for (std::size_t i = 0; i < timed.size(); ++i) {
      if (timed[i] == nullptr) continue;
      plan.add((trace.*records)[i], timed[i]->label);
      const std::int64_t offset = trace.clock_offset_ns - start_ns;
      const auto begin = static_cast<double>(timed[i]->begin_ns + offset),
                 end = static_cast<double>(timed[i]->end_ns + offset);
      timeline.spans.push_back({static_cast<StepId>(timeline.spans.size()), 0, begin, begin, end});
      timeline.end_ns = std::max(timeline.end_ns, end);
    }
    run.timeline.time_ns = std::max(run.timeline.time_ns, timeline.end_ns);
    run.timeline.ranks.push_back(std::move(timeline));
    run.plans.push_back(plan.take());
    run.hosts.push_back(trace.environment ? trace.environment->host : std::string());
  }
  return run;
}

}  // namespace cp::cli
