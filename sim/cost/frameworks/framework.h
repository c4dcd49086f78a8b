// The frameworks that a layout can be handed over to, and what each of them can say: one table, which the
// search keeps to, which the emitted texts are written by, and which docs/frameworks.md shows.
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
  // traces/scenario.proto: the attention of one micro-batch on one tensor-parallel rank, for cpsim run and
  // cprun
  cprun,
};
std::string_view name(Framework framework);
Framework parse_framework(std::string_view text);  // throws InvalidInput that lists them
// None for a name that is no framework's.
std::optional<Framework> find_framework(std::string_view text);
// Throws InvalidInput if the framework does not support the phase: a training framework cannot serve, nor a
// serving one train. The message lists those that can.
void require_phase(Framework framework, Phase phase);
bool runs(Framework framework, Phase phase);

// How a framework spells a core of a ring axis: {Core::ring, "p2p"}.
struct CoreWord {
  Core core;
  std::string_view word;
};

struct FrameworkFacts {
  Framework framework;
  std::string_view name, title;      // "megatron", "Megatron-LM"
  std::string_view version, source;  // of which the table is: "core 0.12", "megatron/training/arguments.py"
  bool trains = false, serves = false;
  // What it has words for. None where it leaves no choice of a core (deepspeed, vllm), or takes them all by
  // their names (cprun).
  std::span<const CoreWord> cores = {};
};
const FrameworkFacts& facts(Framework framework);
std::span<const FrameworkFacts> all_frameworks();

// What is to be said. A rule changes it to what the framework runs instead.
struct FrameworkCase {
  const Transformer& model;
  Workload workload;
  ParallelLayout layout;
  bool fp8_products = false;

  int ring_size() const { return layout.cp / layout.strategy.ulysses_degree; }
};

// Which part of a layout a rule is about: a search looks at each where it makes its choice.
enum class RulePart : std::uint8_t { degrees, strategy, recompute, loss, savings, workload };

struct FrameworkRule {
  RulePart part;
  std::string_view choice;  // the key of a layout, or the flag: "balance", "--optimizer"
  std::string_view can;     // what the framework can say of it, in words
  std::string_view source;  // where that stands
  // What is lost, in one sentence: "balance contiguous: batches are always split head_tail". Empty where the
  // framework can say it. Changes the case to what the framework runs instead, or to what takes at least as
  // much memory; leaves it where nothing is run.
  std::string (*lost)(FrameworkCase& said);
};
std::span<const FrameworkRule> rules(Framework framework);

// Whether the framework has words for a part.
bool can_say(Framework framework, RulePart part, FrameworkCase said);

// The framework's word for a core, or for the one that it runs instead (shared/context_parallel/cores.h). Of
// a framework with words.
std::string_view word_of(Framework framework, Core core);

struct Expressed {
  FrameworkCase run;  // what the framework runs when all is said that can be
  std::vector<std::string> lost;
};
Expressed express(Framework framework, FrameworkCase said);

// docs/frameworks.md.
std::string frameworks_page();

}  // namespace cp::sim
