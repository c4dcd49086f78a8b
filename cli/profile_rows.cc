#include "cli/profile_rows.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/cluster/read_cluster.h"

namespace cp::cli {
namespace {

constexpr double kNsPerUs = 1e3, kUsPerMs = 1e3;

// Between the neighbours where q falls between two.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

std::vector<const TimedOp*> labelled(const std::vector<TimedOp>& steps, std::string_view label,
                                     std::size_t skip) {
  std::vector<const TimedOp*> found;
  for (const TimedOp& step : steps) {
    if (step.label == label) found.push_back(&step);
  }
  found.erase(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(std::min(skip, found.size())));
  return found;
}

std::vector<double> inside(const std::vector<const TimedOp*>& own, const std::vector<const TimedOp*>& other) {
  std::vector<double> times;
  if (other.empty()) return times;
  for (const TimedOp* step : own) {
    if (step->begin_ns < other.front()->begin_ns || step->end_ns > other.back()->end_ns) continue;
    times.push_back(static_cast<double>(step->end_ns - step->begin_ns) / kNsPerUs);
  }
  return times;
}

// ---- tables of sim/calibrate ----

using Cells = std::map<std::string, std::string, std::less<>>;

std::string ms_text(const Spread& time) { return fmt::format("{:.9g}", time.median_us / kUsPerMs); }

template <class Point>
std::vector<std::pair<const Point*, const ProfileRow*>> rows_of(const std::vector<ProfileRow>& rows) {
  std::vector<std::pair<const Point*, const ProfileRow*>> found;
  for (const ProfileRow& row : rows) {
    if (const auto* point = std::get_if<Point>(&row.point)) found.emplace_back(point, &row);
  }
  return found;
}

class Profile {
 public:
  Profile(const sim::Cluster& base, const std::vector<ProfileRow>& rows, const ProfileMachine& machine)
      : base_(base), rows_(rows), machine_(machine) {}

  DeviceProfile make(const std::string& name) {
    add_attention();
    add_products();
    add_memory();
    if (machine_.shared_gpu) {
      if (machine_.world > 1) {
        notes_.emplace_back(
            "ranks share a GPU: kernels ran beside those of others, and collectives are in the "
            "table alone");
      }
    } else {
      add_collectives();
    }
    DeviceProfile profile;
    sim::Cluster start = base_;
    start.gpu.name = machine_.gpu;
    if (!machine_.shared_gpu) add_beside(start);
    profile.calibration = sim::calibrate(start, curves_);
    sim::Cluster& cluster = profile.calibration.cluster;
    cluster.name = name;
    for (sim::CurveFit& fit : profile.calibration.fits) {
      fit.source = source(spreads_.at(fit.what));
      for (sim::Source& known : cluster.sources) {
        if (known.field == fit.field) known.text = fit.source;
      }
    }
    profile.notes = notes_;
    profile.text = with_header(sim::write_cluster(cluster));
    return profile;
  }

 private:
  // A table that the cluster refuses is none for it: rates above its peak, say.
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
    if (windows) notes_.emplace_back("windows of attention are in the table alone");
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

