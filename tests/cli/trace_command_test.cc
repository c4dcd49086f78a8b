// cpsim trace, from the outside.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/cli/cpsim_process.h"
#include "tests/cli/json_file.h"
#include "tests/traces/small_traces.h"
#include "traces/perfetto_subset.pb.h"
#include "traces/trace_files.h"

namespace cp::cli {
namespace {

using cp::testing::sample_traces;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

// A folder with a.cptrace, of a run of three ranks.
struct Files {
  Files() { write("a", sample_traces(3)); }

  std::string write(const std::string& name, const std::vector<RankTrace>& traces) const {
    write_trace_file(path(name), traces);
    return path(name);
  }
  std::string path(const std::string& name) const { return folder.file(name + ".cptrace"); }

  TemporaryFolder folder;
};

// ---- compare

TEST(TraceCompare, RunsThatDidTheSameAreIdentical) {
  const Files files;
  const std::string b = files.write("b", sample_traces(3, 2000));
  const Finished finished = cpsim({"trace", "compare", files.path("a"), b});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(finished.out, R"(identical: 3 ranks, 12 operations

time        count       A       B   B/A
whole run      12  4.1 us  8.1 us  1.98
all_gather      3    3 us    6 us  2.00
all_reduce      3    3 us    6 us  2.00
copy            3    3 us    6 us  2.00
exchange        3    3 us    6 us  2.00
)");
}

TEST(TraceCompare, TheFirstDivergenceStandsInItsNeighbourhood) {
  const Files files;
  std::vector<RankTrace> other = sample_traces(3);
  other[1].observed[1].dtype = DType::bf16;
  other[1].observed[1].received[2] = 60;
  other[2].issued.pop_back(), other[2].observed.pop_back();
  for (RankTrace& trace : other) trace.issued_times.clear(), trace.observed_times.clear();
  other[0].digests["out"] = {1, 2};
  const Finished finished = cpsim({"trace", "compare", files.path("a"), files.write("b", other)});
  EXPECT_EQ(finished.exit_code, 1) << finished.err;
  EXPECT_EQ(finished.out, R"(different: 3 ranks, 12 operations compared

rank 1, stream 1: B issued and B observed differ at collective 1; dtype: f32, bf16; received bytes[2]: 64, 60
  B issued
      0  all_gather #0 on world[0,1,2] bf16 sent 64/0/64 received 64/0/64 bytes
    > 1  all_reduce #1 on world[0,1,2] f32 sum sent 64/0/64 received 64/0/64 bytes
      2  exchange #2 on world[0,1,2] i32 sent 0/0/0 received 64/0/0 bytes
  B observed
      0  all_gather #0 on world[0,1,2] bf16 sent 64/0/64 received 64/0/64 bytes
    > 1  all_reduce #1 on world[0,1,2] bf16 sum sent 64/0/64 received 64/0/60 bytes
      2  exchange #2 on world[0,1,2] i32 sent 0/0/0 received 64/0/0 bytes

rank 2, stream 1: A observed and B observed differ at collective 2
  A observed
      0  all_gather #0 on world[0,1,2] bf16 sent 64/64/0 received 64/64/0 bytes
      1  all_reduce #1 on world[0,1,2] f32 sum sent 64/64/0 received 64/64/0 bytes
    > 2  exchange #2 on world[0,1,2] i32 sent 0/0/0 received 64/0/0 bytes
  B observed
      0  all_gather #0 on world[0,1,2] bf16 sent 64/64/0 received 64/64/0 bytes
      1  all_reduce #1 on world[0,1,2] f32 sum sent 64/64/0 received 64/64/0 bytes
    > 2  nothing: 2 collectives on this stream

rank  digest of  A                                 B
   0  out        00000000000000000000000000000007  00000000000000010000000000000002

time         count       A  B  B/A
whole run   12 / 0  4.1 us  -    -
all_gather   3 / 0    3 us  -    -
all_reduce   3 / 0    3 us  -    -
copy         3 / 0    3 us  -    -
exchange     3 / 0    3 us  -    -
)");
}

TEST(TraceCompare, RanksThatOneSideLacksAreNamed) {
  const Files files;
  std::vector<RankTrace> other = sample_traces(3);
  other.erase(other.begin(), other.begin() + 2);
  const Finished finished = cpsim({"trace", "compare", files.path("a"), files.write("b", other)});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.out, AllOf(StartsWith("different: 1 rank, 4 operations compared\n"),
                                  HasSubstr("ranks 0,1 only in A\n")));
}

TEST(TraceCompare, OfTwoRealRunsOneAfterAnother) {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b"}) {
    const Finished run = cpsim({"run", "--mesh", "cp=2", "--strategy", "ring", "--seq-len", "64", "--q-heads",
                                "2", "--head-dim", "8", "--causal", "--trace", folder.file(name)});
    ASSERT_EQ(run.exit_code, 0) << run.err;
  }
  const Finished finished = cpsim({"trace", "compare", folder.file("a"), folder.file("b")});
  EXPECT_EQ(finished.exit_code, 0) << finished.out;
  EXPECT_THAT(finished.out,
              AllOf(StartsWith("identical: 2 ranks, "), HasSubstr("times: neither trace has any")));
}

