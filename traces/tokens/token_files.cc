#include "traces/tokens/token_files.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <system_error>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"

namespace cp {
namespace {

// Chosen: enough to tell texts apart, 4 Mi tokens at most.
constexpr std::int64_t kStretches = 64, kStretchTokens = std::int64_t{1} << 16;

std::int64_t bytes_of_a_token(std::string_view path) {
  if (path.ends_with(".u16")) return 2;
  if (path.ends_with(".u32")) return 4;
  return 1;
}

std::int32_t token_of(const std::byte* bytes, std::int64_t count) {
  std::uint32_t token = 0;
  for (std::int64_t i = count - 1; i >= 0; --i) token = token << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return static_cast<std::int32_t>(token);
}

// Whether the byte begins a line that has characters, behind one that has none; lines end with \n or \r\n.
constexpr std::int64_t kBlankLineBack = 3;  // so many bytes before it tell
bool is_behind_blank_line(std::string_view text, std::size_t at) {
  if (at < 2 || text[at] == '\n' || text[at] == '\r' || text[at - 1] != '\n') return false;
  return text[at - 2] == '\n' || (at >= 3 && text[at - 2] == '\r' && text[at - 3] == '\n');
}

}  // namespace

DocumentRule parse_document_rule(std::string_view text, const Tokenizer* tokenizer) {
  constexpr std::string_view kToken = "token:";
  using Kind = DocumentRule::Kind;
  if (text.empty()) return {};
  if (text == "file") return {Kind::file, -1};
  if (text == "blank_line") return {Kind::blank_line, -1};
  if (!text.starts_with(kToken))
    throw InvalidInput(str("documents \"", text, "\" is not known; use file, blank_line, or token: and the ",
                           "token that ends each, such as token:<|endoftext|> or token:0"));
  const std::string_view token = text.substr(kToken.size());
  if (tokenizer != nullptr) {
    if (const std::optional<std::int32_t> known = tokenizer->token(token)) return {Kind::token, *known};
  }
  std::int32_t number = -1;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), number);
  if (error != std::errc{} || end != token.data() + token.size() || number < 0)
    throw InvalidInput(str("documents \"", text, "\": ", token, " is no token of the ",
                           tokenizer == nullptr ? "text, which has no tokenizer" : "tokenizer",
                           "; use its number, such as token:0"));
  return {Kind::token, number};
}

TokenFiles::TokenFiles(const std::vector<std::string>& paths, Tokenizer* tokenizer, DocumentRule documents)
    : documents_(documents) {
  for (const std::string& path : paths) {
    DataFile file(path, DataFile::Mode::read);
    const std::int64_t bytes = file.size(), each = bytes_of_a_token(path);
    if (bytes == 0) throw InvalidInput(str(path, " is empty; give a file with text"));
    if (bytes % each != 0)
      throw InvalidInput(str(path, " has ", bytes, " bytes, which are no whole tokens of ", each,
                             " bytes; a file of bytes has another ending, such as .txt"));
    if (tokenizer != nullptr && each == 1) {
      std::string text(idx(bytes), ' ');
      file.read(0, std::as_writable_bytes(std::span(text)));
      try {
        add_made(text, *tokenizer);
      } catch (const InvalidInput& error) {
        throw InvalidInput(str(path, ": ", error.message()));
      }
      continue;
    }
    if (documents.kind == DocumentRule::Kind::blank_line && each > 1)
      throw InvalidInput(str(path,
                             " has tokens, among which no blank line is seen; tell documents apart by the "
                             "token that ends each, such as token:0, or give the text and its tokenizer"));
    files_.push_back(std::move(file));
    parts_.push_back({bytes / each, each, {}, std::ssize(files_) - 1, {}, {}});
    size_ += bytes / each;
  }
}

TokenFiles::TokenFiles(const std::vector<std::string_view>& texts, Tokenizer* tokenizer,
                       DocumentRule documents)
    : documents_(documents) {
  for (const std::string_view text : texts) {
    if (tokenizer != nullptr) {
      add_made(text, *tokenizer);
      continue;
    }
    parts_.push_back({std::ssize(text), 1, text, -1, {}, {}});
    size_ += std::ssize(text);
  }
}

void TokenFiles::add_made(std::string_view text, Tokenizer& tokenizer) {
  Part part;
  part.bytes_each = 0;
  std::size_t begin = 0;
  const auto add = [&](std::size_t end) {
    part.begins.push_back(std::ssize(part.made));
    const std::vector<std::int32_t> tokens = tokenizer.encode(text.substr(begin, end - begin));
    part.made.insert(part.made.end(), tokens.begin(), tokens.end());
    begin = end;
  };
  for (std::size_t at = 1; documents_.kind == DocumentRule::Kind::blank_line && at < text.size(); ++at) {
    if (is_behind_blank_line(text, at)) add(at);
  }
  add(text.size());
  part.tokens = std::ssize(part.made), size_ += part.tokens;
  parts_.push_back(std::move(part));
}

