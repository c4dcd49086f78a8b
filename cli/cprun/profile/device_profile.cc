#include "cli/cprun/profile/device_profile.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/base/units.h"
#include "sim/cost/cluster/read_cluster.h"

namespace cp::cli {
namespace {

using Cells = std::map<std::string, std::string, std::less<>>;

std::string ms_text(const Spread& time) { return fmt::format("{:.9g}", time.median_us / kUsPerMs); }

class Profile {
 public:
  Profile(const sim::Cluster& base, const std::vector<ProfileRow>& rows, const ProfileMachine& machine)
      : base_(base), rows_(rows), machine_(machine) {}

  DeviceProfile make(const std::string& name) {
    add_attention();
    add_products();
    add_memory();
    if (machine_.world.shared_gpu) {
      if (machine_.world.ranks > 1)
        notes_.emplace_back(
            "ranks share a GPU, so that their collectives are only in the .csv, and not in the cluster");
    } else {
      add_collectives();
    }
    DeviceProfile profile;
    sim::Cluster start = base_;
    start.gpu.name = machine_.gpu;
    if (!machine_.world.shared_gpu) add_beside(start);
    profile.calibration = sim::calibrate(start, curves_);
    sim::Cluster& cluster = profile.calibration.cluster;
    cluster.name = name;
    for (sim::CurveFit& fit : profile.calibration.fits) {
      fit.provenance = {sim::Origin::measured, source(spreads_.at(fit.what))};
      for (sim::Source& known : cluster.sources) {
        if (known.field == fit.field) known.provenance = fit.provenance;
      }
    }
    profile.notes = notes_;
    std::string comments = comments_of(machine_);
    for (const std::string& note : notes_) comments += str("#   ", note, "\n");
    comments += str("# Figures that were not measured are those of ", base_.name, ".\n");
    profile.text = with_comments(sim::write_cluster(cluster), comments);
    return profile;
  }

 private:
  // Adds the curves that make() makes of some rows. A table that the cluster refuses, for example because its
  // rates are above the cluster's peak, becomes a note instead.
  void add(const std::vector<const ProfileRow*>& of,
           const std::function<std::vector<sim::MeasuredCurve>()>& make) {
    if (of.empty()) return;
    double spread = 0;
    int samples = of.front()->time.samples;
    for (const ProfileRow* row : of) {
      spread = std::max(spread, row->time.relative());
      samples = std::min(samples, row->time.samples);
    }
    try {
      for (sim::MeasuredCurve& curve : make()) {
        spreads_[curve.what] = {samples, spread};
        curves_.push_back(std::move(curve));
      }
    } catch (const InvalidInput& error) {
      notes_.emplace_back(str("not in the cluster: ", error.what()));
    }
  }

  void add_attention() {
    std::map<std::int64_t, std::vector<sim::CsvRow>> tables;  // by head_dim
    std::map<std::int64_t, std::vector<const ProfileRow*>> of;
    std::map<std::int64_t, int> heads;
    bool windows = false;
    for (const auto& [point, row] : rows_of<AttentionPoint>(rows_)) {
      windows = windows || point->mask == AttentionPoint::Mask::window;
      if (point->mask == AttentionPoint::Mask::window) continue;
      tables[point->head_dim].emplace_back(
          name(row->point),
          Cells{{"seq_len", str(point->seq_len)},
                {"mask", std::string(name(point->mask))},
                {point->backward ? "backward_milliseconds" : "forward_milliseconds", ms_text(row->time)}});
      of[point->head_dim].push_back(row);
      heads[point->head_dim] = static_cast<int>(point->q_heads);
    }
    for (const auto& [head_dim, table] : tables) {
      const sim::AttentionShape shape{heads[head_dim], static_cast<int>(head_dim), 1};
      add(of[head_dim],
          [&, &table = table] { return sim::attention_curves(table, "cprun profile", shape, base_); });
    }
    if (windows) notes_.emplace_back("attention with a window is only in the .csv, and not in the cluster");
  }

  void add_products() {
    std::vector<sim::CsvRow> table;
    std::vector<const ProfileRow*> of;
    for (const auto& [point, row] : rows_of<ProductPoint>(rows_)) {
      table.emplace_back(name(row->point), Cells{{"m", str(point->m)},
                                                 {"n", str(point->n)},
                                                 {"k", str(point->k)},
                                                 {"milliseconds", ms_text(row->time)}});
      of.push_back(row);
    }
    add(of, [&] { return std::vector{sim::matmul_curve(table, "cprun profile", base_)}; });
  }

