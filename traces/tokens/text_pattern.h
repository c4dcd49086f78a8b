// A regular expression of a tokenizer.json over UTF-8 text.
//
// Hugging Face's tokenizers match with Oniguruma, and this with PCRE2, which is in every distribution and
// compiles patterns. Both read what models have alike: Unicode classes, (?i:...), lookahead, possessive
// quantifiers. What they read differently is refused by name. The tables are those of PCRE2's Unicode (14 in
// Debian 12): a letter that is younger is none.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace cp {

class TextPattern {
 public:
  // Throws InvalidInput with the pattern, the place and the reason.
  explicit TextPattern(std::string regex);
  static TextPattern literal(std::string_view text);

  // Calls use(begin, end) with the bytes of each match that is not empty, from left to right. The text must
  // be UTF-8. Throws InvalidInput if the pattern needs more steps than PCRE2 allows.
  template <class Use>
  void for_each_match(std::string_view text, const Use& use) const {
    Match match;
    while (find(text, match.end, match)) use(match.begin, match.end);
  }

 private:
  struct Match {
    std::size_t begin = 0, end = 0;
  };
  // The first match that is not empty, at `from` or behind it.
  bool find(std::string_view text, std::size_t from, Match& match) const;

  std::string regex_;
  std::shared_ptr<const void> code_;  // pcre2_code, shared by copies
};

}  // namespace cp
