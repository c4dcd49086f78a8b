#include "cli/cpsim/plan/plan_request.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include "cli/common/flags.h"
#include "cli/cpsim/plan/plan_workload.h"
#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/base/text.h"
#include "shared/mesh/mesh.h"
#include "shared/transformer/short_layout.h"
#include "sim/accuracy/validate/memory_width.h"
#include "sim/cost/cluster/attention_kernels.h"
#include "sim/cost/cluster/read_cluster.h"
#include "sim/cost/cluster/read_software.h"
#include "sim/cost/cluster/used_part.h"
#include "sim/cost/timeline/estimate.h"
#include "sim/planner/models/read_model.h"
#include "sim/planner/search/completion.h"
#include "sim/scenario/plan_fixed.h"

namespace cp::cli {
namespace {

using Job = proto::PlanLayouts;
using google::protobuf::FieldDescriptor;

// The flag of a field: "--global-batch" for global_batch.
std::string flag_of(std::string field) {
  std::replace(field.begin(), field.end(), '_', '-');
  return str("--", field);
}

// ---- the model and the cluster ----

void take_model(const Job& job, sim::PlanQuestion& question, std::optional<DType>& stored) {
  if (job.model().empty())
    throw InvalidInput("--model is missing; add, for example, --model llama-3.1-8b, or a config.json");
  sim::ReadModel read = value_of("--model", job.model(), [&] { return sim::load_model(job.model()); });
  if (job.mtp_layers() > 0)
    value_of("--mtp-layers", str(job.mtp_layers()),
             [&] { return sim::plan_prediction_layers(read, job.mtp_layers()); });
  question.model = std::move(read.model);
  question.model_source = std::move(read.source);
  question.assumptions = std::move(read.assumptions);
  question.warnings = std::move(read.warnings);
  stored = read.dtype;
}

// The largest divisor of a number that is at most `most`, which is 1 or more.
int divisor_up_to(int number, int most) {
  while (number % most != 0) --most;
  return most;
}

void take_cluster(const Job& job, sim::PlanQuestion& question) {
  const std::string name = job.cluster().empty() ? "dgx-h100" : job.cluster();
  const auto find = [&](int nodes) {
    return value_of("--cluster", name, [&] { return sim::find_cluster(name, nodes); });
  };
  for (const auto& [flag, given, number] : {std::tuple("--nodes", job.has_nodes(), job.nodes()),
                                            std::tuple("--gpus", job.has_gpus(), job.gpus())}) {
    if (!given || number > 0) continue;
    throw InvalidInput(str(flag, " ", number, " is out of range; use 1 or more, or leave it out"));
  }
  if (job.gpus() > Mesh::kMaxRanks) {
    throw InvalidInput(str("--gpus ", job.gpus(),
                           " is out of range: ranks have no numbers that large; use 1 to ", Mesh::kMaxRanks));
  }
  if (job.cluster().empty()) question.assumptions.push_back(str("cluster ", name));
  question.cluster = find(job.nodes());
  sim::Cluster& cluster = question.cluster;
  const int of_node = cluster.node.gpus;
  if (!job.has_nodes() && !job.has_gpus()) {
    question.assumptions.push_back(
        str(cluster.nodes, cluster.nodes == 1 ? " node" : " nodes", ", as many as the preset has"));
  }
  if (!job.has_gpus()) return;
  if (job.has_nodes() && job.gpus() != std::int64_t{job.nodes()} * of_node) {
    throw InvalidInput(str("--gpus ", job.gpus(), " and --nodes ", job.nodes(), " disagree: a node of ", name,
                           " has ", of_node, " GPUs; give one of them"));
  }
  if (job.gpus() > of_node && job.gpus() % of_node != 0) {
    throw InvalidInput(str("--gpus ", job.gpus(), " is no whole number of nodes of ", name, ": a node has ",
                           of_node, " GPUs; use --gpus ", job.gpus() / of_node * of_node, " or ",
                           (job.gpus() / of_node + 1) * of_node));
  }
  // A cluster has whole nodes, or a part of one; part_of_node() takes only divisors of a node's GPUs.
  if (job.gpus() >= of_node) {
    cluster = find(job.gpus() / of_node);
  } else {
    if (of_node % job.gpus() != 0) {
      throw InvalidInput(str("--gpus ", job.gpus(), " neither divides the ", of_node, " GPUs of a node of ",
                             name, " nor is a multiple of them; use --gpus ",
                             divisor_up_to(of_node, job.gpus()), " or ", of_node));
    }
    cluster = sim::part_of_node(std::move(cluster), job.gpus());
    question.part_of_a_node = true;
  }
}

// Checks the kernel of all-reduces. If the GPU's rates have such kernels, but not this one, it is a slip.
// GPUs without any use NCCL's.
void check_all_reduce(std::string_view software, sim::PlanQuestion& question) {
  const std::string& wanted = question.software.all_reduce;
  if (wanted == "nccl") return;
  std::vector<std::string_view> known;
  for (const sim::AllReduceRate& rate : question.cluster.rates.all_reduce) {
    if (std::find(known.begin(), known.end(), rate.kernel) == known.end()) known.push_back(rate.kernel);
  }
  if (known.empty()) {
    question.assumptions.push_back(
        str("all-reduces of NCCL: ", question.cluster.name, " has no rate of ", wanted, "'s"));
  } else if (std::find(known.begin(), known.end(), wanted) == known.end()) {
    throw InvalidInput(str("--software ", software, ": all_reduce '", wanted, "': ",
                           question.cluster.gpu.name, " has no rate of this kernel; the nearest one is '",
                           nearest_name(wanted, known), "'; use one of nccl, ", join(known, ", ")));
  }
}

void take_software(const Job& job, sim::PlanQuestion& question) {
  const std::string name = job.software().empty() ? "cprun" : job.software();
  if (job.software().empty()) question.assumptions.push_back(str("software ", name));
  question.software = value_of("--software", name, [&] { return sim::find_software(name); });
  check_all_reduce(name, question);
  if (job.kernels().empty()) return;
  question.software = value_of("--kernels", job.kernels(), [&] {
    return sim::with_attention_kernel(question.software, question.cluster, job.kernels());
  });
}

// Products in 4 bits are only for software that serves stored weights, on GPUs whose rates have them.
void take_nvfp4(sim::PlanQuestion& question) {
  constexpr const char* kInstead = "; use --linear-dtype fp8";
  if (!question.software.stored_products) {
    throw InvalidInput(str("--linear-dtype nvfp4: software ", question.software.name,
                           " does not say that it serves stored weights (stored_products)", kInstead,
                           ", or --software trtllm, vllm or sglang"));
  }
  if (sim::find_stored_product(question.cluster.rates.stored_product, 4, 1) == nullptr) {
    throw InvalidInput(str("--linear-dtype nvfp4: ", question.cluster.gpu.name, " of ", question.cluster.name,
                           " has no rate of matmuls in 4 bits", kInstead));
  }
  question.software.linear_precision = sim::LinearPrecision::nvfp4;
}

void take_serving(const Job& job, sim::PlanQuestion& question) {
  const Phase phase = question.workload.phase;
  if (job.fp8_cache() && phase == Phase::training)
    throw InvalidInput(
        "--kv-dtype fp8 does not apply: training keeps no cache; leave it out, or add --phase decode");
  question.software.fp8_cache = job.fp8_cache();
  const std::string& arrivals = job.aggregated();
  if (arrivals.empty()) return;
  if (phase != Phase::decode)
    throw InvalidInput(str("--aggregated ", arrivals, " does not apply to ", name(phase),
                           ", which writes no tokens; use --phase decode"));
  if (arrivals != "spread" && arrivals != "together")
    throw InvalidInput(
        str("--aggregated ", arrivals, " is unknown; use spread or together, which is how requests arrive"));
  if (question.workload.cached < 1)
    throw InvalidInput(
        "--aggregated does not apply: with --cached 0 there are no prompts to read; use --cached 1 or more");
  question.aggregated = arrivals == "spread" ? sim::Arrivals::spread : sim::Arrivals::together;
}

// The question chooses the number formats, and not the software whose implementation runs it.
void take_linear_dtype(const Job& job, sim::PlanQuestion& question) {
  const std::string& text = job.linear_dtype();
  const std::string_view dtype = name(question.workload.dtype);
  question.software.linear_precision = sim::LinearPrecision::b16;
  if (text.empty() || text == dtype) return;
  if (text != "fp8" && text != "nvfp4") {
    throw InvalidInput(str("--linear-dtype ", text,
                           " is unknown: matmuls of linear layers run in the dtype of --dtype, ", dtype,
                           ", or in fp8 or nvfp4; use one of them"));
  }
  if (question.workload.dtype == DType::f32) {
    throw InvalidInput(str("--linear-dtype ", text,
                           ": its operands are made from 16-bit ones, and --dtype is f32; use --dtype bf16"));
  }
  if (question.cluster.gpu.tflops_fp8 <= 0) {
    throw InvalidInput(str("--linear-dtype ", text, ": ", question.cluster.gpu.name, " of ",
                           question.cluster.name, " has no matmuls in FP8; use --linear-dtype ", dtype));
  }
  if (text == "nvfp4") return take_nvfp4(question);
  question.software.linear_precision = sim::LinearPrecision::fp8;
}

// The same for attention, forward only. A kernel that nobody measured in 8 bits is refused; it is never timed
// as one of 16.
void take_attention_dtype(const Job& job, sim::PlanQuestion& question) {
  const std::string& text = job.attention_dtype();
  const std::string_view dtype = name(question.workload.dtype);
  if (text.empty() || text == dtype) return;
  const std::string flag = str("--attention-dtype ", text);
  if (text != "fp8")
    throw InvalidInput(str(flag, " is unknown: operands of attention have the dtype of --dtype, ", dtype,
                           ", or fp8; use one of them"));
  if (question.workload.dtype == DType::f32) {
    throw InvalidInput(
        str(flag, ": its operands are made from 16-bit ones, and --dtype is f32; use --dtype bf16"));
  }
  if (question.workload.phase != Phase::prefill) {
    const char* why =
        question.workload.phase == Phase::training
            ? "no backward attention was measured in 8 bits"
            : "attention reads the cache in the dtype in which it is stored, that of --kv-dtype";
    throw InvalidInput(str(flag, " with --phase ", name(question.workload.phase), ": ", why,
                           "; use --attention-dtype ", dtype, ", or --phase prefill"));
  }
  question.software = value_of("--attention-dtype", text,
                               [&] { return sim::with_attention_8(question.software, question.cluster); });
  question.assumptions.emplace_back("attention in fp8: no file that --emit writes says so");
}

void keep_to(sim::Framework framework, sim::PlanQuestion& question) {
  if (sim::rules(framework).empty()) return;  // it can say everything
  if (std::find(question.frameworks.begin(), question.frameworks.end(), framework) !=
      question.frameworks.end())
    return;
  question.frameworks.push_back(framework);
  // What the framework runs instead is planned, so that what fits here fits there.
  sim::FrameworkCase said{
      question.model, question.workload, {}, sim::fp8_products(question), question.model.prediction_layers};
  for (const sim::FrameworkRule& rule : sim::rules(framework)) {
    if (rule.part != sim::RulePart::workload) continue;
    std::string lost = rule.lost(said);
    if (lost.empty()) continue;
    question.assumptions.push_back(str("of ", sim::name(framework), ", ", lost));
    question.unsaid.push_back(std::move(lost));
  }
  question.workload = said.workload, question.model.prediction_layers = said.prediction_layers;
  if (!said.fp8_products) question.software.linear_precision = sim::LinearPrecision::b16;
}

void take_memory(const Job& job, sim::PlanQuestion& question) {
  if (!job.has_max_memory()) return;
  const sim::Gpu& gpu = question.cluster.gpu;
  if (!(job.max_memory() > 0) || job.max_memory() > gpu.usable_memory_gib) {
    throw InvalidInput(str("--max-memory ", job.max_memory(), " is out of range: a GPU of ",
                           question.cluster.name, " has ", gpu.usable_memory_gib,
                           " GiB that can be used; give a number above 0 and at most ",
                           gpu.usable_memory_gib));
  }
  question.max_memory_gib = job.max_memory();
}

void take_workload(const Job& job, std::optional<DType> stored, sim::PlanQuestion& question) {
  question.workload = read_workload(job, stored, question.assumptions);
  const std::int64_t longest = question.model.max_seq_len, seq_len = question.workload.seq_len;
  if (longest > 0 && seq_len > longest) {
    question.assumptions.push_back(
        str("positions reach beyond max_position_embeddings ", longest, " to ", seq_len));
  }
  if (question.model.experts && !job.has_expert_imbalance())
    question.assumptions.emplace_back("expert_imbalance 1: all experts get as many tokens");
  if (!question.model.experts && job.has_expert_imbalance())
    throw InvalidInput(str("--expert-imbalance does not apply: ", question.model.name, " has no experts"));
  if (job.has_ttft_max()) {
    if (!(job.ttft_max() > 0))
      throw InvalidInput(str("--ttft-max ", job.ttft_max(),
                             " is out of range; give a number of ms above 0, for example 20000"));
    question.max_ttft_ms = job.ttft_max();
  }
}

// Reads --fix, and the flags of their own for what --fix has, too.
void take_fixed(const Job& job, sim::PlanQuestion& question) {
  sim::Fixed& fixed = question.fixed;
  fixed = sim::parse_fixed({job.fix().begin(), job.fix().end()}, question.workload.phase);
  if (job.has_micro_batch()) {
    if (fixed.micro_batch && *fixed.micro_batch != job.micro_batch()) {
      throw InvalidInput(str("--micro-batch ", job.micro_batch(),
                             " and --fix micro_batch=", *fixed.micro_batch, " disagree; give one of them"));
    }
    fixed.micro_batch = job.micro_batch();
  }
  if (job.recompute().empty() || job.recompute() == "auto") return;
  const Recompute recompute =
      value_of("--recompute", job.recompute(), [&] { return parse_recompute(job.recompute()); });
  if (fixed.recompute && !(*fixed.recompute == recompute)) {
    throw InvalidInput(str("--recompute ", job.recompute(), " and --fix recompute=",
                           to_string(*fixed.recompute), " disagree; give one of them"));
  }
  fixed.recompute = recompute;
}

sim::Fixed fixed_by(std::string_view text, const sim::PlanQuestion& question) {
  return sim::parse_fixed({std::string(text)}, question.workload.phase);
}

bool gives(std::string_view text, std::string_view key) {
  for (const std::string_view part : split(text, ',')) {
    if (trim(part.substr(0, part.find('='))) == key) return true;
  }
  return false;
}

std::string value_text(const Job& job, const FieldDescriptor* field, int index) {
  const auto* reflection = job.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return str(reflection->GetInt32(job, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return str(reflection->GetInt64(job, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return fmt::format("{}", reflection->GetDouble(job, field));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->GetEnum(job, field)->name();
    default:
      return field->is_repeated() ? reflection->GetRepeatedString(job, field, index)
                                  : reflection->GetString(job, field);
  }
}

}  // namespace

sim::PlanQuestion make_plan_question(const Job& job, std::optional<sim::Framework> emitted) {
  sim::PlanQuestion question;
  std::optional<DType> stored;
  take_model(job, question, stored);
  take_cluster(job, question);
  take_software(job, question);
  take_workload(job, stored, question);
  take_linear_dtype(job, question);
  take_attention_dtype(job, question);
  take_serving(job, question);
  take_memory(job, question);
  take_fixed(job, question);
  if (const auto framework = sim::find_framework(question.software.framework);
      framework && sim::runs(*framework, question.workload.phase))
    keep_to(*framework, question);
  if (emitted) {
    value_of("--emit", sim::name(*emitted),
             [&] { return sim::require_phase(*emitted, question.workload.phase), 0; });
    keep_to(*emitted, question);
  }
  question.memory_width = sim::measured_memory_width();
  if (job.has_top()) question.top = job.top();
  if (!job.baseline().empty())
    question.baseline = parse_partial_layout(question, "--baseline", job.baseline());
  return question;
}

ParallelLayout parse_layout_of(const sim::PlanQuestion& question, std::string_view flag,
                               std::string_view typed) {
  const std::string text = with_layout_keys(typed);
  const int gpus = question.cluster.num_gpus();
  ParallelLayout layout = value_of(flag, text, [&] { return parse_parallel_layout(text, gpus); });
  const bool training = question.workload.phase == Phase::training;
  if (!training && !fixed_by(text, question).dp_shard) {
    layout.dp_replicate *= layout.dp_shard;
    layout.dp_shard = 1;
  }
  if (!gives(text, "micro_batch")) {
    if (training) {
      layout.micro_batch = question.fixed.micro_batch.value_or(1);
    } else {
      layout.micro_batch = std::max<std::int64_t>(1, question.workload.global_batch / layout.dp());
    }
  }
  if (layout.cp > 1) layout.strategy = sim::as_run_by(layout.strategy, question.software);
  if (!gives(text, "recompute")) layout.recompute = question.fixed.recompute.value_or(Recompute{});
  return layout;
}

sim::PartialLayout parse_partial_layout(const sim::PlanQuestion& question, std::string_view flag,
                                        std::string_view text) {
  const int gpus = question.cluster.num_gpus();
  value_of(flag, text, [&] { return parse_parallel_layout(text), 0; });  // keys and values
  sim::PartialLayout partial{std::string(text), {}, std::nullopt};
  partial.given = value_of(flag, text, [&] { return fixed_by(text, question); });
  const ParallelDegrees given = infer_degrees(partial.given);  // at least
  const int ranks = given.dp() * given.cp * given.tp * given.pp;
  if (gpus % ranks != 0) {
    sim::PlanQuestion of_keys = question;
    of_keys.baseline.reset();
    of_keys.fixed = sim::merged(question.fixed, partial.given);
    const std::string works = sim::nearest_layout(of_keys, text, partial.given);
    throw InvalidInput(str(flag, " ", text, " takes ", ranks, " GPUs, and ", ranks, " does not divide the ",
                           gpus, " GPUs that there are; use ",
                           works.empty() ? str("degrees whose product divides ", gpus) : works));
  }
  try {
    partial.as_written = parse_layout_of(question, flag, text);
  } catch (const InvalidInput&) {  // GPUs are left without work: other degrees are the search's to choose
  }
  return partial;
}

std::int64_t parse_tokens(std::string_view flag, std::string_view text, std::int64_t least) {
  const std::int64_t tokens = value_of(flag, text, [&] { return parse_int(text, "number of tokens"); });
  if (tokens >= least) return tokens;
  throw InvalidInput(str(flag, " ", text, " is out of range; use ", least, " or more, for example 128K"));
}

std::string quoted(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+%@";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string plan_command(const Job& job) {
  std::vector<const FieldDescriptor*> fields;
  job.GetReflection()->ListFields(job, &fields);
  std::string command = "cpsim plan";
  for (const FieldDescriptor* field : fields) {
    if (field->name() == "fp8_cache") {
      command += " --kv-dtype fp8";
      continue;
    }
    const int values = field->is_repeated() ? job.GetReflection()->FieldSize(job, field) : 1;
    for (int i = 0; i < values; ++i)
      command += str(" ", flag_of(field->name()), " ", quoted(value_text(job, field, i)));
  }
  return command;
}

}  // namespace cp::cli
