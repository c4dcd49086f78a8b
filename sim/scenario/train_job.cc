#include "sim/scenario/train_job.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/cost/presets/embedded.h"
#include "sim/planner/models/families.h"
#include "sim/planner/models/lfm2.h"
#include "sim/planner/models/read_model.h"
#include "sim/proof/step/prove_step.h"
#include "sim/proof/step/scale_down.h"
#include "sim/scenario/parallel_dims_fields.h"
#include "sim/scenario/read_values.h"
#include "traces/types_proto.h"

namespace cp::sim {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBytes = 256;  // tokens of a text of bytes

std::string found_path(const std::string& path, const std::string& folder) {
  if (path.empty() || folder.empty() || fs::path(path).is_absolute()) return path;
  std::error_code none;
  const fs::path beside = fs::path(folder) / path;
  // "tiny" may be a preset's name too; with a slash it is a path for sure.
  return fs::exists(beside, none) ? (beside.has_parent_path() ? beside.string() : "./" + beside.string())
                                  : path;
}

// The sizes of a model that was made smaller, in place of those that its config has.
std::string config_of(const std::string& text, const Transformer& model) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(text);
  nlohmann::ordered_json& of = json.contains("text_config") ? json["text_config"] : json;
  const std::int64_t experts = model.experts ? model.experts->count : 0,
                     width = model.experts ? model.experts->intermediate : 0,
                     top_k = model.experts ? model.experts->top_k : 0,
                     shared = model.experts ? model.experts->shared : 0;
  // Transformers' classes with latent rows call what is rotated of a head so.
  const Latent latent = model.latent.value_or(Latent{});
  const Recurrence recurrence = model.recurrence.value_or(Recurrence{});
  const std::int64_t head_dim = model.latent ? latent.rope_dim : model.head_dim;
  const std::pair<const char*, std::int64_t> sizes[] = {
      {"hidden_size", model.hidden},
      {"num_hidden_layers", model.layers},
      {"num_attention_heads", model.q_heads},
      {"num_key_value_heads", model.kv_heads},
      {"head_dim", head_dim},
      {"attention_head_dim", head_dim},
      {"q_lora_rank", latent.q_rank},
      {"kv_lora_rank", latent.kv_rank},
      {"qk_rope_head_dim", latent.rope_dim},
      {"qk_nope_head_dim", model.head_dim - latent.rope_dim},
      {"v_head_dim", latent.v_head_dim},
      {"intermediate_size", model.intermediate},
      {"vocab_size", model.vocab},
      {"num_experts", experts},
      {"num_local_experts", experts},
      {"n_routed_experts", experts},
      {"num_experts_per_tok", top_k},
      {"intermediate_size_mlp", model.intermediate},
      {"shared_expert_intermediate_size", shared},
      {"moe_shared_expert_intermediate_size", shared},
      {"n_group", model.numerics.router.groups},
      {"topk_group", model.numerics.router.top_groups},
      {"linear_num_key_heads", recurrence.key_heads},
      {"linear_num_value_heads", recurrence.value_heads},
      {"linear_key_head_dim", recurrence.key_dim},
      {"linear_value_head_dim", recurrence.value_dim},
      {"n_groups", recurrence.key_heads},
      {"mamba_num_heads", recurrence.value_heads},
      {"ssm_state_size", recurrence.key_dim},
      {"mamba_head_dim", recurrence.value_dim},
      {"moe_intermediate_size", width}};
  for (const auto& [key, value] : sizes) {
    if (of.contains(key) && value > 0) of[key] = value;
  }
  if (of.contains("swiglu_limit")) of["swiglu_limit"] = model.numerics.activation_limit;
  if (of.contains("floor_scale")) of["floor_scale"] = model.numerics.temperature.floor;
  for (const LayerKind& kind : model.kinds) {
    if (kind.window && of.contains("sliding_window")) of["sliding_window"] = *kind.window;
    if (kind.chunk && of.contains("attention_chunk_size")) of["attention_chunk_size"] = *kind.chunk;
  }
  // Mixtral's configs call the width of experts so.
  if (experts > 0 && !of.contains("moe_intermediate_size")) of["intermediate_size"] = width;
  if (!model.latent && model.q_heads > 0 && model.head_dim * model.q_heads != model.hidden)
    of["head_dim"] = model.head_dim;
  // Scores of smaller heads are scaled as those of large ones: head_dim / scalar stays.
  const char* scalar = "query_pre_attn_scalar";
  const bool has_scalar = family_of(of.value("model_type", "")).query_pre_attn_scalar.has_value();
  if (of.contains(scalar) || has_scalar) {
    const double scale = model.numerics.score_scale;
    of[scalar] = static_cast<double>(model.head_dim) / (scale * scale);
  }
  if (family_of(of.value("model_type", "")).convolves) set_lfm2_sizes(of, model);
  const auto layers = static_cast<std::size_t>(model.layers);
  for (const char* key : {"layer_types", "layers_block_type", "no_rope_layers"}) {
    if (of.contains(key) && of[key].size() > layers)
      of[key].erase(of[key].begin() + model.layers, of[key].end());
  }
  const char* pattern = "hybrid_override_pattern";  // a letter for each layer
  if (of.contains(pattern)) of[pattern] = of[pattern].get<std::string>().substr(0, layers);
  return json.dump(2) + "\n";
}

