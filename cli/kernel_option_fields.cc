#include "cli/kernel_option_fields.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "cli/flags.h"

namespace cp::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;

constexpr const char* kGroup = "Refused by name, with what works: no kernel has them";

// Every option is a field of the message, by its name.
const FieldDescriptor& field_of(const KernelOptionInfo& option) {
  const FieldDescriptor* field = proto::Attention::descriptor()->FindFieldByName(std::string(option.name));
  CP_INVARIANT(field != nullptr, "proto::Attention has no field ", option.name);
  return *field;
}

void set(proto::Attention& job, const FieldDescriptor& field, std::string_view flag,
         const std::string& text) {
  const Reflection& reflection = *job.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.SetDouble(&job, &field, parse_real(flag, text));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetInt64(&job, &field, parse_whole(flag, text, 0));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(&job, &field, true);
    default:
      return reflection.SetString(&job, &field, text);
  }
}

// Nothing where nothing is asked for.
std::optional<std::string> value_of_field(const proto::Attention& job, const FieldDescriptor& field) {
  const Reflection& reflection = *job.GetReflection();
  if (!reflection.HasField(job, &field)) return std::nullopt;
  const auto unless = [](const auto& none, const auto& value) {
    return value == none ? std::nullopt : std::optional(str(value));
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return unless(0.0, reflection.GetDouble(job, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return unless(std::int64_t{0}, reflection.GetInt64(job, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(job, &field) ? std::optional(std::string()) : std::nullopt;
    default:
      return reflection.GetString(job, &field);
  }
}

}  // namespace

void add_kernel_option_flags(CLI::App& app, ScenarioFlags<proto::Attention>& flags) {
  for (const KernelOptionInfo& option : kernel_options()) {
    const FieldDescriptor& field = field_of(option);
    std::string flag = str("--", option.name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    const auto change = [&flags, &field, flag](const std::string& text) {
      flags.changes.emplace_back(
          [&field, flag, text](proto::Attention& job) { set(job, field, flag, text); });
    };
    const std::string help(option.aliases);
    CLI::Option* added = field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL
                             ? app.add_flag_callback(
                                   flag, [change] { change(""); }, help)
                             : add_value(app, flag.c_str(), std::string(option.type).c_str(), help, change);
    added->group(kGroup);
  }
}

std::map<KernelOption, std::string> kernel_options_of(const proto::Attention& job) {
  std::map<KernelOption, std::string> options;
  for (const KernelOptionInfo& option : kernel_options()) {
    if (const auto value = value_of_field(job, field_of(option))) options[option.option] = *value;
  }
  return options;
}

}  // namespace cp::cli
