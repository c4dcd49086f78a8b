#define PCRE2_CODE_UNIT_WIDTH 8

#include "traces/tokens/text_pattern.h"

#include <array>
#include <cstdint>
#include <utility>

#include <pcre2.h>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {
namespace {

struct Difference {
  std::string_view text, instead;
};
// In Oniguruma \w has marks and PCRE2's has not, \h is a hexadecimal digit and not a blank, && is the
// intersection of classes, and a + behind {m,n} repeats it and does not make it possessive.
constexpr std::array kDifferences = {Difference{"\\w", "[\\p{L}\\p{M}\\p{N}_]"},
                                     Difference{"\\W", "[^\\p{L}\\p{M}\\p{N}_]"},
                                     Difference{"\\b", "lookahead and lookbehind"},
                                     Difference{"\\B", "lookahead and lookbehind"},
                                     Difference{"\\h", "[0-9a-fA-F]"},
                                     Difference{"\\H", "[^0-9a-fA-F]"},
                                     Difference{"&&", "one class, or a lookahead"},
                                     Difference{"}+", "{m,} or a group"}};

// The property White_Space. PCRE2's \s has U+180E too, which is none since Unicode 6.3.
constexpr std::string_view kSpaces =
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

[[noreturn]] void refuse_part(std::string_view regex, std::string_view text, std::string_view instead) {
  throw InvalidInput(str("the regular expression ", regex, " has ", text,
                         ", which PCRE2 reads otherwise than Oniguruma, Hugging Face's; use ", instead));
}

// Whether the brace at this place ends a number of repeats, as in {1,3}, and not a class, as in \p{L}.
bool ends_repeats(std::string_view regex, std::size_t brace) {
  const std::size_t before = regex.substr(0, brace).find_last_not_of("0123456789,");
  return before != regex.npos && regex[before] == '{';
}

// The regex as PCRE2 has to read it, which has white space spelled out.
std::string for_pcre2(std::string_view regex) {
  std::string result;
  bool in_class = false;
  for (std::size_t at = 0; at < regex.size();) {
    const std::string_view rest = regex.substr(at);
    for (const Difference& difference : kDifferences) {
      if (rest.starts_with(difference.text) && (difference.text != "}+" || ends_repeats(regex, at)))
        refuse_part(regex, difference.text, difference.instead);
    }
    const std::string_view token = rest.substr(0, rest[0] == '\\' ? 2 : 1);
    if (token == "\\s") {
      in_class ? result.append(kSpaces) : result.append("[").append(kSpaces).append("]");
    } else if (token == "\\S") {
      if (in_class) refuse_part(regex, "\\S within a class", "a class that names what it has");
      result.append("[^").append(kSpaces).append("]");
    } else {
      if (token == "[" && in_class)
        refuse_part(regex, "a class within a class", "one class, or \\[ for the character");
      if (token == "[") in_class = true;
      if (token == "]") in_class = false;
      result.append(token);
    }
    at += token.size();
  }
  return result;
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

TextPattern::TextPattern(std::string regex) : regex_(std::move(regex)) {
  const std::string read = for_pcre2(regex_);
  int error = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* const code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(read.data()), read.size(),
                                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &place, nullptr);
  if (code == nullptr)
    throw InvalidInput(str("the regular expression ", regex_, " is none for PCRE2: ", message_of(error),
                           " at \"", read.substr(place), "\""));
  code_ = std::shared_ptr<const void>(code, [code](const void*) { pcre2_code_free(code); });
  // Where the processor has no compiler of PCRE2's, matches are interpreted.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

TextPattern TextPattern::literal(std::string_view text) {
  std::string regex;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-&#").find(c) != std::string_view::npos) regex += '\\';
    regex += c;
  }
  return TextPattern(regex);
}

bool TextPattern::find(std::string_view text, std::size_t from, Match& match) const {
  thread_local std::unique_ptr<pcre2_match_data, FreeMatchData> data(pcre2_match_data_create(1, nullptr));
  const auto* const code = static_cast<const pcre2_code*>(code_.get());
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const std::uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  int found = pcre2_match(code, subject, text.size(), from, options, data.get(), nullptr);
  // The compiled code has a stack of 32 KiB; the interpreter takes what it needs.
  if (found == PCRE2_ERROR_JIT_STACKLIMIT)
    found = pcre2_match(code, subject, text.size(), from, options | PCRE2_NO_JIT, data.get(), nullptr);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0)
    throw InvalidInput(str("the regular expression ", regex_, " fails at byte ", from, " of a text of ",
                           text.size(), " bytes: ", message_of(found), "; use a shorter text"));
  const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(data.get());
  match = {ends[0], ends[1]};
  return true;
}

}  // namespace cp