TEST(TraceCompare, WhatWasCutOffIsComparedAndSaysSo) {
  const Files files;
  const std::string b = files.write("b", sample_traces(3));
  std::filesystem::resize_file(b, std::filesystem::file_size(b) - 30);
  const Finished cut = cpsim({"trace", "compare", files.path("a"), b});
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_THAT(cut.out,
              AllOf(StartsWith("identical as far as they go: 2 ranks, 8 operations\nB: " + b + " is cut off"),
                    HasSubstr("rank 2 only in A; B was cut off")));
  EXPECT_EQ(cpsim({"trace", "compare", files.path("a"), b, "--allow-truncated"}).exit_code, 0);
  EXPECT_EQ(cpsim({"trace", "compare", b, files.path("a"), "--allow-truncated"}).exit_code, 0);
  std::vector<RankTrace> other = sample_traces(3);
  other[0].observed[0].root = 1;
  EXPECT_EQ(cpsim({"trace", "compare", b, files.write("a", other), "--allow-truncated"}).exit_code, 1);
}

// A trace of which nothing is left agrees with nothing.
TEST(TraceCompare, WhatWasCutOffBeforeAllIsNotIdentical) {
  const Files files;
  const std::string b = files.write("b", sample_traces(3));
  std::filesystem::resize_file(b, 0);
  for (const auto& [left, right] : {std::pair(files.path("a"), b), std::pair(b, files.path("a"))}) {
    const Finished cut = cpsim({"trace", "compare", left, right, "--allow-truncated"});
    EXPECT_EQ(cut.exit_code, 1);
    EXPECT_THAT(cut.out, StartsWith("nothing to compare: 0 ranks, 0 operations\n"));
    const Finished as_json = cpsim({"trace", "compare", left, right, "--allow-truncated", "--json"});
    EXPECT_EQ(as_json.exit_code, 1);
    EXPECT_EQ(json::parse(as_json.out)["identical"], false);
  }
}

TEST(TraceCompare, AFolderOfRanksIsATrace) {
  const Files files;
  std::filesystem::create_directory(files.folder.file("run"));
  for (const RankTrace& trace : sample_traces(3)) {
    write_trace_file(rank_trace_path(files.folder.file("run"), trace.rank), {&trace, 1});
  }
  EXPECT_EQ(cpsim({"trace", "compare", files.folder.file("run"), files.path("a")}).exit_code, 0);
  const Finished merged = cpsim({"trace", "merge", files.folder.file("run"), "-o", files.path("merged")});
  EXPECT_EQ(merged.exit_code, 0) << merged.err;
  EXPECT_EQ(read_trace_file(files.path("merged")).ranks, sample_traces(3));
}

TEST(TraceCompare, JsonHasTheSame) {
  const Files files;
  std::vector<RankTrace> other = sample_traces(3, 2000);
  other[1].observed[1].dtype = DType::bf16;
  other[2].digests.clear();
  const Finished finished = cpsim({"trace", "compare", files.path("a"), files.write("b", other), "--json"});
  EXPECT_EQ(finished.exit_code, 1);
  const json report = json::parse(finished.out);
  EXPECT_EQ(report["identical"], false);
  EXPECT_EQ(report["ranks"], 3);
  ASSERT_EQ(report["divergences"].size(), 1U);
  const json& found = report["divergences"][0];
  EXPECT_EQ(found["rank"], 1);
  EXPECT_EQ(found["at"], 1);
  EXPECT_EQ(found["fields"], json{"dtype: f32, bf16"});
  EXPECT_EQ(found["sides"][1]["section"], "B observed");
  EXPECT_EQ(found["sides"][1]["operations"][1]["dtype"], "bf16");
  EXPECT_EQ(report["digests"][0]["b"], nullptr);
  EXPECT_EQ(report["whole_run"]["ns_b"], 8100.0);
  EXPECT_EQ(report["times"][0]["count_a"], 3);
}

