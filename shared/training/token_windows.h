// Which tokens each step of a training reads.
//
// A text of n tokens has windows of seq_len + 1 tokens: the sequence, and the token behind it, which its last
// one is to predict. Neighbouring windows share that token. The last windows are kept for evaluation. The
// others are read in an order that is drawn anew for each epoch, from the seed alone: a step is a function of
// its number, so that a training that is resumed, on whatever layout, goes on with the tokens that it would
// have read.
//
// Where documents are told apart, a window has the end of one, whole ones, and the begin of one. Each is a
// document of the sequence: attention and labels stay within it, so that its last token predicts none.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "shared/training/permutation.h"

namespace cp {

// Tokens first .. first + count - 1 of a text.
using ReadTokens = std::function<std::vector<std::int32_t>(std::int64_t first, std::int64_t count)>;

// Those of these tokens with which a document begins, ascending.
using DocumentBegins = std::function<std::vector<std::int64_t>(std::int64_t first, std::int64_t count)>;

struct TokenBatch {
  std::vector<std::int32_t> tokens, labels;  // sequence after sequence
  // Where documents are told apart: of each sequence (Workload::cu_seqlens_of_sequence).
  std::vector<std::vector<std::int64_t>> cu_seqlens = {};
};

struct WindowOptions {
  std::int64_t tokens = 0;  // of the text
  std::int64_t seq_len = 0, global_batch = 1;
  double evaluation = 0.05;  // the share of windows that is kept for evaluation
  std::uint64_t seed = 0;
};

class TokenWindows {
 public:
  // Throws InvalidInput if the text has too few tokens for a window to train on and, with evaluation above 0,
  // one to evaluate.
  TokenWindows(const WindowOptions& options, ReadTokens read, DocumentBegins begins = {});

  std::int64_t training_windows() const { return training_; }
  std::int64_t evaluation_windows() const { return all_ - training_; }
  // How many batches the evaluation has: sequences are read again to fill the last one.
  std::int64_t evaluation_batches() const;

  TokenBatch training_batch(std::int64_t step) const;  // counted from 1
  TokenBatch evaluation_batch(std::int64_t batch) const;

 private:
  TokenBatch batch(const std::function<std::int64_t(std::int64_t)>& window_of) const;

  WindowOptions options_;
  ReadTokens read_;
  DocumentBegins begins_;  // or none
  std::int64_t all_ = 0, training_ = 0;
};

}  // namespace cp
