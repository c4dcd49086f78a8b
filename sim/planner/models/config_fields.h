// The fields of a config.json: typed, with every error kept until the end.
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

// null is as good as missing: transformers writes it for what was left at None.
class ConfigFields {
 public:
  // `config` must be an object and outlive this.
  ConfigFields(const nlohmann::json& config, const std::string& filename);

  bool has(const char* key) const;
  bool mentions(const char* key) const;  // even as null
  // The value as the text has it, without what is beyond `max_size`.
  std::string text_of(const char* key, std::size_t max_size = 60) const;

  // Nothing where the field is missing or, which is an error, not what is asked for.
  std::optional<std::int64_t> whole(const char* key);  // at least 0
  std::optional<std::int64_t> size(const char* key);   // at least 1
  std::optional<bool> flag(const char* key);
  std::optional<std::string> word(const char* key);
  std::vector<std::string> words(const char* key);  // of a list

  // 1 where the field is missing, which is an error that says what it means, and which other key of the
  // config may have been meant.
  std::int64_t required_size(const char* key, const char* meaning);

  void fail(const std::string& message);
  // Looks at the keys that nothing is read from: a warning for each that likely is a slip (config_keys.h),
  // and an assumption that names all others but the idle ones. Last, since it says what is assumed instead.
  void look_at_other_keys();

  void assume(std::string assumption) { assumptions_.push_back(std::move(assumption)); }

  void warn(std::string warning) { warnings_.push_back(std::move(warning)); }

  bool failed() const { return !errors_.empty(); }
  const std::vector<std::string>& assumptions() const { return assumptions_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Throws InvalidInput with a line for each error; returns when there is none.
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
