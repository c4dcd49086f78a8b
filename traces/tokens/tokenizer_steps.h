// The steps of a tokenizer between a text and its words: normalizers change a piece of text, pre-tokenizers
// cut it. Names are those of Hugging Face's tokenizer.json.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "traces/tokens/text_pattern.h"
#include "traces/tokens/unicode.h"

namespace cp {

struct Prepend {
  std::string text;
};
struct Replace {
  TextPattern pattern;
  std::string content;
};
using Normalizer = std::variant<NormalForm, Prepend, Replace>;

std::string apply_normalizer(const Normalizer& normalizer, std::string_view text);

// What becomes of the matches at which a text is split.
enum class SplitBehavior : std::uint8_t {
  removed,
  isolated,  // a piece each
  merged_with_previous,
  merged_with_next,
  contiguous,  // neighbours that match are one piece
};

struct Split {
  TextPattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool inverted = false;  // the pattern matches what is between
};
// Each byte becomes a character that can be seen: a token's text is one of bytes.
struct ByteLevel {
  bool add_prefix_space = false;
  std::optional<Split> words;  // GPT-2's
};
// Blanks become `replacement`, one may be put before the text, and words begin with it.
struct Metaspace {
  enum class Prepends : std::uint8_t { always, at_begin, never };
  std::string replacement;
  Prepends prepends = Prepends::always;
  std::optional<Split> words;
};
using PreTokenizer = std::variant<Split, ByteLevel, Metaspace>;

// The words of GPT-2, as its ByteLevel cuts them.
Split words_of_gpt2();

// Calls word(text) with the words that all steps, each after the one before, make of a piece of text.
// is_begin: whether the piece begins where the whole text does.
void cut_words(const std::vector<PreTokenizer>& steps, std::string_view piece, bool is_begin,
               const std::function<void(std::string_view)>& word);

// The bytes that ByteLevel has made characters of; of a text with other characters nothing.
std::optional<std::string> bytes_of_visible(std::string_view text);

}  // namespace cp
