#include "traces/trace_proto.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "shared/base/error.h"
#include "traces/environment.h"
#include "traces/types_proto.h"

namespace cp {
namespace {

// Ranks and streams are 32 bits wide in the program, and wider in the messages.
constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

// A record is closed when it exceeds this size. Chosen: far below kMaxRecordBytes, and little enough to lose
// in a crash, since only whole records can be read.
constexpr std::size_t kRecordBytes = std::size_t{1} << 20;

// Fills one message; groups are listed once.
class TraceWriter {
 public:
  explicit TraceWriter(Rank rank) { message_.set_rank(rank); }

  void add_issued(const OpRecord& record) { write(record, *message_.add_issued()); }
  void add_observed(const OpRecord& record) { write(record, *message_.add_observed()); }
  void add_digest(const std::string& buffer, const Digest& digest) {
    proto::NamedDigest& message = *message_.add_digests();
    message.set_buffer(require_utf8(buffer, FieldPath("trace.digests")));
    *message.mutable_digest() = to_proto(digest);
  }

  void add_issued_time(const TimedOp& time) { write(time, *message_.add_issued_times()); }
  void add_observed_time(const TimedOp& time) { write(time, *message_.add_observed_times()); }
  void set_run(const RankTrace& trace) {
    FieldPath("trace.clock_offset_ns").require_range(trace.clock_offset_ns, -kMaxTraceNs, kMaxTraceNs);
    message_.set_clock_offset_ns(trace.clock_offset_ns);
    if (trace.environment) *message_.mutable_environment() = to_proto(*trace.environment);
  }

  std::size_t approximate_bytes() const { return bytes_; }
  proto::RankTrace take() { return std::move(message_); }

 private:
  void write(const TimedOp& time, proto::TimedOp& message) {
    FieldPath("trace.times.begin_ns").require_range(time.begin_ns, 0, kMaxTraceNs);
    FieldPath("trace.times.end_ns").require_range(time.end_ns, time.begin_ns, kMaxTraceNs);
    message.set_stream(time.stream);
    message.set_operation(require_utf8(time.operation, FieldPath("trace.times.operation")));
    message.set_label(require_utf8(time.label, FieldPath("trace.times.label")));
    message.set_begin_ns(time.begin_ns);
    message.set_duration_ns(time.end_ns - time.begin_ns);
    bytes_ += message.ByteSizeLong();
  }

  void write(const OpRecord& record, proto::OpRecord& message) {
    message.set_stream(record.stream);
    message.set_operation(require_utf8(record.operation, FieldPath("trace.operation")));
    message.set_group(index_of(record.group));
    message.set_sequence(record.sequence);
    message.set_dtype(to_proto(record.dtype));
    if (record.reduction) message.set_reduction(to_proto(*record.reduction));
    message.set_root(record.root);
    message.mutable_sent()->Add(record.sent.begin(), record.sent.end());
    message.mutable_received()->Add(record.received.begin(), record.received.end());
    if (record.checksums) {
      proto::PayloadChecksums& checksums = *message.mutable_checksums();
      checksums.mutable_sent()->Add(record.checksums->sent.begin(), record.checksums->sent.end());
      checksums.mutable_received()->Add(record.checksums->received.begin(), record.checksums->received.end());
      checksums.set_result(record.checksums->result);
    }
    bytes_ += message.ByteSizeLong();
  }

  int index_of(const Group& group) {
    const auto [found, added] = groups_.try_emplace({group.name, group.ranks}, message_.groups_size());
    if (added) {
      *message_.add_groups() = to_proto(group);
      bytes_ += message_.groups().rbegin()->ByteSizeLong();
    }
    return found->second;
  }

