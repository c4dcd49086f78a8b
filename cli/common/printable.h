// Makes text that comes from files safe to print on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace cp::cli {

// Returns the text with each control character written as \xNN, except tabs and ends of lines. This includes
// the control characters U+0080 to U+009F, as UTF-8 writes them. Names and labels come from files that others
// wrote, and a terminal would obey an escape sequence in them.
std::string printable(std::string_view text);

}  // namespace cp::cli
