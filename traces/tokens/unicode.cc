#include "traces/tokens/unicode.h"

#include <algorithm>
#include <cstdlib>
#include <memory>

#include <utf8proc.h>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {
namespace {

// A character of the text and its bytes; less than one of them if it is none.
std::pair<utf8proc_int32_t, utf8proc_ssize_t> character_at(std::string_view text, std::size_t at) {
  utf8proc_int32_t character = 0;
  const auto* const bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at);
  const utf8proc_ssize_t count =
      utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - at), &character);
  return {character, count};
}

// Those of PropList.txt, which utf8proc does not have: some of its white space are controls there.
bool is_white_space(utf8proc_int32_t character) {
  switch (character) {
    case 0x20:
    case 0x85:
    case 0xa0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202f:
    case 0x205f:
    case 0x3000:
      return true;
    default:
      return (character >= 0x09 && character <= 0x0d) || (character >= 0x2000 && character <= 0x200a);
  }
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

std::size_t first_that_is_no_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const utf8proc_ssize_t bytes = character_at(text, at).second;
    if (bytes < 1) return at;
    at += static_cast<std::size_t>(bytes);
  }
  return text.size();
}

std::size_t white_space_at_begin(std::string_view text) {
  std::size_t bytes = 0;
  while (bytes < text.size()) {
    const auto [character, count] = character_at(text, bytes);
    if (!is_white_space(character)) break;
    bytes += static_cast<std::size_t>(count);
  }
  return bytes;
}

std::size_t white_space_at_end(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0) {
    std::size_t last = begin - 1;
    while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
    if (!is_white_space(character_at(text, last).first)) break;
    begin = last;
  }
  return text.size() - begin;
}

std::string normalized(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);  // which is in all forms
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::nfc || form == NormalForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t count = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                              static_cast<utf8proc_ssize_t>(text.size()), &bytes,
                                              static_cast<utf8proc_option_t>(options));
  if (count < 0)
    throw InvalidInput(
        str("a text of ", text.size(), " bytes cannot be normalized: ", utf8proc_errmsg(count)));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(bytes, &std::free);
  return {reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count)};
}

}  // namespace cp
