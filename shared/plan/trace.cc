#include "shared/plan/trace.h"

#include <algorithm>
#include <set>

#include "shared/base/error.h"
#include "shared/plan/operations.h"

namespace cp {
namespace {

using Records = std::vector<const OpRecord*>;

// The collectives of one rank, by stream, in order.
std::map<StreamId, Records> by_stream(const std::vector<OpRecord>& records) {
  std::map<StreamId, Records> streams;
  for (const OpRecord& record : records) {
    if (record.sequence >= 0) streams[record.stream].push_back(&record);
  }
  return streams;
}

struct Side {
  std::string name;
  const std::vector<OpRecord>* records = nullptr;
};

std::optional<std::string> compare(Rank rank, const Side& a, const Side& b) {
  const auto streams_a = by_stream(*a.records), streams_b = by_stream(*b.records);
  std::set<StreamId> streams;
  for (const auto* side : {&streams_a, &streams_b}) {
    for (const auto& [stream, records] : *side) streams.insert(stream);
  }
  const auto records_of = [](const std::map<StreamId, Records>& all, StreamId stream) {
    const auto found = all.find(stream);
    return found == all.end() ? Records() : found->second;
  };
  const auto describe = [](const Records& records, std::size_t at) {
    return at < records.size() ? to_string(*records[at])
                               : str("nothing after ", records.size(), " collectives");
  };
  for (const StreamId stream : streams) {
    const Records left = records_of(streams_a, stream), right = records_of(streams_b, stream);
    for (std::size_t at = 0; at < std::max(left.size(), right.size()); ++at) {
      if (at < left.size() && at < right.size() && *left[at] == *right[at]) continue;
      return str("rank ", rank, ", stream ", stream, ", collective ", at, ": ", a.name, " ",
                 describe(left, at), "; ", b.name, " ", describe(right, at));
    }
  }
  return std::nullopt;
}

std::map<Rank, const RankTrace*> by_rank(const std::vector<RankTrace>& traces, std::string_view side) {
  std::map<Rank, const RankTrace*> ranks;
  for (const RankTrace& trace : traces) {
    if (!ranks.emplace(trace.rank, &trace).second) {
      throw InvalidInput(str("trace ", side, " holds rank ", trace.rank, " twice"));
    }
  }
  return ranks;
}

}  // namespace

std::string to_string(const OpRecord& record) {
  std::string text = record.operation;
  if (record.sequence < 0)
    return str(text, " on stream ", record.stream, ", ", join(record.sent), " bytes written");
  text += str(" #", record.sequence, " on ", record.group.name, "[", join(record.group.ranks), "] ",
              name(record.dtype));
  if (record.reduction) text += str(" ", name(*record.reduction));
  if (record.root >= 0) text += str(" root ", record.root);
  return text + str(" sent ", join(record.sent, "/"), " received ", join(record.received, "/"), " bytes");
}

OpRecord issued_record(const Plan& plan, const Step& step, std::int64_t sequence) {
  const auto buffer = [&](const View& view) -> const Buffer& {
    return plan.buffers[static_cast<std::size_t>(view.buffer)];
  };
  OpRecord record;
  record.stream = step.stream;
  record.operation = operation_name(step.work);
  const Collective* collective = std::get_if<Collective>(&step.work);
  if (collective == nullptr) {
    std::int64_t written = 0;
    for_each_access(step.work, 0, [&](const Access& access) {
      if (access.writes) written += access.view->numel() * size_bytes(buffer(*access.view).dtype);
    });
    record.sent = {written};
    return record;
  }
  record.group = plan.groups[static_cast<std::size_t>(group_of(*collective))];
  record.sequence = sequence;
  Volume volume = cp::volume(*collective, plan);
  record.sent = std::move(volume.sent);
  record.received = std::move(volume.received);
  std::visit(Overloaded{[&](const Exchange& op) {
                          const auto& first = op.sends.empty() ? op.recvs : op.sends;
                          if (!first.empty()) record.dtype = buffer(first.front().view).dtype;
                        },
                        [&](const auto& op) { record.dtype = buffer(op.out).dtype; }},
             *collective);
  std::visit(Overloaded{[&](const ReduceScatter& op) { record.reduction = op.op; },
                        [&](const AllReduce& op) { record.reduction = op.op; },
                        [&](const Broadcast& op) { record.root = op.root; }, [](const auto&) {}},
             *collective);
  return record;
}

std::optional<std::string> first_difference(const std::vector<RankTrace>& a,
                                            const std::vector<RankTrace>& b) {
  const auto ranks_a = by_rank(a, "a"), ranks_b = by_rank(b, "b");
  for (const auto& [rank, trace] : ranks_b) {
    if (!ranks_a.contains(rank))
      return str("rank ", rank, ": a has no trace of it; b has ", trace->observed.size(),
                 " observed collectives");
  }
  for (const auto& [rank, left] : ranks_a) {
    const auto found = ranks_b.find(rank);
    if (found == ranks_b.end()) {
      return str("rank ", rank, ": b has no trace of it; a has ", left->observed.size(),
                 " observed collectives");
    }
    const RankTrace* right = found->second;
    const Side sides[][2] = {{{"a issued", &left->issued}, {"a observed", &left->observed}},
                             {{"b issued", &right->issued}, {"b observed", &right->observed}},
                             {{"a observed", &left->observed}, {"b observed", &right->observed}}};
    for (const auto& [one, other] : sides) {
      if (auto difference = compare(rank, one, other)) return difference;
    }
  }
  return std::nullopt;
}

}  // namespace cp
