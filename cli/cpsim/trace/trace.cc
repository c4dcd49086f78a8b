// cpsim trace: what traces of runs hold, where two of them part, and files of them for viewers.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/common/printable.h"
#include "cli/cpsim/commands.h"
#include "cli/cpsim/trace/trace_export.h"
#include "shared/base/error.h"
#include "sim/present/traces/trace_compare_report.h"
#include "sim/present/traces/trace_show_report.h"
#include "traces/trace_files.h"

namespace cp::cli {
namespace {

constexpr const char* kTraceType = "FILE|DIR";

// ---- compare

struct CompareFlags {
  std::string a, b;
  bool allow_truncated = false, json = false;
};

int compare(const CompareFlags& flags) {
  const sim::ComparedTraces traces = sim::compare_trace_paths(flags.a, flags.b);
  fmt::print("{}",
             flags.json ? sim::compare_json(traces).dump(2) + "\n" : printable(sim::compare_text(traces)));
  const bool holds = traces.compared_something() && traces.comparison.identical &&
                     (flags.allow_truncated || !traces.any_is_cut());
  return holds ? kSuccess : exit_code(ErrorKind::check_failed);
}

Command add_compare(FlagSet trace) {
  const FlagSet app =
      trace.add_subcommand("compare", "Tell whether two runs did the same, and how long each took");
  const auto flags = std::make_shared<CompareFlags>();
  app.add_option("a", flags->a, "The first trace, or its folder of rank-N.cptrace")
      .type_name(kTraceType)
      .required();
  app.add_option("b", flags->b, "The second trace, or its folder").type_name(kTraceType).required();
  app.add_flag("--allow-truncated", flags->allow_truncated,
               "Exit with 0 also if traces that were cut off agree as far as they go");
  app.add_flag("--json", flags->json, "Print JSON");
  app.footer(
      "The exit code is 0 if the traces are identical in all but time, 1 if they differ or were cut off, and "
      "17 if\n"
      "a file is no trace.\n\n"
      "Example:\n"
      "  cpsim run --mesh cp=4 --strategy ring --seq-len 256 --trace a.cptrace\n"
      "  cpsim trace compare a.cptrace b.cptrace");
  return {app, [flags] { return compare(*flags); }};
}

// ---- show

struct ShowFlags {
  std::string path;
  sim::ShowOptions options;
  bool json = false;
};

Command add_show(FlagSet trace) {
  const FlagSet app = trace.add_subcommand("show", "Show the operations of each rank as a table");
  const auto flags = std::make_shared<ShowFlags>();
  app.add_option("trace", flags->path, "The trace, or its folder of rank-N.cptrace")
      .type_name(kTraceType)
      .required();
  add_value(app, "--rank", "N", "Show this rank alone", [flags](const std::string& text) {
    flags->options.rank = static_cast<Rank>(parse_whole("--rank", text, 0, std::numeric_limits<Rank>::max()));
  });
  add_value(app, "--stream", "N", "Show this stream alone", [flags](const std::string& text) {
    flags->options.stream =
        static_cast<StreamId>(parse_whole("--stream", text, 0, std::numeric_limits<StreamId>::max()));
  });
  add_value(app, "--limit", "N", "Show at most so many operations",
            [flags](const std::string& text) { flags->options.limit = parse_whole("--limit", text, 0); });
  app.add_flag("--observed", flags->options.observed,
               "Show the calls that reached the library, instead of the steps that were issued");
  app.add_flag("--json", flags->json, "Print one line of JSON for each rank, operation and digest");
  app.footer("Example:\n  cpsim trace show a.cptrace --rank 0 --limit 20");
  return {app, [flags] {
            const TraceFile file = read_trace_path(flags->path);
            fmt::print("{}", flags->json ? sim::show_json_lines(file, flags->options)
                                         : printable(sim::show_text(file, flags->options)));
            return kSuccess;
          }};
}

// ---- export, merge

struct ExportFlags {
  std::string path, format, out, merge;
};

void export_file(const ExportFlags& flags, std::string& truncation) {
  const ExportFormat format = parse_export_format(flags.format, flags.out);
  const std::string bytes = export_trace(
      flags.path, format, flags.merge.empty() ? std::nullopt : std::optional(flags.merge), truncation);
  finish([&] {
    std::ofstream out(flags.out, std::ios::binary);
    out << bytes;
    out.close();
    if (!out)
      throw InvalidInput(str("--output ", flags.out, " cannot be written: ", std::strerror(errno),
                             "; use a path in an existing folder"));
  });
}

int export_measured(const ExportFlags& flags) {
  require_output(flags.out, "run.json");
  std::string truncation;
  if (!flags.out.ends_with('/')) {
    export_file(flags, truncation);
  } else if (flags.format.empty() && flags.merge.empty()) {
    finish([&] { export_folder(flags.path, flags.out, truncation); });
  } else {
    throw InvalidInput(str("-o ", flags.out,
                           " gets a file of each rank as PyTorch's profiler writes it, and ",
                           flags.merge.empty() ? "--format" : "--merge",
                           " is for one file of all ranks: leave it out, or use NAME.json or NAME.pftrace"));
  }
  // `cpsim trace show` says on standard output that a trace was cut off. Here nothing is printed there.
  if (!truncation.empty())
    fmt::print(stderr, "cpsim trace export: {}; {} holds what came before\n", printable(truncation),
               printable(flags.out));
  return kSuccess;
}

Command add_export(FlagSet trace) {
  const FlagSet app = trace.add_subcommand(
      "export", "Turn a measured trace into a file for the viewer of Chrome or of Perfetto");
  const auto flags = std::make_shared<ExportFlags>();
  app.add_option("trace", flags->path, "The trace, or its folder of rank-N.cptrace")
      .type_name(kTraceType)
      .required();
  app.add_option("--format", flags->format,
                 "The format of the file: chrome or perfetto [by the name of the file]")
      .type_name("FORMAT");
  app.add_output(
      flags->out, "FILE|DIR/",
      "Write this: NAME.json for Chrome, NAME.pftrace for Perfetto, DIR/ for a file of each rank as "
      "PyTorch's profiler writes it (HolisticTraceAnalysis)");
  app.add_option("--merge", flags->merge,
                 "Put this trace beside it: a file of cpsim estimate --trace, or another .cptrace")
      .type_name("FILE");
  app.footer(
      "Example: see a prediction and a measurement in one view\n"
      "  cpsim estimate --cluster a800 --mesh cp=4 --strategy ring --seq-len 8192 --q-heads 8 --trace "
      "p.pftrace\n"
      "  cpsim trace export measured.cptrace --merge p.pftrace -o both.pftrace");
  return {app, [flags] { return export_measured(*flags); }};
}

struct MergeFlags {
  std::vector<std::string> paths;
  std::string out;
};

int merge(const MergeFlags& flags) {
  require_output(flags.out, "run.cptrace");
  std::vector<std::string> files;
  for (const std::string& path : flags.paths) {
    const std::vector<std::string> more = trace_files_of(path);
    files.insert(files.end(), more.begin(), more.end());
  }
  finish([&] { merge_trace_files(files, flags.out); });
  return kSuccess;
}

Command add_merge(FlagSet trace) {
  const FlagSet app = trace.add_subcommand("merge", "Join the files of several ranks into one file");
  const auto flags = std::make_shared<MergeFlags>();
  app.add_option("traces", flags->paths, "The traces, or their folders of rank-N.cptrace")
      .type_name(kTraceType)
      .required();
  app.add_output(flags->out, "FILE.cptrace", "Write the merged trace to this file");
  app.footer("Example:\n  cpsim trace merge logs/ -o run.cptrace");
  return {app, [flags] { return merge(*flags); }};
}

}  // namespace

std::vector<Command> add_trace(FlagSet cpsim) {
  const FlagSet trace = cpsim.add_subcommand("trace", "Show, compare, export and merge traces of runs");
  trace.require_subcommand();
  trace.footer("Example:\n  cpsim trace compare a.cptrace b.cptrace");
  return {add_compare(trace), add_show(trace), add_export(trace), add_merge(trace)};
}

}  // namespace cp::cli
