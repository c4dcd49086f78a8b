#include "sim/present/traces/chrome_trace.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "shared/base/text.h"
#include "sim/present/traces/trace_arguments.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

constexpr std::int64_t kBytesPerGib = std::int64_t{1} << 30;
// The process ids of hosts begin here, above those of all ranks, since tools take a host's 0 for a GPU. cpsim
// trace export --merge relies on both being below 10,000,000 (trace_merge.cc).
constexpr std::int64_t kFirstHost = 1'000'000;

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : require_utf8(text, FieldPath("trace"))) {
    if (c == '"' || c == '\\') {
      result += '\\', result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> code{};
      std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(c));
      result += code.data();
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string in_us(std::int64_t ns) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%lld.%03lld", static_cast<long long>(ns / 1000),
                static_cast<long long>(ns % 1000));
  return text.data();
}

// Writes the members of one object, on one line.
class Object {
 public:
  explicit Object(std::ostream& out) : out_(out) { out_ << "{"; }
  Object& text(std::string_view key, const std::string& value) { return raw(key, quoted(value)); }
  Object& number(std::string_view key, std::int64_t value) { return raw(key, std::to_string(value)); }
  Object& us(std::string_view key, std::int64_t ns) { return raw(key, in_us(ns)); }
  // The caller must write the value before the next call.
  Object& key(std::string_view key) {
    out_ << (first_ ? "\"" : ", \"") << key << "\": ";
    first_ = false;
    return *this;
  }
  void end() { out_ << "}"; }

 private:
  Object& raw(std::string_view name, const std::string& value) {
    key(name);
    out_ << value;
    return *this;
  }

  std::ostream& out_;
  bool first_ = true;
};

struct Event {
  enum class Kind { step, pass, launch, slice, send, receive } kind;
  std::int64_t at_ns;
  std::size_t rank, item;  // of slices.ranks; pass, slice or flow
};

// What both forms share: events are written one to a line, in order of time.
class EventWriter {
 public:
  EventWriter(std::ostream& out, const TraceSlices& slices) : out_(out), slices_(slices) {}

 protected:
  Object event(const char* phase, const std::string& name, std::int64_t pid, std::int64_t tid) {
    file() << (first_ ? "\n" : ",\n");
    first_ = false;
    Object object(file());
    object.text("ph", phase).text("name", name).number("pid", pid).number("tid", tid);
    return object;
  }

  void name_track(const char* what, std::int64_t pid, std::int64_t tid, const std::string& name) {
    Object object = event("M", what, pid, tid);
    object.us("ts", 0).key("args");
    Object(file()).text("name", name).end();
    object.end();
  }

  void span(const std::string& name, const char* category, std::int64_t pid, std::int64_t tid,
            std::int64_t begin_ns, std::int64_t end_ns) {
    Object object = event("X", name, pid, tid);
    object.text("cat", category).us("ts", begin_ns).us("dur", end_ns - begin_ns).end();
  }

  void slice(const std::string& name, const char* category, const TraceRank& rank, const TraceSlice& slice,
             const std::vector<TraceArgument>& arguments) {
    Object object = event("X", name, rank.rank, trace_stream(slice.row));
    object.text("cat", category)
        .us("ts", slice.begin_ns)
        .us("dur", slice.end_ns - slice.begin_ns)
        .key("args");
    Object members(file());
    for (const TraceArgument& argument : arguments) {
      if (const auto* number = std::get_if<std::int64_t>(&argument.value)) {
        members.number(argument.name, *number);
      } else {
        members.text(argument.name, std::get<std::string>(argument.value));
      }
    }
    members.end();
    object.end();
  }

  static void sort(std::vector<Event>& events) {
    std::stable_sort(events.begin(), events.end(),
                     [](const Event& a, const Event& b) { return a.at_ns < b.at_ns; });
  }

  std::ostream& file() const { return out_; }
  const TraceSlices& traced() const { return slices_; }

 private:
  std::ostream& out_;
  const TraceSlices& slices_;
  bool first_ = true;
};

class ChromeWriter : public EventWriter {
 public:
  using EventWriter::EventWriter;

  void write() {
    file() << "{\n\"displayTimeUnit\": \"ms\",\n\"otherData\": ";
    Object(file()).text("backend", traced().backend).number("world_size", traced().world_size()).end();
    file() << ",\n\"traceEvents\": [";
    for (const TraceRank& rank : traced().ranks) name_tracks(rank);
    for (const Event& event : events()) write(event);
    file() << "\n]\n}\n";
  }

 private:
  static constexpr std::int64_t kPasses = 1;  // the thread of the passes, above those of the streams

  void name_tracks(const TraceRank& rank) {
    name_track("process_name", rank.rank, 0, process_name(rank));
    name_track("thread_name", rank.rank, kPasses, "passes");
    for (std::size_t row = 0; row < rank.titles.size(); ++row)
      name_track("thread_name", rank.rank, trace_stream(static_cast<int>(row)), rank.titles[row]);
  }

  std::vector<Event> events() const {
    std::vector<Event> events;
    for (std::size_t r = 0; r < traced().ranks.size(); ++r) {
      for (std::size_t pass = 0; pass < traced().passes.size(); ++pass)
        events.push_back({Event::Kind::pass, traced().begin_ns[pass], r, pass});
      const std::vector<TraceSlice>& slices = traced().ranks[r].slices;
      for (std::size_t i = 0; i < slices.size(); ++i)
        events.push_back({Event::Kind::slice, slices[i].begin_ns, r, i});
    }
    for (std::size_t flow = 0; flow < traced().flows.size(); ++flow) {
      events.push_back({Event::Kind::send, traced().flows[flow].at_ns, traced().flows[flow].from_rank, flow});
      events.push_back(
          {Event::Kind::receive, traced().flows[flow].at_ns, traced().flows[flow].to_rank, flow});
    }
    sort(events);
    return events;
  }

