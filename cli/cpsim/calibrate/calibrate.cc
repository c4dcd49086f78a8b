// cpsim calibrate: a cluster, and the free parameters of a software profile, from what people measured on
// theirs.
#include "sim/accuracy/calibrate/calibrate.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/flags.h"
#include "cli/common/progress_line.h"
#include "cli/cpsim/commands.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/accuracy/calibrate/fit_software.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/present/table.h"
#include "traces/read_text.h"

namespace cp::cli {
namespace {

using nlohmann::ordered_json;

struct Flags {
  std::string cluster, name, out;
  std::vector<std::string> nccl_tests, point_to_point, attention, matmul, memory;
  int gpus = 0, nodes = 0;
  sim::AttentionShape shape;
  std::vector<std::string> gpu;
  std::string rows, fit, software, software_out, min_hop;
  std::vector<std::string> where, except;
  bool json = false;
};

// ---- flags ----

// Reads "a=b".
std::pair<std::string, std::string> pair_of(const char* flag, std::string_view text, const char* example) {
  const std::size_t equals = text.find('=');
  if (equals != std::string_view::npos && equals > 0 && equals + 1 < text.size())
    return {std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
  throw InvalidInput(
      str(flag, " ", text, " does not have the form NAME=VALUE; write, for example, ", example));
}

std::vector<sim::CsvCells> cells_of(const char* flag, const std::vector<std::string>& texts) {
  std::vector<sim::CsvCells> all;
  for (const std::string& text : texts) {
    sim::CsvCells& cells = all.emplace_back();
    for (const std::string_view part : split(text, ','))
      cells.push_back(pair_of(flag, part, str(flag, " cp=16,pass=fwd").c_str()));
  }
  return all;
}

void require_txtpb(const char* flag, const std::string& path) {
  if (path.empty() || path.ends_with(".txtpb")) return;
  throw InvalidInput(str(flag, " ", path, " does not end in .txtpb, so no command could read the file; use ",
                         path, ".txtpb"));
}

void check(const Flags& flags) {
  const bool curves = !flags.nccl_tests.empty() || !flags.point_to_point.empty() ||
                      !flags.attention.empty() || !flags.matmul.empty() || !flags.memory.empty();
  if (flags.cluster.empty()) {
    throw InvalidInput(str("--cluster is missing; use one of ", join(sim::cluster_names(), ", "),
                           ", or a file, for example mine.txtpb"));
  }
  if (!curves && flags.rows.empty()) {
    throw InvalidInput(
        "there is nothing to calibrate from; add --nccl-tests, --point-to-point, --attention, --matmul, "
        "--memory, or --rows with --fit and --software");
  }
  require_txtpb("--output", flags.out);
  require_txtpb("--software-output", flags.software_out);
  if (!curves && !flags.out.empty())
    throw InvalidInput(
        "--output writes a cluster, but no table is about one; use --software-output to write the profile");
  if (!flags.attention.empty() && (flags.shape.q_heads == 0 || flags.shape.head_dim == 0))
    throw InvalidInput(
        "--attention needs the shape that was measured, and --q-heads or --head-dim is missing; add, for "
        "example, "
        "--q-heads 32 --head-dim 128");
  if (flags.rows.empty() != flags.fit.empty() || flags.rows.empty() != flags.software.empty()) {
    throw InvalidInput(
        "--rows, --fit and --software go together, and some of them are missing; add, for example, --rows "
        "ring.csv --fit forward_progress "
        "--software ring-flash-attention");
  }
  if (flags.rows.empty() && !flags.software_out.empty())
    throw InvalidInput(
        "--software-output writes what --rows and --fit find, and they are missing; add, for example, --rows "
        "ring.csv "
        "--fit forward_progress --software ring-flash-attention");
}

// Maps the names of GPUs in tables to their clusters. The map is empty if no --gpu is given.
std::map<std::string, std::string> gpus_of(const Flags& flags) {
  std::map<std::string, std::string> gpus;
  for (const std::string& text : flags.gpu) {
    if (text.find('=') == std::string::npos) {
      gpus[text] = flags.cluster;
    } else {
      gpus.insert(pair_of("--gpu", text, "--gpu H800=h800"));
    }
  }
  return gpus;
}

std::string gpu_of_cluster(const Flags& flags) {
  const auto gpus = gpus_of(flags);
  for (const auto& [gpu, cluster] : gpus) {
    if (cluster == flags.cluster) return gpu;
  }
  return "";
}

// ---- work ----

std::vector<sim::CsvRow> table_of(const std::string& path) {
  return sim::read_csv(read_text_file(path, "table"), path);
}

std::vector<sim::MeasuredCurve> curves_of(const Flags& flags, const sim::Cluster& cluster) {
  std::vector<sim::MeasuredCurve> all;
  const auto add = [&](std::vector<sim::MeasuredCurve> curves) {
    for (sim::MeasuredCurve& curve : curves) all.push_back(std::move(curve));
  };
  for (const std::string& text : flags.nccl_tests) {
    const auto [operation, path] = pair_of("--nccl-tests", text, "--nccl-tests all_gather=all_gather.txt");
    const sim::NcclOutput output = sim::read_nccl_output(read_text_file(path, "output of nccl-tests"), path);
    add(sim::nccl_curves(operation, output, path, flags.gpus, flags.nodes, cluster));
  }
  for (const std::string& path : flags.point_to_point)
    add(sim::transfer_curves(table_of(path), path, cluster));
  for (const std::string& path : flags.attention) {
    add(sim::attention_curves(sim::rows_of_gpu(table_of(path), path, gpu_of_cluster(flags)), path,
                              flags.shape, cluster));
  }
  for (const std::string& path : flags.matmul) add({sim::matmul_curve(table_of(path), path, cluster)});
  for (const std::string& path : flags.memory) add({sim::memory_curve(table_of(path), path, cluster)});
  return all;
}

// What set a figure: "ring.csv, where cp=16, hops from 8 MiB".
std::string source_of(const Flags& flags) {
  std::string text = flags.rows;
  if (!flags.gpu.empty()) text += str(", gpu ", join(flags.gpu, " "));
  if (!flags.where.empty()) text += str(", where ", join(flags.where, ","));
  for (const std::string& except : flags.except) text += str(", except ", except);
  if (!flags.min_hop.empty()) text += str(", hops from ", flags.min_hop);
  return text;
}

sim::SoftwareFit fit_software(const Flags& flags, const sim::Cluster& cluster, Progress& progress) {
  sim::RowFilter filter{cells_of("--where", flags.where), cells_of("--except", flags.except), 0};
  if (!flags.min_hop.empty()) filter.min_hop_bytes = parse_bytes("--min-hop", flags.min_hop);
  std::map<std::string, sim::Cluster> clusters;
  for (const auto& [gpu, name] : gpus_of(flags))
    clusters.emplace(gpu, name == flags.cluster ? cluster : sim::find_cluster(name));
  if (clusters.empty()) clusters.emplace("", cluster);
  const sim::SoftwareProfile software = sim::find_software(flags.software);
  std::vector<std::string> names;
  for (const std::string_view name : split(flags.fit, ',')) names.emplace_back(trim(name));
  progress.show("planning the rows");
  std::map<std::pair<std::string, int>, sim::Cluster> sized;
  const std::vector<sim::AttentionTime> rows =
      sim::read_attention_times(table_of(flags.rows), flags.rows, filter, clusters, software, sized);
  return sim::fit_software(software, names, rows, source_of(flags),
                           [&](const std::string& what) { progress.show(what); });
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out)
    throw InvalidInput(
        str("the file ", path, " cannot be written; use a folder that exists and that you may write to"));
}

std::string name_for(const Flags& flags, const std::string& path, const std::string& otherwise) {
  if (!flags.name.empty()) return flags.name;
  return path.empty() ? otherwise : std::filesystem::path(path).stem().string();
}

// ---- what is printed ----

std::string both(const sim::ErrorSummary& errors) {
  return fmt::format("{:.1f} % / {:.1f} %", 100 * errors.median, 100 * errors.p90);
}

std::string text_of(const sim::Calibration& calibration, const std::optional<sim::SoftwareFit>& fit) {
  sim::Table text({{"number or curve"},
                   {"of"},
                   {"points", sim::Align::right},
                   {"rows", sim::Align::right},
                   {"error before", sim::Align::right},
                   {"after", sim::Align::right},
                   {"source"}});
  for (const sim::CurveFit& curve : calibration.fits) {
    text.add_row({curve.field, curve.what, str(curve.points), str(curve.before.rows), both(curve.before),
                  both(curve.after), to_string(curve.provenance)});
  }
  if (fit) {
    for (const sim::ParameterFit& parameter : fit->parameters) {
      text.add_row({parameter.name, fmt::format("{:g}, was {:g}", parameter.value, parameter.old_value), "1",
                    str(parameter.rows), both(parameter.before), both(parameter.after),
                    to_string(parameter.provenance)});
    }
  }
  return str("absolute relative errors of the tables' rows, median / 90th percentile\n\n", text.text());
}

ordered_json json_of(const sim::ErrorSummary& errors) {
  return {{"median", errors.median}, {"p90", errors.p90}};
}

ordered_json json_of(const sim::Calibration& calibration, const std::optional<sim::SoftwareFit>& fit) {
  ordered_json curves = ordered_json::array(), parameters = ordered_json::array();
  for (const sim::CurveFit& curve : calibration.fits) {
    curves.push_back({{"field", curve.field},
                      {"what", curve.what},
                      {"points", curve.points},
                      {"rows", curve.before.rows},
                      {"before", json_of(curve.before)},
                      {"after", json_of(curve.after)},
                      {"origin", to_string(curve.provenance.origin)},
                      {"source", curve.provenance.source}});
  }
  if (fit) {
    for (const sim::ParameterFit& parameter : fit->parameters) {
      parameters.push_back({{"name", parameter.name},
                            {"old_value", parameter.old_value},
                            {"value", parameter.value},
                            {"rows", parameter.rows},
                            {"before", json_of(parameter.before)},
                            {"after", json_of(parameter.after)},
                            {"origin", to_string(parameter.provenance.origin)},
                            {"source", parameter.provenance.source}});
    }
  }
  return {{"cluster", calibration.cluster.name}, {"curves", curves}, {"parameters", parameters}};
}

int run(const Flags& flags) {
  check(flags);
  const sim::Cluster cluster = sim::find_cluster(flags.cluster);
  sim::Calibration calibration;
  std::optional<sim::SoftwareFit> fit;
  {
    Progress progress;
    progress.show("reading the tables");
    calibration = sim::calibrate(cluster, curves_of(flags, cluster));
    if (!flags.rows.empty()) fit = fit_software(flags, calibration.cluster, progress);
  }
  calibration.cluster.name = name_for(flags, flags.out, cluster.name);
  if (!flags.out.empty()) write_file(flags.out, sim::write_cluster(calibration.cluster));
  if (fit && !flags.software_out.empty()) {
    fit->software.name = name_for(flags, flags.software_out, fit->software.name);
    write_file(flags.software_out, sim::write_software(fit->software));
  }
  if (flags.json) {
    fmt::print("{}\n", json_of(calibration, fit).dump(2));
    return 0;
  }
  fmt::print("{}", text_of(calibration, fit));
  for (const std::string& path : {flags.out, flags.software_out}) {
    if (!path.empty()) fmt::print("\nwrote {}", path);
  }
  if (!flags.out.empty() || !flags.software_out.empty()) fmt::print("\n");
  return 0;
}

// A flag that may come several times, with one value each.
void add_list(FlagSet app, const char* flag, std::vector<std::string>& values, const char* type,
              const char* help) {
  app.add_option(flag, values, help).type_name(type).one_value_each_time();
}

}  // namespace

Command add_calibrate(FlagSet cpsim) {
  const FlagSet app =
      cpsim.add_subcommand("calibrate", "Make a cluster or a software profile from measurements of your own");
  const auto flags = std::make_shared<Flags>();
  app.add_option("--cluster", flags->cluster,
                 "The cluster that is calibrated: the name of a preset, or a file")
      .type_name("NAME|FILE.txtpb");
  app.add_option("--name", flags->name,
                 "The name of the cluster or profile that is written [that of its file]")
      .type_name("NAME");
  app.add_output(flags->out, "FILE.txtpb", "Write the cluster to this file [the result is only printed]");
  add_list(app, "--nccl-tests", flags->nccl_tests, "OPERATION=FILE",
           "A file with what nccl-tests printed; OPERATION is all_gather, reduce_scatter, all_reduce, "
           "all_to_all or "
           "send_recv");
  add_count(app, "--gpus", flags->gpus, "How many GPUs ran nccl-tests, if its output does not say");
  add_count(app, "--nodes", flags->nodes, "How many nodes ran nccl-tests, if its output does not say [1]");
  add_list(
      app, "--point-to-point", flags->point_to_point, "FILE.csv",
      "Measured transfers from GPU to GPU, with the columns payload_bytes,intra_node_gbps,inter_node_gbps");
  add_list(app, "--attention", flags->attention, "FILE.csv",
           "Measured attention kernels, with the columns "
           "seq_len,mask,forward_milliseconds,backward_milliseconds; the "
           "next three flags give their shape");
  add_count(app, "--q-heads", flags->shape.q_heads,
            "How many query heads, and as many key heads, --attention was measured with");
  add_count(app, "--head-dim", flags->shape.head_dim,
            "The head dimension that --attention was measured with");
  add_count(app, "--batch", flags->shape.batch, "The batch size that --attention was measured with [1]");
  add_list(app, "--matmul", flags->matmul, "FILE.csv",
           "Measured matmuls in 16 bits, with the columns m,n,k,milliseconds");
  add_list(app, "--memory", flags->memory, "FILE.csv",
           "Measured copies in memory, with the columns bytes,milliseconds; bytes counts reads and writes "
           "together");
  add_list(
      app, "--gpu", flags->gpu, "NAME[=CLUSTER]",
      "Use only rows whose column gpu is NAME; with --rows it may come again, for GPUs of other clusters");
  app.add_option("--rows", flags->rows,
                 "Measured whole attentions, with the columns of ring_attention_a800_h800.csv")
      .type_name("FILE.csv");
  app.add_option(
         "--fit", flags->fit,
         "The parameters that are fitted to --rows: forward_progress, backward_progress, merge_passes, "
         "pack_passes, kernel_issue_us")
      .type_name("NAME,...");
  app.add_option("--software", flags->software, "The software profile whose parameters are fitted")
      .type_name("NAME|FILE.txtpb");
  app.add_option("--software-output", flags->software_out, "Write the software profile to this file")
      .type_name("FILE.txtpb");
  app.add_option("--software-out", flags->software_out, "").group("");  // as it was called before
  add_list(app, "--where", flags->where, "COLUMN=CELL,...", "Use only rows of --rows that have these cells");
  add_list(app, "--except", flags->except, "COLUMN=CELL,...",
           "Leave out rows of --rows that have all these cells");
  app.add_option("--min-hop", flags->min_hop,
                 "Use only rows of --rows in which a rank passes on at least so much, for example 8MiB")
      .type_name("SIZE");
  app.add_flag("--json", flags->json, "Print JSON");
  app.footer(
      "Example:\n"
      "  cpsim calibrate --cluster h800 --nccl-tests all_gather=all_gather.txt -o mine.txtpb\n"
      "  cpsim calibrate --cluster h800 --gpu H800 --rows ring_attention_a800_h800.csv --where cp=16 \\\n"
      "    --software ring-flash-attention --fit forward_progress,backward_progress --software-output "
      "mine.txtpb");
  return {app, [flags] { return run(*flags); }};
}

}  // namespace cp::cli
