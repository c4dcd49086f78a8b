// The fields of attention that no kernel has. shared/context_parallel/kernel_options.h names them, and each
// field is called like its option.
#pragma once

#include <map>
#include <string>

#include "shared/context_parallel/kernel_options.h"
#include "traces/scenario.pb.h"

namespace cp::sim {

// Returns the field of the message that is called like the option.
const google::protobuf::FieldDescriptor& field_of(const KernelOptionInfo& option);

// Returns the options that the job asks for, with their values as text. A number 0 and a false ask for
// nothing.
std::map<KernelOption, std::string> kernel_options_of(const proto::Attention& job);

}  // namespace cp::sim
