#include "cli/cpsim/trace/trace_merge.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "shared/base/error.h"
#include "traces/perfetto_subset.pb.h"

namespace cp::cli {
namespace {

using nlohmann::ordered_json;
namespace pb = proto::perfetto;

// Ranks and their hosts have process ids below this in one file (chrome_trace.cc).
constexpr std::int32_t kSecondTrace = 10'000'000;
// Ids of arrows must be whole numbers that a double holds exactly, also after those of the other file were
// added: 2^53 is 9e15.
constexpr double kMostArrows = 1e15;

// ---- Chrome

bool has_number(const ordered_json& object, const char* key, double most) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() && found->get<double>() >= 0 &&
         found->get<double>() < most;
}

bool has_text(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string();
}

bool is_event(const ordered_json& event) {
  return event.is_object() && has_text(event, "ph") && has_text(event, "name") &&
         has_number(event, "pid", kSecondTrace) && has_number(event, "ts", 1e18) &&
         (!event.contains("id") || has_number(event, "id", kMostArrows));
}

ordered_json parse_chrome(const LabelledTrace& trace) {
  ordered_json json = ordered_json::parse(trace.bytes, nullptr, false);
  if (json.is_object() && json.contains("traceEvents") && json["traceEvents"].is_array() &&
      std::all_of(json["traceEvents"].begin(), json["traceEvents"].end(), is_event)) {
    return json;
  }
  throw InvalidInput(str(trace.name,
                         " is no trace in Chrome's format that cpsim wrote; use the NAME.json of ",
                         "`cpsim estimate --trace NAME.json`"));
}

std::int64_t number(const ordered_json& event, const char* key) {
  return static_cast<std::int64_t>(event.at(key).get<double>());
}

std::int64_t highest_arrow(const ordered_json& trace) {
  std::int64_t highest = 0;
  for (const ordered_json& event : trace["traceEvents"]) {
    if (event.contains("id")) highest = std::max(highest, number(event, "id"));
  }
  return highest;
}

// Says where viewers put a process: first both of rank 0, then both of rank 1, and so on.
ordered_json place_of(std::int64_t pid, std::int64_t original_pid, bool is_second) {
  return {{"ph", "M"},  {"name", "process_sort_index"},
          {"pid", pid}, {"tid", 0},
          {"ts", 0.0},  {"args", {{"sort_index", 2 * original_pid + (is_second ? 1 : 0)}}}};
}

void add_events(std::vector<ordered_json>& events, ordered_json trace, const std::string& label,
                bool is_second, std::int64_t arrows_before) {
  for (ordered_json& event : trace["traceEvents"]) {
    const std::int64_t original = number(event, "pid"), pid = original + (is_second ? kSecondTrace : 0);
    event["pid"] = pid;
    if (event.contains("id")) event["id"] = number(event, "id") + arrows_before;
    if (event["ph"] == "M" && event["name"] == "process_name" && event.contains("args") &&
        has_text(event["args"], "name")) {
      event["args"]["name"] = str(label, " ", event["args"]["name"].get<std::string>());
      events.push_back(place_of(pid, original, is_second));
    }
    events.push_back(std::move(event));
  }
}

// ---- Perfetto

pb::Trace parse_perfetto(const LabelledTrace& trace) {
  pb::Trace result;
  if (result.ParseFromString(trace.bytes) && result.packet_size() > 0) return result;
  throw InvalidInput(str(trace.name, " is no trace in Perfetto's format; use the NAME.pftrace of ",
                         "`cpsim estimate --trace NAME.pftrace`"));
}

std::int32_t pid_of(const pb::TracePacket& packet) {
  const pb::TrackDescriptor& track = packet.track_descriptor();
  return track.has_process() ? track.process().pid() : track.thread().pid();
}

// By how much the numbers of the second trace are moved.
struct Offsets {
  std::uint64_t tracks = 0, arrows = 0;
};

Offsets highest(const pb::Trace& trace) {
  Offsets result;
  for (const pb::TracePacket& packet : trace.packet()) {
    result.tracks = std::max(result.tracks, packet.track_descriptor().uuid());
    for (const auto id : packet.track_event().flow_ids())
      result.arrows = std::max<std::uint64_t>(result.arrows, id);
  }
  return result;
}

// Names and moves one packet of a trace. Each trace is a packet sequence of its own.
void adapt(pb::TracePacket& packet, const std::string& label, bool is_second, const Offsets& offsets) {
  packet.set_trusted_packet_sequence_id(is_second ? 2 : 1);
  packet.clear_sequence_flags();
  const std::int32_t first_pid = is_second ? kSecondTrace : 0;
  if (packet.has_track_descriptor()) {
    pb::TrackDescriptor& track = *packet.mutable_track_descriptor();
    track.set_uuid(track.uuid() + offsets.tracks);
    if (track.has_parent_uuid()) track.set_parent_uuid(track.parent_uuid() + offsets.tracks);
    if (track.has_process()) {
      track.mutable_process()->set_pid(track.process().pid() + first_pid);
      track.mutable_process()->set_process_name(str(label, " ", track.process().process_name()));
    }
    if (track.has_thread()) track.mutable_thread()->set_pid(track.thread().pid() + first_pid);
  }
  if (!packet.has_track_event()) return;
  pb::TrackEvent& event = *packet.mutable_track_event();
  event.set_track_uuid(event.track_uuid() + offsets.tracks);
  for (auto& id : *event.mutable_flow_ids()) id += offsets.arrows;
  for (auto& id : *event.mutable_terminating_flow_ids()) id += offsets.arrows;
}

void require_pids(const pb::Trace& trace, const std::string& name) {
  for (const pb::TracePacket& packet : trace.packet()) {
    if (!packet.has_track_descriptor() || (pid_of(packet) >= 0 && pid_of(packet) < kSecondTrace)) continue;
    throw InvalidInput(str(
        name, " has a process ", pid_of(packet),
        ", but the processes that cpsim writes are ranks; use the NAME.pftrace of `cpsim estimate --trace "
        "NAME.pftrace`"));
  }
}

// Writes one event on each line.
std::string chrome_text(const ordered_json& trace) {
  std::string text = "{";
  for (const auto& [key, value] : trace.items()) {
    if (key != "traceEvents") text += str("\n", ordered_json(key).dump(), ": ", value.dump(), ",");
  }
  text += "\n\"traceEvents\": [";
  const char* separator = "\n";
  for (const ordered_json& event : trace.at("traceEvents")) {
    text += str(separator, event.dump());
    separator = ",\n";
  }
  return text + "\n]\n}\n";
}

}  // namespace

