#include "traces/tokens/tokenizer_steps.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <unordered_map>

#include "shared/base/types.h"

namespace cp {
namespace {

using Word = std::function<void(std::string_view)>;

// GPT-2's bytes_to_unicode(): bytes that can be seen in Latin-1 are their own character, the others are, in
// their order, the characters from U+0100 on.
const std::array<std::string, 256>& visible_bytes() {
  static const std::array<std::string, 256> kTexts = [] {
    std::array<std::string, 256> of;
    unsigned next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const bool is_seen =
          (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
      const unsigned character = is_seen ? byte : next++;
      if (character >= 0x80) of[byte] += static_cast<char>(0xc0 | character >> 6);
      of[byte] += static_cast<char>(character < 0x80 ? character : 0x80 | (character & 0x3f));
    }
    return of;
  }();
  return kTexts;
}

std::string replaced(std::string_view text, const TextPattern& pattern, std::string_view content) {
  std::string result;
  std::size_t done = 0;
  pattern.for_each_match(text, [&](std::size_t begin, std::size_t end) {
    result.append(text.substr(done, begin - done)).append(content);
    done = end;
  });
  return result.append(text.substr(done));
}

// Joins stretches of a text that match and that do not, which come in turns or with several matches in a row.
class Pieces {
 public:
  Pieces(SplitBehavior behavior, std::string_view text, const Word& piece)
      : behavior_(behavior), text_(text), piece_(piece) {}

  void add(std::size_t begin, std::size_t end, bool is_match) {
    if (begin == end) return;
    const bool joins = behavior_ == SplitBehavior::contiguous             ? is_match == is_match_
                       : behavior_ == SplitBehavior::merged_with_previous ? is_match && !is_match_
                       : behavior_ == SplitBehavior::merged_with_next     ? !is_match && is_match_
                                                                          : false;
    if (!joins) {
      end_piece();
      begin_ = begin;
    }
    end_ = end, is_match_ = is_match;
    if (behavior_ == SplitBehavior::removed && is_match) begin_ = end;
  }
  void end_piece() {
    if (begin_ < end_) piece_(text_.substr(begin_, end_ - begin_));
    begin_ = end_;
  }

 private:
  const SplitBehavior behavior_;
  const std::string_view text_;
  const Word& piece_;
  std::size_t begin_ = 0, end_ = 0;
  bool is_match_ = false;
};

void split_at(const Split& by, std::string_view text, const Word& piece) {
  Pieces pieces(by.behavior, text, piece);
  std::size_t done = 0;
  by.pattern.for_each_match(text, [&](std::size_t begin, std::size_t end) {
    pieces.add(done, begin, by.inverted);
    pieces.add(begin, end, !by.inverted);
    done = end;
  });
  pieces.add(done, text.size(), by.inverted);
  pieces.end_piece();
}

void cut(std::span<const PreTokenizer> steps, std::string_view piece, bool is_begin, const Word& word) {
  if (steps.empty()) {
    if (!piece.empty()) word(piece);
    return;
  }
  // Of what a step makes of the piece, the first part alone begins where it does.
  bool is_first = is_begin;
  const Word next = [&](std::string_view part) {
    cut(steps.subspan(1), part, is_first, word);
    is_first = false;
  };
  const Overloaded apply_step{[&](const Split& by) { split_at(by, piece, next); },
                              [&](const ByteLevel& bytes) {
                                std::string with_space;
                                if (bytes.add_prefix_space && !piece.starts_with(' ')) {
                                  with_space.append(" ").append(piece);
                                  piece = with_space;
                                }
                                std::string seen;
                                const Word make_visible = [&](std::string_view part) {
                                  seen.clear();
                                  for (const char byte : part)
                                    seen += visible_bytes()[static_cast<unsigned char>(byte)];
                                  next(seen);
                                };
                                if (bytes.words)
                                  split_at(*bytes.words, piece, make_visible);
                                else
                                  make_visible(piece);
                              },
                              [&](const Metaspace& spaces) {
                                std::string text;
                                for (const char byte : piece)
                                  byte == ' ' ? text += spaces.replacement : text += byte;
                                const bool prepends =
                                    spaces.prepends == Metaspace::Prepends::always ||
                                    (spaces.prepends == Metaspace::Prepends::at_begin && is_begin);
                                if (prepends && !text.starts_with(spaces.replacement))
                                  text.insert(0, spaces.replacement);
                                if (spaces.words)
                                  split_at(*spaces.words, text, next);
                                else
                                  next(text);
                              }};
  std::visit(apply_step, steps.front());
}

}  // namespace

std::string apply_normalizer(const Normalizer& normalizer, std::string_view text) {
  return std::visit(
      Overloaded{[&](NormalForm form) { return normalized(text, form); },
                 [&](const Prepend& prepend) {
                   return text.empty() ? std::string() : prepend.text + std::string(text);
                 },
                 [&](const Replace& replace) { return replaced(text, replace.pattern, replace.content); }},
      normalizer);
}

Split words_of_gpt2() {
  return {TextPattern(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"),
          SplitBehavior::isolated, false};
}

void cut_words(const std::vector<PreTokenizer>& steps, std::string_view piece, bool is_begin,
               const std::function<void(std::string_view)>& word) {
  cut(steps, piece, is_begin, word);
}

std::optional<std::string> bytes_of_visible(std::string_view text) {
  static const std::unordered_map<std::string_view, char> kBytes = [] {
    std::unordered_map<std::string_view, char> of;
    for (std::size_t byte = 0; byte < 256; ++byte) of[visible_bytes()[byte]] = static_cast<char>(byte);
    return of;
  }();
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view character = text.substr(at, bytes_of_character(text[at]));
    const auto found = kBytes.find(character);
    if (found == kBytes.end()) return std::nullopt;
    result += found->second, at += character.size();
  }
  return result;
}

}  // namespace cp
