// cpsim prove: a whole training step of a model, scaled down, under a layout, against one device in float64.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/common/exit_codes.h"
#include "cli/common/flags.h"
#include "cli/common/interrupt.h"
#include "cli/common/progress_line.h"
#include "cli/cpsim/commands.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/base/number_text.h"
#include "sim/planner/models/read_model.h"
#include "sim/present/table.h"
#include "sim/proof/step/key_traffic.h"
#include "sim/proof/step/prove_step.h"
#include "sim/proof/step/scale_down.h"

namespace cp::cli {
namespace {

using sim::StepProof;

struct Flags {
  std::string model, layout, layouts;
  int ranks = 8;
  std::int64_t seq_len = 53;  // a prime, so that no number of ranks divides it
  std::int64_t documents = 3;
  double expert_imbalance = 1.25;  // a usual capacity factor (Fedus et al. 2021): some tokens are dropped
  double attention_dropout = 0;
  std::optional<std::int64_t> global_batch;
  DType dtype = DType::f32, gradient_dtype = DType::f32;
  std::string optimizer = "adamw";
  sim::StepProofOptions options;
  std::int64_t mtp_layers = 0;
  bool full = false, json = false;
};

// What came of one layout.
struct Row {
  ParallelLayout layout;
  std::optional<StepProof> proof;
  std::string error;                            // what the run threw
  std::vector<sim::LayerTraffic> traffic = {};  // of one layout with cp above 1
  // The documents of each sequence, or one list if all have the same.
  std::vector<std::vector<std::int64_t>> documents = {};
  // With which it was proved, where roundings left nothing to be known with the seed that was asked for.
  std::optional<std::uint64_t> other_seed = {};

