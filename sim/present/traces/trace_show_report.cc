#include "sim/present/traces/trace_show_report.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shared/base/error.h"
#include "shared/base/utc.h"
#include "shared/plan/trace.h"
#include "sim/base/number_text.h"
#include "sim/present/table.h"
#include "sim/present/traces/trace_compare_report.h"
#include "traces/trace_times.h"

namespace cp::sim {
namespace {

using nlohmann::ordered_json;

struct ShownOp {
  Rank rank = 0;
  std::size_t at = 0;  // position on its stream
  const OpRecord* record = nullptr;
  const TimedOp* time = nullptr;  // may be null
};

struct Shown {
  std::vector<const RankTrace*> ranks;
  std::vector<ShownOp> operations;  // up to the limit
  std::int64_t left_out = 0;
};

std::vector<const RankTrace*> shown_ranks(const TraceFile& file, const ShowOptions& options) {
  std::vector<const RankTrace*> ranks;
  std::set<Rank> known;
  for (const RankTrace& trace : file.ranks) {
    known.insert(trace.rank);
    if (!options.rank || *options.rank == trace.rank) ranks.push_back(&trace);
  }
  if (ranks.empty() && options.rank) {
    throw InvalidInput(str("--rank ", *options.rank, " is not in the trace, which has ",
                           known.empty() ? std::string("none") : join(known)));
  }
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](const RankTrace* a, const RankTrace* b) { return a->rank < b->rank; });
  return ranks;
}

Shown shown_of(const TraceFile& file, const ShowOptions& options) {
  Shown shown{shown_ranks(file, options), {}, 0};
  const std::int64_t limit = options.limit.value_or(std::numeric_limits<std::int64_t>::max());
  std::set<StreamId> streams;
  for (const RankTrace* trace : shown.ranks) {
    const std::vector<OpRecord>& records = options.observed ? trace->observed : trace->issued;
    const auto times = times_of_records(
        records, options.observed ? trace->observed_times : trace->issued_times, trace->rank);
    std::map<StreamId, std::size_t> positions;
    for (std::size_t i = 0; i < records.size(); ++i) {
      streams.insert(records[i].stream);
      const std::size_t at = positions[records[i].stream]++;
      if (options.stream && *options.stream != records[i].stream) continue;
      if (static_cast<std::int64_t>(shown.operations.size()) < limit) {
        shown.operations.push_back({trace->rank, at, &records[i], times[i]});
      } else {
        ++shown.left_out;
      }
    }
  }
  if (options.stream && !streams.contains(*options.stream)) {
    throw InvalidInput(str("--stream ", *options.stream, " has no operation, streams that have are ",
                           streams.empty() ? std::string("none") : join(streams)));
  }
  return shown;
}

// Sums numbers from a file, which may be anything: the sum must not overflow.
std::int64_t total(const std::vector<std::int64_t>& bytes) {
  std::int64_t sum = 0;
  for (const std::int64_t each : bytes) {
    if (__builtin_add_overflow(sum, each, &sum)) return std::numeric_limits<std::int64_t>::max();
  }
  return sum;
}

std::string environment_line(const RankTrace& trace) {
  const Environment& it = *trace.environment;
  std::string text = fmt::format("rank {}: {}, pid {}, {}, world size {}, started {}", trace.rank, it.host,
                                 it.pid, it.backend, it.world_size, utc_text(it.start_unix_ns));
  if (!it.cpsim_version.empty()) text += fmt::format(", cpsim {}", it.cpsim_version);
  for (const auto& [library, version] : it.libraries) text += fmt::format(", {} {}", library, version);
  if (it.scenario_digest) text += fmt::format(", scenario {}", to_string(*it.scenario_digest));
  return text + "\n";
}

std::string environments_text(const std::vector<const RankTrace*>& ranks) {
  // Chosen: as many as a node has GPUs; of larger worlds the lines would push the operations off the screen.
  constexpr int kMost = 8;
  std::string text;
  int lines = 0;
  for (const RankTrace* trace : ranks) {
    if (!trace->environment) continue;
    if (++lines <= kMost) text += environment_line(*trace);
  }
  if (lines > kMost) text += fmt::format("and {} more ranks; --rank N shows one\n", lines - kMost);
  return text.empty() ? text : text + "\n";
}

std::string operation_text(const OpRecord& record) {
  if (record.sequence < 0) return record.operation;
  std::string text = str(record.operation, " #", record.sequence);
  if (record.reduction) text += str(" ", name(*record.reduction));
  if (record.root >= 0) text += str(" root ", record.root);
  return text;
}