  proto::RankTrace message_;
  std::map<std::pair<std::string, std::vector<Rank>>, int> groups_;
  std::size_t bytes_ = 0;
};

PayloadChecksums read_checksums(const proto::PayloadChecksums& message, const Group& group,
                                const FieldPath& path) {
  for (const auto& [field, size] :
       {std::pair("sent", message.sent_size()), std::pair("received", message.received_size())}) {
    if (static_cast<std::size_t>(size) != group.ranks.size())
      FieldPath(path, field)
          .fail("has ", size, " entries, but the group has ", group.ranks.size(),
                " members; give one entry for each");
  }
  return {.sent = {message.sent().begin(), message.sent().end()},
          .received = {message.received().begin(), message.received().end()},
          .result = message.result()};
}

OpRecord read_op(const proto::OpRecord& message, const std::vector<Group>& groups, const FieldPath& path) {
  FieldPath(path, "stream").require_range(message.stream(), 0, kMaxInt32);
  FieldPath(path, "group").require_index(message.group(), groups.size(), "groups");
  FieldPath(path, "sequence").require_range(message.sequence(), -1, std::numeric_limits<std::int64_t>::max());
  FieldPath(path, "root").require_range(message.root(), -1, kMaxInt32);
  for (int i = 0; i < message.sent_size(); ++i)
    FieldPath(path, "sent", i).require_not_negative(message.sent(i));
  for (int i = 0; i < message.received_size(); ++i) {
    FieldPath(path, "received", i).require_not_negative(message.received(i));
  }
  OpRecord record{.stream = message.stream(),
                  .operation = message.operation(),
                  .group = groups[static_cast<std::size_t>(message.group())],
                  .sequence = message.sequence(),
                  .dtype = from_proto(message.dtype(), FieldPath(path, "dtype")),
                  .reduction = std::nullopt,
                  .root = message.root(),
                  .sent = {message.sent().begin(), message.sent().end()},
                  .received = {message.received().begin(), message.received().end()}};
  if (message.reduction() != proto::reduce_op_unspecified) {
    record.reduction = from_proto(message.reduction(), FieldPath(path, "reduction"));
  }
  if (message.has_checksums())
    record.checksums = read_checksums(message.checksums(), record.group, FieldPath(path, "checksums"));
  return record;
}

TimedOp read_time(const proto::TimedOp& message, const FieldPath& path) {
  FieldPath(path, "stream").require_range(message.stream(), 0, kMaxInt32);
  FieldPath(path, "begin_ns").require_range(message.begin_ns(), 0, kMaxTraceNs);
  FieldPath(path, "duration_ns").require_range(message.duration_ns(), 0, kMaxTraceNs - message.begin_ns());
  return {message.stream(), message.operation(), message.label(), message.begin_ns(),
          message.begin_ns() + message.duration_ns()};
}

RankTrace read_part(const Record& record, const std::string& name) {
  const auto where = [&] { return str(name, ", record at byte ", record.offset, ": "); };
  proto::RankTrace message;
  if (!message.ParseFromString(record.payload))
    throw BadTrace(where() + "the record is not the trace of a rank");
  try {
    return from_proto(message);
  } catch (const InvalidInput& error) {
    throw BadTrace(where() + error.what());
  }
}

}  // namespace

proto::RankTrace to_proto(const RankTrace& trace) {
  TraceWriter writer(trace.rank);
  writer.set_run(trace);
  for (const OpRecord& record : trace.issued) writer.add_issued(record);
  for (const OpRecord& record : trace.observed) writer.add_observed(record);
  for (const TimedOp& time : trace.issued_times) writer.add_issued_time(time);
  for (const TimedOp& time : trace.observed_times) writer.add_observed_time(time);
  for (const auto& [buffer, digest] : trace.digests) writer.add_digest(buffer, digest);
  return writer.take();
}

RankTrace from_proto(const proto::RankTrace& message) {
  const FieldPath root("trace");
  FieldPath(root, "rank").require_range(message.rank(), 0, kMaxInt32);
  RankTrace trace;
  trace.rank = message.rank();
  std::vector<Group> groups;
  for (int i = 0; i < message.groups_size(); ++i) {
    groups.push_back(from_proto(message.groups(i), FieldPath(root, "groups", i)));
  }
  for (int i = 0; i < message.issued_size(); ++i) {
    trace.issued.push_back(read_op(message.issued(i), groups, FieldPath(root, "issued", i)));
  }
  for (int i = 0; i < message.observed_size(); ++i) {
    trace.observed.push_back(read_op(message.observed(i), groups, FieldPath(root, "observed", i)));
  }
  for (int i = 0; i < message.digests_size(); ++i) {
    const proto::NamedDigest& named = message.digests(i);
    if (!trace.digests.emplace(named.buffer(), from_proto(named.digest())).second) {
      FieldPath(root, "digests", i)
          .fail("is a second digest of buffer '", named.buffer(), "'; give each buffer one");
    }
  }
  for (int i = 0; i < message.issued_times_size(); ++i) {
    trace.issued_times.push_back(read_time(message.issued_times(i), FieldPath(root, "issued_times", i)));
  }
  for (int i = 0; i < message.observed_times_size(); ++i) {
    trace.observed_times.push_back(
        read_time(message.observed_times(i), FieldPath(root, "observed_times", i)));
  }
  FieldPath(root, "clock_offset_ns").require_range(message.clock_offset_ns(), -kMaxTraceNs, kMaxTraceNs);
  trace.clock_offset_ns = message.clock_offset_ns();
  if (message.has_environment()) trace.environment = from_proto(message.environment());
  return trace;
}

void write_rank(RecordWriter& out, const RankTrace& trace) {
  TraceWriter part(trace.rank);
  part.set_run(trace);
  const auto write_part = [&] { out.write(RecordKind::rank_trace, part.take().SerializeAsString()); };
  const auto make_room = [&] {
    if (part.approximate_bytes() < kRecordBytes) return;
    write_part();
    part = TraceWriter(trace.rank);
  };
  for (const OpRecord& record : trace.issued) make_room(), part.add_issued(record);
  for (const OpRecord& record : trace.observed) make_room(), part.add_observed(record);
  for (const TimedOp& time : trace.issued_times) make_room(), part.add_issued_time(time);
  for (const TimedOp& time : trace.observed_times) make_room(), part.add_observed_time(time);
  for (const auto& [buffer, digest] : trace.digests) part.add_digest(buffer, digest);
  write_part();
}

void write_trace(std::ostream& out, std::span<const RankTrace> traces) {
  std::set<Rank> ranks;
  RecordWriter records(out);
  for (const RankTrace& trace : traces) {
    if (!ranks.insert(trace.rank).second)
      throw InvalidInput(str("rank ", trace.rank, " has two traces for one file; write each rank once"));
    write_rank(records, trace);
  }
  records.finish();
}

void write_trace_file(const std::string& path, std::span<const RankTrace> traces) {
  std::ofstream out(path, std::ios::binary);
  if (!out) throw BadTrace(str("cannot write ", path, ": ", std::strerror(errno)));
  write_trace(out, traces);
}

void append(RankTrace& trace, RankTrace part) {
  const auto add = [](auto& list, auto& more) {
    std::move(more.begin(), more.end(), std::back_inserter(list));
  };
  add(trace.issued, part.issued);
  add(trace.observed, part.observed);
  add(trace.issued_times, part.issued_times);
  add(trace.observed_times, part.observed_times);
  trace.digests.merge(part.digests);
  if (!part.digests.empty()) {
    throw InvalidInput(
        str("rank ", trace.rank, " has a second digest of buffer '", part.digests.begin()->first, "'"));
  }
  if (part.environment && trace.environment && *part.environment != *trace.environment) {
    throw InvalidInput(str("rank ", trace.rank, " has a second environment, which differs: host ",
                           part.environment->host, ", pid ", part.environment->pid));
  }
  if (part.environment) trace.environment = std::move(part.environment);
  if (part.clock_offset_ns != 0) trace.clock_offset_ns = part.clock_offset_ns;
}

TraceFile read_trace(std::istream& in, const std::string& name) {
  TraceFile file;
  std::map<Rank, std::size_t> places;
  RecordReader records(in, name);
  while (const std::optional<Record> record = records.next()) {
    if (record->kind != RecordKind::rank_trace) continue;
    RankTrace part = read_part(*record, name);
    const auto [place, is_new] = places.try_emplace(part.rank, file.ranks.size());
    if (is_new) {
      file.ranks.push_back(std::move(part));
      continue;
    }
    try {
      append(file.ranks[place->second], std::move(part));
    } catch (const InvalidInput& error) {
      throw BadTrace(str(name, ", record at byte ", record->offset, ": ", error.what()));
    }
  }
  file.truncation = records.truncation();
  return file;
}

TraceFile read_trace_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw BadTrace(str("cannot open ", path, ": ", std::strerror(errno)));
  return read_trace(in, path);
}

}  // namespace cp
