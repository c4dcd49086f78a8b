#include "sim/planner/models/config_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/planner/models/config_keys.h"

namespace cp::sim {
namespace {

using nlohmann::json;

// The largest size. Chosen: the product of two such sizes fits into 64 bits.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;

std::string shortened(const json& value, std::size_t max_size = 60) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > max_size) text = text.substr(0, max_size) + "...";
  return text;
}

std::string described(const json& value) {
  switch (value.type()) {
    case json::value_t::object:
    case json::value_t::array:
      return str("an ", value.type_name(), ", ", shortened(value));
    default:
      return str("a ", value.type_name(), ", ", shortened(value));
  }
}

// The whole number that a JSON number is: 8 for 8 and for 8.0.
std::optional<std::int64_t> whole_number(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    return static_cast<std::int64_t>(
        std::min<std::uint64_t>(number, std::numeric_limits<std::int64_t>::max()));
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  if (number != std::floor(number) || std::abs(number) > 1e15) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

}  // namespace

ConfigFields::ConfigFields(const json& config, const std::string& filename)
    : config_(config), filename_(filename) {}

const json* ConfigFields::find(const char* key) const {
  const auto found = config_.find(key);
  return found == config_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigFields::has(const char* key) const { return find(key) != nullptr; }
bool ConfigFields::mentions(const char* key) const { return config_.contains(key); }

std::string ConfigFields::text_of(const char* key, std::size_t max_size) const {
  const json* value = find(key);
  return value == nullptr ? "" : shortened(*value, max_size);
}

std::optional<std::int64_t> ConfigFields::at_least(const char* key, std::int64_t low) {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::int64_t> number = whole_number(*value);
  if (!number) {
    fail(str(key, " is ", described(*value), "; it must be a whole number, for example ", low == 0 ? 0 : 8));
  } else if (*number < low || *number > kMaxSize) {
    fail(str(key, "=", shortened(*value), " must be at least ", low, " and at most ", kMaxSize));
  } else {
    return number;
  }
  return std::nullopt;
}

std::optional<std::int64_t> ConfigFields::whole(const char* key) { return at_least(key, 0); }
std::optional<std::int64_t> ConfigFields::size(const char* key) { return at_least(key, 1); }

std::optional<double> ConfigFields::number(const char* key) {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : -1;
  if (std::isfinite(number) && number >= 0) return number;
  fail(str(key, " is ", described(*value), "; it must be a number, at least 0"));
  return std::nullopt;
}

std::optional<bool> ConfigFields::flag(const char* key) {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  fail(str(key, " is ", described(*value), "; it must be true or false"));
  return std::nullopt;
}

std::optional<std::string> ConfigFields::word(const char* key) {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  fail(str(key, " is ", described(*value), "; it must be a string"));
  return std::nullopt;
}

std::vector<std::string> ConfigFields::words(const char* key) {
  std::vector<std::string> all;
  const json* value = find(key);
  if (value == nullptr) return all;
  const bool strings = value->is_array() && std::all_of(value->begin(), value->end(),
                                                        [](const json& entry) { return entry.is_string(); });
  if (!strings) {
    fail(str(key, " is ", described(*value), "; it must be a list of strings"));
    return all;
  }
  for (const json& entry : *value) all.push_back(entry.get<std::string>());
  return all;
}

bool ConfigFields::is_list(const char* key) const {
  const json* value = find(key);
  return value != nullptr && value->is_array();
}

std::vector<std::int64_t> ConfigFields::wholes(const char* key) {
  std::vector<std::int64_t> all;
  const json* value = find(key);
  if (value == nullptr) return all;
  const bool numbers = value->is_array() && std::all_of(value->begin(), value->end(), [](const json& entry) {
                         return entry.is_number_unsigned() || entry.is_boolean();
                       });
  if (!numbers) {
    fail(str(key, " is ", described(*value), "; it must be a list of whole numbers, each at least 0"));
    return all;
  }
  for (const json& entry : *value)
    all.push_back(entry.is_boolean() ? entry.get<bool>() : entry.get<std::int64_t>());
  return all;
}

std::int64_t ConfigFields::required_size(const char* key, const char* meaning) {
  if (!has(key)) {
    const std::string written = written_for(key);
    fail(str(key, ", ", meaning, ", is missing; ",
             written.empty() ? "add it" : str(written, " is not read, did you mean ", key, "?")));
  }
  return size(key).value_or(1);
}

// Returns the key of the config that somebody likely wrote for this one; empty if there is none.
std::string ConfigFields::written_for(std::string_view key) const {
  for (const auto& [written, value] : config_.items()) {
    if (!value.is_null() && meant_key(written) == key) return written;
  }
  return "";
}

void ConfigFields::look_at_other_keys(const std::vector<const char*>& idle) {
  // Both are chosen, so that the assumption stays readable: how many keys it names, and how many bytes of
  // each.
  constexpr std::size_t kNamed = 12, kLetters = 60;
  std::vector<std::string> others;
  for (const auto& [key, value] : config_.items()) {
    if (value.is_null() || is_read_key(key) || is_idle_key(key)) continue;
    if (std::find(idle.begin(), idle.end(), key) != idle.end()) continue;
    const std::string meant = meant_key(key), shown = key.substr(0, kLetters);
    if (meant.empty() || has(meant.c_str())) {
      others.push_back(shown);
      continue;
    }
    const std::string missing = str(meant, " is missing");
    const auto assumed = std::find_if(assumptions_.begin(), assumptions_.end(),
                                      [&](const std::string& text) { return text.starts_with(missing); });
    warn(str(shown, " is not read; did you mean ", meant, "? ",
             assumed == assumptions_.end() ? str(missing, ", and the model is taken without it") : *assumed));
  }
  if (others.empty()) return;
  const std::size_t all = others.size();
  others.resize(std::min(all, kNamed));
  assume(str(all, all == 1 ? " key of the config is not read: " : " keys of the config are not read: ",
             join(others, ", "), all > kNamed ? str(" and ", all - kNamed, " more") : ""));
}

void ConfigFields::fail(const std::string& message) { errors_.push_back(str(filename_, ": ", message)); }

void ConfigFields::raise() const {
  if (failed()) throw InvalidInput(join(errors_, "\n"));
}

}  // namespace cp::sim
