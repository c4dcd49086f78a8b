#include "traces/tokens/added_tokens.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "traces/tokens/unicode.h"

namespace cp {

void AddedTokens::add(AddedToken token) {
  if (token.content.empty()) return;
  std::vector<std::size_t>& lengths = lengths_[static_cast<unsigned char>(token.content.front())];
  const auto place = std::lower_bound(lengths.begin(), lengths.end(), token.content.size(), std::greater<>());
  if (place == lengths.end() || *place != token.content.size()) lengths.insert(place, token.content.size());
  std::string content = token.content;
  tokens_.insert_or_assign(std::move(content), std::move(token));
}

const AddedToken* AddedTokens::longest_at(std::string_view text, std::size_t at) const {
  for (const std::size_t length : lengths_[static_cast<unsigned char>(text[at])]) {
    if (length > text.size() - at) continue;
    const auto found = tokens_.find(std::string(text.substr(at, length)));
    if (found != tokens_.end()) return &found->second;
  }
  return nullptr;
}

void AddedTokens::cut(std::string_view text, const std::function<void(std::int32_t)>& token,
                      const std::function<void(std::string_view)>& piece) const {
  std::size_t done = 0;  // bytes that were given on
  for (std::size_t at = 0; at < text.size();) {
    const AddedToken* const found = longest_at(text, at);
    if (found == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + found->content.size();
    at = end;
    if (found->takes_space_before) begin -= white_space_at_end(text.substr(done, begin - done));
    if (found->takes_space_behind) end += white_space_at_begin(text.substr(end));
    if (done < begin) piece(text.substr(done, begin - done));
    token(found->id);
    done = end, at = std::max(at, end);
  }
  if (done < text.size()) piece(text.substr(done));
}

}  // namespace cp
