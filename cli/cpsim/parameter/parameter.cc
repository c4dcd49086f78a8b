// cpsim parameter: the layouts and moves of one parameter of hybrid-sharded data parallelism, run and proved.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/cpsim/commands.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/present/table.h"
#include "sim/proof/run/parameter_run.h"
#include "sim/scenario/redistribute_request.h"

namespace cp::cli {
namespace {

struct Flags {
  std::string mesh, shape, parameter, gradient;
  HsdpOptions options;
  DType dtype = DType::f32;
  int micro_batches = 2;
  std::uint64_t seed = 0;
  bool json = false;
};

sim::ParameterRequest request_of(const Flags& flags) {
  if (flags.mesh.empty() || flags.shape.empty())
    throw InvalidInput(
        "--mesh and --shape are missing; add, for example, --mesh dp_replicate=2,dp_shard=2 --shape 7x4");
  const Mesh mesh = Mesh::parse(flags.mesh);
  const Shape shape = sim::parse_shape(flags.shape);
  const Layout param = flags.parameter.empty() ? replicated_layout(mesh, shape, flags.dtype)
                                               : parse_layout(flags.parameter, mesh, shape, flags.dtype);
  sim::ParameterRequest request(HsdpParam(param, flags.options));
  if (!flags.gradient.empty())
    request.produced = parse_layout(flags.gradient, mesh, shape, request.param.gradient().dtype);
  request.micro_batches = flags.micro_batches, request.seed = flags.seed;
  return request;
}

std::string layout_text(const Layout& layout) {
  return str(placements_to_string(layout), " ", name(layout.dtype));
}

int run(const Flags& flags) {
  const sim::ParameterRequest request = request_of(flags);
  const sim::ParameterRun run = sim::run_parameter(request);
  if (flags.json) {
    auto moves = nlohmann::ordered_json::array();
    for (const sim::ParameterMove& move : run.moves)
      moves.push_back({{"move", move.name},
                       {"from", layout_text(move.from)},
                       {"to", layout_text(move.to)},
                       {"sent_bytes", move.sent}});
    const nlohmann::ordered_json json = {{"schema", "cpsim.parameter/1"},
                                         {"mesh", request.param.sharded().mesh.to_string()},
                                         {"sharded", request.param.is_split()},
                                         {"moves", moves},
                                         {"exact", run.holds()},
                                         {"finding", run.finding}};
    fmt::print("{}\n", json.dump(2));
  } else {
    sim::Table table({{"move", sim::Align::left},
                      {"from", sim::Align::left},
                      {"to", sim::Align::left},
                      {"a rank sends", sim::Align::right}});
    for (const sim::ParameterMove& move : run.moves)
      table.add_row({move.name, layout_text(move.from), layout_text(move.to), human_bytes(move.sent)});
    fmt::print("{}\n{}{}\n", table.text(),
               request.param.is_split()
                   ? ""
                   : "it is below the threshold, or no axis shards it: each rank keeps it whole\n",
               run.holds() ? str("exact: what is gathered, and the ", name(flags.options.reduce),
                                 " of the gradients of ", flags.micro_batches, " micro-batches")
                           : run.finding);
  }
  return run.holds() ? kSuccess : exit_code(ErrorKind::check_failed);
}

}  // namespace

Command add_parameter(FlagSet cpsim) {
  const FlagSet app = cpsim.add_subcommand(
      "parameter", "Run one sharded parameter on the fabric: gathered, gradients reduced, and proved");
  const auto flags = std::make_shared<Flags>();
  using Text = const std::string&;
  app.add_option("--mesh", flags->mesh, "Named axes over the ranks: dp_replicate=2,dp_shard=2,tp=2")
      .type_name("MESH");
  app.add_option("--shape", flags->shape, "The shape of the whole parameter: 4096x1024").type_name("SHAPE");
  app.add_option("--parameter", flags->parameter,
                 "How it is placed before data parallelism, one for each axis: R,R,S(0) [R on all]")
      .type_name("PLACEMENTS");
  const auto add_axes = [&](const char* flag, std::vector<std::string> HsdpOptions::*axes, const char* help) {
    add_value(app, flag, "AXES", help, [flags, axes](Text text) {
      for (const std::string_view axis : split(text, ',')) (flags->options.*axes).emplace_back(trim(axis));
    });
  };
  add_axes("--shard", &HsdpOptions::shard, "The axes that shard it, the first one outermost");
  add_axes("--replicate", &HsdpOptions::replicate, "The axes that replicate it, on other data");
  add_axes("--partial", &HsdpOptions::partial,
           "Axes of the same data along which gradients are parts of a sum, as of norms over tp");
  add_value(app, "--shard-dim", "N", "Which dimension is sharded [0]", [flags](Text text) {
    flags->options.shard_dim = static_cast<int>(parse_whole("--shard-dim", text, 0, 16));
  });
  add_value(app, "--threshold", "N", "With fewer elements it is not sharded [0]",
            [flags](Text text) { flags->options.min_numel = parse_whole("--threshold", text, 0); });
  add_value(app, "--reduce", "avg|sum", "How gradients of different data are reduced [avg]",
            [flags](Text text) {
              if (text != "avg" && text != "sum")
                throw InvalidInput(str("--reduce ", text, " is unknown; use avg or sum"));
              flags->options.reduce = text == "sum" ? ReduceOp::sum : ReduceOp::avg;
            });
  add_value(app, "--dtype", "DTYPE", "The dtype of shards: f32, bf16 or f16 [f32]",
            [flags](Text text) { flags->dtype = parse_dtype(text); });
  add_value(app, "--param-dtype", "DTYPE", "In which it is gathered and computed with [--dtype]",
            [flags](Text text) { flags->options.param_dtype = parse_dtype(text); });
  add_value(app, "--reduce-dtype", "DTYPE", "In which gradients are added up and travel [--param-dtype]",
            [flags](Text text) { flags->options.reduce_dtype = parse_dtype(text); });
  app.add_option(
         "--gradient", flags->gradient,
         "How a backward pass leaves gradients, if otherwise than the parameter: P(avg),P(avg),P(sum)")
      .type_name("PLACEMENTS");
  add_value(app, "--micro-batches", "N", "How many gradients are added up before they are reduced [2]",
            [flags](Text text) {
              flags->micro_batches = static_cast<int>(parse_whole("--micro-batches", text, 1, 64));
            });
  add_value(app, "--seed", "N", "The seed of the data [0]", [flags](Text text) {
    flags->seed = static_cast<std::uint64_t>(parse_whole("--seed", text, 0, std::int64_t{1} << 62));
  });
  app.add_flag("--json", flags->json, "Print JSON");
  app.footer(
      "The rules are those of PyTorch's fully_shard, for any mesh and placement; steps of models follow "
      "them\n"
      "with flat parameters (cpsim prove). Gradients of another layout than the parameter's are reduced and\n"
      "moved first. Values are whole numbers: what comes out is compared for equality.\n\n"
      "Example:\n"
      "  cpsim parameter --mesh dp_replicate=2,dp_shard=2,tp=2 --shape 6x4 --parameter 'R,R,S(1)' \\\n"
      "    --shard dp_shard --replicate dp_replicate --gradient 'P(avg),P(avg),P(sum)'");
  return {app, [flags] { return run(*flags); }};
}

}  // namespace cp::cli
