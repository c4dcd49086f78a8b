#include "traces/tokens/byte_pairs.h"

#include <algorithm>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "traces/tokens/unicode.h"

namespace cp {
namespace {

// Chosen: a text has some 10,000 words again and again, of some 6 bytes, and a longer one is seldom seen
// twice. With tokens that is 20 MB at most.
constexpr std::size_t kKeptWords = std::size_t{1} << 16, kKeptBytes = 64;

constexpr std::string_view kBlank = "\u2581";

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

std::string byte_token(char byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  const auto value = static_cast<unsigned char>(byte);
  return str("<0x", kDigits[value >> 4], kDigits[value & 15], ">");
}

}  // namespace

BytePairs::BytePairs(Vocabulary vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
                     BytePairOptions options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  merges_.reserve(merges.size());
  std::int32_t rank = 0;
  for (const auto& merge : merges) {
    const std::string &left = merge.first, &right = merge.second;
    const auto token = [&](const std::string& text) {
      const auto found = vocabulary_.find(text);
      if (found == vocabulary_.end())
        throw InvalidInput(str("merge ", rank, " of \"", left, "\" and \"", right, "\" needs \"", text,
                               "\", which is no token of the vocabulary"));
      return found->second;
    };
    // The first of two merges of one pair would never come second; the files' reader keeps the last.
    merges_[key_of(token(left), token(right))] = {rank, token(left + right)};
    ++rank;
  }
  find_parts();
}

// A text of Llama 2's or Gemma's is one word, and would be merged whole. No merge reaches across two
// characters that stand beside one another in no token, so that the word's parts on both sides are merged
// alone with the same result: here, before most blanks.
void BytePairs::find_parts() {
  has_parts_ = vocabulary_.contains(kBlank);
  for (const auto& [text, token] : vocabulary_) {
    std::string_view before;
    for (std::size_t at = 0; at < text.size();) {
      const std::string_view character = std::string_view(text).substr(at, bytes_of_character(text[at]));
      if (character == kBlank && at > 0) before_blank_.emplace(before);
      before = character, at += character.size();
    }
  }
  // A token such as <0x0A> stands for a byte, and what is before the blank is not seen from its text.
  if (before_blank_.contains(std::string_view(">"))) has_parts_ = false;
}

const BytePairs::Merge* BytePairs::merge_of(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairs::begin_symbols(std::string_view word) {
  symbols_.clear();
  const auto add = [&](std::int32_t token) {
    const auto place = static_cast<std::int32_t>(symbols_.size());
    if (place > 0) symbols_.back().behind = place;
    symbols_.push_back({token, place - 1, -1, false});
  };
  bool is_unknown = false;  // the unknown token is to be added
  const auto add_unknown = [&] {
    if (is_unknown) add(*options_.unknown);
    is_unknown = false;
  };
  for (std::size_t at = 0; at < word.size();) {
    const std::string_view character = word.substr(at, bytes_of_character(word[at]));
    at += character.size();
    if (const auto found = vocabulary_.find(character); found != vocabulary_.end()) {
      add_unknown();
      add(found->second);
      continue;
    }
    if (options_.byte_fallback) {
      std::vector<std::int32_t> bytes;
      for (const char byte : character) {
        const auto found = vocabulary_.find(byte_token(byte));
        if (found != vocabulary_.end()) bytes.push_back(found->second);
      }
      if (bytes.size() == character.size()) {
        // Behind an unknown one that is not added yet Hugging Face's adds them first, and so does this.
        std::for_each(bytes.begin(), bytes.end(), add);
        continue;
      }
    }
    if (!options_.unknown) continue;
    if (!options_.fuse_unknown) add_unknown();
    is_unknown = true;
  }
  add_unknown();
}

bool BytePairs::is_later(const Candidate& one, const Candidate& two) {
  return std::pair(one.rank, one.place) > std::pair(two.rank, two.place);
}

void BytePairs::offer(std::int32_t left) {
  if (left < 0 || symbols_[idx(left)].behind < 0) return;
  const Symbol& symbol = symbols_[idx(left)];
  const Merge* const merge = merge_of(symbol.token, symbols_[idx(symbol.behind)].token);
  if (merge == nullptr) return;
  candidates_.push_back({merge->rank, left, merge->made});
  std::push_heap(candidates_.begin(), candidates_.end(), is_later);
}

void BytePairs::merge_word(std::string_view word, std::vector<std::int32_t>& to) {
  begin_symbols(word);
  candidates_.clear();
  for (std::int32_t place = 0; place < std::ssize(symbols_); ++place) offer(place);
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end(), is_later);
    const Candidate best = candidates_.back();
    candidates_.pop_back();
    Symbol& left = symbols_[idx(best.place)];
    if (left.merged_away || left.behind < 0) continue;
    Symbol& right = symbols_[idx(left.behind)];
    // One of the two may have become another token since.
    const Merge* const merge = merge_of(left.token, right.token);
    if (merge == nullptr || merge->made != best.made) continue;
    left.token = best.made, left.behind = right.behind, right.merged_away = true;
    if (left.behind >= 0) symbols_[idx(left.behind)].before = best.place;
    offer(left.before);
    offer(best.place);
  }
  for (std::int32_t place = symbols_.empty() ? -1 : 0; place >= 0; place = symbols_[idx(place)].behind)
    to.push_back(symbols_[idx(place)].token);
}

void BytePairs::merge_parts(std::string_view word, std::vector<std::int32_t>& to) {
  std::size_t begin = 0;
  for (std::size_t at = has_parts_ ? word.find(kBlank, 1) : word.npos; at != word.npos;
       at = word.find(kBlank, at + 1)) {
    std::size_t before = at - 1;
    while (before > 0 && (static_cast<unsigned char>(word[before]) & 0xc0) == 0x80) --before;
    if (before_blank_.contains(word.substr(before, at - before))) continue;
    merge(word.substr(begin, at - begin), to);
    begin = at;
  }
  if (begin == 0)
    merge_word(word, to);
  else
    merge(word.substr(begin), to);
}

void BytePairs::merge(std::string_view word, std::vector<std::int32_t>& to) {
  if (word.size() > kKeptBytes) return merge_parts(word, to);
  if (const auto kept = kept_.find(word); kept != kept_.end()) {
    to.insert(to.end(), kept->second.begin(), kept->second.end());
    return;
  }
  const auto first = std::ssize(to);
  merge_word(word, to);
  if (kept_.size() >= kKeptWords) kept_.clear();
  kept_.emplace(word, std::vector<std::int32_t>(to.begin() + first, to.end()));
}

void BytePairs::encode(std::string_view word, std::vector<std::int32_t>& to) {
  if (options_.ignore_merges) {
    if (const auto found = vocabulary_.find(word); found != vocabulary_.end()) {
      to.push_back(found->second);
      return;
    }
  }
  merge(word, to);
}

}  // namespace cp
