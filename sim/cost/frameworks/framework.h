// The frameworks that a layout can be written for, and what each of them can express. There is one table. The
// search keeps to it, the emitted texts are written by it, and docs/frameworks.md shows it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/transformer/model.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/workload.h"

namespace cp::sim {

enum class Framework : std::uint8_t {
  megatron,    // flags of Megatron-LM's pretrain_gpt.py, one to a line
  torchtitan,  // TOML
  deepspeed,   // JSON
  vllm,        // a command line of vllm serve
  // traces/scenario.proto: a training in small for cprun train; of serving, as attention
  cprun,
  // traces/scenario.proto: the attention of one micro-batch on one tensor-parallel rank, for cpsim run and
  // cprun
  attention,
};
std::string_view name(Framework framework);
Framework parse_framework(std::string_view text);  // throws InvalidInput that lists them
// Returns nothing if no framework has that name.
std::optional<Framework> find_framework(std::string_view text);
// Throws InvalidInput if the framework does not support the phase: a training framework cannot serve, nor a
// serving one train. The message lists those that can.
void require_phase(Framework framework, Phase phase);
// Whether the framework supports the phase.
bool runs(Framework framework, Phase phase);

// How a framework spells a core of context parallelism: {Core::ring, "p2p"}.
struct CoreWord {
  Core core;
  std::string_view word;
};

struct FrameworkFacts {
  Framework framework;
  std::string_view name, title;      // "megatron", "Megatron-LM"
  std::string_view version, source;  // the version and the files that the table describes: "core 0.12"
  bool trains = false, serves = false;
  // The cores for which it has words. Empty if it leaves no choice of a core (deepspeed, vllm), or takes all
  // of them by their names (cprun, attention).
  std::span<const CoreWord> cores = {};
};
const FrameworkFacts& facts(Framework framework);
std::span<const FrameworkFacts> all_frameworks();

// What a framework shall run. A rule changes it to what the framework runs instead.
struct FrameworkCase {
  const Transformer& model;
  Workload workload;
  ParallelLayout layout;
  bool fp8_products = false;
  std::int64_t prediction_layers = 0;  // of the model: what is planned

  int ring_size() const { return layout.cp / layout.strategy.ulysses_degree; }
};

// The part of a layout that a rule is about. A search asks about each part at the point where it chooses that
// part.
enum class RulePart : std::uint8_t { degrees, strategy, recompute, loss, savings, workload };

struct FrameworkRule {
  RulePart part;
  std::string_view choice;  // the key of a layout, or the flag: "balance", "--optimizer"
  std::string_view can;     // what the framework can say of it, in words
  std::string_view source;  // where that stands
  // Returns in one sentence what is lost ("balance contiguous: batches are always split head_tail"), or the
  // empty text if the framework can express the case. It changes the case to what the framework runs instead,
  // or to something that takes at least as much memory. If the framework runs nothing like it, the case stays
  // as it is.
  std::string (*lost)(FrameworkCase& said);
};
std::span<const FrameworkRule> rules(Framework framework);

// Whether the framework can express a part of the case.
bool can_say(Framework framework, RulePart part, FrameworkCase said);

// Returns the framework's word for a core, or for the core that it runs instead
// (shared/context_parallel/cores.h). The framework must have words for cores.
std::string_view word_of(Framework framework, Core core);

struct Expressed {
  FrameworkCase run;  // what the framework runs if all is said that can be
  std::vector<std::string> lost;
};

// Applies all rules of the framework, one after the other.
Expressed express(Framework framework, FrameworkCase said);

// The text of docs/frameworks.md.
std::string frameworks_page();

}  // namespace cp::sim
