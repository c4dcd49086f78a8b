#include "shared/transformer/loss_writer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "shared/base/text.h"
#include "shared/transformer/row_rules_of.h"

namespace cp {
namespace {

// "working/tokens", and of another depth "working/tokens 1 ahead".
std::string name_of(const char* name, std::int64_t ahead) {
  return ahead == 0 ? name : str(name, " ", ahead, " ahead");
}

}  // namespace

// ---- embedding ----

EmbeddingWriter::EmbeddingWriter(StepWriter& writer, std::int64_t ahead) : writer_(writer), ahead_(ahead) {}

View EmbeddingWriter::tokens() {
  const std::int64_t count = writer_.context().tokens;
  if (tokens_ < 0) tokens_ = writer_.builder().input(name_of("working/tokens", ahead_), DType::i32, count);
  return flat_view(tokens_, 0, count);
}

View EmbeddingWriter::matrix(const Window& table) const {
  const StepContext& context = writer_.context();
  return table.dense(0, {context.sizes.vocab, context.hidden});
}

void EmbeddingWriter::forward(const Window& table, const View& x) {
  const View partial = writer_.partial_rows(x, "partial");
  writer_.kernel(
      {RowOperation::embed, {tokens(), matrix(table)}, {partial}, {}, vocabulary_rule(writer_.context())},
      "embed");
  writer_.scatter_rows(partial, x, "scatter embedding");
}

void EmbeddingWriter::backward(const View& dx, const Window& gradient) {
  const View rows = writer_.gather_rows(dx, "d gathered", "gather d embedding");
  writer_.kernel({RowOperation::embed_backward,
                  {tokens(), rows},
                  {},
                  {matrix(gradient)},
                  vocabulary_rule(writer_.context())},
                 "embed backward");
}

// ---- head and loss ----

void LossWriter::write(const LossPart& part, const HeadPieces& weights, const HeadGradients& gradients,
                       const View& x, const View& dx) {
  const std::int64_t hidden = context_.hidden, tokens = context_.tokens;
  const View norm = writer_.working_rows("final norm", context_.tokens_tp, hidden);
  const NormRule rule = norm_rule(context_.model, hidden);
  writer_.kernel({RowOperation::rms_norm, {x, weights.norm.flat(0, hidden)}, {norm}, {}, rule}, "final norm");
  const View rows = writer_.gather_rows(norm, "gathered", "gather rows");
  const View d_norm = writer_.working_rows("d norm", context_.tokens_tp, hidden),
             d_rows = writer_.partial_rows(d_norm, "d partial");
  const BufferId targets =
                     writer_.builder().input(name_of("working/targets", part.ahead), DType::i32, tokens),
                 losses = writer_.builder().output(name_of("working/losses", part.ahead), DType::f32, tokens),
                 weight = writer_.builder().input(name_of("working/loss_weight", part.ahead), DType::f32, 1);

  // A rank may have no rows: then one chunk of none, which still writes its (zero) gradients and meets the
  // others.
  const std::int64_t each = std::max<std::int64_t>(1, ceil_div(tokens, context_.layout.loss_chunks)),
                     whole = tokens / each;
  // The first chunk stands apart, since it overwrites the table's gradient and the others add to it. The
  // whole chunks behind it are a Repeat, and what is left over is a last, shorter chunk.
  const auto write_chunk = [&](std::int64_t first, std::int64_t step, std::int64_t count, bool is_first) {
    const auto rows_of_chunk = [&](BufferId buffer, std::int64_t width) {
      return Window{buffer, first * width, step == 0 ? Advance{} : Advance{step * width, 0, 0}};
    };
    chunk(weights, gradients, rows_of_chunk(rows.buffer, hidden), rows_of_chunk(d_rows.buffer, hidden),
          rows_of_chunk(targets, 1), rows_of_chunk(losses, 1), flat_view(weight, 0, 1), count, is_first);
  };
  write_chunk(0, 0, std::min(each, tokens), true);
  if (whole == 2) write_chunk(each, 0, each, false);
  if (whole > 2) {
    writer_.builder().begin_repeat(whole - 1);
    write_chunk(each, each, each, false);
    writer_.builder().end_repeat();
  }
  if (tokens > whole * each) write_chunk(whole * each, 0, tokens - whole * each, false);

  writer_.scatter_rows(d_rows, d_norm, "scatter d head");
  RowKernel backward{
      RowOperation::rms_norm_backward, {x, weights.norm.flat(0, hidden), d_norm}, {}, {}, rule};
  (part.adds ? backward.updates : backward.writes).push_back(dx);
  writer_.kernel_with_gradients(std::move(backward), {context_.head.norm}, gradients.norm,
                                "final norm backward");
}

void LossWriter::add_up_norm(const GradientPlace& norm) {
  // Where products add to the gradients, the sums of all micro-batches are added up in the update.
  if (norm.adds || !writer_.splits_rows()) return;
  writer_.all_reduce("tp", context_.groups.tp_group(), ReduceOp::sum, context_.head.norm.flat(norm.window),
                     "tp", "add up d final norm");
}

void LossWriter::chunk(const HeadPieces& weights, const HeadGradients& gradients, const Window& rows,
                       const Window& d_rows, const Window& targets, const Window& losses, const View& weight,
                       std::int64_t count, bool first) {
  const VocabularyRule rule = vocabulary_rule(context_);
  const std::int64_t hidden = context_.hidden, vocab = context_.sizes.vocab;
  const std::int64_t most = ceil_div(context_.tokens, context_.layout.loss_chunks);
  const auto chunk_buffer = [&](std::string_view name, DType dtype, std::int64_t width) {
    return writer_.working(name, dtype, most * width, "logits").dense(0, {count, width});
  };
  const View logits = chunk_buffer("chunk", writer_.dtype(), vocab),
             d_logits = chunk_buffer("gradient", writer_.dtype(), vocab),
             maxima = chunk_buffer("maxima", DType::f32, 1), sums = chunk_buffer("sums", DType::f32, 2);
  const View in = rows.dense(0, {count, hidden}), table = weights.table.dense(0, {vocab, hidden}),
             target = targets.flat(0, count);
  const std::vector<Rank> tp = context_.groups.tp_group();
  writer_.matmul(in, transposed(table), logits, "head");
  // With a split vocabulary the sum of exponentials needs the maximum over all tp ranks first, so the kernel
  // runs in two halves with an AllReduce behind each.
  if (tp.size() > 1) {
    writer_.kernel({RowOperation::cross_entropy, {logits}, {maxima}, {}, rule}, "maxima");
    writer_.all_reduce("tp", tp, ReduceOp::max, maxima, "tp", "maxima of all");
    writer_.kernel({RowOperation::cross_entropy, {logits, maxima, target}, {sums}, {}, rule}, "sums");
    writer_.all_reduce("tp", tp, ReduceOp::sum, sums, "tp", "sums of all");
  } else {
    writer_.kernel({RowOperation::cross_entropy, {logits, target}, {maxima, sums}, {}, rule}, "loss");
  }
  writer_.kernel({RowOperation::cross_entropy_backward,
                  {logits, maxima, sums, target, weight},
                  {d_logits, losses.flat(0, count)},
                  {},
                  rule},
                 "loss backward");
  writer_.matmul(d_logits, table, d_rows.dense(0, {count, hidden}), "head, dgrad");
  writer_.matmul(transposed(d_logits), in, gradients.table.window.dense(0, {vocab, hidden}), "head, wgrad",
                 !first || gradients.table.adds);
}

void LossWriter::last_logits(const HeadPieces& weights, const View& x) {
  const std::int64_t hidden = context_.hidden, vocab = context_.sizes.vocab;
  // Each tp rank offers as many rows as there are sequences; those that end one are taken.
  const std::int64_t offered = std::min(context_.layout.micro_batch, context_.tokens_tp),
                     count = std::min(context_.layout.micro_batch, offered * context_.layout.row_ranks());
  if (count == 0) return;
  const View last = rows_of(x, context_.tokens_tp - offered, offered),
             norm = writer_.working_rows("final norm", offered, hidden);
  writer_.kernel({RowOperation::rms_norm,
                  {last, weights.norm.flat(0, hidden)},
                  {norm},
                  {},
                  norm_rule(context_.model, hidden)},
                 "final norm");
  const View rows = rows_of(writer_.gather(norm, "last rows", "gather rows"), 0, count);
  const BufferId logits = writer_.builder().output("logits/last", writer_.dtype(), count * vocab);
  writer_.matmul(rows, transposed(weights.table.dense(0, {vocab, hidden})),
                 dense_view(logits, 0, {count, vocab}), "head");
}

}  // namespace cp
