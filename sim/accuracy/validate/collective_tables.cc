// nccl-tests: each size predicted from the others, and all of them by algebra.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shared/base/text.h"
#include "sim/accuracy/validate/nccl_systems.h"
#include "sim/accuracy/validate/tables.h"
#include "sim/cost/cluster/curve.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/presets/csv.h"
#include "sim/cost/timeline/collective_cost.h"

namespace cp::sim::detail {
namespace {

constexpr double kMib = 1 << 20;

// A machine's own quirk: one-node send_recv of 16 to 256 MiB on B200 takes nearly as long as 512 MiB.
bool quirk(const std::string& system, int nodes, const std::string& collective, double bytes) {
  return system == "B200" && nodes == 1 && collective == "send_recv" && bytes >= 16 * kMib &&
         bytes <= 256 * kMib;
}

Sizes sizes_of(double bytes) {
  return bytes < kMib ? Sizes::small : bytes < 64 * kMib ? Sizes::medium : Sizes::large;
}

// nccl-tests calls an exchange send_recv.
CollectiveKind kind_of(const std::string& operation) {
  return collective_kind(operation == "send_recv" ? "exchange" : operation);
}

ValidationRow algebra_row(const std::string& what, const std::string& operation, double bytes,
                          const Spread& spread, const Cluster& cluster,
                          const CollectiveSettings& settings = {}) {
  const CollectiveChoice choice =
      fastest(collective_choices(kind_of(operation), spread, cluster, settings), bytes);
  ValidationRow row;
  row.what = str(what, " ", human_bytes(static_cast<std::int64_t>(bytes)), " by ", name(choice.algorithm),
                 " ", name(choice.protocol));
  row.predicted = choice.us(bytes);
  return row;
}

// Where a row is from, and what kind of prediction it is: errors of one kind are alike.
struct Origin {
  std::string system;
  bool measured = false, across = false, nvlink = true;
  double bytes = 0;
  bool alike(const Origin& other) const {
    return measured == other.measured && across == other.across && nvlink == other.nvlink;
  }
};

// The width of each row: what eight in ten of the other systems' errors are below, of rows that set nothing;
// where they are too few, the width that answers print.
void set_intervals(const std::vector<Origin>& origins, std::vector<ValidationRow>& rows) {
  // Chosen: of fewer errors, an 80th percentile is one of the two largest.
  constexpr std::size_t kEnough = 10;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<double> others;
    for (std::size_t other = 0; other < rows.size(); ++other) {
      if (origins[other].system != origins[i].system && origins[other].alike(origins[i]) &&
          rows[other].scored())
        others.push_back(std::exp(std::abs(std::log(rows[other].predicted / rows[other].measured))) - 1);
    }
    const Origin& of = origins[i];
    double width = collective_width(of.measured, of.across, of.nvlink, of.bytes);
    if (others.size() >= kEnough) {
      std::sort(others.begin(), others.end());
      width = percentile(others, 0.8);
    }
    rows[i].low = rows[i].predicted / (1 + width), rows[i].high = rows[i].predicted * (1 + width);
  }
}

// Two nodes of B200 set what is between nodes; on one node the constants are those of nccl_gpus.csv.
void add_nccl_tests(Sizes sizes, ValidationTable& table, std::vector<Origin>& origins) {
  for (const CsvRow& csv : validation_table("nccl_tests")) {
    const double bytes = csv.number("total_bytes");
    if (sizes_of(bytes) != sizes) continue;
    const std::string& system = csv.text("system");
    const int nodes = static_cast<int>(csv.number("nodes")), gpus = static_cast<int>(csv.number("gpus"));
    std::string operation = csv.text("collective");
    CollectiveSettings settings;
    if (const std::size_t colon = operation.find(':'); colon != std::string::npos) {
      settings.channels_per_net_peer = operation.back() - '0';
      operation.resize(colon);
    }
    ValidationRow row = algebra_row(
        str(system, " x ", gpus, " ", csv.text("collective")), operation, bytes, {gpus, nodes, gpus / nodes},
        find_cluster(system == "B200" ? "hgx-b200" : "dgx-h100", nodes), settings);
    row.where = csv.where();
    row.measured = csv.number("microseconds");
    row.in_sample = nodes > 1;
    if (quirk(system, nodes, operation, bytes)) row.oddity = "one machine's quirk";
    table.rows.push_back(std::move(row));
    origins.push_back({str(system, " x ", gpus), false, nodes > 1, true, bytes});
  }
}

void add_nccl_gpus(Sizes sizes, ValidationTable& table, std::vector<Origin>& origins) {
  std::map<std::string, NcclSystem> systems;
  for (const CsvRow& csv : validation_table("nccl_gpus")) {
    const double bytes = csv.number("total_bytes");
    if (sizes_of(bytes) != sizes) continue;
    const std::string &name = csv.text("system"), &operation = csv.text("collective");
    if (systems.find(name) == systems.end()) systems[name] = nccl_system(name);
    const NcclSystem& system = systems[name];
    const int gpus = static_cast<int>(csv.number("gpus"));
    ValidationRow row = algebra_row(str(name, " x ", gpus, " ", operation), operation, bytes, {gpus, 1, gpus},
                                    system.cluster);
    row.where = csv.where();
    row.measured = csv.number("microseconds");
    row.in_sample = system.fitted || (name == "L40S" && operation == "all_to_all" && gpus > 2);
    table.rows.push_back(std::move(row));
    origins.push_back({name, false, false, system.cluster.node.nvlink_gbps > 0, bytes});
  }
}

constexpr const char* kStated =
    "stated beforehand for clusters that nobody measured: 12 % from 64 MiB on, 15 % from 1 MiB on, 30 % "
    "below";

}  // namespace