std::string table_text(const std::vector<ShownOp>& operations) {
  const bool timed =
      std::any_of(operations.begin(), operations.end(), [](const ShownOp& op) { return op.time != nullptr; });
  std::vector<Column> columns = {{"rank", Align::right},
                                 {"stream", Align::right},
                                 {"#", Align::right},
                                 {"operation"},
                                 {"group"},
                                 {"dtype"},
                                 {"sent", Align::right},
                                 {"received", Align::right}};
  if (timed) columns.insert(columns.end(), {{"begin", Align::right}, {"time", Align::right}, {"label"}});
  Table table(columns);
  for (const ShownOp& op : operations) {
    const OpRecord& it = *op.record;
    const bool collective = it.sequence >= 0;
    std::vector<std::string> cells = {
        std::to_string(op.rank),
        std::to_string(it.stream),
        std::to_string(op.at),
        operation_text(it),
        collective ? fmt::format("{} ({})", it.group.name, it.group.ranks.size()) : "",
        collective ? std::string(name(it.dtype)) : "",
        collective ? human_bytes(total(it.sent)) : fmt::format("writes {}", human_bytes(total(it.sent))),
        collective ? human_bytes(total(it.received)) : ""};
    if (timed && op.time == nullptr) cells.insert(cells.end(), {"", "", ""});
    if (op.time != nullptr) {
      cells.push_back(human_us(static_cast<double>(op.time->begin_ns) / 1e3));
      cells.push_back(human_us(static_cast<double>(op.time->end_ns - op.time->begin_ns) / 1e3));
      cells.push_back(op.time->label);
    }
    table.add_row(std::move(cells));
  }
  return table.text();
}

std::string digests_text(const std::vector<const RankTrace*>& ranks) {
  Table table({{"rank", Align::right}, {"digest of"}, {""}});
  bool any = false;
  for (const RankTrace* trace : ranks) {
    for (const auto& [buffer, digest] : trace->digests) {
      table.add_row({std::to_string(trace->rank), buffer, to_string(digest)});
      any = true;
    }
  }
  return any ? str("\n", table.text()) : "";
}

ordered_json environment_json(const RankTrace& trace) {
  const Environment& it = *trace.environment;
  ordered_json json = {{"host", it.host},
                       {"host_is_hashed", it.host_is_hashed},
                       {"pid", it.pid},
                       {"backend", it.backend},
                       {"libraries", it.libraries},
                       {"cpsim_version", it.cpsim_version},
                       {"world_size", it.world_size},
                       {"start_utc", utc_text(it.start_unix_ns)},
                       {"start_unix_ns", it.start_unix_ns}};
  if (it.scenario_digest) json["scenario_digest"] = to_string(*it.scenario_digest);
  return json;
}

}  // namespace

std::string show_text(const TraceFile& file, const ShowOptions& options) {
  const Shown shown = shown_of(file, options);
  std::string text = environments_text(shown.ranks) + table_text(shown.operations);
  if (shown.left_out > 0) text += fmt::format("and {} more operations\n", human_count(shown.left_out));
  text += digests_text(shown.ranks);
  if (file.truncation) text += fmt::format("\n{}\n", *file.truncation);
  return text;
}

std::string show_json_lines(const TraceFile& file, const ShowOptions& options) {
  const Shown shown = shown_of(file, options);
  std::string text;
  const auto add = [&](const ordered_json& json) { text += json.dump() + "\n"; };
  for (const RankTrace* trace : shown.ranks) {
    if (trace->environment) {
      add({{"rank", trace->rank},
           {"clock_offset_ns", trace->clock_offset_ns},
           {"environment", environment_json(*trace)}});
    }
  }
  for (const ShownOp& op : shown.operations) {
    ordered_json json = {{"rank", op.rank}, {"stream", op.record->stream}, {"at", op.at}};
    json.update(record_json(*op.record));
    if (op.time != nullptr) {
      json["label"] = op.time->label;
      json["begin_ns"] = op.time->begin_ns;
      json["end_ns"] = op.time->end_ns;
    }
    add(json);
  }
  for (const RankTrace* trace : shown.ranks) {
    for (const auto& [buffer, digest] : trace->digests) {
      add({{"rank", trace->rank}, {"buffer", buffer}, {"digest", to_string(digest)}});
    }
  }
  if (file.truncation) add({{"truncation", *file.truncation}});
  return text;
}

}  // namespace cp::sim
