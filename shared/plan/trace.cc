#include "shared/plan/trace.h"

#include <algorithm>
#include <set>

#include "shared/base/error.h"
#include "shared/plan/operations.h"

namespace cp {
namespace {

struct Side {
  std::string name;
  const std::vector<OpRecord>* records = nullptr;
};

const std::vector<const OpRecord*>& records_of(const StreamRecords& all, StreamId stream) {
  static const std::vector<const OpRecord*> kNone;
  const auto found = all.find(stream);
  return found == all.end() ? kNone : found->second;
}

std::string describe(const StreamRecords& all, const Divergence& place) {
  const auto& records = records_of(all, place.stream);
  return place.at < records.size() ? to_string(*records[place.at])
                                   : str("nothing after ", records.size(), " collectives");
}

std::optional<std::string> compare(Rank rank, const Side& a, const Side& b) {
  const StreamRecords left = records_by_stream(*a.records, true), right = records_by_stream(*b.records, true);
  const std::optional<Divergence> place = first_divergence(left, right);
  if (!place) return std::nullopt;
  return str("rank ", rank, ", stream ", place->stream, ", collective ", place->at, ": ", a.name, " ",
             describe(left, *place), "; ", b.name, " ", describe(right, *place));
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
    // A kernel has no volume between ranks; the bytes that it writes stand for it, so that two traces differ
    // if their kernels' sizes do.
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

StreamRecords records_by_stream(const std::vector<OpRecord>& records, bool collectives_only) {
  StreamRecords streams;
  for (const OpRecord& record : records) {
    if (record.sequence >= 0 || !collectives_only) streams[record.stream].push_back(&record);
  }
  return streams;
}

std::optional<Divergence> first_divergence(const StreamRecords& a, const StreamRecords& b, bool a_is_cut,
                                           bool b_is_cut) {
  std::set<StreamId> streams;
  for (const StreamRecords* side : {&a, &b}) {
    for (const auto& [stream, records] : *side) streams.insert(stream);
  }
  for (const StreamId stream : streams) {
    const auto &left = records_of(a, stream), &right = records_of(b, stream);
    const std::size_t both = std::min(left.size(), right.size());
    for (std::size_t at = 0; at < both; ++at) {
      if (*left[at] != *right[at]) return Divergence{stream, at};
    }
    if ((left.size() < right.size() && !a_is_cut) || (right.size() < left.size() && !b_is_cut)) {
      return Divergence{stream, both};
    }
  }
  return std::nullopt;
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
