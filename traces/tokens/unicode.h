// What tokenizers ask of Unicode: whether bytes are UTF-8, normal forms, and what white space is. The tables
// are utf8proc's; a character that is younger than they are is in no normal form but its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cp {

// Where the first byte stands that is part of no character in UTF-8, or the text's size if all are.
std::size_t first_that_is_no_utf8(std::string_view text);

// Bytes of the character that begins with this byte. The text must be UTF-8.
inline std::size_t bytes_of_character(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// Bytes of white space (the property White_Space) with which the text begins or ends. The text must be UTF-8.
std::size_t white_space_at_begin(std::string_view text);
std::size_t white_space_at_end(std::string_view text);

enum class NormalForm : std::uint8_t { nfc, nfd, nfkc, nfkd };
// The text, which must be UTF-8, in a form of Unicode Standard Annex 15.
std::string normalized(std::string_view text, NormalForm form);

}  // namespace cp
