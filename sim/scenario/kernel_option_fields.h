// The fields of attention that no kernel has: what shared/context_parallel/kernel_options.h names, each under
// its name.
#pragma once

#include <map>
#include <string>

#include "shared/context_parallel/kernel_options.h"
#include "traces/scenario.pb.h"

namespace cp::sim {

// The field of the message that is called like the option.
const google::protobuf::FieldDescriptor& field_of(const KernelOptionInfo& option);

// What the job asks for, with values as text. A number of 0 and a false ask for nothing.
std::map<KernelOption, std::string> kernel_options_of(const proto::Attention& job);

}  // namespace cp::sim