TEST(TraceCompare, WhatIsNoTraceIsABadTrace) {
  const Files files;
  std::ofstream(files.path("b")) << "no trace";
  const Finished finished = cpsim({"trace", "compare", files.path("a"), files.path("b")});
  EXPECT_EQ(finished.exit_code, 17);
  EXPECT_THAT(finished.err,
              AllOf(StartsWith("cpsim trace compare: "), HasSubstr("b.cptrace"), HasSubstr("not a trace")));
  EXPECT_EQ(cpsim({"trace", "compare", files.path("a"), files.path("none")}).exit_code, 17);
  EXPECT_EQ(cpsim({"trace", "compare", files.path("a")}).exit_code, 2);
}

// ---- show

TEST(TraceShow, IsATable) {
  const Files files;
  const Finished finished = cpsim({"trace", "show", files.path("a"), "--rank", "1"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(
      finished.out,
      R"(rank 1: node1, pid 4001, gloo, world size 3, started 2024-02-29T12:34:56Z, cpsim 0.1.0, gloo 0.5, scenario 00000000000000010000000000000002

rank  stream  #  operation          group      dtype         sent  received  begin  time  label
   1       0  0  copy                                 writes 64 B             0 us  1 us
   1       1  0  all_gather #0      world (3)  bf16         128 B     128 B   1 us  1 us  gather k
   1       1  1  all_reduce #1 sum  world (3)  f32          128 B     128 B   2 us  1 us
   1       1  2  exchange #2        world (3)  i32            0 B      64 B   3 us  1 us

rank  digest of
   1  out        00000000000000010000000000000007
)");
}

TEST(TraceShow, FiltersChooseOperations) {
  const Files files;
  const auto rows = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"trace", "show", files.path("a"), "--json"});
    const Finished finished = cpsim(flags);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    std::vector<json> result;
    std::istringstream lines(finished.out);
    for (std::string line; std::getline(lines, line);) {
      if (json row = json::parse(line); row.contains("operation")) result.push_back(std::move(row));
    }
    return result;
  };
  EXPECT_EQ(rows({}).size(), 12U);
  EXPECT_EQ(rows({"--rank", "2"}).size(), 4U);
  EXPECT_EQ(rows({"--rank", "2", "--stream", "1", "--limit", "2"}).size(), 2U);
  EXPECT_EQ(rows({"--limit", "0"}).size(), 0U);
  const std::vector<json> observed = rows({"--observed", "--rank", "0"});
  ASSERT_EQ(observed.size(), 3U);
  EXPECT_EQ(observed[0]["begin_ns"], 1100);
  EXPECT_EQ(observed[1]["reduction"], "sum");
  EXPECT_EQ(observed[2]["sent"], (json{0, 64, 64}));
  const Finished cut = cpsim({"trace", "show", files.path("a"), "--limit", "5"});
  EXPECT_THAT(cut.out, HasSubstr("and 7 more operations"));
}

// Names and labels come from files that others wrote.
TEST(TraceShow, EscapeSequencesDoNotReachTheTerminal) {
  const Files files;
  std::vector<RankTrace> odd = sample_traces(3);
  for (RankTrace& rank : odd) {
    for (OpRecord& record : rank.issued) record.group.name = "g\x1b]0;owned\x07";
  }
  const std::string path = files.write("odd", odd);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"trace", "show", path}, {"trace", "compare", files.path("a"), path}}) {
    const Finished finished = cpsim(words);
    EXPECT_THAT(finished.out,
                AllOf(HasSubstr("g\\x1b]0;owned\\x07"), Not(HasSubstr("\x1b")), Not(HasSubstr("\x07"))));
  }
}

TEST(TraceShow, WhatTheTraceLacksIsRefused) {
  const Files files;
  const Finished rank = cpsim({"trace", "show", files.path("a"), "--rank", "7"});
  EXPECT_EQ(rank.exit_code, 2);
  EXPECT_THAT(rank.err, HasSubstr("--rank 7 is not in the trace, which has 0,1,2"));
  const Finished stream = cpsim({"trace", "show", files.path("a"), "--stream", "5"});
  EXPECT_EQ(stream.exit_code, 2);
  EXPECT_THAT(stream.err, HasSubstr("streams that have are 0,1"));
}

