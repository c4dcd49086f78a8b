// Perfetto's traces, decoded again.
#include "sim/present/traces/perfetto_trace.h"

#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shared/base/text.h"
#include "sim/present/traces/trace_arguments.h"
#include "tests/cost/traced_replays.h"
#include "traces/perfetto_subset.pb.h"

namespace cp::sim {
namespace {

namespace pb = proto::perfetto;
using testing::all_collectives;
using testing::Replays;
using testing::ring;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

pb::Trace decoded(const TraceSlices& slices) {
  std::ostringstream out;
  write_perfetto_trace(out, slices);
  pb::Trace trace;
  EXPECT_TRUE(trace.ParseFromString(out.str()));
  return trace;
}

Replays traced() {
  Replays replays;
  replays.add("forward", ring(AttentionPass::forward));
  replays.add("collectives", all_collectives());
  return replays;
}

using Tracks = std::map<std::uint64_t, std::pair<int, int>>;  // uuid: pid, tid

Tracks tracks_of(const pb::Trace& trace) {
  Tracks tracks;
  std::map<std::uint64_t, int> processes;
  for (const pb::TracePacket& packet : trace.packet()) {
    if (!packet.has_track_descriptor()) continue;
    const pb::TrackDescriptor& track = packet.track_descriptor();
    EXPECT_NE(track.uuid(), 0U);
    if (track.has_process()) {
      EXPECT_EQ(track.process().process_name(), str("rank ", track.process().pid()));
      processes[track.uuid()] = track.process().pid();
    } else {
      EXPECT_EQ(processes.at(track.parent_uuid()), track.thread().pid())
          << "a process comes before its threads";
      tracks[track.uuid()] = {track.thread().pid(), track.thread().tid()};
    }
  }
  return tracks;
}

TEST(PerfettoTrace, SlicesAreThoseOfTheTimelineAndNest) {
  const Replays replays = traced();
  const TraceSlices slices = replays.slices();
  const pb::Trace trace = decoded(slices);
  const Tracks tracks = tracks_of(trace);
  // Pid, tid, name, begin, end.
  using Drawn = std::tuple<int, int, std::string, std::uint64_t, std::uint64_t>;
  std::vector<Drawn> drawn, expected;
  std::map<std::uint64_t, std::pair<std::string, std::uint64_t>> open;
  std::map<std::uint64_t, std::uint64_t> last;
  for (const pb::TracePacket& packet : trace.packet()) {
    const pb::TrackEvent& event = packet.track_event();
    if (event.type() != pb::TrackEvent::TYPE_SLICE_BEGIN && event.type() != pb::TrackEvent::TYPE_SLICE_END)
      continue;
    const std::uint64_t track = event.track_uuid();
    EXPECT_LE(last[track], packet.timestamp());
    last[track] = packet.timestamp();
    const auto& [pid, tid] = tracks.at(track);
    if (event.type() == pb::TrackEvent::TYPE_SLICE_BEGIN) {
      EXPECT_TRUE(open.emplace(track, std::make_pair(event.name(), packet.timestamp())).second)
          << "one at a time";
    } else {
      const auto begun = open.extract(track);
      ASSERT_FALSE(begun.empty());
      drawn.emplace_back(pid, tid, begun.mapped().first, begun.mapped().second, packet.timestamp());
    }
  }
  EXPECT_THAT(open, SizeIs(0));
  for (std::size_t rank = 0; rank < slices.ranks.size(); ++rank) {
    for (const TraceSlice& slice : slices.ranks[rank].slices) {
      expected.emplace_back(
          slices.ranks[rank].rank, trace_stream(slice.row), slice_name(slice, slices.plan(rank, slice)),
          static_cast<std::uint64_t>(slice.begin_ns), static_cast<std::uint64_t>(slice.end_ns));
    }
  }
  std::size_t spans = 0;
  for (std::size_t pass : {0U, 1U}) {
    for (const RankTimeline& rank : replays.timeline(pass).ranks) spans += rank.spans.size();
  }
  EXPECT_EQ(expected.size(), spans);
  EXPECT_THAT(drawn, UnorderedElementsAreArray(expected));
}

TEST(PerfettoTrace, FlowsLeadFromSendsToReceives) {
  const Replays replays = traced();
  const TraceSlices slices = replays.slices();
  const pb::Trace trace = decoded(slices);
  const Tracks tracks = tracks_of(trace);
  struct Flow {
    int from = -1, to = -1;
    std::uint64_t sent_ns = 0;
  };
  std::map<std::uint64_t, Flow> flows;
  for (const pb::TracePacket& packet : trace.packet()) {
    const pb::TrackEvent& event = packet.track_event();
    for (const std::uint64_t id : event.flow_ids()) {
      EXPECT_TRUE(
          flows.try_emplace(id, Flow{tracks.at(event.track_uuid()).first, -1, packet.timestamp()}).second);
    }
    for (const std::uint64_t id : event.terminating_flow_ids()) {
      Flow& flow = flows.at(id);
      EXPECT_EQ(std::exchange(flow.to, tracks.at(event.track_uuid()).first), -1) << "ends once";
      EXPECT_EQ(flow.sent_ns, packet.timestamp());
      EXPECT_EQ(event.name(), str("receive from rank ", flow.from));
    }
  }
  ASSERT_EQ(flows.size(), slices.flows.size());
  EXPECT_THAT(flows, SizeIs(::testing::Gt(12U))) << "a ring's and the swaps";
  for (const auto& [id, flow] : flows) EXPECT_TRUE(flow.to >= 0 && flow.to != flow.from) << id;
}

TEST(PerfettoTrace, PacketsAreOneSequence) {
  const pb::Trace trace = decoded(traced().slices());
  ASSERT_GT(trace.packet_size(), 0);
  EXPECT_EQ(trace.packet(0).sequence_flags(), 1U) << "nothing was said before";
  for (const pb::TracePacket& packet : trace.packet()) EXPECT_EQ(packet.trusted_packet_sequence_id(), 1U);
}

TEST(PerfettoTrace, SlicesCarryTheirArguments) {
  const pb::Trace trace = decoded(traced().slices());
  std::map<std::string, pb::DebugAnnotation> of_gather;
  bool labelled = false;
  for (const pb::TracePacket& packet : trace.packet()) {
    for (const pb::DebugAnnotation& annotation : packet.track_event().debug_annotations()) {
      labelled = labelled || annotation.string_value() == testing::kOddLabel;
      if (packet.track_event().name() == "all_gather: gather, group world, 2 KiB")
        of_gather[annotation.name()] = annotation;
    }
  }
  EXPECT_TRUE(labelled);
  EXPECT_EQ(of_gather["operation"].string_value(), "all_gather");
  EXPECT_EQ(of_gather["bytes"].int_value(), 2048);
  EXPECT_EQ(of_gather["pass"].string_value(), "collectives");
}

TEST(PerfettoTrace, TracksSayWhatTheyAreAsInChromesFile) {
  const Replays replays = traced();
  TraceSlices slices = replays.slices();
  slices.ranks[0].place = "host a";
  std::vector<std::string> processes, threads, titles;
  for (const TraceRank& rank : slices.ranks)
    titles.insert(titles.end(), rank.titles.begin(), rank.titles.end());
  const pb::Trace trace = decoded(slices);
  for (const pb::TracePacket& packet : trace.packet()) {
    if (!packet.has_track_descriptor()) continue;
    const pb::TrackDescriptor& track = packet.track_descriptor();
    if (track.has_process()) processes.push_back(track.process().process_name());
    if (track.has_thread()) threads.push_back(track.thread().thread_name());
  }
  EXPECT_THAT(processes, ::testing::ElementsAre("rank 0 (host a)", "rank 1", "rank 2", "rank 3"));
  EXPECT_EQ(threads, titles);
  EXPECT_THAT(threads, ::testing::Contains("copy and communication stream of group pair (swaps)"));
}

// By these alone Perfetto knows a field (protos/perfetto/trace).
TEST(PerfettoTrace, FieldNumbersArePerfettos) {
  EXPECT_EQ(+pb::Trace::kPacketFieldNumber, 1);
  EXPECT_EQ(+pb::TracePacket::kTimestampFieldNumber, 8);
  EXPECT_EQ(+pb::TracePacket::kTrustedPacketSequenceIdFieldNumber, 10);
  EXPECT_EQ(+pb::TracePacket::kTrackEventFieldNumber, 11);
  EXPECT_EQ(+pb::TracePacket::kSequenceFlagsFieldNumber, 13);
  EXPECT_EQ(+pb::TracePacket::kTrackDescriptorFieldNumber, 60);
  EXPECT_EQ(+pb::TrackDescriptor::kUuidFieldNumber, 1);
  EXPECT_EQ(+pb::TrackDescriptor::kProcessFieldNumber, 3);
  EXPECT_EQ(+pb::TrackDescriptor::kThreadFieldNumber, 4);
  EXPECT_EQ(+pb::TrackDescriptor::kParentUuidFieldNumber, 5);
  EXPECT_EQ(+pb::ProcessDescriptor::kProcessNameFieldNumber, 6);
  EXPECT_EQ(+pb::ThreadDescriptor::kThreadNameFieldNumber, 5);
  EXPECT_EQ(+pb::TrackEvent::kDebugAnnotationsFieldNumber, 4);
  EXPECT_EQ(+pb::TrackEvent::kTypeFieldNumber, 9);
  EXPECT_EQ(+pb::TrackEvent::kTrackUuidFieldNumber, 11);
  EXPECT_EQ(+pb::TrackEvent::kCategoriesFieldNumber, 22);
  EXPECT_EQ(+pb::TrackEvent::kNameFieldNumber, 23);
  EXPECT_EQ(+pb::TrackEvent::kFlowIdsFieldNumber, 47);
  EXPECT_EQ(+pb::TrackEvent::kTerminatingFlowIdsFieldNumber, 48);
  EXPECT_EQ(+pb::DebugAnnotation::kIntValueFieldNumber, 4);
  EXPECT_EQ(+pb::DebugAnnotation::kStringValueFieldNumber, 6);
  EXPECT_EQ(+pb::DebugAnnotation::kNameFieldNumber, 10);
}

}  // namespace
}  // namespace cp::sim