std::string merge_chrome(const LabelledTrace& first, const LabelledTrace& second) {
  ordered_json a = parse_chrome(first), b = parse_chrome(second);
  const std::int64_t arrows = highest_arrow(a);
  std::vector<ordered_json> events;
  add_events(events, std::move(a), first.label, false, 0);
  add_events(events, b, second.label, true, arrows);
  std::stable_sort(events.begin(), events.end(), [](const ordered_json& x, const ordered_json& y) {
    return x["ts"].get<double>() < y["ts"].get<double>();
  });
  b["traceEvents"] = std::move(events);
  return chrome_text(b);
}

std::string merge_perfetto(const LabelledTrace& first, const LabelledTrace& second) {
  pb::Trace a = parse_perfetto(first), b = parse_perfetto(second);
  require_pids(a, first.name), require_pids(b, second.name);
  const Offsets offsets = highest(a);
  std::vector<pb::TracePacket> packets;
  for (auto* trace : {&a, &b}) {
    packets.insert(packets.end(), std::make_move_iterator(trace->mutable_packet()->begin()),
                   std::make_move_iterator(trace->mutable_packet()->end()));
  }
  const auto num_first = static_cast<std::size_t>(a.packet_size());
  // Viewers show processes in the order in which they are described: both of rank 0, both of rank 1, and all
  // before the events.
  std::vector<std::size_t> order(packets.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto events_begin = std::stable_partition(
      order.begin(), order.end(), [&](std::size_t i) { return packets[i].has_track_descriptor(); });
  std::stable_sort(order.begin(), events_begin,
                   [&](std::size_t i, std::size_t j) { return pid_of(packets[i]) < pid_of(packets[j]); });
  pb::Trace merged;
  bool begun[2] = {false, false};
  for (const std::size_t i : order) {
    const bool is_second = i >= num_first;
    adapt(packets[i], is_second ? second.label : first.label, is_second, is_second ? offsets : Offsets());
    if (!std::exchange(begun[is_second ? 1 : 0], true)) packets[i].set_sequence_flags(1);
    *merged.add_packet() = std::move(packets[i]);
  }
  return merged.SerializeAsString();
}

}  // namespace cp::cli
