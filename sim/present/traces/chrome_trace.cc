#include "sim/present/traces/chrome_trace.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/text.h"
#include "sim/present/traces/trace_arguments.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

constexpr std::int64_t kBytesPerGib = std::int64_t{1} << 30;
// Process ids of hosts are apart from all ranks; tools take a host's 0 for a GPU.
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

// The members of one object, on one line.
class Object {
 public:
  explicit Object(std::ostream& out) : out_(out) { out_ << "{"; }
  Object& text(std::string_view key, const std::string& value) { return raw(key, quoted(value)); }
  Object& number(std::string_view key, std::int64_t value) { return raw(key, std::to_string(value)); }
  Object& us(std::string_view key, std::int64_t ns) { return raw(key, in_us(ns)); }
  // The value is written by the caller, before the next call.
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

class ChromeWriter {
 public:
  ChromeWriter(std::ostream& out, const TraceSlices& slices, const Cluster& cluster, std::size_t begin,
               std::size_t end)
      : out_(out), slices_(slices), cluster_(cluster), begin_(begin), end_(end) {}

  void write() {
    out_ << "{\n\"schemaVersion\": 1,\n\"deviceProperties\": [";
    for (int device = 0; device < cluster_.node.gpus; ++device) {
      out_ << (device == 0 ? "" : ", ");
      Object(out_)
          .number("id", device)
          .text("name", cluster_.gpu.name)
          .number("totalGlobalMem",
                  static_cast<std::int64_t>(cluster_.gpu.memory_gib * static_cast<double>(kBytesPerGib)))
          .end();
    }
    out_ << "],\n\"distributedInfo\": ";
    Object info(out_);
    info.text("backend", slices_.backend);
    if (begin_ < end_) info.number("rank", slices_.ranks[begin_].rank);
    info.number("world_size", slices_.world_size()).end();
    out_ << ",\n\"displayTimeUnit\": \"ms\",\n\"baseTimeNanoseconds\": 0,\n\"traceEvents\": [";
    for (std::size_t rank = begin_; rank < end_; ++rank) name_tracks(slices_.ranks[rank]);
    for (const Event& event : events()) write(event);
    out_ << "\n]\n}\n";
  }

 private:
  static std::int64_t host(const TraceRank& rank) { return kFirstHost + rank.rank; }

  Object event(const char* phase, const std::string& name, std::int64_t pid, std::int64_t tid) {
    out_ << (first_ ? "\n" : ",\n");
    first_ = false;
    Object object(out_);
    object.text("ph", phase).text("name", name).number("pid", pid).number("tid", tid);
    return object;
  }

  void name_track(const char* what, std::int64_t pid, std::int64_t tid, const std::string& name) {
    Object object = event("M", what, pid, tid);
    object.us("ts", 0).key("args");
    Object(out_).text("name", name).end();
    object.end();
  }

  void name_tracks(const TraceRank& rank) {
    name_track("process_name", rank.rank, 0, str("rank ", rank.rank));
    for (std::size_t row = 0; row < rank.streams.size(); ++row) {
      const std::int64_t stream = trace_stream(static_cast<int>(row));
      name_track("thread_name", rank.rank, stream, str("stream ", stream, " ", rank.streams[row]));
    }
    name_track("process_name", host(rank), 0, str("host of rank ", rank.rank));
    name_track("thread_name", host(rank), host(rank), "launches");
  }

  std::vector<Event> events() const {
    std::vector<Event> events;
    for (std::size_t r = begin_; r < end_; ++r) {
      events.push_back({Event::Kind::step, 0, r, 0});
      for (std::size_t pass = 0; pass < slices_.passes.size(); ++pass)
        events.push_back({Event::Kind::pass, slices_.begin_ns[pass], r, pass});
      const std::vector<TraceSlice>& slices = slices_.ranks[r].slices;
      for (std::size_t i = 0; i < slices.size(); ++i) {
        events.push_back({Event::Kind::launch, slices_.begin_ns[slices[i].pass], r, i});
        events.push_back({Event::Kind::slice, slices[i].begin_ns, r, i});
      }
    }
    for (std::size_t flow = 0; end_ - begin_ == slices_.ranks.size() && flow < slices_.flows.size(); ++flow) {
      events.push_back({Event::Kind::send, slices_.flows[flow].at_ns, slices_.flows[flow].from_rank, flow});
      events.push_back({Event::Kind::receive, slices_.flows[flow].at_ns, slices_.flows[flow].to_rank, flow});
    }
    std::stable_sort(events.begin(), events.end(),
                     [](const Event& a, const Event& b) { return a.at_ns < b.at_ns; });
    return events;
  }

