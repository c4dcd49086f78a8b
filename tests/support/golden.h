// Golden files: expected texts under tests/golden. CP_UPDATE_GOLDEN=1 in the environment writes them anew.
#pragma once

#include <string>

namespace cp::testing {

// Where the text differs from the file tests/golden/<path>, in words; empty when nowhere, and when the file
// was written.
std::string compare_with_golden(const std::string& path, const std::string& text);

}  // namespace cp::testing
