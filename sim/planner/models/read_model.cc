#include "sim/planner/models/read_model.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/cost/presets/embedded.h"
#include "sim/planner/models/model_reader.h"
#include "traces/read_text.h"

namespace cp::sim {
namespace {

using nlohmann::json;

constexpr std::string_view kKind = "model";
constexpr std::string_view kOtherwise = ", the path of a config.json, or a folder that holds one";
constexpr const char* kPresetSource = "_source";
constexpr const char* kPresetRepository = "_repository";

// ---- text ----

std::string place_of(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte == 0 ? 0 : byte - 1, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = before.size() - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
  return str(line, ":", column);
}

// Returns what the parser says, without its own prefix and place, and without bytes that are no text.
std::string complaint_of(const json::exception& error) {
  std::string text = error.what();
  const std::size_t prefix = text.find("] ");
  if (prefix != std::string::npos) text = text.substr(prefix + 2);
  const std::size_t place = text.find(": ");
  if (text.starts_with("parse error") && place != std::string::npos) text = text.substr(place + 2);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

// Python writes what is no JSON for numbers that are not finite: Infinity, -Infinity and NaN, of which no
// size is one. They become null, which counts as missing, and blanks keep the places that errors name.
std::string without_infinities(std::string_view text) {
  std::string plain(text);
  bool quoted = false;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if (plain[i] == '"') quoted = !quoted;
    if (quoted && plain[i] == '\\') ++i;  // what is escaped ends no text
    if (quoted) continue;
    for (const std::string_view number : {"-Infinity", "Infinity", "NaN"}) {
      if (plain.compare(i, number.size(), number) != 0) continue;
      std::string null = "null";
      null.resize(std::max(null.size(), number.size()), ' ');
      plain.replace(i, number.size(), null);
    }
  }
  return plain;
}

json parse(std::string_view text, const std::string& filename) {
  try {
    json config = json::parse(without_infinities(text));
    if (config.is_object()) return config;
    throw InvalidInput(str(filename, ": the file holds a JSON ", config.type_name(),
                           ", not an object {...}; use the config.json of a model"));
  } catch (const json::parse_error& error) {
    throw InvalidInput(
        str(filename, ":", place_of(text, error.byte), ": the text is not JSON: ", complaint_of(error)));
  } catch (const json::exception& error) {  // a number that no double holds
    throw InvalidInput(str(filename, ": ", complaint_of(error)));
  }
}

// ---- names ----

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

std::string preset_name(const std::string& name) { return lower_case(name.substr(name.rfind('/') + 1)); }

bool is_preset(const std::string& name) {
  const std::span<const EmbeddedText> presets = embedded_models();
  return std::any_of(presets.begin(), presets.end(),
                     [&](const EmbeddedText& preset) { return preset.name == name; });
}

ReadModel read_file(const std::filesystem::path& path) {
  std::string name = path.stem().string();
  if (path.filename() == "config.json") {
    const std::string folder = std::filesystem::absolute(path).lexically_normal().parent_path().filename();
    if (!folder.empty()) name = folder;
  }
  ReadModel read = read_model(read_text_file(path.string(), kKind), path.string(), name);
  read.source = path.string();
  return read;
}

}  // namespace

ReadModel read_model(std::string_view text, const std::string& filename, const std::string& name) {
  const json config = parse(text, filename);
  ReadModel read = model_of(config, filename, name);
  try {
    validate_model(read.model);
  } catch (const InvalidInput& error) {
    throw InvalidInput(str(filename, ": ", error.what()));
  }
  return read;
}

ReadModel find_model(const std::string& name) {
  const EmbeddedText& preset = find_embedded(embedded_models(), preset_name(name), kKind, kOtherwise);
  const std::string filename = str(preset.name, ".json");
  ReadModel read = read_model(preset.text, filename, std::string(preset.name));
  const json config = parse(preset.text, filename);
  read.source = config.value(kPresetSource, "");
  read.repository = config.value(kPresetRepository, "");
  return read;
}

void plan_prediction_layers(ReadModel& read, std::int64_t count) {
  const std::int64_t has = read.prediction_layers;
  if (count > has) {
    throw InvalidInput(
        has == 0 ? str("the config of ", read.model.name, " has no layers that predict further tokens (",
                       kPredictionLayersKey, " is 0 or missing); leave it out")
                 : str(kPredictionLayersKey, " of ", read.model.name, " is ", has, "; use at most ", has));
  }
  std::erase(read.assumptions, left_out_predictions(has, read.model.prediction_layers));
  read.model.prediction_layers = count;
  validate_model(read.model);
  if (count < has) read.assumptions.push_back(left_out_predictions(has, count));
}

void require_computed(const ReadModel& read) {
  if (read.not_computed.empty()) return;
  throw InvalidInput(str("the results of ", read.model.name,
                         " cannot be computed: ", join(read.not_computed, "; "),
                         ". cpsim plan answers for it; the nearest thing that is computed is a config "
                         "without that"));
}

std::vector<std::string> model_names() { return names_of(embedded_models()); }

namespace {

// The file of a model, or nothing where the text is a preset's name. Throws InvalidInput for a folder without
// a config.json.
std::optional<std::filesystem::path> config_file(const std::string& path_or_name) {
  namespace fs = std::filesystem;
  std::error_code none;
  const bool folder = fs::is_directory(path_or_name, none);
  if (path_or_name.ends_with(".json")) return path_or_name;
  const bool path = path_or_name.find('/') != std::string::npos;
  if (!folder || (!path && is_preset(preset_name(path_or_name)))) return std::nullopt;
  const fs::path file = fs::path(path_or_name) / "config.json";
  if (!fs::exists(file, none)) {
    throw InvalidInput(str("the folder ", path_or_name,
                           " holds no config.json; name a config.json, or a folder that holds one"));
  }
  return file;
}

}  // namespace

ReadModel load_model(const std::string& path_or_name) {
  const std::optional<std::filesystem::path> file = config_file(path_or_name);
  return file ? read_file(*file) : find_model(path_or_name);
}

std::string config_text(const std::string& path_or_name) {
  if (const auto file = config_file(path_or_name)) return read_text_file(file->string(), kKind);
  return std::string(find_embedded(embedded_models(), preset_name(path_or_name), kKind, kOtherwise).text);
}

}  // namespace cp::sim
