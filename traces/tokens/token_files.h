// Texts that models are trained on, as tokens.
//
//   book.txt, any other name    with a tokenizer, the text's tokens; without one each byte is a token, 0 to
//                               255 (as in ByT5 without its special tokens)
//   corpus.u16, corpus.u32      tokens that a tokenizer has made: little-endian numbers of two or four bytes,
//                               one after the other, as nanoGPT's prepare.py and Megatron's .bin have them
//
// Several files are one text, one behind the other. They are read where they are needed, so that a text may
// be larger than the memory; what a tokenizer makes of a text is kept, four bytes a token.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/digest.h"
#include "traces/checkpoints/data_file.h"
#include "traces/tokens/tokenizer.h"

namespace cp {

// How the documents of a text are told apart. Where they are, a file ends one, too.
struct DocumentRule {
  enum class Kind : std::uint8_t {
    none,        // they are not
    file,        // each file is one
    blank_line,  // of files of text: each ends with a blank line, or several, which belong to it
    token,       // each ends with this token
  };
  Kind kind = Kind::none;
  std::int32_t token = -1;
};
// Reads "file", "blank_line", "token:<|endoftext|>" or "token:0"; empty: none. Throws InvalidInput that lists
// them, or for a text that is no token of the tokenizer, which may be missing.
DocumentRule parse_document_rule(std::string_view text, const Tokenizer* tokenizer);

class TokenFiles {
 public:
  // The tokenizer, if there is one, is for the files of text, and each of them, or with blank_line each
  // document, is one text to it. Throws InvalidInput if a file cannot be read, is empty, ends within a token,
  // is no text for the tokenizer, or if blank lines are to be found in tokens.
  explicit TokenFiles(const std::vector<std::string>& paths, Tokenizer* tokenizer = nullptr,
                      DocumentRule documents = {});
  // Texts in memory, which must outlive this.
  explicit TokenFiles(const std::vector<std::string_view>& texts, Tokenizer* tokenizer = nullptr,
                      DocumentRule documents = {});

  std::int64_t size() const { return size_; }  // tokens
  // Tokens first .. first + count - 1. Throws InvalidInput if a file has become shorter.
  std::vector<std::int32_t> read(std::int64_t first, std::int64_t count) const;
  // Those of these tokens with which a document begins, ascending; none where documents are not told apart.
  std::vector<std::int64_t> document_begins(std::int64_t first, std::int64_t count) const;
  // Of their number, and of up to 64 stretches of 64 Ki tokens that are spread over the text: another text
  // shows, and a large one is not read whole.
  Digest digest() const;
  // Throws InvalidInput if one of the tokens that digest() reads, or that a tokenizer made, is not below
  // `vocabulary`.
  void require_below(std::int64_t vocabulary) const;

 private:
  struct Part {
    std::int64_t tokens = 0, bytes_each = 1;  // 0: a tokenizer made them
    std::string_view text;                    // in memory, or
    std::int64_t file = -1;                   // index of files_, or
    std::vector<std::int32_t> made;           // by the tokenizer
    std::vector<std::int64_t> begins;         // of these, with blank_line: where documents begin
  };
  void add_made(std::string_view text, Tokenizer& tokenizer);
  void add_begins(const Part& part, std::int64_t first, std::int64_t count, std::int64_t part_begin,
                  std::vector<std::int64_t>& to) const;
  void read_part(const Part& part, std::int64_t first, std::int64_t count,
                 std::vector<std::int32_t>& to) const;
  template <class Use>
  void for_each_stretch(const Use& use) const;

  DocumentRule documents_;
  std::vector<Part> parts_;
  std::vector<DataFile> files_;
  std::int64_t size_ = 0;
};

}  // namespace cp