TEST(TraceShow, OldFilesAndFilesThatWereCutOffAreShown) {
  const Finished old = cpsim({"trace", "show", "tests/traces/files/without_times.cptrace"});
  EXPECT_EQ(old.exit_code, 0) << old.err;
  EXPECT_THAT(old.out, AllOf(HasSubstr("exchange #0"), Not(HasSubstr("begin"))));
  const Files files;
  std::filesystem::resize_file(files.path("a"), std::filesystem::file_size(files.path("a")) - 1);
  for (const char* name : {"x.json", "x.pftrace"}) {
    const Finished drawn = cpsim({"trace", "export", files.path("a"), "-o", files.folder.file(name)});
    EXPECT_EQ(drawn.exit_code, 0);
    EXPECT_THAT(drawn.err, AllOf(HasSubstr("is cut off at byte"), HasSubstr("holds what came before")));
    EXPECT_GT(std::filesystem::file_size(files.folder.file(name)), 0U);
  }
  const Finished cut = cpsim({"trace", "show", files.path("a")});
  EXPECT_EQ(cut.exit_code, 0);
  EXPECT_THAT(cut.out, HasSubstr("is cut off at byte"));
}

// ---- export

Finished predict(const std::string& path) {
  return cpsim({"estimate", "--cluster", "a800", "--mesh", "cp=3", "--strategy", "ring", "--seq-len", "6144",
                "--q-heads", "8", "--head-dim", "128", "--dtype", "bf16", "--causal", "--trace", path});
}

// By name, without the place: "predicted rank 0".
std::map<std::string, std::int64_t> processes_of(const json& trace) {
  std::map<std::string, std::int64_t> pids;
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] != "process_name") continue;
    const std::string name = event["args"]["name"];
    pids[name.substr(0, name.find(" ("))] = event["pid"];
  }
  return pids;
}

std::vector<json> kernels_of(const json& trace, std::int64_t pid) {
  std::vector<json> kernels;
  for (const json& event : trace["traceEvents"]) {
    const std::string category = event.value("cat", "");
    if ((category == "compute" || category == "communication" || category == "kernel") && event["pid"] == pid)
      kernels.push_back(event);
  }
  return kernels;
}

TEST(TraceExport, ChromesFileShowsWhatWasMeasured) {
  const Files files;
  const std::string out = files.folder.file("a.json");
  const Finished finished = cpsim({"trace", "export", files.path("a"), "-o", out});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const json trace = read_json(out);
  EXPECT_EQ(trace["otherData"], (json{{"backend", "gloo"}, {"world_size", 3}}));
  EXPECT_FALSE(trace.contains("deviceProperties")) << "of what ran is known no GPU";
  const std::vector<json> kernels = kernels_of(trace, 2);
  ASSERT_EQ(kernels.size(), 4U);
  EXPECT_EQ(kernels[0]["args"]["operation"], "copy");
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    EXPECT_DOUBLE_EQ(kernels[i]["ts"].get<double>(), static_cast<double>(i) + 0.1)
        << "the rank started 100 ns late";
    EXPECT_DOUBLE_EQ(kernels[i]["dur"].get<double>(), 1);
  }
  const json& reduce = kernels[2]["args"];
  EXPECT_EQ(reduce["operation"], "all_reduce");
  EXPECT_EQ(reduce["group"], "world");
  EXPECT_EQ(reduce["bytes sent"], 128);
  EXPECT_EQ(reduce["sequence"], 1);
  EXPECT_EQ(kernels[1]["args"]["label"], "gather k");
  EXPECT_EQ(kernels[3]["args"]["bytes received"], 64);
  std::int64_t arrows = 0;
  for (const json& event : trace["traceEvents"]) arrows += event["ph"] == "s" ? 1 : 0;
  EXPECT_EQ(arrows, 2) << "from rank 0 to the others";
}

