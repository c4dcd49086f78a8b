// Chrome's traces, read again as JSON.
#include "sim/present/traces/chrome_trace.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <rapidcheck/gtest.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/present/traces/trace_arguments.h"
#include "tests/context_parallel/problem_generator.h"
#include "tests/cost/traced_replays.h"
#include "tests/support/any_case.h"

namespace cp::sim {
namespace {

using nlohmann::json;
using testing::all_collectives;
using ::testing::AllOf;
using testing::Busy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using testing::Replays;
using testing::ring;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

std::string text_of(const Replays& replays) {
  std::ostringstream out;
  write_chrome_trace(out, replays.slices());
  return out.str();
}

std::string profiler_text_of(const Replays& replays, std::size_t rank) {
  std::ostringstream out;
  write_profiler_trace(out, replays.slices(), replays.cluster, rank);
  return out.str();
}

// Strict: escapes, UTF-8 and commas must be right.
json events_of(const std::string& text) { return json::parse(text).at("traceEvents"); }

// Slices of streams, in either form.
std::vector<json> kernels_of(const json& events) {
  std::vector<json> kernels;
  std::copy_if(events.begin(), events.end(), std::back_inserter(kernels), [](const json& event) {
    const std::string category = event.value("cat", "");
    return category == "kernel" || category == "compute" || category == "communication";
  });
  return kernels;
}

bool is_communication(const json& kernel) {
  return kernel["cat"] == "communication" || kernel["name"].get<std::string>().starts_with("ncclDevKernel_");
}

// Times are whole ns, but in us and so not exact.
constexpr double kHalfNs = 5e-4;
double begin_us(const json& event) { return event.at("ts").get<double>(); }
double end_us(const json& event) { return event.at("ts").get<double>() + event.at("dur").get<double>(); }

Replays traced_collectives() {
  Replays replays;
  replays.add("forward", all_collectives());
  return replays;
}

void expect_integers(const json& object, const std::vector<std::string>& keys) {
  for (const std::string& key : keys)
    EXPECT_TRUE(object.at(key).is_number_integer()) << key << " of " << object;
}

// What every event has; times ascend.
void expect_events(const json& events) {
  double last = 0;
  for (const json& event : events) {
    SCOPED_TRACE(event.dump());
    expect_integers(event, {"pid", "tid"});
    EXPECT_TRUE(event.at("name").is_string());
    EXPECT_TRUE(event.at("ts").is_number_float());
    EXPECT_LE(last, begin_us(event)) << "in ascending order";
    last = begin_us(event);
    const std::string phase = event.at("ph");
    if (phase == "M") {
      EXPECT_TRUE(event.at("args").at("name").is_string());
      continue;
    }
    EXPECT_TRUE(event.at("cat").is_string());
    if (phase == "X") {
      EXPECT_TRUE(event.at("dur").is_number_float());
      EXPECT_GE(event.at("dur").get<double>(), 0);
    } else {
      EXPECT_THAT(phase, ::testing::AnyOf("s", "f"));
      expect_integers(event, {"id"});
    }
  }
}

TEST(ChromeTrace, EveryEventHasWhatItsPhaseNeeds) {
  const json events = events_of(text_of(traced_collectives()));
  expect_events(events);
  for (const json& slice : kernels_of(events)) {
    SCOPED_TRACE(slice.dump());
    expect_integers(slice.at("args"), {"step", "iteration"});
    EXPECT_TRUE(slice["args"].at("operation").is_string());
    if (!is_communication(slice)) continue;
    expect_integers(slice["args"], {"sequence", "bytes", "bytes sent", "bytes received", "waited ns"});
    for (const char* key : {"group", "ranks", "dtype"}) EXPECT_TRUE(slice["args"].at(key).is_string()) << key;
  }
}

TEST(ChromeTrace, AFileOfOneRankHasWhatTheProfilersHas) {
  const json events = events_of(profiler_text_of(traced_collectives(), 3));
  expect_events(events);
  for (const json& event : events) {
    SCOPED_TRACE(event.dump());
    if (event.value("cat", "") == "cuda_runtime") expect_integers(event.at("args"), {"correlation"});
    if (event.value("cat", "") != "kernel") continue;
    expect_integers(event.at("args"), {"stream", "correlation", "device", "step", "iteration"});
    EXPECT_GT(event["args"]["stream"], 0) << "HolisticTraceAnalysis takes 0 for no GPU stream";
    EXPECT_EQ(event["args"]["stream"], event["tid"]);
    EXPECT_EQ(event["args"]["device"].get<int>(), event["pid"].get<int>() % 2);
    if (!is_communication(event)) continue;
    expect_integers(event["args"], {"In msg nelems", "Out msg nelems", "Group size", "Seq"});
    for (const char* key : {"Collective name", "dtype", "Process Group Name", "Process Group Ranks"})
      EXPECT_TRUE(event["args"].at(key).is_string()) << key;
  }
}

// Nothing is called by what did not run: no kernel of NCCL, no launch of CUDA, no profiler.
TEST(ChromeTrace, NothingIsClaimedThatDidNotRun) {
  std::string text = text_of(traced_collectives());
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* claim : {"nccl", "cuda", "profiler", "deviceproperties"})
    EXPECT_EQ(text.find(claim), std::string::npos) << claim;
  EXPECT_EQ(json::parse(text)["otherdata"], (json{{"backend", "simulated"}, {"world_size", 4}}));
}

TEST(ChromeTrace, SlicesAreNamedInWords) {
  std::set<std::string> names;
  json gather, swap;
  for (const json& slice : kernels_of(events_of(text_of(traced_collectives())))) {
    if (slice["pid"] != 2) continue;
    names.insert(slice["name"].get<std::string>());
    if (slice["args"]["operation"] == "all_gather") gather = slice;
    if (slice["args"]["operation"] == "exchange") swap = slice;
  }
  EXPECT_EQ(names,
            (std::set<std::string>{
                str("copy: ", testing::kOddLabel), "copy: step 1", "all_gather: gather, group world, 2 KiB",
                "reduce_scatter: step 3, group world, 2 KiB", "all_reduce: step 4, group world, 256 B",
                "all_to_all: step 5, group world, 2 KiB", "broadcast: step 6, group world, 512 B",
                "copy: step 7", "exchange: step 8, group pair, 15.62 KiB"}));
  EXPECT_EQ(gather["args"]["dtype"], "bf16");
  EXPECT_EQ(gather["args"]["ranks"], "[0, 1, 2, 3]");
  EXPECT_EQ(gather["args"]["bytes"], 2048);
  EXPECT_EQ(gather["args"]["bytes received"], 3 * 512);
  EXPECT_EQ(swap["args"]["ranks"], "[2, 3]");
  EXPECT_EQ(swap["args"]["bytes"], 16000);
}

// By rank, then by thread.
std::map<int, std::map<int, std::string>> threads_of(const json& events) {
  std::map<int, std::map<int, std::string>> names;
  for (const json& event : events) {
    if (event["name"] == "thread_name") names[event["pid"]][event["tid"]] = event["args"]["name"];
  }
  return names;
}

TEST(ChromeTrace, TracksSayWhatTheyAre) {
  Replays replays = traced_collectives();
  replays.add("backward", ring(AttentionPass::backward));
  TraceSlices slices = replays.slices();
  name_places(slices, replays.cluster);
  std::ostringstream out;
  write_chrome_trace(out, slices);
  const json events = events_of(out.str());
  const auto threads = threads_of(events);
  EXPECT_EQ(threads.at(0),
            (std::map<int, std::string>{{1, "passes"},
                                        {7, "compute stream"},
                                        {8, "copy and communication stream of groups world, ring (comm)"},
                                        {9, "copy and communication stream of group pair (swaps)"}}));
  EXPECT_EQ(threads.at(1).at(7), threads.at(0).at(9)) << "odd ranks have their streams in another order";
  std::set<std::string> processes;
  for (const json& event : events) {
    if (event["name"] == "process_name") processes.insert(event["args"]["name"].get<std::string>());
  }
  EXPECT_EQ(processes, (std::set<std::string>{"rank 0 (node 0, GPU 0)", "rank 1 (node 0, GPU 1)",
                                              "rank 2 (node 1, GPU 0)", "rank 3 (node 1, GPU 1)"}));
}

// Streams that do one thing have no name in brackets where it says the same.
TEST(ChromeTrace, AStreamsNameIsSaidOnce) {
  const auto titles = [](const char* name, bool copies, bool communicates) {
    std::vector<Plan> plans;
    for (Rank self : {0, 1}) {
      PlanBuilder b(self, host_target());
      const View from = flat_view(b.input("from", DType::f32, 8), 0, 8);
      const StreamId stream = b.stream(name);
      if (copies) b.add(stream, Copy{from, flat_view(b.output("to", DType::f32, 8), 0, 8)});
      if (communicates) {
        const View sum = flat_view(b.output("sum", DType::f32, 8), 0, 8);
        b.add(stream, AllReduce{b.group("tp", {0, 1}), ReduceOp::sum, from, sum});
      }
      plans.push_back(std::move(b).build({}));
    }
    Replays replays;
    replays.add("forward", std::move(plans));
    return replays.slices().ranks[0].titles;
  };
  EXPECT_THAT(titles("tp", false, true), ElementsAre("communication stream of group tp"));
  EXPECT_THAT(titles("comm", false, true), ElementsAre("communication stream of group tp (comm)"));
  EXPECT_THAT(titles("to_host", true, false), ElementsAre("copy stream (to_host)"));
  EXPECT_THAT(titles("tp", true, true), ElementsAre("copy and communication stream of group tp (tp)"));
}

// Slices do not overlap, and are as long as the timeline says; times are rounded to whole ns, half a ns at
// each end.
void expect_busy_times(const json& events, const Timeline& timeline, Rank ranks) {
  std::map<std::pair<int, int>, double> free_from;
  std::map<int, Busy> compute, comm;
  std::map<int, std::size_t> slices;
  for (const json& kernel : kernels_of(events)) {
    auto& free = free_from[{kernel["pid"], kernel["tid"]}];
    EXPECT_LE(free, begin_us(kernel) + kHalfNs) << kernel;
    free = end_us(kernel);
    (is_communication(kernel) ? comm : compute)[kernel["pid"]].add(begin_us(kernel), end_us(kernel));
    ++slices[kernel["pid"]];
  }
  for (Rank r = 0; r < ranks; ++r) {
    const RankTimeline& rank = timeline.ranks[static_cast<std::size_t>(r) % timeline.ranks.size()];
    EXPECT_EQ(slices[r], rank.spans.size());
    const double rounding_ns = static_cast<double>(slices[r]) + 1e-9 * rank.end_ns;
    EXPECT_NEAR(compute[r].total * 1e3, rank.compute_ns, rounding_ns);
    EXPECT_NEAR(comm[r].total * 1e3, rank.exposed_comm_ns + rank.hidden_comm_ns, rounding_ns);
  }
}

TEST(ChromeTrace, StreamsAreBusyAsLongAsTheTimelineSays) {
  const Replays replays = traced_collectives();
  expect_busy_times(events_of(text_of(replays)), replays.timeline(), 4);
}

RC_GTEST_PROP(ChromeTrace, AnyAttentionIsDrawnAsTheTimelineSays, ()) {
  AttentionRequest request;
  request.problem = *cp::testing::any_problem();
  const int cp = pick("cp", rc::gen::inRange(1, 5));
  request.strategy = *cp::testing::any_strategy(request.problem, cp);
  request.strategy.transfers = Strategy::Transfers::sm;  // NVLink joins two GPUs of this cluster, not all
  for (Rank rank = 0; rank < cp; ++rank) request.ranks.push_back(rank);
  Replays replays;
  replays.add("pass", attention_plans(request, pick("pass", rc::gen::element(AttentionPass::forward,
                                                                             AttentionPass::backward))));
  expect_busy_times(events_of(text_of(replays)), replays.timeline(), cp);
}

std::ptrdiff_t exchanges_around(const json& event, const std::vector<json>& kernels) {
  return std::count_if(kernels.begin(), kernels.end(), [&](const json& kernel) {
    return kernel["pid"] == event["pid"] && kernel["tid"] == event["tid"] &&
           kernel["args"]["operation"] == "exchange" && begin_us(kernel) <= begin_us(event) &&
           begin_us(event) < end_us(kernel) - kHalfNs;
  });
}

TEST(ChromeTrace, ArrowsLeadFromSendsToReceives) {
  const Replays replays = traced_collectives();
  const json events = events_of(text_of(replays));
  const std::vector<json> kernels = kernels_of(events);
  std::map<int, std::vector<json>> ends;  // by id: sender, receiver
  for (const json& event : events) {
    if (event["ph"] != "s" && event["ph"] != "f") continue;
    auto& both = ends[event["id"]];
    EXPECT_EQ(event["ph"] == "s", both.empty()) << event << ": the send comes first";
    EXPECT_EQ(event.value("bp", ""), event["ph"] == "f" ? "e" : "");
    both.push_back(event);
    EXPECT_EQ(exchanges_around(event, kernels), 1) << event;
  }
  ASSERT_THAT(ends, SizeIs(4 * 3)) << "each rank, each time";
  for (const auto& [id, both] : ends) {
    ASSERT_THAT(both, SizeIs(2)) << id;
    EXPECT_EQ(both[0]["pid"].get<int>() ^ 1, both[1]["pid"].get<int>());
    EXPECT_EQ(both[0]["ts"], both[1]["ts"]) << "when both have arrived";
    EXPECT_EQ(both[0]["args"]["bytes"], 16000);
  }
}

TEST(ChromeTrace, ArrowsCarryWhatIsReceived) {
  Replays replays;
  replays.add("forward", ring(AttentionPass::forward));
  replays.add("backward", ring(AttentionPass::backward));
  const json events = events_of(text_of(replays));
  const std::vector<json> kernels = kernels_of(events);
  std::map<int, std::int64_t> arrows, received;
  for (const json& event : events) {
    if (event["ph"] != "s" && event["ph"] != "f") continue;
    EXPECT_EQ(exchanges_around(event, kernels), 1) << event;
    if (event["ph"] != "f") continue;
    EXPECT_GT(event["args"]["bytes"], 0) << event;
    arrows[event["pid"]] += event["args"]["bytes"].get<std::int64_t>();
  }
  for (const json& kernel : kernels) {
    if (kernel["args"].value("bytes received", 0) > 0)
      received[kernel["pid"]] += kernel["args"]["bytes received"].get<std::int64_t>();
  }
  EXPECT_THAT(arrows, SizeIs(4));
  EXPECT_EQ(arrows, received);
}

TEST(ChromeTrace, CommunicationIsNamedAsByNcclAndPytorch) {
  std::map<std::string, json> by_call;
  std::map<std::string, std::set<int>> sequences;
  for (const json& kernel : kernels_of(events_of(profiler_text_of(traced_collectives(), 2)))) {
    if (!is_communication(kernel)) continue;
    by_call[kernel["args"]["Collective name"]] = kernel;
    sequences[kernel["args"]["Process Group Name"]].insert(kernel["args"]["Seq"].get<int>());
  }
  const std::map<std::string, std::pair<std::string, std::string>> expected = {
      {"_allgather_base", {"ncclDevKernel_AllGather_RING_LL", "BFloat16"}},
      {"_reduce_scatter_base", {"ncclDevKernel_ReduceScatter_Sum_f16_RING_LL", "Half"}},
      {"allreduce", {"ncclDevKernel_AllReduce_Sum_u32_RING_LL", "Int"}},
      {"all_to_all", {"ncclDevKernel_SendRecv", "Half"}},
      {"broadcast", {"ncclDevKernel_Broadcast_RING_LL", "BFloat16"}},
      {"all_to_allv", {"ncclDevKernel_SendRecv", "Float"}}};
  ASSERT_EQ(by_call.size(), expected.size());
  for (const auto& [call, names] : expected) {
    EXPECT_EQ(by_call[call]["name"], names.first);
    EXPECT_EQ(by_call[call]["args"]["dtype"], names.second);
  }
  const json gather = by_call["_allgather_base"]["args"];
  EXPECT_EQ(gather["In msg nelems"], 256);
  EXPECT_EQ(gather["Out msg nelems"], 1024);
  EXPECT_EQ(gather["Group size"], 4);
  EXPECT_EQ(gather["Process Group Ranks"], "[0, 1, 2, 3]");
  EXPECT_EQ(gather["bytes received"], 3 * 512);
  EXPECT_EQ(gather["label"], "gather");
  const json swap = by_call["all_to_allv"]["args"];
  EXPECT_EQ(swap["Process Group Ranks"], "[2, 3]");
  EXPECT_EQ(swap["In split size"], "[0, 4000]");
  EXPECT_EQ(swap["Out split size"], "[0, 4000]");
  EXPECT_THAT(sequences["pair"], ElementsAre(0, 1, 2));
  EXPECT_THAT(sequences["world"], SizeIs(3 * 5)) << "one number for each collective of a group";
}

TEST(ChromeTrace, ListsOfSizesEndAfterThirtyAsPytorchs) {
  for (const int ranks : {30, 31}) {
    std::vector<Rank> all;
    for (Rank rank = 0; rank < ranks; ++rank) all.push_back(rank);
    PlanBuilder builder(30 % ranks, host_target());
    const BufferId data = builder.input("data", DType::f32, 7);
    builder.add(builder.stream("comm"), Exchange{builder.group("world", all),
                                                 {{29, flat_view(data, 0, 7)}},
                                                 {},
                                                 counts_digest({{30 % ranks, 29, 7}})});
    const Plan plan = std::move(builder).build({});
    TraceSlice slice;
    slice.step = steps_of(plan).front().step;
    for (const TraceArgument& argument : profiler_arguments(slice, plan)) {
      if (argument.name != "In split size") continue;
      const auto& text = std::get<std::string>(argument.value);
      EXPECT_THAT(text, ::testing::EndsWith(ranks == 30 ? ", 0, 7]" : ", 0, 7, ...]"));
      EXPECT_EQ(std::count(text.begin(), text.end(), ','), ranks - 1);
    }
  }
}

TEST(ChromeTrace, TheLastToArriveDoesNotWait) {
  std::map<int, std::map<int, std::int64_t>> waited;  // by Seq, rank
  for (const json& kernel : kernels_of(events_of(text_of(traced_collectives())))) {
    if (kernel["args"].value("group", "") != "world") continue;
    waited[kernel["args"]["sequence"]][kernel["pid"]] = kernel["args"]["waited ns"];
  }
  for (const auto& [sequence, by_rank] : waited) {
    ASSERT_THAT(by_rank, SizeIs(4));
    EXPECT_EQ(by_rank.at(3), 0) << sequence;
  }
  // Of the copies before the first one, 2,000 bytes (4 ns) are rank 0's, and 8,000 (16 ns) rank 3's.
  EXPECT_EQ(waited[0][0], 12);
}

TEST(ChromeTrace, LabelsMayHoldAnything) {
  std::set<std::string> labels;
  for (const json& kernel : kernels_of(events_of(text_of(traced_collectives()))))
    labels.insert(kernel["args"].value("label", ""));
  EXPECT_THAT(labels, IsSupersetOf({testing::kOddLabel}));
}

TEST(ChromeTrace, AFileOfOneRankIsWhatHolisticTraceAnalysisReads) {
  const Replays replays = traced_collectives();
  const std::string text = profiler_text_of(replays, 2);
  std::istringstream lines(text);
  std::smatch rank;  // its own expression, line by line
  for (std::string line; rank.empty() && std::getline(lines, line);) {
    if (std::regex_search(line, std::regex("\"rank\":\\s+(\\d+)"))) {
      std::regex_search(line, rank, std::regex("\"rank\": (\\d+)"));
      EXPECT_EQ(rank[1], "2");
    }
  }
  const json trace = json::parse(text);
  EXPECT_EQ(trace["schemaVersion"], 1);
  EXPECT_EQ(trace["distributedInfo"], (json{{"backend", "simulated"}, {"rank", 2}, {"world_size", 4}}));
  EXPECT_EQ(trace["deviceProperties"].size(), 2U);
  std::map<int, double> launched;
  json step;
  for (const json& event : trace["traceEvents"]) {
    EXPECT_NE(event["ph"], "s") << "the other end is in another file";
    if (event.value("cat", "") == "cuda_runtime") {
      EXPECT_TRUE(launched.emplace(event["args"]["correlation"], begin_us(event)).second) << event;
    }
    if (event["name"] == "ProfilerStep#0") step = event;
  }
  ASSERT_EQ(step.value("cat", ""), "user_annotation");
  const std::vector<json> kernels = kernels_of(trace["traceEvents"]);
  EXPECT_EQ(kernels.size(), launched.size());
  for (const json& kernel : kernels) {
    EXPECT_EQ(kernel["pid"], 2);
    const auto launch = launched.find(kernel["args"]["correlation"]);
    ASSERT_NE(launch, launched.end()) << kernel;
    EXPECT_LE(launch->second, begin_us(kernel));
    EXPECT_LE(end_us(kernel), end_us(step) + kHalfNs);
  }
}

TEST(ChromeTrace, PassesComeOneAfterAnother) {
  Replays replays;
  replays.add("forward", ring(AttentionPass::forward));
  replays.add("backward", ring(AttentionPass::backward));
  std::map<std::string, double> ends, begins;
  std::set<int> correlations;
  const json events = events_of(profiler_text_of(replays, 0));
  for (const json& event : events) {
    if (event.value("cat", "") != "user_annotation") continue;
    begins[event["name"]] = begin_us(event), ends[event["name"]] = end_us(event);
  }
  EXPECT_EQ(begins["backward"], ends["forward"]);
  EXPECT_EQ(ends["backward"], ends["ProfilerStep#0"]);
  EXPECT_NEAR(ends["forward"] * 1e3, replays.timeline(0).time_ns, 1000) << "up to a whole us";
  for (const json& event : events_of(text_of(replays))) {
    if (event.value("cat", "") != "pass") continue;
    EXPECT_EQ(begin_us(event), begins.at(event["name"])) << event;
    EXPECT_EQ(end_us(event), ends.at(event["name"])) << event;
  }
  for (const json& kernel : kernels_of(events)) {
    EXPECT_TRUE(correlations.insert(kernel["args"]["correlation"].get<int>()).second) << kernel;
    if (kernel["name"] == "attention_backward") {
      EXPECT_GE(begin_us(kernel), begins["backward"]);
    } else if (kernel["name"] == "attention_forward") {
      EXPECT_LE(end_us(kernel), ends["forward"] + kHalfNs);
    }
  }
}

TEST(ChromeTrace, RanksThatOthersStandForAreDrawnToo) {
  const std::vector<Plan> plans = all_collectives();
  const Cluster cluster = testing::round_cluster();
  TimelineOptions options;
  options.keep_spans = true;
  Timeline whole = replay(plans, cluster, {}, options), half = whole;
  // As if ranks 0 and 1 stood for 2 and 3.
  half.ranks.resize(2);
  whole.ranks.resize(2);
  for (Rank rank : {0, 1}) {
    whole.ranks.push_back(whole.ranks[static_cast<std::size_t>(rank)]);
    whole.ranks.back().rank = rank + 2;
  }
  const auto written = [&](const Timeline& timeline) {
    const TracedPass pass{"forward", plans, &timeline};
    std::ostringstream out;
    write_chrome_trace(out, trace_slices({{pass}}));
    return out.str();
  };
  EXPECT_EQ(written(half), written(whole));
}

TEST(ChromeTrace, NoSpansAndOtherRanksAreRefused) {
  const std::vector<Plan> plans = all_collectives();
  const Cluster cluster = testing::round_cluster();
  const Timeline bare = replay(plans, cluster, {});
  const TracedPass pass{"forward", plans, &bare};
  EXPECT_THAT([&] { trace_slices({{pass}}); },
              ThrowsMessage<InvalidInput>(AllOf(HasSubstr("0 spans of 27"), HasSubstr("keep_spans"))));
  Replays replays = traced_collectives();
  replays.add("other", testing::ring(AttentionPass::forward));
  EXPECT_NO_THROW(replays.slices());
  std::vector<Plan> pair;
  for (Rank self : {0, 1}) {
    PlanBuilder builder(self, host_target());
    builder.stream("compute");
    pair.push_back(std::move(builder).build({}));
  }
  replays.add("smaller", pair);
  EXPECT_THAT(
      [&] { replays.slices(); },
      ThrowsMessage<InvalidInput>(AllOf(HasSubstr("pass smaller has 2 plans"), HasSubstr("same ranks"))));
}

}  // namespace
}  // namespace cp::sim
