#include "sim/present/runs/redistribution_report.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shared/base/text.h"
#include "sim/base/number_text.h"
#include "sim/present/table.h"

namespace cp::sim {
namespace {

using nlohmann::ordered_json;

std::vector<std::string> axis_names(const Move& move) {
  std::vector<std::string> names;
  for (const int axis : move.axes)
    names.push_back(move.from.mesh.axes()[static_cast<std::size_t>(axis)].name);
  return names;
}

std::string axes_text(const Move& move) {
  if (!move.axes.empty()) return join(axis_names(move));
  return move.from.mesh == move.to.mesh ? "-" : "all ranks";
}

std::string shape_text(const Layout& layout) {
  return str(layout.shape.empty() ? "scalar" : join(layout.shape, "x"), " ", name(layout.dtype));
}

// Says "up to" if ranks hold more or less of it.
std::string shard_text(const Layout& layout) {
  const std::int64_t most = max_local_bytes(layout);
  const auto& ranks = layout.mesh.ranks();
  const bool even =
      std::all_of(ranks.begin(), ranks.end(), [&](Rank rank) { return local_bytes(layout, rank) == most; });
  return fmt::format("{}{} per rank", even ? "" : "up to ", human_bytes(most));
}

std::string header_text(const Explanation& e) {
  const Layout& source = e.chosen.source;
  const Layout& target = e.chosen.target;
  std::string text = fmt::format("{}, {} in all\n", shape_text(source),
                                 human_bytes(numel(source.shape) * size_bytes(source.dtype)));
  if (!e.gradient_of.empty()) text += fmt::format("gradient of {}\n", e.gradient_of);
  Table ends({{""}, {""}, {""}, {""}});
  const auto add = [&](std::string_view word, const Layout& layout) {
    ends.add_row({std::string(word), placements_to_string(layout), str("on ", layout.mesh.to_string()),
                  (layout.dtype == source.dtype ? "" : str(name(layout.dtype), ", ")) + shard_text(layout)});
  };
  add("from", source);
  add("to", target);
  text += ends.text().substr(1);  // without the line of titles
  if (e.chosen.travel_dtype != source.dtype)
    text += fmt::format("travels as {}\n", name(e.chosen.travel_dtype));
  return text;
}

bool is_padded(const Redistribution& r) {
  return std::any_of(r.steps.begin(), r.steps.end(), [](const RedistributionStep& step) {
    return step.wire_bytes_received_total != step.bytes_received_total;
  });
}

std::int64_t wire_bytes(const Redistribution& r) {
  std::int64_t bytes = 0;
  for (const RedistributionStep& step : r.steps) bytes += step.wire_bytes_received_total;
  return bytes;
}

std::string scale_text(double scale) { return fmt::format("scale x{:.6g}", scale); }

double total_us(const Explanation& e, const Redistribution& r) { return r.time_us + e.scale_time_us; }

std::string steps_text(const Explanation& e) {
  const Redistribution& r = e.chosen;
  const bool padded = is_padded(r);
  std::vector<Column> columns = {{"step", Align::right},
                                 {"kind"},
                                 {"mesh axes"},
                                 {"from"},
                                 {"to"},
                                 {"received per rank", Align::right},
                                 {"received in all", Align::right}};
  if (padded) columns.push_back({"with padding", Align::right});
  columns.push_back({"time", Align::right});
  Table table(std::move(columns));
  const auto add = [&](std::vector<std::string> cells, std::int64_t most, std::int64_t total,
                       std::int64_t wire, double time_us) {
    cells.push_back(human_bytes(most));
    cells.push_back(human_bytes(total));
    if (padded) cells.push_back(human_bytes(wire));
    cells.push_back(human_us(time_us));
    table.add_row(std::move(cells));
  };
  for (std::size_t i = 0; i < r.steps.size(); ++i) {
    const RedistributionStep& step = r.steps[i];
    add({str(i + 1), std::string(name(step.move.kind)), axes_text(step.move),
         placements_to_string(step.move.from), placements_to_string(step.move.to)},
        step.bytes_received_max, step.bytes_received_total, step.wire_bytes_received_total, step.time_us);
  }
  if (e.scale != 1) {
    const std::string at = placements_to_string(r.target);
    add({str(r.steps.size() + 1), scale_text(e.scale), "-", at, at}, 0, 0, 0, e.scale_time_us);
  }
  add({"", "total", "", "", ""}, r.bytes_received_max, r.bytes_received_total, wire_bytes(r), total_us(e, r));
  return table.text();
}

std::string memory_text(const Explanation& e) {
  return fmt::format("peak memory {} per rank; bound {} (source + target + {:g} x 2 x the largest shard)\n",
                     human_bytes(e.chosen.peak_bytes), human_bytes(e.chosen.bound_bytes),
                     e.max_memory_factor);
}

std::string ratio_text(double time_us, double chosen_us) {
  if (chosen_us <= 0) return "";
  return fmt::format(" ({:.3g}x)", time_us / chosen_us);
}

// Says why the plan is not another one that comes to mind.
std::string alternatives_text(const Explanation& e) {
  std::string text;
  if (const double times = e.chosen.times_the_best(); times > 1) {
    text += fmt::format(
        "at most {:.2g} times the {} of the best there may be: too many layouts to try all ways\n", times,
        e.objective == Objective::time ? "time" : "bytes on the wire");
  }
  const auto add = [&](std::string_view question, double time, std::int64_t peak_bytes,
                       const std::string& note) {
    text += fmt::format("{} {}{}, peak {} per rank{}\n", question, human_us(time),
                        ratio_text(time, total_us(e, e.chosen)), human_bytes(peak_bytes), note);
  };
  if (e.direct) {
    add(e.leanest_is_direct ? "why not one direct exchange, the leanest plan?"
                            : "why not one direct exchange?",
        total_us(e, *e.direct), e.direct->peak_bytes,
        e.direct->peak_bytes <= e.direct->bound_bytes ? "" : ", above the bound");
  }
  if (e.leanest && !e.leanest_is_direct) {
    add("why not the leanest plan?", total_us(e, *e.leanest), e.leanest->peak_bytes,
        str(": ", chain_text(*e.leanest, e.scale)));
  }
  return text;
}

bool same_chain(const Redistribution& a, const Redistribution& b) {
  return std::equal(a.steps.begin(), a.steps.end(), b.steps.begin(), b.steps.end(),
                    [](const RedistributionStep& x, const RedistributionStep& y) {
                      return x.move.kind == y.move.kind && x.move.axes == y.move.axes &&
                             x.move.to == y.move.to;
                    });
}

std::string pareto_text(const Explanation& e) {
  Table table({{""},
               {"time", Align::right},
               {"received per rank", Align::right},
               {"peak per rank", Align::right},
               {"chain"}});
  const auto add = [&](const Redistribution& r, bool chosen) {
    table.add_row({chosen ? "*" : "", human_us(total_us(e, r)), human_bytes(r.bytes_received_max),
                   human_bytes(r.peak_bytes), chain_text(r, e.scale)});
  };
  bool found = false;
  for (const Redistribution& r : e.pareto) {
    const bool chosen = !found && same_chain(r, e.chosen);
    add(r, chosen);
    found = found || chosen;
  }
  // With the objective bytes, the chosen plan may be one that another one beats in time and memory.
  if (!found) add(e.chosen, true);
  return fmt::format("\nplans that no other beats in both time and peak memory (* chosen for {}):\n{}",
                     e.objective == Objective::time ? "time" : "bytes", table.text());
}

ordered_json totals_json(const Explanation& e, const Redistribution& r) {
  return {{"bytes_received_max", r.bytes_received_max},
          {"bytes_received_total", r.bytes_received_total},
          {"wire_bytes_received_total", wire_bytes(r)},
          {"time_us", total_us(e, r)},
          {"at_most_times_the_best",
           std::isfinite(r.times_the_best()) ? ordered_json(r.times_the_best()) : ordered_json()},
          {"peak_bytes", r.peak_bytes},
          {"bound_bytes", r.bound_bytes}};
}

ordered_json steps_json(const Explanation& e, const Redistribution& r) {
  ordered_json steps = ordered_json::array();
  for (const RedistributionStep& step : r.steps) {
    steps.push_back({{"kind", name(step.move.kind)},
                     {"mesh_axes", axis_names(step.move)},
                     {"from", placements_to_string(step.move.from)},
                     {"to", placements_to_string(step.move.to)},
                     {"bytes_received_max", step.bytes_received_max},
                     {"bytes_received_total", step.bytes_received_total},
                     {"wire_bytes_received_total", step.wire_bytes_received_total},
                     {"time_us", step.time_us}});
  }
  if (e.scale != 1) {
    const std::string at = placements_to_string(r.target);
    steps.push_back({{"kind", "scale"},
                     {"factor", e.scale},
                     {"mesh_axes", ordered_json::array()},
                     {"from", at},
                     {"to", at},
                     {"bytes_received_max", 0},
                     {"bytes_received_total", 0},
                     {"wire_bytes_received_total", 0},
                     {"time_us", e.scale_time_us}});
  }
  return steps;
}

}  // namespace

std::string chain_text(const Redistribution& redistribution, double scale) {
  std::string text;
  for (const RedistributionStep& step : redistribution.steps) {
    text += fmt::format("{}{}", text.empty() ? "" : " > ", name(step.move.kind));
    if (!step.move.axes.empty()) text += fmt::format("({})", join(axis_names(step.move)));
  }
  if (scale != 1) text += fmt::format("{}{}", text.empty() ? "" : " > ", scale_text(scale));
  return text.empty() ? "nothing to do" : text;
}

std::string report_text(const Explanation& e) {
  std::string text = header_text(e) + "\n";
  if (e.chosen.steps.empty() && e.scale == 1) {
    const bool casts = e.chosen.source.dtype != e.chosen.target.dtype;
    text += fmt::format(
        "no steps: both layouts are the same index maps, every rank already holds what it is to hold{}\n",
        casts ? ", but for a cast" : "");
  } else {
    text += steps_text(e);
  }
  if (!e.cluster.empty()) text += fmt::format("times on {}\n", e.cluster);
  text += memory_text(e);
  if (!e.pareto.empty()) return text + pareto_text(e);
  return text + alternatives_text(e);
}

ordered_json report_json(const Explanation& e) {
  const Redistribution& r = e.chosen;
  ordered_json json = {{"shape", r.source.shape},
                       {"dtype", name(r.source.dtype)},
                       {"travel_dtype", name(r.travel_dtype)},
                       {"mesh", r.source.mesh.to_string()},
                       {"to_mesh", r.target.mesh.to_string()},
                       {"from", placements_to_string(r.source)},
                       {"to", placements_to_string(r.target)},
                       {"objective", e.objective == Objective::time ? "time" : "bytes"}};
  if (!e.cluster.empty()) json["cluster"] = e.cluster;
  if (!e.gradient_of.empty()) json["gradient"] = {{"of", e.gradient_of}, {"scale", e.scale}};
  json["steps"] = steps_json(e, r);
  json["totals"] = totals_json(e, r);
  if (e.direct) {
    json["direct_exchange"] = {{"steps", steps_json(e, *e.direct)}, {"totals", totals_json(e, *e.direct)}};
  }
  if (e.leanest)
    json["leanest"] = {{"steps", steps_json(e, *e.leanest)}, {"totals", totals_json(e, *e.leanest)}};
  for (const Redistribution& other : e.pareto) {
    json["pareto"].push_back({{"steps", steps_json(e, other)}, {"totals", totals_json(e, other)}});
  }
  return json;
}

std::string run_text(const sim::RedistributeRun& run) {
  return fmt::format(
      "verified: {} ranks, {} compared, all {} elements right; peak {} per rank, {} in all; {} to check the "
      "plans, {} to make "
      "data, {} to run, {} to compare\n",
      run.num_ranks, human_bytes(run.bytes_compared), human_count(run.elements_compared),
      human_bytes(run.peak_bytes), human_bytes(run.memory_bytes), human_seconds(run.check_s),
      human_seconds(run.fill_s), human_seconds(run.run_s), human_seconds(run.compare_s));
}

ordered_json run_json(const sim::RedistributeRun& run) {
  return {{"ranks", run.num_ranks},
          {"elements_compared", run.elements_compared},
          {"bytes_compared", run.bytes_compared},
          {"memory_bytes", run.memory_bytes},
          {"peak_bytes", run.peak_bytes},
          {"wire_bytes", run.wire_bytes},
          {"check_s", run.check_s},
          {"fill_s", run.fill_s},
          {"run_s", run.run_s},
          {"compare_s", run.compare_s}};
}

}  // namespace cp::sim