TEST(TraceExport, AFolderIsForToolsThatReadThePyTorchProfiler) {
  const Files files;
  const std::string out = files.folder.file("ranks/");
  const Finished finished = cpsim({"trace", "export", files.path("a"), "-o", out});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  for (int rank = 0; rank < 3; ++rank) {
    const json trace = read_json(out + "rank_" + std::to_string(rank) + ".json");
    EXPECT_EQ(trace["distributedInfo"], (json{{"backend", "gloo"}, {"rank", rank}, {"world_size", 3}}));
    EXPECT_EQ(trace["deviceProperties"].size(), 3U) << "as many as ranks share a host";
    const std::vector<json> kernels = kernels_of(trace, rank);
    ASSERT_EQ(kernels.size(), 4U);
    EXPECT_EQ(kernels[2]["args"]["Collective name"], "allreduce");
    EXPECT_EQ(kernels[2]["args"]["Seq"], 1);
  }
  const Finished format = cpsim({"trace", "export", files.path("a"), "--format", "chrome", "-o", out});
  EXPECT_EQ(format.exit_code, 2);
  EXPECT_THAT(format.err, AllOf(HasSubstr("--format is for one file of all ranks"), HasSubstr("NAME.json")));
}

TEST(TraceExport, PerfettosFileHasTheSameSlices) {
  const Files files;
  const std::string out = files.folder.file("a.pftrace");
  const Finished finished = cpsim({"trace", "export", files.path("a"), "--format", "perfetto", "-o", out});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  std::ifstream file(out, std::ios::binary);
  proto::perfetto::Trace trace;
  ASSERT_TRUE(trace.ParseFromIstream(&file));
  int begins = 0;
  for (const auto& packet : trace.packet()) {
    begins += packet.track_event().type() == proto::perfetto::TrackEvent::TYPE_SLICE_BEGIN ? 1 : 0;
  }
  EXPECT_EQ(begins, 12);
}

TEST(TraceExport, PredictionAndMeasurementStandSideBySideInChrome) {
  const Files files;
  const std::string predicted = files.folder.file("p.json"), out = files.folder.file("both.json");
  ASSERT_EQ(predict(predicted).exit_code, 0);
  const Finished finished = cpsim({"trace", "export", files.path("a"), "--merge", predicted, "-o", out});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const json both = read_json(out), before = read_json(predicted);
  const auto pids = processes_of(both);
  ASSERT_EQ(pids.size(), 6U);
  for (const char* rank : {"0", "1", "2"}) {
    const std::int64_t first = pids.at(std::string("predicted rank ") + rank),
                       second = pids.at(std::string("measured rank ") + rank);
    EXPECT_EQ(kernels_of(both, first).size(), kernels_of(before, std::stoi(rank)).size());
    EXPECT_EQ(kernels_of(both, second).size(), 4U);
  }
  std::map<std::int64_t, int> arrows;  // each id has one begin and one end
  double last = 0;
  std::map<std::int64_t, std::int64_t> places;
  for (const json& event : both["traceEvents"]) {
    EXPECT_LE(last, event["ts"].get<double>());
    last = event["ts"];
    if (event["ph"] == "s" || event["ph"] == "f") ++arrows[event["id"]];
    if (event["name"] == "process_sort_index") places[event["args"]["sort_index"]] = event["pid"];
  }
  for (const auto& [id, ends] : arrows) EXPECT_EQ(ends, 2) << id;
  ASSERT_EQ(places.size(), 6U);
  EXPECT_EQ(places.at(2), pids.at("predicted rank 1"));
  EXPECT_EQ(places.at(3), pids.at("measured rank 1"));
}

TEST(TraceExport, PredictionAndMeasurementStandSideBySideInPerfetto) {
  const Files files;
  const std::string predicted = files.folder.file("p.pftrace"), out = files.folder.file("both.pftrace");
  ASSERT_EQ(predict(predicted).exit_code, 0);
  const Finished finished = cpsim({"trace", "export", files.path("a"), "--merge", predicted, "-o", out});
  ASSERT_EQ(finished.exit_code, 0) << finished.err;
  const auto read = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    proto::perfetto::Trace trace;
    EXPECT_TRUE(trace.ParseFromIstream(&file));
    return trace;
  };
  const proto::perfetto::Trace before = read(predicted), both = read(out);
  std::vector<std::string> processes;
  std::set<std::uint64_t> tracks;
  std::map<std::uint32_t, std::uint32_t> first_flags;  // by packet sequence
  int events = 0;
  for (const auto& packet : both.packet()) {
    first_flags.emplace(packet.trusted_packet_sequence_id(), packet.sequence_flags());
    if (packet.has_track_descriptor()) {
      EXPECT_EQ(events, 0) << "tracks are described before they are used";
      EXPECT_TRUE(tracks.insert(packet.track_descriptor().uuid()).second);
      if (packet.track_descriptor().has_process())
        processes.push_back(packet.track_descriptor().process().process_name());
      if (packet.track_descriptor().has_parent_uuid()) {
        EXPECT_TRUE(tracks.contains(packet.track_descriptor().parent_uuid()));
      }
    } else {
      ++events;
      EXPECT_TRUE(tracks.contains(packet.track_event().track_uuid()));
    }
  }
  EXPECT_THAT(processes, ElementsAre("predicted rank 0 (node 0, GPU 0)", "measured rank 0 (host node1)",
                                     "predicted rank 1 (node 0, GPU 1)", "measured rank 1 (host node1)",
                                     "predicted rank 2 (node 0, GPU 2)", "measured rank 2 (host node1)"));
  EXPECT_THAT(first_flags, ElementsAre(::testing::Pair(1, 1), ::testing::Pair(2, 1)));
  EXPECT_GT(both.packet_size(), before.packet_size() + 24);
}