  bool holds() const { return proof && proof->holds(); }
  std::string finding() const { return proof ? proof->finding() : error; }
};

sim::ProofWorkload workload_of(const Flags& flags) {
  sim::ProofWorkload workload{flags.seq_len, flags.dtype};
  if (flags.documents > 1)
    workload.cu_seqlens = sim::draw_documents(flags.seq_len, flags.documents, flags.options.seed);
  workload.expert_imbalance = flags.expert_imbalance, workload.attention_dropout = flags.attention_dropout;
  return workload;
}

std::vector<ParallelLayout> layouts_of(const Flags& flags, const Transformer& model) {
  if (flags.layouts.empty()) return {parse_parallel_layout(flags.layout)};
  if (flags.layouts != "all")
    throw InvalidInput(
        str("--layouts ", flags.layouts, " is not known; use --layouts all, or --layout with one layout"));
  return sim::proof_layouts(model, flags.ranks, workload_of(flags));
}

// Each sequence has documents of its own, as those of texts are; where the layout has to know them before it
// places rows, or takes several sequences through a recurrence at once, all have the same.
StepRequest with_own_documents(StepRequest request, const Flags& flags) {
  StepRequest own = request;
  own.workload.cu_seqlens.clear();
  for (std::int64_t sequence = 0; sequence < own.workload.global_batch; ++sequence)
    own.workload.cu_seqlens_of_sequence.push_back(sim::draw_documents(
        flags.seq_len, flags.documents, flags.options.seed + static_cast<std::uint64_t>(sequence)));
  return refuse(own.model, own.workload, own.layout) ? request : own;
}

StepRequest request_of(const Flags& flags, const Transformer& model, const ParallelLayout& layout) {
  StepRequest request = sim::proof_request(model, layout, workload_of(flags));
  request.workload.optimizer = parse_optimizer(flags.optimizer);
  request.workload.gradient_dtype = flags.gradient_dtype;
  if (flags.global_batch) request.workload.global_batch = *flags.global_batch;
  validate_workload(request.workload);
  if (const auto refusal = refuse(model, request.workload, layout)) throw InvalidInput(refusal->text());
  return flags.documents > 1 ? with_own_documents(std::move(request), flags) : request;
}

std::vector<std::vector<std::int64_t>> documents_of(const StepRequest& request) {
  if (!request.workload.cu_seqlens.empty()) return {request.workload.cu_seqlens};
  return request.workload.cu_seqlens_of_sequence;
}

std::string documents_text(const std::vector<std::vector<std::int64_t>>& documents) {
  if (documents.empty()) return "";
  if (documents.size() == 1) return str(", documents ", join(documents.front(), "/"), " in each sequence");
  constexpr std::size_t kMost = 4;  // chosen: what a line holds
  std::vector<std::string> lists;
  for (std::size_t s = 0; s < std::min(kMost, documents.size()); ++s)
    lists.push_back(join(documents[s], "/"));
  return str(", documents ", join(lists, ", "), documents.size() > kMost ? ", ..." : "", " in the sequences");
}

double largest_share(const StepProof& proof, std::string_view role) {
  double share = 0;
  for (const sim::TensorProof& tensor : proof.tensors) {
    if (tensor.role == role && tensor.allowed > 0) share = std::max(share, tensor.error / tensor.allowed);
  }
  return share;
}

// What attention takes from other cp ranks: layers that are alike in one row. Empty without context
// parallelism.
std::string traffic_text(const std::vector<sim::LayerTraffic>& layers) {
  if (layers.empty()) return "";
  sim::Table table({{"layers", sim::Align::left},
                    {"operation", sim::Align::left},
                    {"group", sim::Align::left},
                    {"ranks", sim::Align::left},
                    {"K, V bytes", sim::Align::right},
                    {"Q bytes", sim::Align::right}});
  for (std::size_t first = 0, next = 0; first < layers.size(); first = next) {
    const auto& [layer, moves] = layers[first];
    next = first + 1;
    while (next < layers.size() && layers[next].layer == layers[next - 1].layer + 1 &&
           layers[next].moves == moves)
      ++next;
    const std::int64_t last = layers[next - 1].layer;
    const std::string which = last == layer ? str(layer) : str(layer, " to ", last);
    if (moves.empty())
      table.add_row({which, "none: context parallelism does not act here", "", "", "0", "0"});
    for (const sim::KeyMove& move : moves) {
      std::vector<std::string> groups;
      for (const std::vector<Rank>& ranks : move.ranks) groups.push_back(str("[", join(ranks, ","), "]"));
      table.add_row(
          {which, move.operation, move.group, join(groups, " "), str(move.kv_bytes), str(move.q_bytes)});
    }
  }
  return "\nwhat attention takes from other cp ranks, forward, in one micro-batch of each replica:\n" +
         table.text();
}

nlohmann::ordered_json traffic_json(const std::vector<sim::LayerTraffic>& layers) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const sim::LayerTraffic& of : layers) {
    nlohmann::ordered_json moves = nlohmann::ordered_json::array();
    for (const sim::KeyMove& move : of.moves)
      moves.push_back({{"operation", move.operation},
                       {"group", move.group},
                       {"ranks", move.ranks},
                       {"kv_bytes", move.kv_bytes},
                       {"q_bytes", move.q_bytes}});
    all.push_back({{"layer", of.layer}, {"moves", moves}});
  }
  return all;
}

std::string text_of(const std::vector<Row>& rows, const Transformer& model, double seconds, bool stopped) {
  sim::Table table({{"layout", sim::Align::left},
                    {"loss", sim::Align::right},
                    {"gradients", sim::Align::right},
                    {"parameters", sim::Align::right},
                    {"", sim::Align::left}});
  std::int64_t exact = 0;
  for (const Row& row : rows) {
    exact += row.holds() ? 1 : 0;
    std::vector<std::string> cells{to_string(row.layout), "-", "-", "-", row.holds() ? "exact" : "DIFFERS"};
    if (row.other_seed) cells.back() += str(" with seed ", *row.other_seed);
    if (row.proof) {
      cells[1] = fmt::format("{:.6f}", row.proof->loss);
      cells[2] = fmt::format("{:.0f} %", 100 * largest_share(*row.proof, "first moment"));
      cells[3] = fmt::format("{:.0f} %", 100 * largest_share(*row.proof, "parameter"));
    }
    table.add_row(std::move(cells));
  }
  std::string text = table.text();
  for (const Row& row : rows) {
    if (!row.holds()) text += fmt::format("\n{}: {}\n", to_string(row.layout), row.finding());
  }
  if (!rows.empty() && rows.front().proof) {
    const StepProof& first = *rows.front().proof;
    text +=
        fmt::format("\none device in float64: loss {:.6f} of {} labels", first.expected_loss, first.labelled);
    text += documents_text(rows.front().documents);
    // Which tokens are dropped is the layout's own matter, and then the loss is, too.
    if (first.dropped > 0)
      text += fmt::format("; experts drop {} of {} choices{}", first.dropped, first.choices,
                          rows.size() > 1 ? " under the first layout" : "");
    text += "\n";
  }
  if (rows.size() == 1) text += traffic_text(rows.front().traffic);
  text += fmt::format(
      "{} of {} layouts are exact: {} of {} layers, width {} ({}{}); gradients and parameters: "
      "the largest error in percent of what roundings may make\n",
      exact, rows.size(), model.name, model.layers, model.hidden, sim::human_seconds(seconds),
      stopped ? "; stopped before the end" : "");
  return text;
}

