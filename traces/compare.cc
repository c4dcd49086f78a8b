#include "traces/compare.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "shared/base/error.h"
#include "shared/plan/canonical.h"

namespace cp {
namespace {

using Ranks = std::map<Rank, const RankTrace*>;

Ranks by_rank(const std::vector<RankTrace>& traces, std::string_view side) {
  Ranks ranks;
  for (const RankTrace& trace : traces) {
    if (!ranks.emplace(trace.rank, &trace).second) {
      throw InvalidInput(str("trace ", side, " holds rank ", trace.rank, " twice"));
    }
  }
  return ranks;
}

struct Side {
  std::string name;
  const std::vector<OpRecord>* records = nullptr;
  bool is_cut = false;
};

Neighbourhood around(const Side& side, const StreamRecords& streams, const Divergence& place,
                     std::size_t neighbours) {
  Neighbourhood result{side.name, place.at - std::min(place.at, neighbours), 0, {}};
  const auto found = streams.find(place.stream);
  if (found == streams.end()) return result;
  result.total = found->second.size();
  const std::size_t end = std::min(result.total, place.at + neighbours + 1);
  for (std::size_t at = result.first; at < end; ++at) result.operations.push_back(*found->second[at]);
  return result;
}

const OpRecord* record_at(const StreamRecords& streams, const Divergence& place) {
  const auto found = streams.find(place.stream);
  return found != streams.end() && place.at < found->second.size() ? found->second[place.at] : nullptr;
}

std::optional<RankDivergence> diverge(Rank rank, const Side& one, const Side& other, bool collectives,
                                      std::size_t neighbours) {
  const StreamRecords left = records_by_stream(*one.records, collectives),
                      right = records_by_stream(*other.records, collectives);
  const auto place = first_divergence(left, right, one.is_cut, other.is_cut);
  if (!place) return std::nullopt;
  RankDivergence result{rank,
                        place->stream,
                        place->at,
                        collectives,
                        around(one, left, *place, neighbours),
                        around(other, right, *place, neighbours),
                        {}};
  const OpRecord *a = record_at(left, *place), *b = record_at(right, *place);
  if (a != nullptr && b != nullptr) result.fields = differing_fields(*a, *b);
  return result;
}

std::optional<RankDivergence> compare_rank(const RankTrace& a, const RankTrace& b,
                                           const CompareOptions& options) {
  const Side a_issued{"A issued", &a.issued, options.a_is_cut},
      a_observed{"A observed", &a.observed, options.a_is_cut},
      b_issued{"B issued", &b.issued, options.b_is_cut},
      b_observed{"B observed", &b.observed, options.b_is_cut};
  const struct {
    const Side &one, &other;
    bool collectives;
  } pairs[] = {{a_issued, a_observed, true},
               {b_issued, b_observed, true},
               {a_observed, b_observed, true},
               {a_issued, b_issued, false}};
  for (const auto& pair : pairs) {
    if (auto found = diverge(a.rank, pair.one, pair.other, pair.collectives, options.neighbours))
      return found;
  }
  return std::nullopt;
}

void compare_digests(const RankTrace& a, const RankTrace& b, const CompareOptions& options,
                     std::vector<DigestDifference>& differences) {
  const auto of = [](const RankTrace& trace, const std::string& buffer) {
    const auto found = trace.digests.find(buffer);
    return found == trace.digests.end() ? std::optional<Digest>() : found->second;
  };
  std::set<std::string> buffers;
  for (const RankTrace* trace : {&a, &b}) {
    for (const auto& [buffer, digest] : trace->digests) buffers.insert(buffer);
  }
  for (const std::string& buffer : buffers) {
    const auto left = of(a, buffer), right = of(b, buffer);
    if (left == right || (!left && options.a_is_cut) || (!right && options.b_is_cut)) continue;
    differences.push_back({a.rank, buffer, left, right});
  }
}

struct SideTimes {
  std::map<std::string, std::pair<std::int64_t, double>> by_operation;  // count, ns
  std::int64_t count = 0;
  double whole_ns = 0;
};

SideTimes times_of(const std::vector<RankTrace>& traces) {
  const bool issued = std::any_of(traces.begin(), traces.end(),
                                  [](const RankTrace& trace) { return !trace.issued_times.empty(); });
  SideTimes times;
  std::int64_t begin = std::numeric_limits<std::int64_t>::max(),
               end = std::numeric_limits<std::int64_t>::min();
  for (const RankTrace& trace : traces) {
    for (const TimedOp& op : issued ? trace.issued_times : trace.observed_times) {
      auto& [count, ns] = times.by_operation[op.operation];
      ++count, ++times.count;
      ns += static_cast<double>(op.end_ns - op.begin_ns);
      begin = std::min(begin, op.begin_ns + trace.clock_offset_ns);
      end = std::max(end, op.end_ns + trace.clock_offset_ns);
    }
  }
  if (times.count > 0) times.whole_ns = static_cast<double>(end - begin);
  return times;
}

void compare_times(const std::vector<RankTrace>& a, const std::vector<RankTrace>& b,
                   TraceComparison& result) {
  const SideTimes left = times_of(a), right = times_of(b);
  result.whole = {left.count, right.count, left.whole_ns, right.whole_ns};
  std::set<std::string> operations;
  for (const SideTimes* side : {&left, &right}) {
    for (const auto& [operation, sum] : side->by_operation) operations.insert(operation);
  }
  for (const std::string& operation : operations) {
    OperationTime row;
    row.operation = operation;
    if (const auto found = left.by_operation.find(operation); found != left.by_operation.end()) {
      std::tie(row.count_a, row.ns_a) = found->second;
    }
    if (const auto found = right.by_operation.find(operation); found != right.by_operation.end()) {
      std::tie(row.count_b, row.ns_b) = found->second;
    }
    result.times.push_back(std::move(row));
  }
  std::stable_sort(result.times.begin(), result.times.end(),
                   [](const OperationTime& x, const OperationTime& y) {
                     return std::max(x.ns_a, x.ns_b) > std::max(y.ns_a, y.ns_b);
                   });
}

}  // namespace

TraceComparison compare_traces(const std::vector<RankTrace>& a, const std::vector<RankTrace>& b,
                               const CompareOptions& options) {
  const Ranks ranks_a = by_rank(a, "A"), ranks_b = by_rank(b, "B");
  TraceComparison result;
  for (const auto& [rank, trace] : ranks_b) {
    if (!ranks_a.contains(rank)) result.only_in_b.push_back(rank);
  }
  for (const auto& [rank, left] : ranks_a) {
    const auto right = ranks_b.find(rank);
    if (right == ranks_b.end()) {
      result.only_in_a.push_back(rank);
      continue;
    }
    ++result.num_ranks;
    result.num_operations +=
        static_cast<std::int64_t>(std::max(left->issued.size(), right->second->issued.size()));
    if (auto found = compare_rank(*left, *right->second, options))
      result.divergences.push_back(std::move(*found));
    compare_digests(*left, *right->second, options, result.digests);
  }
  compare_times(a, b, result);
  result.identical = result.divergences.empty() && result.digests.empty() &&
                     (result.only_in_a.empty() || options.b_is_cut) &&
                     (result.only_in_b.empty() || options.a_is_cut);
  return result;
}

std::vector<std::string> differing_fields(const OpRecord& a, const OpRecord& b) {
  std::vector<std::string> fields;
  const auto add = [&](const char* name, bool same, const std::string& left, const std::string& right) {
    if (!same) fields.push_back(str(name, ": ", left, ", ", right));
  };
  const auto reduction = [](const OpRecord& it) {
    return it.reduction ? std::string(name(*it.reduction)) : std::string("none");
  };
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  add("stream", a.stream == b.stream, number(a.stream), number(b.stream));
  add("operation", a.operation == b.operation, a.operation, b.operation);
  add("group", a.group == b.group, canonical_name(a.group), canonical_name(b.group));
  add("sequence", a.sequence == b.sequence, number(a.sequence), number(b.sequence));
  add("dtype", a.dtype == b.dtype, std::string(name(a.dtype)), std::string(name(b.dtype)));
  add("reduction", a.reduction == b.reduction, reduction(a), reduction(b));
  add("root", a.root == b.root, number(a.root), number(b.root));
  const auto add_bytes = [&](const char* name, const auto& left, const auto& right) {
    if (left.size() != right.size())
      return fields.push_back(str(name, " of ", left.size(), ", ", right.size(), " peers"));
    const auto [x, y] = std::mismatch(left.begin(), left.end(), right.begin());
    if (x != left.end()) fields.push_back(str(name, "[", x - left.begin(), "]: ", *x, ", ", *y));
  };
  add_bytes("sent bytes", a.sent, b.sent);
  add_bytes("received bytes", a.received, b.received);
  return fields;
}

}  // namespace cp
