// The tokenizer of a model, as Hugging Face's tokenizer.json describes it.
//
//   cp::Tokenizer tokenizer("Qwen3-8B/tokenizer.json");   // or the folder that has it
//   const std::vector<std::int32_t> tokens = tokenizer.encode(text);
//
// What it does, in the order of the file's sections:
//
//   added_tokens    are cut out of the text, with `normalized` behind the normalizer
//   normalizer      NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence
//   pre_tokenizer   cuts words: Split, ByteLevel, Metaspace, Digits, Punctuation, Sequence
//   model           BPE, with byte_fallback, ignore_merges, unk_token and fuse_unk
//   post_processor  puts tokens before and behind a text: TemplateProcessing, ByteLevel, Sequence
//
// These are GPT-2's, Llama's, Qwen's, Mistral's, Gemma's, DeepSeek's and gpt-oss's; anything else is refused
// by its name. Tokens are those of Hugging Face's `tokenizers`, which tests hold them to. `truncation` and
// `padding` are not looked at, as Transformers do when it is not told to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cp {

class Tokenizer {
 public:
  // Throws InvalidInput with the path for a file that cannot be read, is no tokenizer's, or has something
  // that is not known here.
  explicit Tokenizer(const std::string& path);
  // From the text of a tokenizer.json; errors call it `origin`.
  Tokenizer(std::string_view json, const std::string& origin);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The tokens of one document, with those of post_processor. As Hugging Face's, a character that the
  // vocabulary has no token for, nor for its bytes, and that no unk_token stands for is left out. Throws
  // InvalidInput with the place if the text is not UTF-8. Keeps the tokens of words: one thread at a time.
  std::vector<std::int32_t> encode(std::string_view text);
  // The text of tokens, added ones as they are written. Of a tokenizer of bytes without normalizer it is what
  // was encoded.
  std::string decode(std::span<const std::int32_t> tokens) const;

  std::int64_t vocabulary() const;  // the largest token and one more
  // The token that is written so ("<|endoftext|>"), if there is one.
  std::optional<std::int32_t> token(std::string_view text) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace cp