  void write(const Event& event) {
    switch (event.kind) {
      case Event::Kind::step:
        return annotation("ProfilerStep#0", event, slices_.begin_ns.back());
      case Event::Kind::pass:
        return annotation(slices_.passes[event.item].name, event, slices_.begin_ns[event.item + 1]);
      case Event::Kind::launch:
        return launch(event);
      case Event::Kind::slice:
        return slice(event);
      case Event::Kind::send:
      case Event::Kind::receive:
        return flow(event);
    }
  }

  void annotation(const std::string& name, const Event& at, std::int64_t end_ns) {
    const std::int64_t pid = host(slices_.ranks[at.rank]);
    Object object = event("X", name, pid, pid);
    object.text("cat", "user_annotation").us("ts", at.at_ns).us("dur", end_ns - at.at_ns).end();
  }

  void launch(const Event& at) {
    const TraceRank& rank = slices_.ranks[at.rank];
    Object object = event("X", "cudaLaunchKernel", host(rank), host(rank));
    object.text("cat", "cuda_runtime").us("ts", at.at_ns).us("dur", 0).key("args");
    Object(out_).number("correlation", rank.slices[at.item].correlation).end();
    object.end();
  }

  void slice(const Event& at) {
    const TraceRank& rank = slices_.ranks[at.rank];
    const TraceSlice& slice = rank.slices[at.item];
    const Plan& plan = slices_.plan(at.rank, slice);
    Object object = event("X", slice_name(*slice.step, plan), rank.rank, trace_stream(slice.row));
    object.text("cat", "kernel")
        .us("ts", slice.begin_ns)
        .us("dur", slice.end_ns - slice.begin_ns)
        .key("args");
    Object arguments(out_);
    arguments.number("device", rank.rank % cluster_.node.gpus);
    for (const TraceArgument& argument : slice_arguments(slice, plan)) {
      if (const auto* number = std::get_if<std::int64_t>(&argument.value)) {
        arguments.number(argument.name, *number);
      } else {
        arguments.text(argument.name, std::get<std::string>(argument.value));
      }
    }
    arguments.end();
    object.end();
  }

  void flow(const Event& at) {
    const bool sends = at.kind == Event::Kind::send;
    const TraceFlow& flow = slices_.flows[at.item];
    const TraceSlice& slice = slices_.ranks[at.rank].slices[sends ? flow.from_slice : flow.to_slice];
    Object object = event(sends ? "s" : "f", "send", slices_.ranks[at.rank].rank, trace_stream(slice.row));
    object.text("cat", "exchange").number("id", static_cast<std::int64_t>(at.item) + 1).us("ts", at.at_ns);
    if (!sends) object.text("bp", "e");
    object.key("args");
    Object(out_).number("bytes", flow.bytes).end();
    object.end();
  }

  std::ostream& out_;
  const TraceSlices& slices_;
  const Cluster& cluster_;
  const std::size_t begin_, end_;  // of slices_.ranks
  bool first_ = true;
};

}  // namespace

void write_chrome_trace(std::ostream& out, const TraceSlices& slices, const Cluster& cluster) {
  ChromeWriter(out, slices, cluster, 0, slices.ranks.size()).write();
}

void write_chrome_trace(std::ostream& out, const TraceSlices& slices, const Cluster& cluster,
                        std::size_t rank) {
  ChromeWriter(out, slices, cluster, rank, rank + 1).write();
}

}  // namespace cp::sim
