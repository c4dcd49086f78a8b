// Tokens that are cut out of a text as they stand, before it is split into words: <|endoftext|>, <s>, runs of
// blanks. Of those that begin at one place the longest is taken.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace cp {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool takes_space_before = false, takes_space_behind = false;  // white space there belongs to the token
};

class AddedTokens {
 public:
  void add(AddedToken token);

  // Calls token(id) and text(piece) in turn, from left to right; no piece is empty. The text must be UTF-8.
  void cut(std::string_view text, const std::function<void(std::int32_t)>& token,
           const std::function<void(std::string_view)>& piece) const;

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t at) const;

  std::unordered_map<std::string, AddedToken> tokens_;      // by content
  std::array<std::vector<std::size_t>, 256> lengths_ = {};  // of those with this first byte, longest first
};

}  // namespace cp