ValidationTable nccl_algebra(Sizes sizes) {
  ValidationTable table{.cluster = "one node of nine systems, two of B200", .software = "NCCL"};
  table.in_sample_rule =
      "A100, H100, B200, RTX PRO 6000 of nccl_gpus.csv and two nodes of B200 set the shares; other GPUs and "
      "machines are scored";
  table.target_median = sizes == Sizes::small ? 0.30 : sizes == Sizes::medium ? 0.15 : 0.12;
  table.target_origin = kStated;
  table.interval_origin =
      "errors of the other systems in the table; of PCIe there is one that set nothing, and its width is of "
      "its own "
      "rows";
  std::vector<Origin> origins;
  add_nccl_gpus(sizes, table, origins);
  add_nccl_tests(sizes, table, origins);
  set_intervals(origins, table.rows);
  return table;
}

ValidationTable nccl_tests(Sizes sizes) {
  ValidationTable table{.cluster = "hgx-b200, dgx-h100", .software = "NCCL"};
  table.in_sample_rule = "each size is predicted from the other sizes of its collective and system";
  if (sizes == Sizes::medium) table.target_median = 0.15, table.target_p90 = 0.30;
  if (sizes == Sizes::large) table.target_median = 0.05, table.target_p90 = 0.15;
  if (sizes == Sizes::small) table.target_median = 0.30;
  table.target_origin = sizes == Sizes::small
                            ? kStated
                            : "the scatter of two machines of one kind, in nccl_tests and in nccl_gpus: from "
                              "64 MiB on 1 % in the "
                              "median and 7 % at the 90th percentile, from 1 MiB on 9 % and 31 %";
  table.interval_origin = "errors of the other systems and collectives in the table";
  std::vector<Origin> origins;
  std::map<std::tuple<std::string, int, std::string>, std::vector<CsvRow>> series;
  for (const CsvRow& row : validation_table("nccl_tests")) {
    series[{row.text("system"), static_cast<int>(row.number("gpus")), row.text("collective")}].push_back(row);
  }
  // Each row is left out once and predicted from the curve of the others, as a size between two measured ones
  // is.
  for (const auto& [key, rows] : series) {
    const auto& [system, gpus, collective] = key;
    const int nodes = static_cast<int>(rows.front().number("nodes"));
    for (std::size_t left_out = 0; left_out < rows.size(); ++left_out) {
      const double bytes = rows[left_out].number("total_bytes");
      if (sizes_of(bytes) != sizes) continue;
      std::vector<CurvePoint> points;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const double other = rows[i].number("total_bytes");
        if (i != left_out && !quirk(system, nodes, collective, other)) {
          points.push_back({other, rows[i].number("microseconds")});
        }
      }
      ValidationRow row{.where = rows[left_out].where()};
      row.what =
          str(system, " x ", gpus, " ", collective, " ", human_bytes(static_cast<std::int64_t>(bytes)));
      row.measured = rows[left_out].number("microseconds");
      row.predicted = along_us(Curve(std::move(points)), bytes);
      if (quirk(system, nodes, collective, bytes)) row.oddity = "one machine's quirk";
      table.rows.push_back(std::move(row));
      origins.push_back({str(system, " ", gpus, " ", collective), true, nodes > 1, true, bytes});
    }
  }
  set_intervals(origins, table.rows);
  return table;
}

}  // namespace cp::sim::detail
