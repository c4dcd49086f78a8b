// Reads models that Hugging Face's config.json describes: presets by name, and people's own files.
//
// It reads the families that families.cc lists, and any other decoder with the usual keys and a gated MLP.
// Layers may differ: windows and chunks, dense ones before experts, shared experts, latent attention,
// Mamba-2, gated delta nets, layers of one part alone. Of a config with several parts it reads the language
// model (text_config). It refuses models that differ in kind: encoders, and sparse attention whose keys an
// indexer chooses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/dtype.h"
#include "shared/transformer/model.h"

namespace cp::sim {

struct ReadModel {
  Transformer model;  // without prediction layers
  // How many the config has. They are left out of `model`, which is an assumption, unless
  // plan_prediction_layers() puts them there.
  std::int64_t prediction_layers = 0;
  // What the text does not say, or what is not taken from it as it stands: "num_key_value_heads is missing,
  // so 32 is taken, as num_attention_heads (no grouping)".
  std::vector<std::string> assumptions;
  // What is probably not meant: a model_type that is not known, or a key that looks misspelt; with what is
  // assumed instead.
  std::vector<std::string> warnings;
  // Of a preset: where its numbers come from. Of a file: its path.
  std::string source;
  std::string repository;  // of a preset, on huggingface.co: "meta-llama/Llama-3.1-8B"
  // torch_dtype (or dtype): the type in which its weights are stored.
  std::optional<DType> dtype;
  // What results depend on, and neither times nor memory, and no plan computes: with a reason each. It is
  // planned without, which is an assumption; require_computed() refuses it.
  std::vector<std::string> not_computed;
};

// Reads the text of a config.json. `name` becomes the model's name. Throws one InvalidInput with a line for
// each error, which begins with the file's name. Errors are: text that is no JSON (with line and column);
// each required field that is missing, with its meaning; wrong types and senseless values; and each reason
// why a model of another kind cannot be described, with the nearest thing that can.
ReadModel read_model(std::string_view text, const std::string& filename, const std::string& name);

// Returns a preset by its name, in upper or lower case, with or without the organisation in front:
// "llama-3.1-8b", "meta-llama/Llama-3.1-8B". Throws InvalidInput with the presets and the nearest one.
ReadModel find_model(const std::string& name);

// The text of the config that load_model() reads; throws as it does.
std::string config_text(const std::string& path_or_name);

// Puts `count` of the config's prediction layers into the model, and says in the assumptions what is left out
// then. Throws InvalidInput if the config has fewer, or if there are more than are planned.
void plan_prediction_layers(ReadModel& read, std::int64_t count);

// Throws InvalidInput for a model with anything in not_computed: whoever computes it would compute another.
void require_computed(const ReadModel& read);

// The names of the presets, in ascending order.
std::vector<std::string> model_names();

// Loads a file (its name ends in .json), a folder that holds a config.json, or a preset by its name. The
// model of a file gets the file's name, and that of a config.json gets its folder's. Throws InvalidInput as
// the two above, and if the file cannot be read.
ReadModel load_model(const std::string& path_or_name);

}  // namespace cp::sim