TEST(TraceExport, TwoMeasurementsStandSideBySide) {
  const Files files;
  const std::string b = files.write("b", sample_traces(3, 2000)), out = files.folder.file("both.json");
  ASSERT_EQ(cpsim({"trace", "export", files.path("a"), "--merge", b, "-o", out}).exit_code, 0);
  std::vector<std::string> names;
  for (const auto& [name, pid] : processes_of(read_json(out))) names.push_back(name);
  EXPECT_THAT(names, IsSupersetOf({"other rank 2", "measured rank 2"}));
}

// -o and --output are what every command calls the file that it writes; --out, which was this one's name,
// stays.
TEST(TraceExport, TheFileHasOneNameAndItsOlderOne) {
  const Files files;
  for (const char* flag : {"-o", "--output", "--out"}) {
    const std::string out = files.folder.file(str(flag, ".json"));
    EXPECT_EQ(cpsim({"trace", "export", files.path("a"), flag, out}).exit_code, 0) << flag;
    EXPECT_TRUE(std::filesystem::exists(out)) << flag;
  }
  const Finished both = cpsim({"trace", "export", files.path("a"), "--out", "x.json", "--output", "y.json"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, AllOf(HasSubstr("--out"), HasSubstr("--output")));
  EXPECT_THAT(cpsim({"trace", "export", files.path("a")}).err, HasSubstr("-o is missing"));
  EXPECT_THAT(cpsim({"trace", "merge", files.path("a")}).err, HasSubstr("-o is missing"));
  for (const Words& command :
       {Words{"trace", "export"}, Words{"trace", "merge"}, Words{"calibrate"}, Words{"plan"}}) {
    Words words = command;
    words.emplace_back("--help");
    const std::string help = cpsim(words).out;
    EXPECT_THAT(help, HasSubstr("-o,--output FILE")) << help;
    EXPECT_THAT(help, Not(HasSubstr("--out "))) << help;
  }
}

TEST(TraceExport, WhatCannotBeDrawnIsRefused) {
  const Files files;
  const std::string out = files.folder.file("a.json");
  const Finished old = cpsim({"trace", "export", "tests/traces/files/without_times.cptrace", "-o", out});
  EXPECT_EQ(old.exit_code, 2);
  EXPECT_THAT(old.err, HasSubstr("without_times.cptrace has no times"));
  const Finished format = cpsim({"trace", "export", files.path("a"), "-o", files.folder.file("a.txt")});
  EXPECT_EQ(format.exit_code, 2);
  EXPECT_THAT(format.err,
              HasSubstr("does not say the format of the file; add --format chrome or --format perfetto"));
  EXPECT_EQ(cpsim({"trace", "export", files.path("a"), "--format", "svg", "-o", out}).exit_code, 2);
  for (const char* name : {"x.json", "x.pftrace"}) {
    std::ofstream(files.folder.file("x")) << "[{\"pid\": 1}]";
    const Finished merge = cpsim({"trace", "export", files.path("a"), "--merge", files.folder.file("x"), "-o",
                                  files.folder.file(name)});
    EXPECT_EQ(merge.exit_code, 2);
    EXPECT_THAT(merge.err, HasSubstr("is no trace in "));
  }
  std::vector<RankTrace> odd = sample_traces(3);
  odd[1].issued[1].group.ranks = {0, 2, 3};
  const Finished outside = cpsim({"trace", "export", files.write("odd", odd), "-o", out});
  EXPECT_EQ(outside.exit_code, 17);
  EXPECT_THAT(outside.err, HasSubstr("the rank is not in the group"));
  EXPECT_FALSE(std::filesystem::exists(out));
}

}  // namespace
}  // namespace cp::cli