// A number of the scenario that must be within [least, most].
double within(std::string_view field, double value, double least, double most) {
  if (std::isfinite(value) && value >= least && value <= most) return value;
  throw InvalidInput(str(field, " ", value, " is out of range; use ", least, " to ", most));
}

std::int64_t at_least(std::string_view field, std::int64_t value, std::int64_t least) {
  if (value >= least) return value;
  throw InvalidInput(str(field, " ", value, " is too small; use ", least, " or more"));
}

Workload workload_of(const proto::Train& train, const ParallelLayout& layout) {
  Workload workload;
  workload.phase = Phase::training;
  workload.seq_len = at_least("seq_len", train.seq_len(), 1);
  // Interleaved stages need as many micro-batches as ranks (Narayanan et al. 2021).
  const std::int64_t micro_batches = layout.virtual_stages > 1 ? layout.pp : 1;
  const std::int64_t at_once = micro_batches * layout.dp() * layout.micro_batch;
  workload.global_batch =
      train.global_batch() == 0 ? at_once : at_least("global_batch", train.global_batch(), 1);
  const FieldPath path("train");
  workload.dtype = train.dtype() == 0 ? DType::f32 : from_proto(train.dtype(), {path, "dtype"});
  workload.gradient_dtype =
      train.gradient_dtype() == 0 ? DType::f32 : from_proto(train.gradient_dtype(), {path, "gradient_dtype"});
  Optimizer& optimizer = workload.optimizer;
  if (!train.optimizer().empty())
    optimizer = value_of("optimizer", train.optimizer(), [&] { return parse_optimizer(train.optimizer()); });
  const double most_beta = 1 - 1e-9;  // with 1 nothing new would ever count
  if (train.has_beta1()) optimizer.beta1 = within("beta1", train.beta1(), 0, most_beta);
  if (train.has_beta2()) optimizer.beta2 = within("beta2", train.beta2(), 0, most_beta);
  if (train.has_eps()) optimizer.eps = within("eps", train.eps(), 1e-30, 1);
  if (train.has_weight_decay()) optimizer.decay = within("weight_decay", train.weight_decay(), 0, 100);
  if (train.has_max_norm()) optimizer.max_norm = within("max_norm", train.max_norm(), 0, 1e9);
  validate_workload(workload);
  return workload;
}

std::shared_ptr<const TokenFiles> text_of(const proto::Train& train, const std::string& folder,
                                          Tokenizer* tokenizer, DocumentRule documents) {
  if (train.text().empty()) {
    std::vector<std::string_view> pages;
    for (const EmbeddedText& page : embedded_training()) pages.push_back(page.text);
    return std::make_shared<TokenFiles>(pages, tokenizer, documents);
  }
  std::vector<std::string> paths;
  for (const std::string& path : train.text()) paths.push_back(found_path(path, folder));
  return std::make_shared<TokenFiles>(paths, tokenizer, documents);
}

