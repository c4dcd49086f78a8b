#include "sim/cost/cluster/read_software.h"

#include <cstddef>
#include <type_traits>
#include <utility>

#include <google/protobuf/text_format.h>

#include "shared/base/error.h"
#include "sim/cost/cluster/software.pb.h"
#include "sim/cost/cluster/software_fields.h"
#include "sim/cost/presets/embedded.h"

namespace cp::sim {
namespace {

constexpr std::string_view kSoftwareKind = "software profile";
constexpr ShardingGroup kGroups[] = {ShardingGroup::dp_shard, ShardingGroup::dp_shard_cp};

class SoftwareReader {
 public:
  SoftwareReader(const proto::Software& message, const TextLocations& locations, TextErrors& errors)
      : message_(message), errors_(errors), fields_(message, locations, errors, software_.sources) {}

  SoftwareProfile read() {
    software_.name.clear();
    take_base();
    if (!message_.name().empty()) software_.name = message_.name();
    const auto take_number = [&](const char* field, double& value, const Range& range) {
      require(field, str(value));
      fields_.read(field, range, value);
    };
    for_each_parameter(software_, take_number);
    for_each_number_of_facts(software_, take_number);
    for_each_fact(software_, [&](const char* field, auto& fact) { take(field, fact); });
    for_each_optional_number(software_, [&](const char* field, double& value, const Range& range) {
      fields_.read(field, range, value);
    });
    for_each_optional_fact(software_, [&](const char* field, auto& fact) { take_optional(field, fact); });
    take_enumerator("sharding_group", kGroups, software_.sharding_group);
    if (fields_.has("linear_precision")) {
      fields_.fail(
          "linear_precision",
          "number formats are no property of software; leave it out, and ask with --linear-dtype fp8");
    }
    if (errors_.empty() && !missing_.empty()) {
      errors_.add({}, str("the profile lacks ", join(missing_, ", "), "; add each, for example ",
                          missing_.front(), " { value: ", example_,
                          " origin: assumed source: \"why\" }, or all of a preset's: like: \"cprun\""));
    }
    if (errors_.empty()) {
      for (const FieldError& error : software_errors(software_)) fields_.fail(error.field, error.message);
    }
    sort_by_field(software_.sources);
    return std::move(software_);
  }

 private:
  void take_base() {
    if (message_.like().empty()) return;
    try {
      software_ = find_software(message_.like());
    } catch (const InvalidInput& error) {
      fields_.fail("like", error.what());
    }
  }

  // `example` is a value as it would be written in the text.
  void require(const char* field, std::string example) {
    if (!message_.like().empty() || fields_.has(field)) return;
    if (missing_.empty()) example_ = std::move(example);
    missing_.emplace_back(field);
  }

  void take(const char* field, bool& fact) {
    require(field, fact ? "true" : "false");
    fields_.read(field, Range{0, 1}, fact);
  }

  void take(const char* field, std::string& fact) {
    require(field, str('"', fact, '"'));
    fields_.read(field, fact);
  }

  void take_optional(const char* field, bool& fact) { fields_.read(field, Range{0, 1}, fact); }
  void take_optional(const char* field, std::string& fact) { fields_.read(field, fact); }

  template <class Enum, std::size_t kSize>
  void take_enumerator(const char* field, const Enum (&all)[kSize], Enum& out) {
    std::string name = to_string(out);
    take(field, name);
    std::vector<std::string> names;
    for (const Enum value : all) {
      if (to_string(value) == name) {
        out = value;
        return;
      }
      names.push_back(to_string(value));
    }
    fields_.fail(field, str("unknown ", field, " '", name, "'; use one of ", join(names, ", ")));
  }

  const proto::Software& message_;
  TextErrors& errors_;
  SoftwareProfile software_;
  SourcedReader fields_;
  std::vector<std::string> missing_;
  std::string example_;  // of the first that is missing
};

}  // namespace

std::string to_string(ShardingGroup group) {
  return group == ShardingGroup::dp_shard ? "dp_shard" : "dp_shard_cp";
}

SoftwareProfile read_software(std::string_view text, std::string_view filename) {
  proto::Software message;
  SoftwareProfile software;
  read_text(text, filename, kSoftwareKind, message, [&](const TextLocations& locations, TextErrors& errors) {
    software = SoftwareReader(message, locations, errors).read();
  });
  return software;
}

SoftwareProfile find_software(const std::string& name_or_path) {
  if (name_or_path.ends_with(".txtpb"))
    return read_software(read_text_file(name_or_path, kSoftwareKind), name_or_path);
  const EmbeddedText& preset =
      find_embedded(embedded_software(), name_or_path, kSoftwareKind, ", or a file that ends in .txtpb");
  return read_software(preset.text, str(preset.name, ".txtpb"));
}

std::vector<std::string> software_names() { return names_of(embedded_software()); }

std::string write_software(const SoftwareProfile& software) {
  proto::Software message;
  message.set_name(software.name);
  SourcedWriter fields(message, software.sources);
  const auto write_number = [&](const char* field, double value, const Range&) {
    fields.write(field, value);
  };
  for_each_parameter(software, write_number);
  for_each_number_of_facts(software, write_number);
  for_each_fact(software, [&](const char* field, const auto& fact) { fields.write(field, fact); });
  // What has no source was left at its default.
  const auto write_said = [&](const char* field, const auto& value) {
    if (find_source(software.sources, field) != nullptr) fields.write(field, value);
  };
  for_each_optional_number(software,
                           [&](const char* field, double value, const Range&) { write_said(field, value); });
  for_each_optional_fact(software, write_said);
  fields.write("sharding_group", to_string(software.sharding_group));
  std::string text;
  google::protobuf::TextFormat::Printer printer;
  CP_INVARIANT(printer.PrintToString(message, &text), "a profile of ", message.ByteSizeLong(), " bytes");
  return "# proto-file: sim/cost/cluster/software.proto\n# proto-message: cp.proto.Software\n\n" + text;
}

}  // namespace cp::sim
