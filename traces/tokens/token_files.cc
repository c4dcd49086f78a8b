#include "traces/tokens/token_files.h"

#include <algorithm>
#include <cstddef>
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

}  // namespace

TokenFiles::TokenFiles(const std::vector<std::string>& paths, Tokenizer* tokenizer) {
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
        add_made(tokenizer->encode(text));
      } catch (const InvalidInput& error) {
        throw InvalidInput(str(path, ": ", error.message()));
      }
      continue;
    }
    files_.push_back(std::move(file));
    parts_.push_back({bytes / each, each, {}, std::ssize(files_) - 1, {}});
    size_ += bytes / each;
  }
}

TokenFiles::TokenFiles(const std::vector<std::string_view>& texts, Tokenizer* tokenizer) {
  for (const std::string_view text : texts) {
    if (tokenizer != nullptr) {
      add_made(tokenizer->encode(text));
      continue;
    }
    parts_.push_back({std::ssize(text), 1, text, -1, {}});
    size_ += std::ssize(text);
  }
}

void TokenFiles::add_made(std::vector<std::int32_t> tokens) {
  size_ += std::ssize(tokens);
  const std::int64_t count = std::ssize(tokens);
  parts_.push_back({count, 0, {}, -1, std::move(tokens)});
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
