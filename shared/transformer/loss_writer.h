// The steps before the first layer and behind the last one: embedding, final norm, head and loss, and their
// backward passes.
//
// Embedding and head are split over the vocabulary (Shoeybi et al. 2019). Head and loss take the rows in
// chunks, and do the forward and the backward pass of a chunk at once, so that only the logits of one chunk
// exist at a time. The tp ranks exchange statistics instead of logits, in two AllReduces with a few values
// for each row: first the maximum, then the sum of exponentials and the logit of the target.
//
// What each row's loss counts in the loss of the step is one number, the input working/loss_weight: 1 / the
// labels of the global batch that are not ignored. It is known before the step, as the labels are, and so
// gradients are those of the mean over all replicas and micro-batches without a further sum. The losses
// themselves are handed out without it, by row.
#pragma once

#include <cstdint>

#include "shared/fully_shard/unshard_writer.h"
#include "shared/transformer/step_writer.h"

namespace cp {

class EmbeddingWriter {
 public:
  // Of the tokens `ahead` positions behind each of the rank's rows.
  explicit EmbeddingWriter(StepWriter& writer, std::int64_t ahead = 0);

  // Looks up the rank's tokens and writes x, [tokens_tp, hidden].
  void forward(const Window& table, const View& x);
  // Adds the gradients of the looked-up rows to the table's gradient, which must have been written before.
  void backward(const View& dx, const Window& gradient);

 private:
  // The rank's part of the table, or of its gradient: [its vocabulary, hidden].
  View matrix(const Window& table) const;
  View tokens();

  StepWriter& writer_;
  std::int64_t ahead_;
  BufferId tokens_ = -1;
};

// Where the weights of the final norm and of the head begin; the head's table may be that of the embedding.
struct HeadPieces {
  Window norm, table;
};
struct HeadGradients {
  GradientPlace norm, table;
};

// One of a step's losses. Each is summed by itself; the weight of one is in its gradient.
struct LossPart {
  std::int64_t ahead = 0;  // how many positions its labels lie behind the next tokens: a prediction's depth
  bool adds = false;       // to the gradient of its rows, which another one has written
};

class LossWriter {
 public:
  explicit LossWriter(StepWriter& writer) : writer_(writer), context_(writer.context()) {}

  // Computes the loss from x, the last layer's output, and goes back to dx, its gradient; both are
  // [tokens_tp, hidden]. The gradients of norm and table are written.
  void write(const LossPart& part, const HeadPieces& weights, const HeadGradients& gradients, const View& x,
             const View& dx);
  // Adds up the gradient of the norm over the tp ranks, each of which has seen a part of the rows.
  void add_up_norm(const GradientPlace& norm);
  // For serving: computes the logits of the last row of each sequence, before they are scaled and capped:
  // neither changes which is the largest.
  void last_logits(const HeadPieces& weights, const View& x);

 private:
  void chunk(const HeadPieces& weights, const HeadGradients& gradients, const Window& rows,
             const Window& d_rows, const Window& targets, const Window& losses, const View& weight,
             std::int64_t count, bool first);

  StepWriter& writer_;
  const StepContext& context_;
};

}  // namespace cp
