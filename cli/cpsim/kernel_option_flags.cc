#include "cli/cpsim/kernel_option_flags.h"

#include <algorithm>
#include <string_view>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "cli/common/flags.h"
#include "sim/scenario/kernel_option_fields.h"

namespace cp::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Reflection;

constexpr const char* kGroup = "Options that no kernel here has (each is refused, with what works instead)";

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

}  // namespace

void add_kernel_option_flags(FlagSet app, ScenarioFlags<proto::Attention>& flags) {
  for (const KernelOptionInfo& option : kernel_options()) {
    const FieldDescriptor& field = sim::field_of(option);
    std::string flag = str("--", option.name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    const auto change = [&flags, &field, flag](const std::string& text) {
      flags.changes.emplace_back(
          [&field, flag, text](proto::Attention& job) { set(job, field, flag, text); });
    };
    const std::string help = option.aliases.empty() ? "" : str("Other libraries call it ", option.aliases);
    Flag added = field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL
                     ? app.add_flag(
                           flag, [change] { change(""); }, help)
                     : add_value(app, flag.c_str(), std::string(option.type).c_str(), help, change);
    added.group(kGroup);
  }
}

}  // namespace cp::cli
