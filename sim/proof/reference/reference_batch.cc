#include "sim/proof/reference/reference_batch.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "sim/proof/run/input_values.h"

namespace cp::sim {
namespace {

// A whole number in [0, count) of one in [0, 1).
std::int64_t below(double unit, std::int64_t count) {
  return std::min(count - 1, static_cast<std::int64_t>(std::floor(unit * static_cast<double>(count))));
}

}  // namespace

std::int64_t ReferenceBatch::labelled() const {
  return std::count_if(labels.begin(), labels.end(), [](std::int32_t label) { return label >= 0; });
}

ReferenceBatch ReferenceBatch::part(std::int64_t first, std::int64_t count) const {
  const auto rows = [&](const std::vector<std::int32_t>& of) {
    return std::vector(of.begin() + first * seq_len, of.begin() + (first + count) * seq_len);
  };
  return {
      seq_len, rows(tokens), rows(labels), {cu_seqlens.begin() + first, cu_seqlens.begin() + first + count}};
}

std::vector<std::int64_t> ReferenceBatch::document_begins(std::int64_t sequence) const {
  std::vector<std::int64_t> begins;
  const std::vector<std::int64_t>& cuts = cu_seqlens[idx(sequence)];
  for (std::size_t d = 0; d + 1 < cuts.size(); ++d) begins.resize(idx(cuts[d + 1]), cuts[d]);
  return begins;
}

void validate_batch(const ReferenceBatch& batch, std::int64_t vocab) {
  const std::int64_t rows = batch.sequences() * batch.seq_len;
  if (batch.seq_len < 1 || rows < 1 || std::ssize(batch.tokens) != rows || std::ssize(batch.labels) != rows)
    throw InvalidInput(str("a batch of ", batch.sequences(), " sequences of ", batch.seq_len, " tokens has ",
                           batch.tokens.size(), " tokens and ", batch.labels.size(), " labels; it needs ",
                           rows, " of each, and at least 1"));
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.tokens[i] < 0 || batch.tokens[i] >= vocab)
      throw InvalidInput(str("token ", i, " is ", batch.tokens[i], "; use 0 to ", vocab - 1));
    if (batch.labels[i] != kIgnoredLabel && (batch.labels[i] < 0 || batch.labels[i] >= vocab))
      throw InvalidInput(str("label ", i, " is ", batch.labels[i], "; use 0 to ", vocab - 1, ", or ",
                             kIgnoredLabel, " for none"));
  }
  for (std::int64_t s = 0; s < batch.sequences(); ++s) {
    const std::vector<std::int64_t>& cuts = batch.cu_seqlens[idx(s)];
    if (cuts.size() < 2 || cuts.front() != 0 || cuts.back() != batch.seq_len ||
        !std::is_sorted(cuts.begin(), cuts.end()))
      throw InvalidInput(str("the documents ", join(cuts, "/"), " of sequence ", s,
                             " must begin with 0, ascend, and end with seq_len=", batch.seq_len));
  }
}

// The first `documents` - 1 different cuts that are drawn.
std::vector<std::int64_t> draw_documents(std::int64_t seq_len, std::int64_t documents, std::uint64_t seed) {
  std::set<std::int64_t> cuts{0, seq_len};
  for (std::uint64_t number = 0; std::ssize(cuts) < std::min(documents, seq_len) + 1; ++number)
    cuts.insert(1 + below(unit_values(1, mix(seed) + number).front(), seq_len - 1));
  return {cuts.begin(), cuts.end()};
}

ReferenceBatch draw_batch(const BatchOptions& options) {
  const std::int64_t seq_len = options.seq_len;
  if (options.vocab < 1 || options.sequences < 1 || seq_len < 1 || options.documents < 1)
    throw InvalidInput(str("vocab=", options.vocab, ", sequences=", options.sequences, ", seq_len=", seq_len,
                           " and documents=", options.documents, " must each be at least 1"));
  ReferenceBatch batch;
  batch.seq_len = seq_len;
  for (std::int64_t s = 0; s < options.sequences; ++s) {
    const std::uint64_t seed = mix(mix(options.seed) + static_cast<std::uint64_t>(s));
    for (const double unit : unit_values(seq_len, seed + 1))
      batch.tokens.push_back(static_cast<std::int32_t>(below(unit, options.vocab)));
    batch.cu_seqlens.push_back(
        !options.cu_seqlens_of_sequence.empty() ? options.cu_seqlens_of_sequence[idx(s)]
        : options.cu_seqlens.empty()            ? draw_documents(seq_len, options.documents, seed + 2)
                                                : options.cu_seqlens);
    const std::vector<std::int64_t> begins = batch.document_begins(s);
    const std::vector<double> ignored = unit_values(seq_len, seed + 3);
    for (std::int64_t i = 0; i < seq_len; ++i) {
      const bool is_last = i + 1 == seq_len || begins[idx(i + 1)] != begins[idx(i)];
      const bool has_label = !is_last && s >= options.without_label && ignored[idx(i)] >= options.ignored;
      batch.labels.push_back(has_label ? batch.tokens[idx(s * seq_len + i + 1)] : kIgnoredLabel);
    }
  }
  return batch;
}

}  // namespace cp::sim
