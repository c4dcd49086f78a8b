// Which layouts are legal, and why the others are not.
#include <algorithm>
#include <numeric>
#include <optional>

#include "shared/base/text.h"
#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/parallel_layout.h"

namespace cp {
namespace {

// Chosen: loops of a plan do not nest, so the steps of every chunk stand in the body of the layers' loop, and
// plans grow with the chunks. A larger limit would cost plan size and search time alone.
constexpr std::int64_t kMostMlpChunks = 64;

std::optional<LayoutRefusal> refuse_batch(const Workload& workload, const ParallelLayout& layout) {
  const std::int64_t batch = workload.global_batch;
  if (layout.micro_batch > batch) {  // before it is multiplied: it may be any number
    return LayoutRefusal{"batch does not divide",
                         str("micro_batch=", layout.micro_batch, " is more than global_batch=", batch),
                         str("use micro_batch=", batch % layout.dp() == 0 ? batch / layout.dp() : 1)};
  }
  const std::int64_t at_once = layout.dp() * layout.micro_batch;
  if (batch % at_once != 0) {
    return LayoutRefusal{"batch does not divide",
                         str("global_batch=", batch, " is not a multiple of dp * micro_batch = ", layout.dp(),
                             " * ", layout.micro_batch),
                         str("use a batch of ", (batch / at_once + 1) * at_once,
                             ", or dp * micro_batch = ", nearest_divisor(batch, at_once))};
  }
  if (workload.phase != Phase::training && batch != at_once) {
    return LayoutRefusal{"serving takes the requests of a replica at once",
                         str("micro_batch=", layout.micro_batch, " is not all ", batch / layout.dp(),
                             " requests of a replica"),
                         str("use micro_batch=", batch / layout.dp())};
  }
  if (layout.virtual_stages > 1 && (batch / at_once) % layout.pp != 0) {
    return LayoutRefusal{"interleaved schedule",
                         str(batch / at_once, " micro-batches are not a multiple of pp=", layout.pp,
                             ", which the interleaved schedule needs"),
                         "use virtual_stages=1"};
  }
  return std::nullopt;
}

std::optional<LayoutRefusal> refuse_heads(const Transformer& model, const ParallelLayout& layout) {
  if (auto refusal = refuse_model(layout, {model.q_heads, model.kv_heads, std::nullopt})) return refusal;
  const int tp = layout.tp;
  std::int64_t common = model.q_heads;
  for (const MixerFacts* facts : mixers_beside_attention()) {
    if (!facts->is_described(model)) continue;
    const std::int64_t dealt = facts->dealt(model);
    common = std::gcd(common, dealt);
    if (dealt % tp == 0) continue;
    return LayoutRefusal{str("tp does not divide the ", facts->dealt_name),
                         str("the ", dealt, " ", facts->dealt_name, " are not divisible by tp=", tp),
                         str("use tp=", nearest_divisor(common, tp))};
  }
  const Experts experts = model.experts.value_or(Experts{});
  const std::pair<const char*, std::int64_t> widths[] = {
      {"intermediate_size", model.has(Mlp::dense) ? model.intermediate : 0},
      {model.has(Mlp::dense) ? "moe_intermediate_size" : "intermediate_size", experts.intermediate},
      {"the width of the shared experts", experts.shared},
      {"hidden_size, the width of the biases of experts", experts.biases ? model.hidden : 0}};
  for (const auto& [name, columns] : widths) common = std::gcd(common, columns);
  for (const auto& [name, columns] : widths) {
    if (columns % tp == 0) continue;
    return LayoutRefusal{"tp does not divide the MLP",
                         str(name, "=", columns, " is not divisible by tp=", tp),
                         str("use tp=", nearest_divisor(common, tp))};
  }
  return std::nullopt;
}

std::optional<LayoutRefusal> refuse_experts(const Transformer& model, const ParallelLayout& layout) {
  if (layout.ep == 1) return std::nullopt;
  if (!model.experts) {
    return LayoutRefusal{"ep without experts",
                         str("ep=", layout.ep, " splits experts, and this model has none"), "use ep=1"};
  }
  auto refusal = refuse_model(layout, {std::nullopt, std::nullopt, model.experts->count});
  if (!refusal) refusal = refuse_expert_degrees(layout, layout.tp, ExpertRule::nested);
  if (!refusal && layout.sharding_size() % layout.ep != 0) {
    refusal =
        LayoutRefusal{"ep does not divide",
                      str("ep=", layout.ep, " does not divide the ranks that parameters are sharded over, ",
                          layout.sharding_size()),
                      ""};
  }
  // What works for all three.
  if (refusal) {
    refusal->advice =
        str("use ep=", nearest_divisor(std::gcd(model.experts->count, layout.sharding_size()), layout.ep));
  }
  return refusal;
}

std::optional<LayoutRefusal> refuse_stages(const Transformer& model, const Workload& workload,
                                           const ParallelLayout& layout) {
  const std::int64_t stages = std::int64_t{layout.pp} * layout.virtual_stages;
  if (layout.virtual_stages > 1 && (layout.pp == 1 || workload.phase != Phase::training)) {
    return LayoutRefusal{"virtual stages without a pipeline",
                         str("virtual_stages=", layout.virtual_stages, " need pp > 1 and training"),
                         "use virtual_stages=1"};
  }
  if (stages > model.layers) {
    return LayoutRefusal{"more stages than layers",
                         str("pp * virtual_stages = ", stages, " is more than the ", model.layers, " layers"),
                         str("use at most ", model.layers, " stages")};
  }
  const std::int64_t smallest = model.layers / stages;
  if (layout.recompute.kind == Recompute::Kind::every &&
      (layout.recompute.every < 2 || layout.recompute.every > smallest)) {
    return LayoutRefusal{
        "recompute more layers than there are",
        str("recompute=", to_string(layout.recompute), " does not fit stages of ", smallest, " layers"),
        str("use every:2 to every:", smallest, ", or full")};
  }
  return std::nullopt;
}

std::optional<LayoutRefusal> refuse_window_core(const Transformer& model, const Workload& workload,
                                                const ParallelLayout& layout) {
  if (!layout.window_core) return std::nullopt;
  const auto same = [&](const std::string& why) {
    return LayoutRefusal{"the same layout twice",
                         str("window_strategy=", name(*layout.window_core), " ", why),
                         "use window_strategy=same"};
  };
  if (layout.strategy.ulysses_degree == layout.cp)
    return same("is of a ring, and with ulysses over all ranks there is none");
  for (const LayerKind& kind : model.kinds) {
    if (kind.mixer != Mixer::attention) continue;
    const AttentionProblem problem = attention_problem(model, workload, layout, kind);
    if (!problem.window && !problem.chunk) continue;
    ParallelLayout without = layout;
    without.window_core.reset();
    if (strategy_of(layout, problem) == strategy_of(without, problem))
      return same("is the strategy of all layers");
    return std::nullopt;
  }
  return same(str("is of layers with a window or a chunk, and none cuts ", workload.seq_len, " tokens"));
}

// Of the key window_balance or scan_balance. `lacks` says whose balance it is and that no layer is one of
// these, or is empty.
std::optional<LayoutRefusal> refuse_own_balance(const std::string& key, const Balance& own,
                                                const std::string& lacks, const Workload& workload,
                                                const ParallelLayout& layout) {
  const std::string asked = str(key, "=", to_string(own));
  const auto same = [&](const std::string& why) {
    return LayoutRefusal{"the same layout twice", str(asked, " ", why), str("use ", key, "=same")};
  };
  if (workload.phase != Phase::training) {
    return LayoutRefusal{"one home for all layers",
                         str(asked, " moves rows between layers of a training step, and ",
                             name(workload.phase), " has the cached rows of all layers at one home"),
                         str("use ", key, "=same")};
  }
  if (layout.strategy.ulysses_degree == layout.cp)
    return same("is of a ring, and with ulysses over all ranks there is none");
  if (!lacks.empty()) return same(lacks);
  const Balance &of_all = layout.strategy.balance, head_tail{Balance::Kind::head_tail};
  if (own == of_all) return same("is the balance of all layers");
  for (const Balance& balance : {own, of_all}) {
    if (balance == Balance{} || balance == head_tail) continue;
    const Balance& other = balance == own ? of_all : own;
    const std::string works = to_string(other == Balance{} ? head_tail : Balance{});
    return LayoutRefusal{
        "homes of different sizes",
        str(asked, " beside balance=", to_string(of_all), ": rows go from home to home where ",
            "both give each rank as many of them, up to one, and ", to_string(balance),
            " does not, or deals them by a mask"),
        balance == own ? str("use ", key, "=", works) : str("use balance=", works, ", or ", key, "=same")};
  }
  return std::nullopt;
}

// Balances of layers with a window or a recurrence, where they are not those of all layers.
std::optional<LayoutRefusal> refuse_own_balances(const Transformer& model, const Workload& workload,
                                                 const ParallelLayout& layout) {
  if (!layout.window_balance && !layout.scan_balance) return std::nullopt;
  if (layout.window_balance) {
    const bool any = std::any_of(model.kinds.begin(), model.kinds.end(), [&](const LayerKind& kind) {
      if (kind.mixer != Mixer::attention) return false;
      const AttentionProblem problem = attention_problem(model, workload, layout, kind);
      return problem.window || problem.chunk;
    });
    const std::string lacks =
        any ? "" : str("is of layers with a window or a chunk, and none cuts ", workload.seq_len, " tokens");
    if (auto refusal = refuse_own_balance("window_balance", *layout.window_balance, lacks, workload, layout))
      return refusal;
  }
  if (layout.scan_balance) {
    const char* lacks = model.recurrence ? "" : "is of layers with a recurrence, and no layer has one";
    if (auto refusal = refuse_own_balance("scan_balance", *layout.scan_balance, lacks, workload, layout))
      return refusal;
  }
  const std::vector<int> homes = homes_of_layers(model, workload, layout);
  if (std::count(homes.begin(), homes.end(), homes.front()) != std::ssize(homes)) return std::nullopt;
  const std::string balance = to_string(strategy_at_home(layout, homes.front()).balance);
  return LayoutRefusal{"the same layout twice",
                       str("balance=", to_string(layout.strategy.balance),
                           " is that of no layer: all have their rows where ", balance, " puts them"),
                       str("use balance=", balance, ", and no other")};
}

// What travels in place of keys, and rows that attention plans are to expand.
std::optional<LayoutRefusal> refuse_keys(const Transformer& model, const Workload& workload,
                                         const ParallelLayout& layout) {
  const bool asks = layout.cp > 1 && layout.keys == Strategy::Keys::latent;
  if (asks && !model.latent) {
    return LayoutRefusal{"keys without latent rows",
                         str("keys=latent sends latent rows, and the keys of this model (", model.kv_heads,
                             " heads of ", model.head_dim, ") are not made of any"),
                         "use keys=heads"};
  }
  const LatentUse use = latent_use(model, workload, layout);
  if (asks && use == LatentUse::absorbed) {
    return LayoutRefusal{"the same layout twice",
                         "keys=latent and heads mean the same where a token is written: nothing is expanded",
                         "use keys=heads"};
  }
  if (use != LatentUse::rows || model.latent->rope_dim < model.head_dim) return std::nullopt;
  return LayoutRefusal{
      "nothing to expand of a key",
      str("latent rows are cached, or travel, for keys that are expanded from them, and all ", model.head_dim,
          " elements of a key (rope_dim=", model.latent->rope_dim,
          ") are the rotated part, which is the same for all heads"),
      workload.phase == Phase::training
          ? std::string("use keys=heads")
          : str("plan training, or a rope_dim of ", model.head_dim - 1, " or less")};
}

// Kinds of layers that may have masks of their own; whether they know positions makes no other.
std::size_t masks_of(const Transformer& model) {
  std::vector<LayerKind> masks;
  for (LayerKind kind : model.kinds) {
    kind.rotary = true;
    if (std::find(masks.begin(), masks.end(), kind) == masks.end()) masks.push_back(kind);
  }
  return masks.size();
}

// Sequences with documents of their own.
std::optional<LayoutRefusal> refuse_documents(const Transformer& model, const Workload& workload,
                                              const ParallelLayout& layout) {
  if (workload.cu_seqlens_of_sequence.empty()) return std::nullopt;
  const std::pair<const char*, std::optional<Balance>> balances[] = {
      {"balance", layout.strategy.balance},
      {"window_balance", layout.window_balance},
      {"scan_balance", layout.scan_balance}};
  for (const auto& [key, balance] : balances) {
    const bool is_dealt = balance && (balance->kind == Balance::Kind::cost || balance->per_document);
    if (layout.cp == 1 || !is_dealt) continue;
    return LayoutRefusal{"rows dealt by documents",
                         str(key, "=", to_string(*balance),
                             " deals rows by the documents, and here each sequence has documents of its own"),
                         str("use ", key, "=head_tail")};
  }
  if (layout.micro_batch == 1) return std::nullopt;
  for (const MixerFacts* facts : mixers_beside_attention()) {
    if (!facts->is_described(model)) continue;
    return LayoutRefusal{
        str("documents of a ", name(facts->mixer)),
        str("the micro_batch=", layout.micro_batch, " sequences that go through a ", name(facts->mixer),
            " together have one list of documents, and here each has its own"),
        "use micro_batch=1"};
  }
  return std::nullopt;
}

std::optional<LayoutRefusal> refuse_sequence(const Transformer& model, const Workload& workload,
                                             const ParallelLayout& layout) {
  // What dropout's generator counts in 32 bits (shared/kernels/philox.h).
  const std::int64_t counted = (std::int64_t{1} << 32) / model.q_heads;
  if (workload.attention_dropout > 0 && workload.global_batch > counted) {
    return LayoutRefusal{"dropout of too many sequences",
                         str("dropout tells the ", model.q_heads, " heads of ", counted,
                             " sequences apart, and a step has ", workload.global_batch),
                         str("use --global-batch ", counted)};
  }
  const std::int64_t rows =
      workload.phase == Phase::decode ? workload.seq_len : workload.seq_len - workload.cached;
  if (rows < std::int64_t{layout.cp} * layout.row_ranks()) {
    return LayoutRefusal{"sequence too short",
                         str(rows, " tokens cannot give each of cp * tp = ", layout.cp, " * ",
                             layout.row_ranks(), " ranks one"),
                         str("use at most ", rows, " ranks")};
  }
  if (layout.loss_chunks > std::max<std::int64_t>(1, rows / layout.cp)) {
    return LayoutRefusal{
        "more loss chunks than rows",
        str("loss_chunks=", layout.loss_chunks, " is more than the ", rows / layout.cp, " rows"),
        str("use at most ", rows / layout.cp)};
  }
  if (auto refusal = refuse_documents(model, workload, layout)) return refusal;
  if (auto refusal = refuse_keys(model, workload, layout)) return refusal;
  if (layout.cp == 1) return std::nullopt;
  if (auto refusal = refuse_own_balances(model, workload, layout)) return refusal;
  if (auto refusal = refuse_window_core(model, workload, layout)) return refusal;
  for (const LayerKind& kind : model.kinds) {
    if (kind.mixer != Mixer::attention) continue;
    const AttentionProblem problem = attention_problem(model, workload, layout, kind);
    const auto refusal = refuse(problem, layout.cp, strategy_of(layout, problem));
    if (refusal) return LayoutRefusal{"strategy", refusal->reason, ""};
  }
  const Balance& balance = layout.strategy.balance;
  if (const std::size_t masks = masks_of(model);
      masks > 1 && (balance.kind == Balance::Kind::cost || balance.per_document)) {
    return LayoutRefusal{
        "one home for all layers",
        str("balance=", to_string(balance), " deals rows by one mask, and the layers of this model are of ",
            masks, " kinds"),
        str("use balance=head_tail")};
  }
  for (const MixerFacts* facts : mixers_beside_attention()) {
    if (!facts->is_described(model)) continue;
    if (auto refusal = facts->refuse(model, workload, layout)) return refusal;
  }
  return std::nullopt;
}

// When sharded parameters are given up, and gradients reduced.
std::optional<LayoutRefusal> refuse_timing(const Transformer& model, const ParallelLayout& layout) {
  const int ranks = layout.sharding_size();
  const std::vector<LayoutItem> items = items_of(static_cast<const ShardChoices&>(layout));
  if (!items.empty() && (ranks == 1 || layout.zero_stage() != 3)) {
    return LayoutRefusal{
        "timing without sharding",
        str(items.front(),
            " is about parameters that are sharded (zero=3): when they are gathered and given ",
            "up, and their gradients reduced; and here ",
            ranks == 1 ? "each is on one rank only" : str("zero is ", layout.zero_stage())),
        str(ranks == 1 ? "use dp_shard above 1, or " : "", "leave ", items.front(), " out")};
  }
  if (layout.reshard == 1 && layout.prefetch != kUsualPrefetch) {
    return LayoutRefusal{"the same layout twice",
                         str("prefetch=", layout.prefetch,
                             " with reshard=no: each layer is gathered to a place of its own, where ",
                             "it stays for the backward pass, so that no gather waits for another layer"),
                         str("leave prefetch=", layout.prefetch, " out")};
  }
  if (layout.bucket > 1 && model.prediction_layers > 0) {
    return LayoutRefusal{
        "buckets with prediction layers",
        str("bucket=", layout.bucket, " with ", model.prediction_layers,
            " prediction layers: these are gathered behind the head, one by one, and would be ",
            "in a bucket with layers before it"),
        "use bucket=1"};
  }
  if (layout.reshard > 1 && (layout.reshard >= ranks || ranks % layout.reshard != 0)) {
    return LayoutRefusal{
        "reshard does not divide",
        str("reshard=", layout.reshard, " is no smaller part of the ", ranks, " ranks that share a layer"),
        layout.reshard == ranks ? "use reshard=all, which is over all of them"
                                : str("use reshard=", reshard_text(static_cast<int>(nearest_divisor(
                                                          ranks, std::min(layout.reshard, ranks / 2)))))};
  }
  return std::nullopt;
}

// What is kept, where, and in how many pieces.
std::optional<LayoutRefusal> refuse_memory_choices(const Transformer& model, const Workload& workload,
                                                   const ParallelLayout& layout) {
  if (layout.zero != 0 && layout.sharding_size() == 1) {
    return LayoutRefusal{"zero without sharding",
                         str("zero=", layout.zero, " shards parameters, and each is on one rank only"),
                         "use dp_shard above 1, or leave zero out"};
  }
  if (layout.zero > 1 && layout.pp > 1) {
    return LayoutRefusal{"zero with stages",
                         str("zero=", layout.zero, " with pp=", layout.pp,
                             ": stages keep whole parameters and gradients for the step"),
                         "use zero=1"};
  }
  if (auto refusal = refuse_timing(model, layout)) return refusal;
  if (!layout.sequence_parallel && layout.tp == 1) {
    return LayoutRefusal{"the same layout twice", "sequence_parallel=no and yes mean the same with tp=1",
                         "use sequence_parallel=yes"};
  }
  if (layout.mlp_chunks == 1) return std::nullopt;
  if (model.experts) {
    return LayoutRefusal{"mlp chunks of experts",
                         str("mlp_chunks=", layout.mlp_chunks, " does not apply to the ",
                             model.experts->count, " experts, which compute all rows that they get at once"),
                         "use mlp_chunks=1"};
  }
  const std::int64_t rows = std::max<std::int64_t>(1, workload.seq_len / layout.cp),
                     most = std::min(rows, kMostMlpChunks);
  if (layout.mlp_chunks > most) {
    return LayoutRefusal{"too many mlp chunks",
                         str("mlp_chunks=", layout.mlp_chunks, " is too many for ", rows,
                             " rows; a layer has at most ", kMostMlpChunks, " chunks"),
                         str("use mlp_chunks=", most)};
  }
  return std::nullopt;
}

std::optional<LayoutRefusal> refuse_serving(const Transformer& model, const Workload& workload,
                                            const ParallelLayout& layout) {
  if (workload.phase == Phase::training) return std::nullopt;
  if (model.prediction_layers > 0) {
    return LayoutRefusal{"prediction layers are planned for training alone",
                         str(name(workload.phase),
                             " leaves out the layers that predict further tokens, and "
                             "prediction_layers is ",
                             model.prediction_layers),
                         "plan training, or prediction_layers=0"};
  }
  if (layout.recompute.kind != Recompute::Kind::none || layout.loss_chunks != 1 || layout.dp_shard != 1 ||
      layout.zero != 0 || layout.mlp_chunks != 1 || layout.host_activations || layout.has_shard_choices()) {
    return LayoutRefusal{"a choice of training",
                         str(name(workload.phase), " has no backward pass, loss or sharded parameters (",
                             to_string(layout), ")"),
                         "use recompute=none, loss_chunks=1, mlp_chunks=1, activations=gpu, dp_shard=1, no "
                         "zero, and dp_replicate for replicas"};
  }
  return std::nullopt;
}

}  // namespace

std::optional<LayoutRefusal> refuse(const Transformer& model, const Workload& workload,
                                    const ParallelLayout& layout) {
  if (layout.sharding == ShardingGroup::dp_shard && layout.cp == 1) {
    return LayoutRefusal{"the same layout twice", "sharding=dp_shard and dp_shard_cp mean the same with cp=1",
                         "use sharding=dp_shard_cp"};
  }
  if (auto refusal = refuse_serving(model, workload, layout)) return refusal;
  if (auto refusal = refuse_heads(model, layout)) return refusal;
  if (auto refusal = refuse_batch(workload, layout)) return refusal;
  if (auto refusal = refuse_experts(model, layout)) return refusal;
  if (auto refusal = refuse_stages(model, workload, layout)) return refusal;
  if (auto refusal = refuse_memory_choices(model, workload, layout)) return refusal;
  return refuse_sequence(model, workload, layout);
}

}  // namespace cp
