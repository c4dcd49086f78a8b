#include "sim/present/traces/trace_slices.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"

namespace cp::sim {
namespace {

// Passes begin and end at whole microseconds (TraceSlices::begin_ns).
constexpr std::int64_t kAlignNs = 1000;

// The largest time that a trace can hold, with room for what comes before: 2^62 ns are 146 years.
constexpr double kMostNs = 0x1p62;

std::int64_t whole_ns(double ns) { return std::llround(ns); }

// Where the executions of a step stand. Iteration i is the (issue + i * issues)-th step of the plan, and the
// (sequence + i * sequences)-th collective of its group.
struct Place {
  std::int64_t issue = 0, issues = 0;
  std::int64_t sequence = -1, sequences = 0;
};

struct Places {
  std::vector<StepRef> steps;
  std::vector<Place> of_step;
  std::int64_t executions = 0;
};

Places places_of(const Plan& plan) {
  Places places{steps_of(plan), {}, 0};
  const std::vector<StepRef>& steps = places.steps;
  places.of_step.resize(steps.size());
  std::vector<std::int64_t> before(plan.groups.size(), 0);  // collectives, by group
  for (std::size_t begin = 0, end = 0; begin < steps.size(); begin = end) {
    while (end < steps.size() && steps[end].segment == steps[begin].segment) ++end;
    const auto body = static_cast<std::int64_t>(end - begin);
    std::vector<std::int64_t> in_body(plan.groups.size(), 0);
    for (std::size_t i = begin; i < end; ++i) {
      places.of_step[i].issue = places.executions + static_cast<std::int64_t>(i - begin);
      places.of_step[i].issues = body;
      if (const auto* collective = std::get_if<Collective>(&steps[i].step->work)) {
        const std::size_t group = idx(group_of(*collective));
        places.of_step[i].sequence = before[group] + in_body[group]++;
      }
    }
    for (std::size_t i = begin; i < end; ++i) {
      if (const auto* collective = std::get_if<Collective>(&steps[i].step->work))
        places.of_step[i].sequences = in_body[idx(group_of(*collective))];
    }
    for (std::size_t group = 0; group < before.size(); ++group)
      before[group] += steps[begin].count * in_body[group];
    places.executions += steps[begin].count * body;
  }
  return places;
}

int row_of(std::vector<std::string>& streams, const std::string& name) {
  const auto known = std::find(streams.begin(), streams.end(), name);
  if (known != streams.end()) return static_cast<int>(known - streams.begin());
  streams.push_back(name);
  return static_cast<int>(streams.size()) - 1;
}

// Appends the slices of one rank's pass; their correlations count on from `correlation`.
void add_slices(TraceRank& rank, std::size_t pass, const Plan& plan, const std::vector<Span>& spans,
                std::int64_t begin_ns, std::int64_t& correlation) {
  const Places places = places_of(plan);
  if (static_cast<std::int64_t>(spans.size()) != places.executions) {
    throw InvalidInput(str("the timeline of rank ", plan.self, " has ", spans.size(), " spans of ",
                           places.executions, " executed steps; replay its plans with keep_spans"));
  }
  std::vector<int> rows;
  for (const std::string& stream : plan.streams) rows.push_back(row_of(rank.streams, stream));
  const std::size_t first = rank.slices.size();
  rank.slices.resize(first + spans.size());
  for (const Span& span : spans) {
    const Place& place = places.of_step[idx(span.step)];
    const Step& step = *places.steps[idx(span.step)].step;
    const std::int64_t issue = place.issue + span.iteration * place.issues;
    TraceSlice& slice = rank.slices[first + idx(issue)];
    slice.pass = pass, slice.step = &step, slice.id = span.step, slice.iteration = span.iteration;
    slice.row = rows[idx(step.stream)];
    slice.correlation = correlation + issue + 1;
    const double slice_begin = is_collective(step) ? span.ready_ns : span.begin_ns;
    slice.begin_ns = begin_ns + whole_ns(slice_begin), slice.end_ns = begin_ns + whole_ns(span.end_ns);
    if (!is_collective(step)) continue;
    slice.waited_ns = begin_ns + whole_ns(span.begin_ns) - slice.begin_ns;
    slice.sequence = place.sequence + span.iteration * place.sequences;
  }
  correlation += places.executions;
}

// The slices of each Exchange of a pass, by the rank's index in the group.
struct Met {
  std::size_t rank = 0, slice = 0;
};
using Exchanges =
    std::map<std::tuple<std::string, std::vector<Rank>, std::int64_t>, std::map<std::int32_t, Met>>;

const Exchange* exchange_of(const TraceSlice& slice) {
  const auto* collective = std::get_if<Collective>(&slice.step->work);
  return collective == nullptr ? nullptr : std::get_if<Exchange>(collective);
}

Exchanges exchanges_of(const TraceSlices& all, std::size_t pass) {
  Exchanges calls;
  for (std::size_t rank = 0; rank < all.ranks.size(); ++rank) {
    const std::vector<TraceSlice>& slices = all.ranks[rank].slices;
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const Exchange* exchange = slices[i].pass == pass ? exchange_of(slices[i]) : nullptr;
      if (exchange == nullptr) continue;
      const Plan& plan = all.plan(rank, slices[i]);
      const Group& group = plan.groups[idx(exchange->group)];
      calls[{group.name, group.ranks, slices[i].sequence}][index_in_group(plan, exchange->group)] = {rank, i};
    }
  }
  return calls;
}

void add_flows(TraceSlices& all, std::size_t pass) {
  for (const auto& [key, members] : exchanges_of(all, pass)) {
    for (const auto& [index, from] : members) {
      const TraceSlice& sender = all.ranks[from.rank].slices[from.slice];
      const Volume moved = volume(*exchange_of(sender), all.plan(from.rank, sender));
      for (const auto& [peer, to] : members) {
        if (moved.sent[idx(peer)] == 0) continue;
        const TraceSlice& receiver = all.ranks[to.rank].slices[to.slice];
        all.flows.push_back({from.rank, from.slice, to.rank, to.slice,
                             std::max(sender.begin_ns, receiver.begin_ns), moved.sent[idx(peer)]});
      }
    }
  }
}

// What runs on a stream, for its title.
struct StreamUse {
  std::vector<std::string> groups;  // of its collectives, in order of appearance
  bool copies = false, computes = false;
};

std::string stream_title(const std::string& name, const StreamUse& use) {
  std::vector<std::string> uses;
  if (use.computes || use.copies) uses.emplace_back(use.computes ? "compute" : "copy");
  if (!use.groups.empty()) uses.emplace_back("communication");
  std::string title = uses.empty() ? "unused stream" : join(uses, " and ") + " stream";
  if (!use.groups.empty())
    title += str(use.groups.size() == 1 ? " of group " : " of groups ", join(use.groups, ", "));
  const bool is_said =
      uses.size() == 1 && (use.groups.empty() ? name == uses[0] : use.groups == std::vector{name});
  return is_said || name.empty() ? title : str(title, " (", name, ")");
}

void title_streams(TraceSlices& all) {
  for (std::size_t r = 0; r < all.ranks.size(); ++r) {
    TraceRank& rank = all.ranks[r];
    std::vector<StreamUse> uses(rank.streams.size());
    for (const TraceSlice& slice : rank.slices) {
      StreamUse& use = uses[idx(slice.row)];
      if (const auto* collective = std::get_if<Collective>(&slice.step->work)) {
        const std::string& group = all.plan(r, slice).groups[idx(group_of(*collective))].name;
        if (std::find(use.groups.begin(), use.groups.end(), group) == use.groups.end())
          use.groups.push_back(group);
      } else {
        const auto* kernel = std::get_if<Kernel>(&slice.step->work);
        (kernel != nullptr && std::holds_alternative<Copy>(*kernel) ? use.copies : use.computes) = true;
      }
    }
    rank.titles.clear();
    for (std::size_t row = 0; row < uses.size(); ++row)
      rank.titles.push_back(stream_title(rank.streams[row], uses[row]));
  }
}

void require_same_ranks(const TracedPass& pass, const TracedPass& first) {
  const std::size_t replayed = pass.timeline->ranks.size();
  bool same = pass.plans.size() == first.plans.size() && replayed > 0 && pass.plans.size() % replayed == 0;
  for (std::size_t i = 0; same && i < pass.plans.size(); ++i) {
    same = pass.plans[i].self == first.plans[i].self &&
           (i >= replayed || pass.plans[i].self == pass.timeline->ranks[i].rank);
  }
  if (same) return;
  throw InvalidInput(str("pass ", pass.name, " has ", pass.plans.size(), " plans and ", replayed,
                         " timelines, pass ", first.name, " ", first.plans.size(),
                         " plans; give each the same ranks in the same order"));
}

}  // namespace