bool is_of_bytes(const proto::Train& train) {
  return std::none_of(train.text().begin(), train.text().end(), [](const std::string& path) {
    return path.ends_with(".u16") || path.ends_with(".u32");
  });
}

LearningRate learning_rate_of(const proto::Train& train) {
  LearningRate rate;
  rate.steps = at_least("steps", train.steps(), 1);
  // Fewer steps may be asked for by a flag, to try a scenario.
  rate.warmup = std::min(at_least("warmup_steps", train.warmup_steps(), 0), rate.steps);
  if (train.has_learning_rate()) rate.peak = within("learning_rate", train.learning_rate(), 0, 1e3);
  if (train.has_least_learning_rate())
    rate.least = within("least_learning_rate", train.least_learning_rate(), 0, 1);
  return rate;
}

// Behind each step, of routers that correct their scores.
void take_correction_rate(const proto::Train& train, TrainJob& job) {
  if (!train.has_router_bias_update_rate()) return;
  job.correction_rate = within("router_bias_update_rate", train.router_bias_update_rate(), 0, 1);
  std::optional<Experts>& experts = job.request.model.experts;
  if (job.correction_rate > 0 && !(experts && experts->corrects_scores))
    throw InvalidInput(str("router_bias_update_rate ", job.correction_rate, ": the routers of ",
                           job.request.model.name,
                           " add nothing to scores that could be moved; leave it out, or train a model whose "
                           "routers do, for example deepseek-v3"));
  if (experts) experts->moves_corrections = job.correction_rate > 0;
}

// Documents of the first step stand for those of all: which layouts take documents does not depend on where
// they end.
void require_legal_with_documents(const TrainJob& job) {
  Workload workload = job.request.workload;
  workload.cu_seqlens_of_sequence = job.windows->training_batch(1).cu_seqlens;
  if (const auto refusal = refuse(job.request.model, workload, job.request.layout))
    throw InvalidInput(refusal->text());
}

// Two numbers that differ differ in their texts.
std::string exactly(double value) { return fmt::format("{}", value); }

}  // namespace

std::vector<std::string> TrainJob::described() const {
  const Workload& workload = request.workload;
  const auto digest_of = [](const auto& value) {
    Hasher hasher;
    return to_string(hash(hasher, value).digest());
  };
  const auto or_none = [](const std::string& path) { return path.empty() ? std::string("none") : path; };
  return {str("a model of ", request.model.layers, " layers of width ", request.model.hidden, " (digest ",
              digest_of(request.model), ")"),
          str("the layout ", to_string(request.layout), " (digest ", digest_of(request.layout), ")"),
          str("seq_len ", workload.seq_len),
          str("global_batch ", workload.global_batch),
          str("dtype ", name(workload.dtype)),
          str("gradient_dtype ", name(workload.gradient_dtype)),
          str("the optimizer ", to_string(workload.optimizer), " (digest ", digest_of(workload), ")"),
          str("expert_imbalance ", workload.expert_imbalance),
          str("attention_dropout ", exactly(workload.attention_dropout)),
          str("a text of ", text->size(), " tokens (digest ", to_string(text->digest()), ")"),
          str("documents ", or_none(documents)),
          str(windows->evaluation_windows(), " windows for evaluation"),
          str("seed ", seed),
          str("steps ", steps),
          str("learning_rate ", exactly(learning_rate.peak)),
          str("least_learning_rate ", exactly(learning_rate.least)),
          str("warmup_steps ", learning_rate.warmup),
          str("router_bias_update_rate ", exactly(correction_rate)),
          str("evaluate_every ", evaluate_every),
          str("save_every ", save_every),
          str("save ", or_none(save)),
          str("init_from ", or_none(init_from))};
}