  // The cluster's curve is that of copies. Casts and merges are only in the table.
  void add_memory() {
    std::vector<sim::CsvRow> table;
    std::vector<const ProfileRow*> of;
    for (const auto& [point, row] : rows_of<MemoryPoint>(rows_)) {
      if (point->kernel != MemoryPoint::Kernel::copy) continue;
      table.emplace_back(name(row->point),
                         Cells{{"bytes", str(moved_bytes(*point))}, {"milliseconds", ms_text(row->time)}});
      of.push_back(row);
    }
    add(of, [&] { return std::vector{sim::memory_curve(table, "cprun profile", base_)}; });
  }

  void add_collectives() {
    std::map<std::string, sim::NcclOutput> outputs;
    std::map<std::string, std::vector<const ProfileRow*>> of;
    for (const auto& [point, row] : rows_of<CollectivePoint>(rows_)) {
      if (point->operation == "broadcast") continue;  // the engine has no curve for it
      const auto bytes = static_cast<double>(point->bytes);
      const double rate = bytes / (row->time.median_us * kNsPerUs);
      // The bus bandwidth is not known apart from the rate, so its rounding is given so wide that any value
      // fits.
      outputs[point->operation].rows.push_back(
          {name(row->point), bytes, row->time.median_us, rate, rate, 2 * rate, 2 * rate});
      of[point->operation].push_back(row);
    }
    for (const auto& [operation, output] : outputs) {
      add(of[operation], [&, &operation = operation, &output = output] {
        return sim::nccl_curves(operation, output, "cprun profile", machine_.world.ranks,
                                machine_.world.machines, base_);
      });
    }
    std::vector<sim::CsvRow> table;
    std::vector<const ProfileRow*> pairs;
    for (const auto& [point, row] : rows_of<PairsPoint>(rows_)) {
      if (point->pairs != 1) continue;
      const double rate = static_cast<double>(point->bytes) / (row->time.median_us * kNsPerUs);
      table.emplace_back(name(row->point), Cells{{"payload_bytes", str(point->bytes)},
                                                 {"inter_node_gbps", fmt::format("{:.9g}", rate)}});
      pairs.push_back(row);
    }
    // An exchange across machines gives that curve too.
    if (!outputs.contains("exchange") || machine_.world.machines == 1)
      add(pairs, [&] { return sim::transfer_curves(table, "cprun profile", base_); });
  }

  // Sets what collectives keep of their speed beside kernels, if the library chooses their channels.
  void add_beside(sim::Cluster& cluster) {
    const std::vector<double> kept = kept_by_channels(rows_)[0].collectives;
    if (kept.empty()) return;
    const Summary summary = summary_of(kept);
    const std::string field = "transfer.beside_kernels";
    cluster.transfer.beside_kernels = std::clamp(summary.median, 0.01, 1.0);
    std::erase_if(cluster.sources, [&](const sim::Source& known) { return known.field == field; });
    cluster.sources.push_back(
        {field,
         {sim::Origin::measured,
          str(source_of(machine_), ": what collectives keep of their speed beside a kernel, ",
              to_text(summary))}});
  }

  std::string source(const std::pair<int, double>& spread) const {
    return fmt::format("{}: medians of {} or more, half of them within {:.2g} % of one another",
                       source_of(machine_), spread.first, 100 * spread.second);
  }

  const sim::Cluster& base_;
  const std::vector<ProfileRow>& rows_;
  const ProfileMachine& machine_;
  std::vector<sim::MeasuredCurve> curves_;
  std::map<std::string, std::pair<int, double>> spreads_;  // by curve: least samples, greatest spread
  std::vector<std::string> notes_;
};

}  // namespace

std::string preset_of_gpu(const std::string& gpu) {
  // Words in the names that nvidia-smi shows. The first word that fits counts, so longer ones come first.
  constexpr std::pair<std::string_view, std::string_view> kPresets[] = {
      {"GB300", "gb300-nvl72"},   {"B300", "hgx-b300"}, {"L40S", "l40s-pcie"},
      {"GB200", "gb200-nvl72"},   {"B200", "hgx-b200"}, {"H200", "hgx-h200"},
      {"H800", "h800"},           {"H100", "dgx-h100"}, {"A100 80GB PCIe", "a100-pcie"},
      {"A100-PCIE", "a100-pcie"}, {"A100", "dgx-a100"}, {"A800", "a800"},
      {"L20", "l20-pcie"}};
  for (const auto& [word, preset] : kPresets) {
    if (gpu.find(word) != std::string::npos) return std::string(preset);
  }
  return "";
}

DeviceProfile device_profile(const sim::Cluster& base, const std::string& name,
                             const std::vector<ProfileRow>& rows, const ProfileMachine& machine) {
  return Profile(base, rows, machine).make(name);
}

}  // namespace cp::cli
