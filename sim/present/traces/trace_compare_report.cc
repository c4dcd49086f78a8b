#include "sim/present/traces/trace_compare_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/base/number_text.h"
#include "sim/present/table.h"
#include "traces/trace_files.h"

namespace cp::sim {
namespace {

using nlohmann::ordered_json;

std::string plural(std::int64_t count, const char* what) {
  return fmt::format("{} {}{}", human_count(count), what, count == 1 ? "" : "s");
}

std::string headline(const ComparedTraces& traces) {
  const TraceComparison& it = traces.comparison;
  const std::string size = fmt::format("{}, {}", plural(static_cast<std::int64_t>(it.num_ranks), "rank"),
                                       plural(it.num_operations, "operation"));
  if (!traces.compared_something()) return fmt::format("nothing to compare: {}\n", size);
  if (!it.identical) return fmt::format("different: {} compared\n", size);
  return fmt::format("identical{}: {}\n", traces.any_is_cut() ? " as far as they go" : "", size);
}

std::string neighbourhood_text(const Neighbourhood& side, const RankDivergence& found) {
  std::string text = fmt::format("  {}\n", side.side);
  const std::size_t width = std::to_string(side.first + side.operations.size()).size();
  std::size_t at = side.first;
  for (const OpRecord& record : side.operations) {
    text += fmt::format("    {} {:>{}}  {}\n", at == found.at ? ">" : " ", at, width, to_string(record));
    ++at;
  }
  if (side.total <= found.at) {
    text += fmt::format(
        "    > {:>{}}  nothing: {} on this stream\n", found.at, width,
        plural(static_cast<std::int64_t>(side.total), found.among_collectives ? "collective" : "operation"));
  }
  return text;
}

std::string divergence_text(const RankDivergence& found) {
  const std::string fields = found.fields.empty() ? "" : fmt::format("; {}", join(found.fields, "; "));
  return fmt::format("\nrank {}, stream {}: {} and {} differ at {} {}{}\n", found.rank, found.stream,
                     found.one.side, found.other.side, found.among_collectives ? "collective" : "operation",
                     found.at, fields) +
         neighbourhood_text(found.one, found) + neighbourhood_text(found.other, found);
}

std::string missing_ranks_text(const std::vector<Rank>& ranks, const char* has, const char* lacks,
                               bool lacking_is_cut) {
  if (ranks.empty()) return "";
  return fmt::format("{} {} only in {}{}\n", ranks.size() == 1 ? "rank" : "ranks", join(ranks), has,
                     lacking_is_cut ? fmt::format("; {} was cut off", lacks) : "");
}

std::string digests_text(const std::vector<DigestDifference>& digests) {
  if (digests.empty()) return "";
  const auto text = [](const std::optional<Digest>& digest) {
    return digest ? to_string(*digest) : std::string("none");
  };
  Table table({{"rank", Align::right}, {"digest of"}, {"A"}, {"B"}});
  for (const DigestDifference& it : digests) {
    table.add_row({std::to_string(it.rank), it.buffer, text(it.a), text(it.b)});
  }
  return str("\n", table.text());
}

std::vector<std::string> time_cells(const std::string& name, const ComparedTime& it) {
  const auto time = [](std::int64_t count, double ns) {
    return count == 0 ? std::string("-") : human_us(ns / 1e3);
  };
  return {name,
          it.count_a == it.count_b ? human_count(it.count_a)
                                   : fmt::format("{} / {}", human_count(it.count_a), human_count(it.count_b)),
          time(it.count_a, it.ns_a), time(it.count_b, it.ns_b),
          it.ns_a > 0 && it.ns_b > 0 ? fmt::format("{:.2f}", it.ns_b / it.ns_a) : "-"};
}

std::string times_text(const TraceComparison& comparison) {
  if (comparison.times.empty()) return "\ntimes: neither trace has any\n";
  Table table(
      {{"time"}, {"count", Align::right}, {"A", Align::right}, {"B", Align::right}, {"B/A", Align::right}});
  table.add_row(time_cells("whole run", comparison.whole));
  for (const OperationTime& it : comparison.times) table.add_row(time_cells(it.operation, it));
  return str("\n", table.text());
}

ordered_json time_json(const ComparedTime& it) {
  return {{"count_a", it.count_a}, {"count_b", it.count_b}, {"ns_a", it.ns_a}, {"ns_b", it.ns_b}};
}

ordered_json side_json(const Neighbourhood& side) {
  ordered_json json = {{"section", side.side}, {"first", side.first}, {"total", side.total}};
  json["operations"] = ordered_json::array();
  for (const OpRecord& record : side.operations) json["operations"].push_back(record_json(record));
  return json;
}

ordered_json divergence_json(const RankDivergence& found) {
  return {{"rank", found.rank},     {"stream", found.stream},
          {"at", found.at},         {"among", found.among_collectives ? "collectives" : "operations"},
          {"fields", found.fields}, {"sides", {side_json(found.one), side_json(found.other)}}};
}

ordered_json digest_json(const DigestDifference& it) {
  const auto text = [](const std::optional<Digest>& digest) {
    return digest ? ordered_json(to_string(*digest)) : ordered_json();
  };
  return {{"rank", it.rank}, {"buffer", it.buffer}, {"a", text(it.a)}, {"b", text(it.b)}};
}

ordered_json file_json(const std::string& path, const std::optional<std::string>& truncation) {
  ordered_json json = {{"path", path}};
  if (truncation) json["truncation"] = *truncation;
  return json;
}

template <class List, class Make>
ordered_json list_json(const List& list, const Make& make) {
  ordered_json json = ordered_json::array();
  for (const auto& it : list) json.push_back(make(it));
  return json;
}

}  // namespace

ComparedTraces compare_trace_paths(const std::string& a, const std::string& b) {
  const TraceFile left = read_trace_path(a), right = read_trace_path(b);
  CompareOptions options;
  options.a_is_cut = left.truncation.has_value();
  options.b_is_cut = right.truncation.has_value();
  return {a, b, left.truncation, right.truncation, compare_traces(left.ranks, right.ranks, options)};
}

std::string compare_text(const ComparedTraces& traces) {
  const TraceComparison& it = traces.comparison;
  std::string text = headline(traces);
  if (traces.truncation_a) text += fmt::format("A: {}\n", *traces.truncation_a);
  if (traces.truncation_b) text += fmt::format("B: {}\n", *traces.truncation_b);
  text += missing_ranks_text(it.only_in_a, "A", "B", traces.truncation_b.has_value());
  text += missing_ranks_text(it.only_in_b, "B", "A", traces.truncation_a.has_value());
  for (const RankDivergence& found : it.divergences) text += divergence_text(found);
  return text + digests_text(it.digests) + times_text(it);
}

ordered_json compare_json(const ComparedTraces& traces) {
  const TraceComparison& it = traces.comparison;
  return {{"identical", it.identical && traces.compared_something()},
          {"ranks", it.num_ranks},
          {"operations", it.num_operations},
          {"a", file_json(traces.path_a, traces.truncation_a)},
          {"b", file_json(traces.path_b, traces.truncation_b)},
          {"only_in_a", it.only_in_a},
          {"only_in_b", it.only_in_b},
          {"divergences", list_json(it.divergences, divergence_json)},
          {"digests", list_json(it.digests, digest_json)},
          {"whole_run", time_json(it.whole)},
          {"times", list_json(it.times, [](const OperationTime& row) {
             ordered_json json = {{"operation", row.operation}};
             json.update(time_json(row));
             return json;
           })}};
}

ordered_json record_json(const OpRecord& record) {
  ordered_json json = {{"operation", record.operation}};
  if (record.sequence < 0) {
    json["bytes_written"] = record.sent.empty() ? 0 : record.sent.front();
    return json;
  }
  json["sequence"] = record.sequence;
  json["group"] = {{"name", record.group.name}, {"ranks", record.group.ranks}};
  json["dtype"] = name(record.dtype);
  if (record.reduction) json["reduction"] = name(*record.reduction);
  if (record.root >= 0) json["root"] = record.root;
  json["sent"] = record.sent;
  json["received"] = record.received;
  return json;
}

}  // namespace cp::sim
