// The rules of each framework, in one file for each. Internal to sim/cost/frameworks. To add a framework:
// name it in framework.h, write its file of rules, and list it in framework.cc; its emitter belongs to
// sim/planner/emit.
#pragma once

#include <span>

#include "sim/cost/frameworks/framework.h"

namespace cp::sim {

std::span<const FrameworkRule> megatron_rules();
std::span<const FrameworkRule> torchtitan_rules();
std::span<const FrameworkRule> deepspeed_rules();
std::span<const FrameworkRule> vllm_rules();

// ---- what several have in common ----

// A core for which the framework has no word: it becomes the one that the framework runs instead.
std::string lost_core(FrameworkCase& said, Framework framework);
// What attention moves in pieces of heads, a third place for the blocks of a ring, and merges on a stream of
// their own, for which there are no words.
std::string lost_pieces(FrameworkCase& said);
// Latent rows in place of the heads that they expand to.
std::string lost_keys(FrameworkCase& said);
// Balances of layers with a window or a recurrence that are not those of all layers.
std::string lost_own_balances(FrameworkCase& said);
std::string lost_slots(FrameworkCase& said);
std::string lost_merges(FrameworkCase& said);
// The loss in chunks, for which there is no word.
std::string lost_loss_chunks(FrameworkCase& said, std::string_view instead);
// Chunks of an MLP, and activations in host memory, for which there is no word. An empty text leaves out its
// part.
std::string lost_savings(FrameworkCase& said, std::string_view chunks, std::string_view host);
// Layers that predict further tokens (MTP), which the framework's models train without.
std::string lost_prediction_layers(FrameworkCase& said);
std::string lost_dropout(FrameworkCase& said);
// Sharding over dp_shard alone: parameters are sharded over the cp ranks, too.
std::string lost_sharding(FrameworkCase& said, std::string_view ranks);
// reshard and sync: what the framework does instead.
std::string lost_timing(FrameworkCase& said);

}  // namespace cp::sim
