// What configs of LFM2 (Liquid AI; arXiv 2511.23404) and of its mixtures of experts say in their own way: the
// model_types lfm2 and lfm2_moe of Hugging Face's Transformers. Most of their layers have a gated short
// convolution in attention's place.
//
// Keys that Transformers read in another way than they are called are read as Transformers do, and those that
// they do not read at all, and that stand in files nevertheless, must say what the layers do.
//
// Transformers add 1e-6 to the sum that the weights of a token's experts are divided by (norm_topk_prob). It
// is left out here: of four experts, whose sigmoids add up to some 2, weights are larger by 5e-7 of
// themselves.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shared/transformer/model.h"
#include "sim/planner/models/config_fields.h"
#include "sim/planner/models/families.h"

namespace cp::sim {

std::vector<Family> lfm2_families();

// The functions below are of configs of these families. They note an error in `fields` for what does not add
// up, and an assumption for what is missing.

ShortConvolution lfm2_convolution(ConfigFields& fields);

// The mixer of each of so many layers: attention to all keys or a convolution, by layer_types or
// full_attn_idxs. Returns nothing beside an error.
std::vector<Mixer> lfm2_mixers(const Family& family, ConfigFields& fields, std::int64_t layers);

// The width of lfm2's MLPs. It is not what the config calls so, but made of it, unless
// block_auto_adjust_ff_dim is false: two thirds of it, times block_ffn_dim_multiplier, rounded up to a
// multiple of block_multiple_of.
std::int64_t lfm2_intermediate(ConfigFields& fields);

// tie_embedding, which is older than tie_word_embeddings and counts before it.
bool lfm2_ties_embeddings(const Family& family, ConfigFields& fields);

// Errors for all that the layers of these families never have, and that a config says; and for what it has to
// say of experts. Of the model no more is read than its rows' width and its heads.
void refuse_other_lfm2(const Family& family, const Transformer& model, ConfigFields& fields);

// What a config of these families says of sizes in its own way, in place of what it said, for this model.
// Keys that it does not have are left out, but for the one by which an MLP is as wide as the config says.
void set_lfm2_sizes(nlohmann::ordered_json& config, const Transformer& model);

}  // namespace cp::sim