  void write(const Event& at) {
    const TraceRank& rank = traced().ranks[at.rank];
    if (at.kind == Event::Kind::pass) {
      span(traced().passes[at.item].name, "pass", rank.rank, kPasses, at.at_ns,
           traced().begin_ns[at.item + 1]);
    } else if (at.kind == Event::Kind::slice) {
      const TraceSlice& it = rank.slices[at.item];
      const Plan& plan = traced().plan(at.rank, it);
      slice(slice_name(it, plan), is_collective(*it.step) ? "communication" : "compute", rank, it,
            slice_arguments(it, plan));
    } else {
      flow(at);
    }
  }

  void flow(const Event& at) {
    const bool sends = at.kind == Event::Kind::send;
    const TraceFlow& flow = traced().flows[at.item];
    const TraceSlice& slice = traced().ranks[at.rank].slices[sends ? flow.from_slice : flow.to_slice];
    Object object = event(sends ? "s" : "f", "send", traced().ranks[at.rank].rank, trace_stream(slice.row));
    object.text("cat", "exchange").number("id", static_cast<std::int64_t>(at.item) + 1).us("ts", at.at_ns);
    if (!sends) object.text("bp", "e");
    object.key("args");
    Object(file()).number("bytes", flow.bytes).end();
    object.end();
  }
};

// Writes the file of one rank.
class ProfilerWriter : public EventWriter {
 public:
  ProfilerWriter(std::ostream& out, const TraceSlices& slices, const Cluster& cluster, std::size_t rank)
      : EventWriter(out, slices), cluster_(cluster), index_(rank), rank_(slices.ranks[rank]) {}

  void write() {
    file() << "{\n\"schemaVersion\": 1,\n\"deviceProperties\": [";
    for (int device = 0; device < cluster_.node.gpus; ++device) {
      file() << (device == 0 ? "" : ", ");
      Object(file())
          .number("id", device)
          .text("name", cluster_.gpu.name)
          .number("totalGlobalMem",
                  static_cast<std::int64_t>(cluster_.gpu.memory_gib * static_cast<double>(kBytesPerGib)))
          .end();
    }
    file() << "],\n\"distributedInfo\": ";
    Object(file())
        .text("backend", traced().backend)
        .number("rank", rank_.rank)
        .number("world_size", traced().world_size())
        .end();
    file() << ",\n\"displayTimeUnit\": \"ms\",\n\"baseTimeNanoseconds\": 0,\n\"traceEvents\": [";
    name_tracks();
    for (const Event& event : events()) write(event);
    file() << "\n]\n}\n";
  }

 private:
  std::int64_t host() const { return kFirstHost + rank_.rank; }

  void name_tracks() {
    name_track("process_name", rank_.rank, 0, str("rank ", rank_.rank));
    for (std::size_t row = 0; row < rank_.streams.size(); ++row) {
      const std::int64_t stream = trace_stream(static_cast<int>(row));
      name_track("thread_name", rank_.rank, stream, str("stream ", stream, " ", rank_.streams[row]));
    }
    name_track("process_name", host(), 0, str("host of rank ", rank_.rank));
    name_track("thread_name", host(), host(), "launches");
  }

  std::vector<Event> events() const {
    std::vector<Event> events = {{Event::Kind::step, 0, index_, 0}};
    for (std::size_t pass = 0; pass < traced().passes.size(); ++pass)
      events.push_back({Event::Kind::pass, traced().begin_ns[pass], index_, pass});
    for (std::size_t i = 0; i < rank_.slices.size(); ++i) {
      events.push_back({Event::Kind::launch, traced().begin_ns[rank_.slices[i].pass], index_, i});
      events.push_back({Event::Kind::slice, rank_.slices[i].begin_ns, index_, i});
    }
    sort(events);
    return events;
  }

  void write(const Event& at) {
    switch (at.kind) {
      case Event::Kind::step:
        return span("ProfilerStep#0", "user_annotation", host(), host(), at.at_ns, traced().begin_ns.back());
      case Event::Kind::pass:
        return span(traced().passes[at.item].name, "user_annotation", host(), host(), at.at_ns,
                    traced().begin_ns[at.item + 1]);
      case Event::Kind::launch:
        return launch(at);
      case Event::Kind::slice:
        return kernel(rank_.slices[at.item]);
      case Event::Kind::send:
      case Event::Kind::receive:
        return;  // their other ends are in other files
    }
  }

  void launch(const Event& at) {
    Object object = event("X", "cudaLaunchKernel", host(), host());
    object.text("cat", "cuda_runtime").us("ts", at.at_ns).us("dur", 0).key("args");
    Object(file()).number("correlation", rank_.slices[at.item].correlation).end();
    object.end();
  }

  void kernel(const TraceSlice& it) {
    const Plan& plan = traced().plan(index_, it);
    std::vector<TraceArgument> arguments = {{"device", std::int64_t{rank_.rank % cluster_.node.gpus}}};
    for (TraceArgument& argument : profiler_arguments(it, plan)) arguments.push_back(std::move(argument));
    slice(profiler_name(*it.step, plan), "kernel", rank_, it, arguments);
  }

  const Cluster& cluster_;
  const std::size_t index_;  // of traced().ranks
  const TraceRank& rank_;
};

}  // namespace

void write_chrome_trace(std::ostream& out, const TraceSlices& slices) { ChromeWriter(out, slices).write(); }

void write_profiler_trace(std::ostream& out, const TraceSlices& slices, const Cluster& cluster,
                          std::size_t rank) {
  ProfilerWriter(out, slices, cluster, rank).write();
}

}  // namespace cp::sim