CheckpointFacts TrainJob::facts(std::int64_t step) const {
  // Whether corrections move is the training's matter: a model that was trained so goes on without.
  Transformer computed = request.model;
  if (computed.experts) computed.experts->moves_corrections = false;
  Hasher model;
  hash(model, computed);
  CheckpointFacts facts;
  facts.step = step, facts.seed = seed;
  facts.model = to_string(model.digest()), facts.text = to_string(text->digest());
  facts.layout = to_string(request.layout);
  facts.states = state_names(request.workload.optimizer.states);
  facts.state_dtype = request.workload.optimizer.state_dtype;
  return facts;
}

std::string TrainJob::differs(const CheckpointFacts& other) const {
  const CheckpointFacts own = facts(0);
  if (other.model != own.model) return "it is of another model";
  if (other.states != own.states)
    return str("it is of another optimizer, with the states ",
               other.states.empty() ? "none" : join(other.states, ", "));
  if (other.text != own.text) return "it is of another text";
  if (other.seed != own.seed) return str("it is of another order of the text, that of seed ", other.seed);
  return "";
}

TrainJob make_train_job(const proto::Train& given, const std::string& folder) {
  const proto::Train train = with_layout(given);
  TrainJob job;
  const std::string path = found_path(train.model(), folder);
  ReadModel read = value_of("model", path, [&] {
    ReadModel model = load_model(path);
    require_computed(model);
    return model;
  });
  if (train.has_mtp_layers()) plan_prediction_layers(read, at_least("mtp_layers", train.mtp_layers(), 0));
  job.config = config_text(path);
  std::optional<Tokenizer> tokenizer;
  if (!train.tokenizer().empty()) tokenizer.emplace(found_path(train.tokenizer(), folder));
  Tokenizer* const reader = tokenizer ? &*tokenizer : nullptr;
  const DocumentRule documents = parse_document_rule(train.documents(), reader);
  job.text = text_of(train, folder, reader, documents), job.documents = train.documents();
  ParallelLayout layout;
  if (!train.layout().empty())
    layout = value_of("layout", train.layout(), [&] { return parse_parallel_layout(train.layout()); });
  if (train.scaled_down()) {
    read.model = scaled_down(read.model, layout);
    if (tokenizer)
      read.model.vocab = std::max(read.model.vocab, tokenizer->vocabulary());
    else if (is_of_bytes(train))
      read.model.vocab = std::max(read.model.vocab, kBytes);
    job.config = config_of(job.config, read.model);
  }
  job.family = nlohmann::json::parse(job.config).value("model_type", "");
  job.request = {read.model, workload_of(train, layout), layout};
  if (train.has_expert_imbalance())
    job.request.workload.expert_imbalance = within("expert_imbalance", train.expert_imbalance(), 1, 1e6);
  else
    make_room_at_experts(job.request);
  job.request.workload.attention_dropout = train.attention_dropout();
  take_correction_rate(train, job);
  validate_workload(job.request.workload);
  require_provable(job.request);
  if (const auto refusal = refuse(job.request.model, job.request.workload, layout))
    throw InvalidInput(refusal->text());
  job.text->require_below(read.model.vocab);
  job.learning_rate = learning_rate_of(train), job.steps = job.learning_rate.steps, job.seed = train.seed();
  WindowOptions windows;
  windows.tokens = job.text->size(), windows.seq_len = job.request.workload.seq_len;
  windows.global_batch = job.request.workload.global_batch, windows.seed = job.seed;
  if (train.has_evaluation()) windows.evaluation = within("evaluation", train.evaluation(), 0, 0.9);
  job.windows = std::make_shared<TokenWindows>(
      windows, [text = job.text](std::int64_t first, std::int64_t count) { return text->read(first, count); },
      documents.kind == DocumentRule::Kind::none
          ? DocumentBegins()
          : [text = job.text](std::int64_t first,
                              std::int64_t count) { return text->document_begins(first, count); });
  require_legal_with_documents(job);
  job.evaluate_every = at_least("evaluate_every", train.evaluate_every(), 0);
  job.save = train.save(), job.save_every = at_least("save_every", train.save_every(), 0);
  if (train.has_keep()) job.keep = static_cast<int>(at_least("keep", train.keep(), 1));
  job.init_from = found_path(train.init_from(), folder);
  return job;
}

}  // namespace cp::sim