void TokenFiles::read_part(const Part& part, std::int64_t first, std::int64_t count,
                           std::vector<std::int32_t>& to) const {
  if (part.bytes_each == 0) {
    to.insert(to.end(), part.made.begin() + first, part.made.begin() + first + count);
    return;
  }
  std::vector<std::byte> bytes(idx(count * part.bytes_each));
  if (part.file >= 0) {
    files_[idx(part.file)].read(first * part.bytes_each, bytes);
  } else {
    const auto text = std::as_bytes(std::span(part.text)).subspan(idx(first), idx(count));
    std::copy(text.begin(), text.end(), bytes.begin());
  }
  for (std::int64_t i = 0; i < count; ++i)
    to.push_back(token_of(bytes.data() + i * part.bytes_each, part.bytes_each));
}

std::vector<std::int32_t> TokenFiles::read(std::int64_t first, std::int64_t count) const {
  std::vector<std::int32_t> tokens;
  tokens.reserve(idx(count));
  std::int64_t begin = 0;
  for (const Part& part : parts_) {
    const std::int64_t from = std::max(first, begin), to = std::min(first + count, begin + part.tokens);
    if (from < to) read_part(part, from - begin, to - from, tokens);
    begin += part.tokens;
  }
  return tokens;
}

std::vector<std::int64_t> TokenFiles::document_begins(std::int64_t first, std::int64_t count) const {
  std::vector<std::int64_t> begins;
  if (documents_.kind == DocumentRule::Kind::none) return begins;
  std::int64_t begin = 0;
  for (const Part& part : parts_) {
    const std::int64_t from = std::max(first, begin), to = std::min(first + count, begin + part.tokens);
    if (from < to) add_begins(part, from - begin, to - from, begin, begins);
    begin += part.tokens;
  }
  return begins;
}

void TokenFiles::add_begins(const Part& part, std::int64_t first, std::int64_t count, std::int64_t part_begin,
                            std::vector<std::int64_t>& to) const {
  const bool by_token = documents_.kind == DocumentRule::Kind::token,
             by_line = documents_.kind == DocumentRule::Kind::blank_line && part.bytes_each == 1;
  // What stands before, of the same file, tells too.
  const std::int64_t back = std::min(first, kBlankLineBack);
  std::vector<std::int32_t> tokens;
  if (by_token || by_line) read_part(part, first - back, count + back, tokens);
  std::string text;
  for (const std::int32_t token : tokens) text += by_line ? static_cast<char>(token) : ' ';
  for (std::int64_t at = first; at < first + count; ++at) {
    const std::size_t place = idx(at - first + back);
    const bool begins = at == 0 || (by_token && tokens[place - 1] == documents_.token) ||
                        (by_line && is_behind_blank_line(text, place)) ||
                        std::binary_search(part.begins.begin(), part.begins.end(), at);
    if (begins) to.push_back(part_begin + at);
  }
}

template <class Use>
void TokenFiles::for_each_stretch(const Use& use) const {
  const std::int64_t stretches = std::min(kStretches, (size_ + kStretchTokens - 1) / kStretchTokens);
  for (std::int64_t stretch = 0; stretch < stretches; ++stretch) {
    // The last one ends with the text.
    const std::int64_t last = std::max<std::int64_t>(0, size_ - kStretchTokens),
                       first = stretches == 1 ? 0 : last / (stretches - 1) * stretch;
    use(first, read(first, std::min(kStretchTokens, size_ - first)));
  }
}

Digest TokenFiles::digest() const {
  Hasher hasher;
  hasher.add(size_);
  for_each_stretch([&](std::int64_t, const std::vector<std::int32_t>& tokens) {
    hasher.add(std::as_bytes(std::span(tokens)));
  });
  return hasher.digest();
}

void TokenFiles::require_below(std::int64_t vocabulary) const {
  const auto require = [&](std::int64_t first, const std::vector<std::int32_t>& tokens) {
    const auto large = std::find_if(tokens.begin(), tokens.end(),
                                    [&](std::int32_t token) { return token < 0 || token >= vocabulary; });
    if (large != tokens.end())
      throw InvalidInput(str("token ", first + (large - tokens.begin()), " of the text is ", *large,
                             ", and the model's vocabulary has ", vocabulary,
                             " tokens; use the tokenizer of the model, or for bytes a vocabulary of 256"));
  };
  for_each_stretch(require);
  std::int64_t begin = 0;
  for (const Part& part : parts_) {
    require(begin, part.made);
    begin += part.tokens;
  }
}

}  // namespace cp
