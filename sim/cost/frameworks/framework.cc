#include "sim/cost/frameworks/framework.h"

#include <array>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/context_parallel/cores.h"
#include "sim/cost/frameworks/rules.h"

namespace cp::sim {
namespace {

constexpr CoreWord kMegatronCores[] = {{Core::all_gather, "allgather"}, {Core::ring, "p2p"}};
constexpr CoreWord kTorchtitanCores[] = {{Core::all_gather, "allgather"}, {Core::ring, "alltoall"}};

constexpr std::array<FrameworkFacts, 6> kFrameworks = {{
    {Framework::megatron, "megatron", "Megatron-LM", "core 0.12 and later",
     "megatron/training/arguments.py; Transformer Engine's attention", true, false, kMegatronCores},
    {Framework::torchtitan, "torchtitan", "torchtitan", "0.2 (2025)",
     "torchtitan/config/job_config.py; torch.distributed.tensor.experimental.context_parallel", true, false,
     kTorchtitanCores},
    {Framework::deepspeed, "deepspeed", "DeepSpeed", "0.17 and later",
     "deepspeed/runtime/config.py; deepspeed.ai/docs/config-json", true, false},
    {Framework::vllm, "vllm", "vLLM", "0.11 and later", "vllm/engine/arg_utils.py", false, true},
    {Framework::cprun, "cprun", "cprun", "this one", "traces/scenario.proto", true, true},
    {Framework::attention, "attention", "cprun", "this one", "traces/scenario.proto", true, true},
}};

// Returns the framework's word for the core, or the empty text if it has none.
std::string_view own_word(Framework framework, Core core) {
  for (const CoreWord& known : kFrameworks[static_cast<std::size_t>(framework)].cores) {
    if (known.core == core) return known.word;
  }
  return {};
}

std::string names_of(bool (*chosen)(const FrameworkFacts&)) {
  std::vector<std::string_view> names;
  for (const FrameworkFacts& framework : kFrameworks) {
    if (chosen(framework)) names.push_back(framework.name);
  }
  return join(names, ", ");
}

}  // namespace

std::span<const FrameworkFacts> all_frameworks() { return kFrameworks; }
const FrameworkFacts& facts(Framework framework) { return kFrameworks[static_cast<std::size_t>(framework)]; }
std::string_view name(Framework framework) { return facts(framework).name; }

std::optional<Framework> find_framework(std::string_view text) {
  for (const FrameworkFacts& framework : kFrameworks) {
    if (framework.name == text) return framework.framework;
  }
  return std::nullopt;
}

Framework parse_framework(std::string_view text) {
  if (const auto framework = find_framework(text)) return *framework;
  throw InvalidInput(str("unknown framework '", text, "'; use one of ",
                         names_of([](const FrameworkFacts&) { return true; })));
}

bool runs(Framework framework, Phase phase) {
  return phase == Phase::training ? facts(framework).trains : facts(framework).serves;
}

void require_phase(Framework framework, Phase phase) {
  if (runs(framework, phase)) return;
  const bool training = phase == Phase::training;
  throw InvalidInput(str(name(framework), training ? " does not train" : " does not serve",
                         ", and the phase is ", name(phase), "; use one of ",
                         names_of(training ? +[](const FrameworkFacts& f) { return f.trains; }
                                           : +[](const FrameworkFacts& f) { return f.serves; })));
}

std::span<const FrameworkRule> rules(Framework framework) {
  switch (framework) {
    case Framework::megatron:
      return megatron_rules();
    case Framework::torchtitan:
      return torchtitan_rules();
    case Framework::deepspeed:
      return deepspeed_rules();
    case Framework::vllm:
      return vllm_rules();
    case Framework::cprun:      // its plans are those of the layout
    case Framework::attention:  // which any layout has
      return {};
  }
  return {};
}

bool can_say(Framework framework, RulePart part, FrameworkCase said) {
  for (const FrameworkRule& rule : rules(framework)) {
    if (rule.part == part && !rule.lost(said).empty()) return false;
  }
  return true;
}

Expressed express(Framework framework, FrameworkCase said) {
  Expressed expressed{std::move(said), {}};
  for (const FrameworkRule& rule : rules(framework)) {
    if (std::string lost = rule.lost(expressed.run); !lost.empty()) expressed.lost.push_back(std::move(lost));
  }
  return expressed;
}

std::string_view word_of(Framework framework, Core core) {
  if (const std::string_view word = own_word(framework, core); !word.empty()) return word;
  const std::optional<CoreInstead>& instead = facts(core).instead;
  const std::string_view word = instead ? own_word(framework, instead->core) : std::string_view();
  CP_INVARIANT(!word.empty(), name(framework), " has no word for the core ", name(core),
               ", and none for one that is like it");
  return word;
}

std::string lost_core(FrameworkCase& said, Framework framework) {
  Core& core = said.layout.strategy.core;
  if (!own_word(framework, core).empty()) return {};
  const std::string_view asked = name(core), word = word_of(framework, core);
  const CoreInstead& instead = *facts(core).instead;
  core = instead.core;
  return str(asked, ": ", word, " ", instead.how);
}

std::string lost_pieces(FrameworkCase& said) {
  const int pieces = said.layout.cp == 1 ? 1 : std::exchange(said.layout.strategy.pieces, 1);
  return pieces == 1 ? "" : str("pieces=", pieces, ": it moves all heads at once");
}

std::string lost_keys(FrameworkCase& said) {
  using enum Strategy::Keys;
  const bool asked = std::exchange(said.layout.keys, heads) == latent && said.layout.cp > 1;
  return asked ? str("keys=", cp::name(latent), ": it moves the keys and values of all heads") : "";
}

std::string lost_own_balances(FrameworkCase& said) {
  ParallelLayout& layout = said.layout;
  std::vector<std::string> lost;
  const auto take = [&](const char* key, std::optional<Balance>& own) {
    const std::optional<Balance> asked = std::exchange(own, std::nullopt);
    if (asked && layout.cp > 1)
      lost.push_back(str(key, "=", to_string(*asked), ": all layers have their rows at one home"));
  };
  take("window_balance", layout.window_balance), take("scan_balance", layout.scan_balance);
  return join(lost, "; ");
}

std::string lost_prediction_layers(FrameworkCase& said) {
  const std::int64_t asked = std::exchange(said.prediction_layers, 0);
  return asked == 0 ? "" : str("--mtp-layers ", asked, ": its models predict the next token alone");
}

std::string lost_dropout(FrameworkCase& said) {
  const double asked = std::exchange(said.workload.attention_dropout, 0);
  return asked == 0 ? "" : str("--attention-dropout ", asked, ": its attention drops nothing");
}

std::string lost_slots(FrameworkCase& said) {
  const int slots =
      said.layout.cp == 1 ? kLeastSlots : std::exchange(said.layout.strategy.slots, kLeastSlots);
  return slots == kLeastSlots ? "" : str("slots=", slots, ": it has no choice of them");
}

std::string lost_merges(FrameworkCase& said) {
  using enum Strategy::Merges;
  const bool asked = std::exchange(said.layout.strategy.merges, in_turn) != in_turn && said.layout.cp > 1;
  return asked ? str("merges=", cp::name(beside), ": it has no choice of the stream they run on") : "";
}

std::string lost_loss_chunks(FrameworkCase& said, std::string_view instead) {
  const int chunks = std::exchange(said.layout.loss_chunks, 1);
  return chunks == 1 ? "" : str("the loss in ", chunks, " chunks: ", instead);
}

std::string lost_savings(FrameworkCase& said, std::string_view chunks, std::string_view host) {
  std::vector<std::string> lost;
  if (!chunks.empty()) {
    const int number = std::exchange(said.layout.mlp_chunks, 1);
    if (number > 1) lost.push_back(str("the MLP in ", number, " chunks: ", chunks));
  }
  if (!host.empty() && std::exchange(said.layout.host_activations, false))
    lost.push_back(str("activations=host: ", host));
  return join(lost, "; ");
}

std::string lost_sharding(FrameworkCase& said, std::string_view ranks) {
  ParallelLayout& layout = said.layout;
  if (layout.sharding == ShardingGroup::dp_shard_cp || layout.cp == 1) return "";
  layout.sharding = ShardingGroup::dp_shard_cp;
  return str("sharding=dp_shard: parameters are sharded over ", ranks, " ranks, too, ",
             layout.dp_shard * layout.cp, " ranks instead of ", layout.dp_shard);
}

std::string lost_timing(FrameworkCase& said) {
  std::vector<std::string> lost;
  if (const int reshard = std::exchange(said.layout.reshard, 0); reshard != 0)
    lost.push_back(
        str("reshard=", reshard_text(reshard), ": parameters are given up behind the forward pass"));
  if (std::exchange(said.layout.sync_once, false))
    lost.emplace_back("sync=step: gradients are reduced behind each micro-batch");
  if (const int ahead = std::exchange(said.layout.prefetch, kUsualPrefetch); ahead != kUsualPrefetch)
    lost.push_back(str("prefetch=", ahead, ": one layer ahead is gathered"));
  if (const int bucket = std::exchange(said.layout.bucket, 1); bucket != 1)
    lost.push_back(str("bucket=", bucket, ": layers are gathered one by one"));
  if (const std::int64_t small = std::exchange(said.layout.threshold, 0); small != 0)
    lost.push_back(str("threshold=", small, ": small tensors are sharded, too"));
  return join(lost, "; ");
}

std::string frameworks_page() {
  std::string page =
      "# What each framework can say\n\n"
      "One table (`sim/cost/frameworks`) serves three: `cpsim plan --emit FRAMEWORK`, and a `--software` "
      "whose "
      "profile names a framework,\n"
      "search only layouts of which the framework can say everything; what is emitted nevertheless "
      "(`--explain LAYOUT --emit FRAMEWORK`)\n"
      "lists what is lost as comments; and this page is written by a test from it (`CP_UPDATE_GOLDEN=1`).\n"
      "Choices that are not listed can be said. `cprun` can say all: of a training, `--emit cprun` writes "
      "the scenario of the layout in small, with whole\n"
      "steps, for `cprun train`. `--emit attention` writes the attention of one layer at full size, for one "
      "micro-batch and the heads of one tensor-parallel\n"
      "rank, on the ranks of `cp`, and lists the rest of the layout as comments; so does `--emit cprun` of "
      "serving, and of layers with a recurrence.\n";
  for (const FrameworkFacts& framework : kFrameworks) {
    const std::span<const FrameworkRule> all = rules(framework.framework);
    if (all.empty()) continue;
    page += str("\n## ", framework.title, ", ", framework.version, "\n\n`--emit ", framework.name, "`; ",
                framework.source, "\n\n| choice | what can be said | known from |\n|---|---|---|\n");
    for (const FrameworkRule& rule : all) {
      const bool flag = rule.choice.starts_with("-");
      page += str("| ", flag ? "`" : "", rule.choice, flag ? "`" : "", " | ", rule.can, " | ", rule.source,
                  " |\n");
    }
  }
  return page;
}

}  // namespace cp::sim