std::string json_of(const std::vector<Row>& rows, const Transformer& model, double seconds, bool stopped) {
  nlohmann::ordered_json json = {{"model", model.name}, {"layers", model.layers}, {"hidden", model.hidden}};
  bool ok = !rows.empty();
  for (const Row& row : rows) {
    nlohmann::ordered_json one = {{"layout", to_string(row.layout)}, {"exact", row.holds()}};
    if (row.proof) {
      one["labels"] = row.proof->labelled;
      if (!row.documents.empty()) one["cu_seqlens"] = row.documents;
      if (row.proof->choices > 0) {
        one["expert_choices"] = row.proof->choices;
        one["dropped_choices"] = row.proof->dropped;
      }
      one["loss"] = row.proof->loss, one["expected_loss"] = row.proof->expected_loss;
    }
    if (row.other_seed) one["seed"] = *row.other_seed;
    if (!row.holds()) one["finding"] = row.finding();
    if (!row.traffic.empty()) one["attention"] = traffic_json(row.traffic);
    ok = ok && row.holds();
    json["layouts"].push_back(one);
  }
  json["stopped"] = stopped, json["ok"] = ok, json["seconds"] = seconds;
  return json.dump(2) + "\n";
}

// Proves the layout with numbers that let it be known (kProofSeeds). Returns the request.
StepRequest prove_layout(Flags flags, const Transformer& model, Row& row) {
  const std::uint64_t first = flags.options.seed;
  for (std::uint64_t seed = first;; ++seed) {
    flags.options.seed = seed;
    if (seed != first) row.other_seed = seed;
    StepRequest request = request_of(flags, model, row.layout);
    row.documents = documents_of(request);
    row.proof = sim::prove_step(request, flags.options);
    if (!row.proof->is_unknown() || seed + 1 == first + sim::kProofSeeds) return request;
  }
}

int prove(Flags& flags) {
  if (flags.model.empty()) throw InvalidInput("--model is missing; name a preset (see cpsim list models)");
  if (flags.layout.empty() == flags.layouts.empty())
    throw InvalidInput(
        "give one layout with --layout, for example tp=2,cp=2,strategy=ring, or --layouts all");
  sim::ReadModel read = sim::load_model(flags.model);
  sim::require_computed(read);
  if (flags.mtp_layers > 0) sim::plan_prediction_layers(read, flags.mtp_layers);
  Transformer& model = read.model;
  if (!flags.full) {
    const ParallelLayout layout =
        flags.layout.empty() ? ParallelLayout{} : parse_parallel_layout(flags.layout);
    model = sim::scaled_down(model, layout);
  }
  validate_workload(sim::proof_request(model, {}, workload_of(flags)).workload);
  const std::vector<ParallelLayout> layouts = layouts_of(flags, model);
  if (layouts.empty())
    throw InvalidInput(str("no layout of ", flags.ranks, " ranks is legal for ", model.name,
                           " with sequences of ", flags.seq_len, " tokens; use another number of ranks"));
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Row> rows;
  bool stopped = false;
  {
    const InterruptScope scope;
    Progress progress;
    for (const ParallelLayout& layout : layouts) {
      if ((stopped = InterruptScope::flag().load())) break;
      Row row{layout, std::nullopt, ""};
      flags.options.on_phase = [&](std::string_view phase) {
        progress.show(
            fmt::format("{} of {} layouts; {}: {}", rows.size(), layouts.size(), to_string(layout), phase));
      };
      if (layouts.size() == 1) {
        const StepRequest request = prove_layout(flags, model, row);
        if (layout.cp > 1) {
          row.traffic = sim::key_traffic(
              request, [&](StepPart part, int stage) { return step_plans(request, part, stage); });
        }
      } else {
        try {
          static_cast<void>(prove_layout(flags, model, row));
        } catch (const Error& error) {
          row.error = error.what();
        }
      }
      rows.push_back(std::move(row));
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print("{}",
             flags.json ? json_of(rows, model, seconds, stopped) : text_of(rows, model, seconds, stopped));
  std::fflush(stdout);
  if (stopped) return kInterruptedExitCode;
  const bool ok = std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.holds(); });
  return ok ? kSuccess : exit_code(ErrorKind::check_failed);
}

}  // namespace

