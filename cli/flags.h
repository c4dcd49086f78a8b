// Adding flags whose values are read as sim/scenario/values.h says.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "sim/scenario/values.h"

namespace cp::cli {

using sim::parse_bytes;
using sim::parse_real;
using sim::parse_whole;
using sim::target_of;
using sim::value_of;

// Adds a flag with a value; set(text) is called while the command line is parsed.
template <class Set>
CLI::Option* add_value(CLI::App& app, const char* flag, const char* type, const std::string& help,
                       const Set& set) {
  return app.add_option_function<std::string>(flag, set, help)->type_name(type);
}

}  // namespace cp::cli
