// The files that commands write.
#pragma once

#include <string>

namespace cp::cli {

// Writes the file. Ctrl-C does not leave it half-written (interrupt.h). Throws InvalidInput with the flag if
// it cannot be written.
void write_text_file(const std::string& flag, const std::string& path, const std::string& text);

// Throws InvalidInput if `path` is a folder, or lies in a folder that does not exist. Call it before a search
// that takes long.
void require_writable(const std::string& flag, const std::string& path);

}  // namespace cp::cli
