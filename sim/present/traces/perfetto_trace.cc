#include "sim/present/traces/perfetto_trace.h"

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "shared/base/text.h"
#include "sim/present/traces/trace_arguments.h"
#include "traces/perfetto_subset.pb.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

namespace pb = proto::perfetto;

// All packets are of one sequence, whose number is any but 0. kStateCleared is SEQ_INCREMENTAL_STATE_CLEARED
// of Perfetto's trace_packet.proto: the first packet says that the sequence begins.
constexpr std::uint32_t kSequence = 1, kStateCleared = 1;

const std::string& utf8(const std::string& text) { return require_utf8(text, FieldPath("trace")); }

class PerfettoWriter {
 public:
  PerfettoWriter(std::ostream& out, const TraceSlices& slices) : out_(out), slices_(slices) {}

  void write() {
    for (std::size_t rank = 0; rank < slices_.ranks.size(); ++rank) describe(rank);
    for (std::size_t rank = 0; rank < slices_.ranks.size(); ++rank) {
      for (const TraceSlice& slice : slices_.ranks[rank].slices) write(rank, slice);
    }
    for (std::size_t flow = 0; flow < slices_.flows.size(); ++flow) write(slices_.flows[flow], flow + 1);
  }

 private:
  // Writes a Trace of one packet. In protobuf's format, traces that follow one another are one trace.
  void put(pb::TracePacket packet) {
    packet.set_trusted_packet_sequence_id(kSequence);
    if (first_) packet.set_sequence_flags(kStateCleared);
    first_ = false;
    pb::Trace trace;
    *trace.add_packet() = std::move(packet);
    trace.SerializeToOstream(&out_);
  }

  void describe(std::size_t rank) {
    const TraceRank& it = slices_.ranks[rank];
    first_row_.push_back(tracks_ + 2);  // 0 is no id; its process comes before its streams
    pb::TracePacket process;
    process.mutable_track_descriptor()->set_uuid(++tracks_);
    process.mutable_track_descriptor()->mutable_process()->set_pid(it.rank);
    process.mutable_track_descriptor()->mutable_process()->set_process_name(utf8(process_name(it)));
    const std::uint64_t parent = tracks_;
    put(std::move(process));
    for (std::size_t row = 0; row < it.streams.size(); ++row) {
      pb::TracePacket packet;
      pb::TrackDescriptor& track = *packet.mutable_track_descriptor();
      track.set_uuid(++tracks_);
      track.set_parent_uuid(parent);
      track.mutable_thread()->set_pid(it.rank);
      track.mutable_thread()->set_tid(static_cast<std::int32_t>(trace_stream(static_cast<int>(row))));
      track.mutable_thread()->set_thread_name(utf8(it.titles[row]));
      put(std::move(packet));
    }
  }

  pb::TracePacket event(std::size_t rank, const TraceSlice& slice, std::int64_t at_ns,
                        pb::TrackEvent::Type type) {
    pb::TracePacket packet;
    packet.set_timestamp(static_cast<std::uint64_t>(at_ns));
    packet.mutable_track_event()->set_type(type);
    packet.mutable_track_event()->set_track_uuid(first_row_[rank] + static_cast<std::uint64_t>(slice.row));
    return packet;
  }

  void write(std::size_t rank, const TraceSlice& slice) {
    const Plan& plan = slices_.plan(rank, slice);
    pb::TracePacket begin = event(rank, slice, slice.begin_ns, pb::TrackEvent::TYPE_SLICE_BEGIN);
    pb::TrackEvent& it = *begin.mutable_track_event();
    it.set_name(utf8(slice_name(slice, plan)));
    it.add_categories(is_collective(*slice.step) ? "communication" : "compute");
    annotate(it, "pass", slices_.passes[slice.pass].name);
    for (const TraceArgument& argument : slice_arguments(slice, plan))
      annotate(it, argument.name, argument.value);
    put(std::move(begin));
    put(event(rank, slice, slice.end_ns, pb::TrackEvent::TYPE_SLICE_END));
  }

  static void annotate(pb::TrackEvent& event, const std::string& name,
                       const std::variant<std::int64_t, std::string>& value) {
    pb::DebugAnnotation& annotation = *event.add_debug_annotations();
    annotation.set_name(name);
    if (const auto* number = std::get_if<std::int64_t>(&value)) {
      annotation.set_int_value(*number);
    } else {
      annotation.set_string_value(utf8(std::get<std::string>(value)));
    }
  }

  void write(const TraceFlow& flow, std::uint64_t id) {
    const TraceRank &from = slices_.ranks[flow.from_rank], &to = slices_.ranks[flow.to_rank];
    pb::TracePacket send =
        event(flow.from_rank, from.slices[flow.from_slice], flow.at_ns, pb::TrackEvent::TYPE_INSTANT);
    send.mutable_track_event()->set_name(str("send to rank ", to.rank));
    send.mutable_track_event()->add_flow_ids(id);
    annotate(*send.mutable_track_event(), "bytes", flow.bytes);
    put(std::move(send));
    pb::TracePacket receive =
        event(flow.to_rank, to.slices[flow.to_slice], flow.at_ns, pb::TrackEvent::TYPE_INSTANT);
    receive.mutable_track_event()->set_name(str("receive from rank ", from.rank));
    receive.mutable_track_event()->add_terminating_flow_ids(id);
    annotate(*receive.mutable_track_event(), "bytes", flow.bytes);
    put(std::move(receive));
  }

  std::ostream& out_;
  const TraceSlices& slices_;
  std::uint64_t tracks_ = 0;
  std::vector<std::uint64_t> first_row_;  // the track of each rank's first stream
  bool first_ = true;
};

}  // namespace

void write_perfetto_trace(std::ostream& out, const TraceSlices& slices) {
  PerfettoWriter(out, slices).write();
}

}  // namespace cp::sim
