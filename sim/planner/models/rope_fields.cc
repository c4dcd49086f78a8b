#include "sim/planner/models/rope_fields.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <nlohmann/json.hpp>

#include "shared/base/text.h"

namespace cp::sim {
namespace {

using nlohmann::json;

// As many positions as sizes of a model may be (validate_model).
constexpr double kMostPositions = 0x1p31;

std::optional<double> number_of(const json& said, const char* key) {
  if (!said.is_object() || !said.contains(key) || !said[key].is_number()) return std::nullopt;
  return said[key].get<double>();
}
// transformers take the usual value for 0, too.
double number_or(const json& said, const char* key, double usual) {
  const double number = number_of(said, key).value_or(0);
  return number == 0 ? usual : number;
}

// Older configs call it "type"; a text that is not there is "default".
std::string type_of(const json& said) {
  if (!said.is_object()) return "default";
  for (const char* key : {"rope_type", "type"}) {
    if (!said.contains(key) || said[key].is_null()) continue;
    return said[key].is_string() ? said[key].get<std::string>() : said[key].dump();
  }
  return "default";
}

// By how much YaRN makes rows larger, for attention that stays sharp over `factor` times as many keys
// (Peng et al. 2023, arXiv 2309.00071, section 3.4).
double magnitude_of(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

class RopeReader {
 public:
  RopeReader(const Family& family, ConfigFields& fields) : family_(family), fields_(fields) {}

  RopeFields read() {
    const bool of_five = fields_.has("rope_parameters");
    const json said = object_of(of_five ? "rope_parameters" : "rope_scaling");
    const bool apart = said.contains("full_attention") || said.contains("sliding_attention");
    const json all = apart ? said.value("full_attention", json()) : said;
    read_.rotary = frequencies(all, fields_.number("rope_theta").value_or(family_.rotary_theta));
    read_.share = number_of(all, "partial_rotary_factor");
    take_window(apart ? said.value("sliding_attention", json()) : json());
    if (const double mscale = number_or(all, "mscale_all_dim", 0); mscale != 0 && type_of(all) != "default") {
      const double magnitude = magnitude_of(number_or(all, "factor", 1), mscale);
      read_.latent_score_scale = magnitude * magnitude;
    }
    return std::move(read_);
  }

 private:
  // An empty object where there is none. longrope's lists of factors make texts of some kilobytes.
  json object_of(const char* key) const {
    constexpr std::size_t kLongest = std::size_t{1} << 20;
    const json value = json::parse(fields_.text_of(key, kLongest), nullptr, /*allow_exceptions=*/false);
    return value.is_object() ? value : json::object();
  }

  void take_window(const json& said) {
    const std::optional<double> local = fields_.number("rope_local_base_freq");
    if (!said.is_object() && !local && !family_.window_rotary_theta) return;
    read_.window =
        frequencies(said, local.value_or(family_.window_rotary_theta.value_or(read_.rotary.theta)));
  }

  RotaryFrequencies frequencies(const json& said, double theta) {
    RotaryFrequencies rotary;
    rotary.theta = number_of(said, "rope_theta").value_or(theta);
    const RotaryFrequencies unscaled = rotary;
    const std::string type = type_of(said);
    if (type == "default") return rotary;
    const double most = static_cast<double>(fields_.whole("max_position_embeddings").value_or(8192));
    // Phi's configs have it outside.
    const double original = fields_.number("original_max_position_embeddings")
                                .value_or(number_or(said, "original_max_position_embeddings", most));
    const std::optional<double> factor = number_of(said, "factor");
    rotary.factor = factor.value_or(most / original);  // of yarn alone
    if (type == "linear") {
      rotary.scaling = RotaryScaling::linear;
    } else if (type == "llama3") {
      rotary.scaling = RotaryScaling::llama3;
      rotary.low = number_or(said, "low_freq_factor", 1),
      rotary.high = number_or(said, "high_freq_factor", 4);
    } else if (type == "yarn") {
      rotary.scaling = RotaryScaling::yarn;
      rotary.low = number_or(said, "beta_slow", 1), rotary.high = number_or(said, "beta_fast", 32);
      rotary.whole_pairs = !said.contains("truncate") || said["truncate"] != json(false);
      rotary.magnitude = yarn_magnitude(said, rotary.factor);
    } else {
      not_computed(str("rope_type \"", type,
                       "\" of rotary positions is not described; default, linear, llama3 and yarn are"));
      return unscaled;
    }
    if (!factor && type != "yarn") {
      not_computed(str("rope_type \"", type, "\" has no factor; add it, as 4"));
      return unscaled;
    }
    const bool scales = std::isfinite(rotary.factor) && rotary.factor >= 1 && rotary.low > 0 &&
                        rotary.high >= rotary.low && original >= 1 && original <= kMostPositions &&
                        rotary.magnitude > 0 && (rotary.scaling != RotaryScaling::yarn || rotary.theta > 1);
    if (!scales) {
      not_computed(str("rope_type \"", type, "\" with factor ", rotary.factor, ", ", rotary.low, " to ",
                       rotary.high, " waves of ", original, " positions and a base of ", rotary.theta,
                       " scales nothing; a factor is at least 1, as 4, and limits do not descend"));
      return unscaled;
    }
    if (rotary.scaling != RotaryScaling::linear) rotary.original = static_cast<std::int64_t>(original);
    return rotary;
  }

  static double yarn_magnitude(const json& said, double factor) {
    if (const auto given = number_of(said, "attention_factor")) return *given;
    const double mscale = number_or(said, "mscale", 0), of_all = number_or(said, "mscale_all_dim", 0);
    if (mscale != 0 && of_all != 0) return magnitude_of(factor, mscale) / magnitude_of(factor, of_all);
    return magnitude_of(factor, 1);
  }

  void not_computed(std::string what) { read_.not_computed.push_back(std::move(what)); }

  const Family& family_;
  ConfigFields& fields_;
  RopeFields read_;
};

}  // namespace

RopeFields rope_of_config(const Family& family, ConfigFields& fields) {
  return RopeReader(family, fields).read();
}

}  // namespace cp::sim