Command add_prove(FlagSet cpsim) {
  const FlagSet app = cpsim.add_subcommand(
      "prove", "Run a whole training step of a small model under a layout, and prove it against one device");
  const auto flags = std::make_shared<Flags>();
  app.add_option("--model", flags->model,
                 "The model, which is scaled down: a preset (see cpsim list models), a Hugging Face\n"
                 "config.json, or the folder that holds one")
      .type_name("NAME|config.json");
  app.add_option("--layout", flags->layout, "The layout, for example tp=2,cp=2,strategy=ring,dp_shard=2")
      .type_name("LAYOUT");
  app.add_option("--layouts", flags->layouts, "all: every legal layout of --ranks ranks").type_name("all");
  add_value(app, "--ranks", "N", "How many ranks all layouts have [8]", [flags](const std::string& text) {
    flags->ranks = static_cast<int>(parse_whole("--ranks", text, 1, 64));
  });
  add_value(app, "--seq-len", "TOKENS", "The length of a sequence [53]", [flags](const std::string& text) {
    flags->seq_len = parse_whole("--seq-len", text, 1, 1 << 20);
  });
  add_value(
      app, "--documents", "N",
      "How many documents are packed into each sequence; no layer looks from one into another [3]",
      [flags](const std::string& text) { flags->documents = parse_whole("--documents", text, 1, 1 << 20); });
  add_value(
      app, "--expert-imbalance", "FACTOR",
      "Experts have room for FACTOR times the mean of their tokens, and drop others [1.25]",
      [flags](const std::string& text) { flags->expert_imbalance = parse_real("--expert-imbalance", text); });
  add_value(app, "--attention-dropout", "P",
            "The probability of a weight of attention to become 0; which ones do depends on no layout [0]",
            [flags](const std::string& text) {
              flags->attention_dropout = parse_real("--attention-dropout", text);
            });
  add_value(app, "--global-batch", "N",
            "How many sequences the step has [two for each replica and micro-batch]",
            [flags](const std::string& text) {
              flags->global_batch = parse_whole("--global-batch", text, 1, 1 << 20);
            });
  add_value(app, "--dtype", "DTYPE", "The dtype of matmuls and activations: f32, bf16 or f16 [f32]",
            [flags](const std::string& text) { flags->dtype = parse_dtype(text); });
  add_value(app, "--gradient-dtype", "DTYPE",
            "The dtype in which gradients are added up and reduced: f32, bf16 or f16 [f32]",
            [flags](const std::string& text) { flags->gradient_dtype = parse_dtype(text); });
  app.add_option("--optimizer", flags->optimizer, "adamw, adamw_16, sgd or sgd_momentum; :offload [adamw]")
      .type_name("NAME");
  add_value(app, "--seed", "N", "The seed of parameters and tokens [0]", [flags](const std::string& text) {
    flags->options.seed = static_cast<std::uint64_t>(parse_whole("--seed", text, 0, std::int64_t{1} << 62));
  });
  add_value(app, "--mtp-layers", "N",
            "How many of the config's layers that predict further tokens there are [0]",
            [flags](const std::string& text) {
              flags->mtp_layers = parse_whole("--mtp-layers", text, 0, kMostPredictionLayers);
            });
  app.add_flag("--full", flags->full, "Do not scale the model down");
  app.add_flag("--json", flags->json, "Print JSON");
  app.footer(
      "prove runs one step on the simulated fabric, a thread for each rank, with data: all micro-batches\n"
      "forward and back, the reduction of gradients, clipping, and the optimizer. Loss, gradients (by the\n"
      "optimizer's first moment), updated parameters and states are held against a step of one device in\n"
      "float64, with packed documents, ignored labels, a sequence that has none, and experts that drop\n"
      "tokens. It names the first tensor that differs.\n\n"
      "Example:\n  cpsim prove --model llama-3.1-8b --layout tp=2,cp=2,strategy=ring,dp_shard=2");
  return {app, [flags] { return prove(*flags); }};
}

}  // namespace cp::cli