  // The curve is that of copies; casts and merges are beside it in the table.
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
      // The bus bandwidth is not known apart from the rate: any fits within that rounding.
      outputs[point->operation].rows.push_back(
          {name(row->point), bytes, row->time.median_us, rate, rate, 2 * rate, 2 * rate});
      of[point->operation].push_back(row);
    }
    for (const auto& [operation, output] : outputs) {
      add(of[operation], [&, &operation = operation, &output = output] {
        return sim::nccl_curves(operation, output, "cprun profile", machine_.world, machine_.machines, base_);
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
    if (!outputs.contains("exchange") || machine_.machines == 1)
      add(pairs, [&] { return sim::transfer_curves(table, "cprun profile", base_); });
  }

  // Of collectives of the library's own number of channels.
  void add_beside(sim::Cluster& cluster) {
    std::vector<double> kept;
    for (const auto& [point, row] : rows_of<BesidePoint>(rows_)) {
      if (point->channels == 0 && row->collective_alone.samples > 0 && row->collective_beside.samples > 0)
        kept.push_back(row->collective_alone.median_us / row->collective_beside.median_us);
    }
    if (kept.empty()) return;
    std::sort(kept.begin(), kept.end());
    const std::string field = "transfer.beside_kernels";
    cluster.transfer.beside_kernels = std::clamp(quantile(kept, 0.5), 0.01, 1.0);
    std::erase_if(cluster.sources, [&](const sim::Source& known) { return known.field == field; });
    cluster.sources.push_back({field,
                               fmt::format("{}: median of {} collectives, which keep {:.3g} to {:.3g}",
                                           where(), kept.size(), kept.front(), kept.back()),
                               false});
  }

  std::string where() const { return str("measured: cprun profile, ", machine_.gpu, ", ", machine_.date); }

  std::string source(const std::pair<int, double>& spread) const {
    return fmt::format("{}: medians of {} or more, half of them within {:.2g} % of one another", where(),
                       spread.first, 100 * spread.second);
  }

  // Behind what the text says of its format.
  std::string with_header(const std::string& cluster) const {
    const std::size_t at = cluster.find("\nname:") + 1;
    std::string text = str("# ", machine_.gpu, ", measured by cprun profile on ", machine_.date, ": ",
                           machine_.world, machine_.world == 1 ? " rank" : " ranks", " on ",
                           machine_.machines, machine_.machines == 1 ? " machine" : " machines",
                           machine_.shared_gpu ? ", which share GPUs" : "", ".\n");
    for (const auto& [library, version] : machine_.libraries)
      text += str("#   ", library, " ", version, "\n");
    if (machine_.sustained_clock_mhz > 0) {
      text += fmt::format(
          "#   SM clock {:.0f} MHz and {:.0f} W after {:.0f} s of products; at most {:.0f} MHz\n",
          machine_.sustained_clock_mhz, machine_.power_w, machine_.seconds, machine_.max_clock_mhz);
    } else {
      text += "#   clocks unknown: NVML is not there\n";
    }
    for (const std::string& note : notes_) text += str("#   ", note, "\n");
    text += str("# What was not measured is that of ", base_.name, ".\n\n");
    return cluster.substr(0, at) + text + cluster.substr(at);
  }

  const sim::Cluster& base_;
  const std::vector<ProfileRow>& rows_;
  const ProfileMachine& machine_;
  std::vector<sim::MeasuredCurve> curves_;
  std::map<std::string, std::pair<int, double>> spreads_;  // by curve: least samples, greatest spread
  std::vector<std::string> notes_;
};

}  // namespace

Spread spread_of(std::vector<double> times_us) {
  if (times_us.empty()) throw InvalidInput("there are no times to take the median of");
  std::sort(times_us.begin(), times_us.end());
  return {static_cast<int>(times_us.size()), quantile(times_us, 0.5), quantile(times_us, 0.25),
          quantile(times_us, 0.75)};
}

std::vector<double> times_of(const std::vector<TimedOp>& steps, std::string_view label, std::size_t skip) {
  std::vector<double> times;
  for (const TimedOp* step : labelled(steps, label, skip))
    times.push_back(static_cast<double>(step->end_ns - step->begin_ns) / kNsPerUs);
  return times;
}

Overlapping overlapping_times(const std::vector<TimedOp>& steps, std::string_view a, std::string_view b,
                              std::size_t skip) {
  const std::vector<const TimedOp*> of_a = labelled(steps, a, skip), of_b = labelled(steps, b, skip);
  return {inside(of_a, of_b), inside(of_b, of_a)};
}

std::string to_text(const Spread& spread) {
  return fmt::format("{} {:.17g} {:.17g} {:.17g}", spread.samples, spread.median_us, spread.low_us,
                     spread.high_us);
}

Spread spread_from_text(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ' ');
  CP_INVARIANT(parts.size() == 4, std::string(text));
  const auto number = [&](std::size_t i) { return std::stod(std::string(parts[i])); };
  return {static_cast<int>(parse_int(parts[0], "samples")), number(1), number(2), number(3)};
}

Spread slowest(const std::vector<Spread>& ranks) {
  Spread result;
  for (const Spread& rank : ranks) {
    if (rank.samples > 0 && rank.median_us >= result.median_us) result = rank;
  }
  return result;
}

std::string profile_csv(const std::vector<ProfileRow>& rows) {
  std::string text = "what,figure,samples,median_us,low_us,high_us,rate,unit\n";
  const auto add = [&text](const std::string& what, const char* figure, const Spread& time, double rate,
                           const char* unit) {
    if (time.samples == 0) return;
    text += fmt::format("\"{}\",{},{},{:.6g},{:.6g},{:.6g},{:.5g},{}\n", what, figure, time.samples,
                        time.median_us, time.low_us, time.high_us, rate / time.median_us, unit);
  };
  for (const ProfileRow& row : rows) {
    const std::string what = name(row.point);
    if (const auto* attention = std::get_if<AttentionPoint>(&row.point)) {
      add(what, "kernel", row.time, flops(*attention) * 1e-6, "TFLOP/s");
    } else if (const auto* memory = std::get_if<MemoryPoint>(&row.point)) {
      add(what, "kernel", row.time, static_cast<double>(moved_bytes(*memory)) * 1e-3, "GB/s");
    } else if (const auto* product = std::get_if<ProductPoint>(&row.point)) {
      add(what, "kernel", row.time,
          2e-6 * static_cast<double>(product->m) * static_cast<double>(product->n) *
              static_cast<double>(product->k),
          "TFLOP/s");
    } else if (const auto* collective = std::get_if<CollectivePoint>(&row.point)) {
      add(what, "collective", row.time, static_cast<double>(collective->bytes) * 1e-3, "GB/s");
    } else if (const auto* pairs = std::get_if<PairsPoint>(&row.point)) {
      add(what, "collective", row.time, static_cast<double>(pairs->bytes) * 1e-3, "GB/s of a pair");
    } else {
      // The rate is what is kept of the one alone.
      add(what, "kernel alone", row.kernel_alone, row.kernel_alone.median_us, "of itself");
      add(what, "kernel beside", row.time, row.kernel_alone.median_us, "of it alone");
      add(what, "collective alone", row.collective_alone, row.collective_alone.median_us, "of itself");
      add(what, "collective beside", row.collective_beside, row.collective_alone.median_us, "of it alone");
    }
  }
  return text;
}

std::string preset_of_gpu(const std::string& gpu) {
  // Longer names first; what nvidia-smi calls them.
  constexpr std::pair<std::string_view, std::string_view> kPresets[] = {
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
