#include "tests/support/golden.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "shared/base/text.h"

namespace cp::testing {

std::string compare_with_golden(const std::string& path, const std::string& text) {
  const std::filesystem::path file = std::filesystem::path(CP_SOURCE_DIR) / "tests" / "golden" / path;
  const char* update = std::getenv("CP_UPDATE_GOLDEN");
  if (update != nullptr && std::string_view(update) == "1") {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return "";
  }
  const std::string hint = str("; CP_UPDATE_GOLDEN=1 writes tests/golden/", path, " anew");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return "no such golden file" + hint;
  std::istringstream expected{std::string(std::istreambuf_iterator<char>(stream), {})}, actual(text);
  std::string expected_line, actual_line;
  for (int number = 1;; ++number) {
    const bool more_expected = static_cast<bool>(std::getline(expected, expected_line));
    const bool more_actual = static_cast<bool>(std::getline(actual, actual_line));
    if (!more_expected && !more_actual) return "";
    if (more_expected == more_actual && expected_line == actual_line) continue;
    return str("line ", number, " is '", more_actual ? actual_line : "", "', not '",
               more_expected ? expected_line : "", "'", hint);
  }
}

}  // namespace cp::testing
