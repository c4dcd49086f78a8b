// The data of a training step: ids, labels and documents of all sequences of the global batch.
#pragma once

#include <cstdint>
#include <vector>

namespace cp::sim {

inline constexpr std::int32_t kIgnoredLabel = -100;  // the usual one of PyTorch's cross_entropy

struct ReferenceBatch {
  std::int64_t seq_len = 0;
  // Sequence after sequence, seq_len of each: the tokens, and for each the one that it is to predict, or
  // kIgnoredLabel. The last token of a document predicts none.
  std::vector<std::int32_t> tokens, labels;
  // Of each sequence the documents, as in AttentionProblem: it begins with 0, ascends, and ends with seq_len.
  std::vector<std::vector<std::int64_t>> cu_seqlens;

  std::int64_t sequences() const { return static_cast<std::int64_t>(cu_seqlens.size()); }
  std::int64_t labelled() const;  // tokens that have a label
  // Sequences first .. first + count - 1.
  ReferenceBatch part(std::int64_t first, std::int64_t count) const;
  // The first row, of a sequence, of the document that each of its rows is in.
  std::vector<std::int64_t> document_begins(std::int64_t sequence) const;
};

// Throws InvalidInput that names what does not fit: the numbers of tokens and labels, an id or a label
// outside of the vocabulary, documents that do not cover a sequence.
void validate_batch(const ReferenceBatch& batch, std::int64_t vocab);

struct BatchOptions {
  std::int64_t vocab = 0, sequences = 1, seq_len = 0;
  std::int64_t documents = 1;      // of each sequence, none empty; fewer if it has fewer tokens
  double ignored = 0;              // the share of labels that are ignored beside those at the ends
  std::int64_t without_label = 0;  // so many sequences, the first ones, have none
  std::uint64_t seed = 0;
  std::vector<std::int64_t> cu_seqlens = {};  // unless empty: the documents of all sequences alike
  std::vector<std::vector<std::int64_t>> cu_seqlens_of_sequence = {};  // unless empty: those of each
};
// So many documents, none empty, that fill seq_len tokens; fewer if there are fewer tokens.
std::vector<std::int64_t> draw_documents(std::int64_t seq_len, std::int64_t documents, std::uint64_t seed);
// Draws tokens and the cuts between documents, each sequence's by itself. Labels are the next tokens, shifted
// over the whole sequence before anything is split.
ReferenceBatch draw_batch(const BatchOptions& options);

}  // namespace cp::sim
