// Text of files, for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace cp::cli {

// The text with each control character but tabs and ends of lines as \xNN, those of UTF-8 (U+0080 to U+009F)
// too: names and labels come from files that others wrote, and an escape sequence among them would be obeyed.
std::string printable(std::string_view text);

}  // namespace cp::cli