Rank TraceSlices::world_size() const {
  Rank highest = -1;
  for (const TraceRank& rank : ranks) highest = std::max(highest, rank.rank);
  return highest + 1;
}

std::string process_name(const TraceRank& rank) {
  return rank.place.empty() ? str("rank ", rank.rank) : str("rank ", rank.rank, " (", rank.place, ")");
}

void name_places(TraceSlices& slices, const Cluster& cluster) {
  for (TraceRank& rank : slices.ranks) {
    rank.place = str("node ", cluster.node_of(rank.rank), ", GPU ", rank.rank % cluster.node.gpus);
  }
}

TraceSlices trace_slices(std::span<const TracedPass> passes) {
  TraceSlices all;
  all.passes.assign(passes.begin(), passes.end());
  all.begin_ns.push_back(0);
  if (passes.empty()) return all;
  for (const Plan& plan : passes.front().plans) all.ranks.push_back({plan.self, {}, {}, {}, {}});
  std::int64_t correlation = 0;
  for (std::size_t pass = 0; pass < passes.size(); ++pass) {
    const auto& [name, plans, timeline] = passes[pass];
    require_same_ranks(passes[pass], passes.front());
    if (const double end_ns = static_cast<double>(all.begin_ns.back()) + timeline->time_ns;
        !(end_ns < kMostNs)) {
      throw InvalidInput(str("pass ", name, " ends after ", end_ns / 1e9,
                             " s, and a trace counts nanoseconds up to ", kMostNs / 1e9,
                             " s; draw a shorter sequence, or leave --trace out"));
    }
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      const RankTimeline& drawn = timeline->ranks[rank % timeline->ranks.size()];
      add_slices(all.ranks[rank], pass, plans[rank], drawn.spans, all.begin_ns.back(), correlation);
    }
    all.begin_ns.push_back(align_up(all.begin_ns.back() + whole_ns(timeline->time_ns), kAlignNs));
    add_flows(all, pass);
  }
  title_streams(all);
  return all;
}

}  // namespace cp::sim
