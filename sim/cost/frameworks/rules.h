// The rules of each framework, one file for each. Internal to sim/cost/frameworks. To add a framework: name
// it in framework.h, write its file, list it in framework.cc; its emitter is sim/planner/emit's.
#pragma once

#include <span>

#include "sim/cost/frameworks/framework.h"

namespace cp::sim {

std::span<const FrameworkRule> megatron_rules();
std::span<const FrameworkRule> torchtitan_rules();
std::span<const FrameworkRule> deepspeed_rules();
std::span<const FrameworkRule> vllm_rules();

// ---- what several have in common ----

// The core: one that the framework has a word for instead.
std::string lost_core(FrameworkCase& said, Framework framework);
// The loss in chunks: no word for it.
std::string lost_loss_chunks(FrameworkCase& said, std::string_view instead);
// Chunks of an MLP, and activations in host memory: no word for them.
std::string lost_savings(FrameworkCase& said, std::string_view chunks, std::string_view host);
// Parameters are sharded over cp ranks, too.
std::string lost_sharding(FrameworkCase& said, std::string_view ranks);

}  // namespace cp::sim
