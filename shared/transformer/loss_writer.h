// LossWriter: what lies before the first layer and behind the last one: embedding, final norm, head, loss,
// and their backward passes.
//
// Embedding and head are split over the vocabulary (Shoeybi et al. 2019). Head and loss take the rows in
// chunks, each forward and backward at once, so that the logits of one chunk live: two AllReduces of
// statistics a row (the maximum; the sum of exponentials and the target's logit) instead of the logits.
#pragma once

#include <cstdint>

#include "shared/fully_shard/unshard_writer.h"
#include "shared/transformer/step_writer.h"

namespace cp {

class EmbeddingWriter {
 public:
  explicit EmbeddingWriter(StepWriter& writer);

  // The rank's tokens to x, [tokens_tp, hidden].
  void forward(const Window& table, const View& x);
  // Adds to the table's gradient, which has been written.
  void backward(const View& dx, const Window& gradient);

 private:
  // The rows that are looked up, as many as there are at most: what is read, or added to, of the table.
  View looked_up(const Window& table) const;
  View tokens();

  StepWriter& writer_;
  BufferId tokens_ = -1;
};

// Where the two weights begin; the table may be the embedding's.
struct HeadPieces {
  Window norm, table;
};
struct HeadGradients {
  GradientPlace norm, table;
};

class LossWriter {
 public:
  explicit LossWriter(StepWriter& writer) : writer_(writer), context_(writer.context()) {}

  // From the last layer's output to the loss and back to dx, both [tokens_tp, hidden]. All gradients of norm
  // and table are written.
  void write(const HeadPieces& weights, const HeadGradients& gradients, const View& x, const View& dx);
  // Serving: the logits of each sequence's last row.
  void last_logits(const HeadPieces& weights, const View& x);

 private:
  void chunk(const HeadPieces& weights, const HeadGradients& gradients, const Window& rows,
             const Window& d_rows, const Window& targets, const Window& losses, std::int64_t count,
             bool first);

  StepWriter& writer_;
  const StepContext& context_;
};

}  // namespace cp
