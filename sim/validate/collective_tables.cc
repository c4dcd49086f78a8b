// nccl-tests, each size predicted from the others.
#include <cmath>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shared/base/text.h"
#include "sim/cluster/curve.h"
#include "sim/cluster/read_cluster.h"
#include "sim/presets/csv.h"
#include "sim/timeline/collective_cost.h"
#include "sim/validate/tables.h"

namespace cp::sim::detail {
namespace {

constexpr double kMib = 1 << 20;

// A machine's own quirk: one-node send_recv of 16 to 256 MiB on B200 takes nearly as long as 512 MiB.
bool quirk(const std::string& system, int nodes, const std::string& collective, double bytes) {
  return system == "B200" && nodes == 1 && collective == "send_recv" && bytes >= 16 * kMib &&
         bytes <= 256 * kMib;
}

CollectiveKind kind_of(const std::string& operation) {
  for (const CollectiveKind kind :
       {CollectiveKind::all_gather, CollectiveKind::reduce_scatter, CollectiveKind::all_reduce,
        CollectiveKind::all_to_all, CollectiveKind::broadcast}) {
    if (name(kind) == operation) return kind;
  }
  return CollectiveKind::send_recv;
}

}  // namespace

ValidationTable nccl_algebra() {
  ValidationTable table{.cluster = "hgx-b200, dgx-h100", .software = "NCCL"};
  table.in_sample_rule =
      "long transfers of B200 set the share of a link's rate; H100 is scored, and shorter ones";
  for (const CsvRow& csv : validation_table("nccl_tests")) {
    const double bytes = csv.number("total_bytes");
    if (bytes < kMib) continue;
    const std::string& system = csv.text("system");
    const int nodes = static_cast<int>(csv.number("nodes"));
    const Cluster cluster = find_cluster(system == "B200" ? "hgx-b200" : "dgx-h100", nodes);
    std::string operation = csv.text("collective");
    CollectiveSettings settings;
    if (const std::size_t colon = operation.find(':'); colon != std::string::npos) {
      settings.channels_per_net_peer = operation.back() - '0';
      operation.resize(colon);
    }
    const Spread spread{static_cast<int>(csv.number("gpus")), nodes,
                        static_cast<int>(csv.number("gpus")) / nodes};
    ValidationRow row{.where = csv.where()};
    row.what = str(system, " x ", csv.text("gpus"), " ", csv.text("collective"), " ",
                   human_bytes(static_cast<std::int64_t>(bytes)));
    row.measured = csv.number("microseconds");
    const CollectiveChoice choice =
        fastest(collective_choices(kind_of(operation), spread, cluster, settings), bytes);
    row.what += str(" by ", name(choice.algorithm), " ", name(choice.protocol));
    row.predicted = choice.us(bytes);
    row.in_sample = system == "B200" && bytes > 4096 * kMib;
    if (quirk(system, nodes, operation, bytes)) row.oddity = "one machine's quirk";
    table.rows.push_back(std::move(row));
  }
  return table;
}

ValidationTable nccl_tests(Sizes sizes) {
  ValidationTable table{.cluster = "hgx-b200, dgx-h100", .software = "NCCL"};
  table.in_sample_rule = "each size is predicted from the other sizes of its collective and system";
  if (sizes == Sizes::medium) table.target_median = 0.15, table.target_p90 = 0.30;
  if (sizes == Sizes::large) table.target_median = 0.05, table.target_p90 = 0.15;
  std::map<std::tuple<std::string, int, std::string>, std::vector<CsvRow>> series;
  for (const CsvRow& row : validation_table("nccl_tests")) {
    series[{row.text("system"), static_cast<int>(row.number("gpus")), row.text("collective")}].push_back(row);
  }
  for (const auto& [key, rows] : series) {
    const auto& [system, gpus, collective] = key;
    const int nodes = static_cast<int>(rows.front().number("nodes"));
    for (std::size_t left_out = 0; left_out < rows.size(); ++left_out) {
      const double bytes = rows[left_out].number("total_bytes");
      const Sizes its = bytes < kMib ? Sizes::small : bytes < 64 * kMib ? Sizes::medium : Sizes::large;
      if (its != sizes) continue;
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
    }
  }
  return table;
}

}  // namespace cp::sim::detail
