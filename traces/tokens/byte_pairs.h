// Byte pair encoding (Sennrich, Haddow and Birch 2016): a word is its characters, and of all pairs of
// neighbours that have a merge the one of the lowest rank is merged, the leftmost first, until none has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace cp {

struct BytePairOptions {
  bool ignore_merges = false;  // a word that is a token is that token, whatever merges would make of it
  // A character that is no token is the tokens <0x00> .. <0xFF> of its bytes, if all of them are tokens.
  bool byte_fallback = false;
  std::optional<std::int32_t> unknown = {};  // else this token, and without it nothing
  bool fuse_unknown = false;                 // one for neighbours that are unknown
};

class BytePairs {
 public:
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Vocabulary = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

  // Merges by rank. Throws InvalidInput if one of them joins or makes what is no token.
  BytePairs(Vocabulary vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
            BytePairOptions options);

  // Appends the tokens of a word in UTF-8. Keeps those of short words, so that no two threads may call it.
  void encode(std::string_view word, std::vector<std::int32_t>& to);
  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    std::int32_t rank = 0, made = 0;
  };
  struct Symbol {
    std::int32_t token = 0, before = -1, behind = -1;  // neighbours by place, or -1
    bool merged_away = false;
  };
  struct Candidate {
    std::int32_t rank = 0, place = 0, made = 0;
  };
  const Merge* merge_of(std::int32_t left, std::int32_t right) const;
  void begin_symbols(std::string_view word);
  static bool is_later(const Candidate& one, const Candidate& two);
  void offer(std::int32_t left);
  void merge(std::string_view word, std::vector<std::int32_t>& to);
  void merge_word(std::string_view word, std::vector<std::int32_t>& to);
  void merge_parts(std::string_view word, std::vector<std::int32_t>& to);
  void find_parts();

  Vocabulary vocabulary_;
  BytePairOptions options_;
  std::unordered_map<std::uint64_t, Merge> merges_;  // by both tokens
  // Characters before which "\u2581", the blank of SentencePiece, stands within some token.
  std::unordered_set<std::string, TextHash, std::equal_to<>> before_blank_;
  bool has_parts_ = false;
  std::unordered_map<std::string, std::vector<std::int32_t>, TextHash, std::equal_to<>> kept_;
  // At work, kept so that they are allocated once.
  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;  // a heap, lowest rank first
};

}  // namespace cp
