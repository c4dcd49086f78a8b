// Cases of the fuzzer, written in a test.
#pragma once

#include <string>

#include "traces/fuzz_case.h"

namespace cp::testing {

inline proto::FuzzCase case_of(const std::string& text) { return read_case_text(text, "case"); }

}  // namespace cp::testing
