// The typed fields of a config.json. All errors are kept until the end, so that a user sees them at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace cp::sim {

// A field that is null counts as missing: transformers writes null for what was left at None.
class ConfigFields {
 public:
  // `config` must be an object and outlive this.
  ConfigFields(const nlohmann::json& config, const std::string& filename);

  bool has(const char* key) const;
  // Whether the key is there, even if it is null.
  bool mentions(const char* key) const;
  bool is_list(const char* key) const;
  // The value as the text has it, cut off after `max_size` bytes.
  std::string text_of(const char* key, std::size_t max_size = 60) const;

  // These return the field, or nothing if it is missing. A field of the wrong type or below the limit is
  // noted as an error, and nothing is returned.
  std::optional<std::int64_t> whole(const char* key);  // at least 0
  std::optional<std::int64_t> size(const char* key);   // at least 1
  std::optional<double> number(const char* key);       // finite, at least 0
  std::optional<bool> flag(const char* key);
  std::optional<std::string> word(const char* key);
  std::vector<std::string> words(const char* key);    // the texts of a list
  std::vector<std::int64_t> wholes(const char* key);  // the numbers of a list, each at least 0

  // The same for a field that must be there. If it is missing, this is an error, which says what the field
  // means and which other key of the config may have been meant; then 1 is returned.
  std::int64_t required_size(const char* key, const char* meaning);

  // Notes an error of the file.
  void fail(const std::string& message);
  // Looks at the keys from which nothing is read. It warns of each that is likely a slip (config_keys.h), and
  // adds an assumption that names all others but the idle ones. Call it last, since it says what is assumed
  // instead. `idle`: those of the family.
  void look_at_other_keys(const std::vector<const char*>& idle);

  void assume(std::string assumption) { assumptions_.push_back(std::move(assumption)); }

  void warn(std::string warning) { warnings_.push_back(std::move(warning)); }

  bool failed() const { return !errors_.empty(); }
  const std::vector<std::string>& assumptions() const { return assumptions_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Throws InvalidInput with a line for each error; returns if there is none.
  void raise() const;

 private:
  std::string written_for(std::string_view key) const;
  const nlohmann::json* find(const char* key) const;
  std::optional<std::int64_t> at_least(const char* key, std::int64_t low);

  const nlohmann::json& config_;
  std::string filename_;
  std::vector<std::string> errors_, assumptions_, warnings_;
};

}  // namespace cp::sim
