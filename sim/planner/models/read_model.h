// Models as Hugging Face's config.json describes them: presets by name, and people's own files.
//
// Read are llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, and any other decoder with the usual keys and a
// gated MLP. Models that differ in kind (latent attention, state spaces, encoders, plain MLPs, shared
// experts) are refused.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/dtype.h"
#include "shared/transformer/model.h"

namespace cp::sim {

struct ReadModel {
  Transformer model;
  // What the text does not say, or what is not taken from it as it stands:
  // "num_key_value_heads is missing: 32, as num_attention_heads (no grouping)".
  std::vector<std::string> assumptions;
  // What likely is not meant so: a model_type that is not known, a key that looks like a misspelt one, with
  // what is assumed instead.
  std::vector<std::string> warnings;
  std::string source;          // of a preset: where its numbers come from; of a file: its path
  std::string repository;      // of a preset, on huggingface.co: "meta-llama/Llama-3.1-8B"
  std::optional<DType> dtype;  // torch_dtype: what its weights are stored in
  std::string rope_scaling;    // as the text has it, or empty: it changes positions, not costs
};

// Throws one InvalidInput with a line for each error, beginning with the file's name: where the text is no
// JSON (line and column); every required field that is missing, with its meaning; wrong types and senseless
// values; why a model of another kind cannot be described, with the nearest thing. `name`: of the model.
ReadModel read_model(std::string_view text, const std::string& filename, const std::string& name);

// A preset by its name in upper or lower case, with or without the organisation in front: "llama-3.1-8b",
// "meta-llama/Llama-3.1-8B". Throws InvalidInput with the presets and the nearest one.
ReadModel find_model(const std::string& name);

// Of the presets, ascending.
std::vector<std::string> model_names();

// A file (its name ends in .json), a folder that holds a config.json, or a preset's name. The model of a file
// bears its name; of a config.json, that of its folder.
ReadModel load_model(const std::string& path_or_name);

}  // namespace cp::sim
