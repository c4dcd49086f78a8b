#include "sim/scenario/kernel_option_fields.h"

#include <optional>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "shared/base/error.h"

namespace cp::sim {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;

// Returns the field's value as text, or nothing if the field asks for nothing.
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

const FieldDescriptor& field_of(const KernelOptionInfo& option) {
  const FieldDescriptor* field = proto::Attention::descriptor()->FindFieldByName(std::string(option.name));
  CP_INVARIANT(field != nullptr, "proto::Attention has no field ", option.name);
  return *field;
}

std::map<KernelOption, std::string> kernel_options_of(const proto::Attention& job) {
  std::map<KernelOption, std::string> options;
  for (const KernelOptionInfo& option : kernel_options()) {
    if (const auto value = value_of_field(job, field_of(option))) options[option.option] = *value;
  }
  return options;
}

}  // namespace cp::sim
