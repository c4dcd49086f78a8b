// Files that commands write.
#pragma once

#include <string>

namespace cp::cli {

// In one go: not left half-written by Ctrl-C. Throws InvalidInput with the flag when it cannot be written.
void write_text_file(const std::string& flag, const std::string& path, const std::string& text);

// Throws the same when the file could not be written later: before a search that takes its time.
void require_writable(const std::string& flag, const std::string& path);

}  // namespace cp::cli
