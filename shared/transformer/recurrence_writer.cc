#include "shared/transformer/recurrence_writer.h"

#include <utility>

#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/transformer/row_rules_of.h"

namespace cp {
namespace {

// Rows first .. first + count - 1 of each sequence: of [batch, rows, width].
View rows_of_sequences(const View& all, std::int64_t first, std::int64_t count) {
  View view = all;
  view.offset += first * all.strides[1], view.shape[1] = count;
  return view;
}

}  // namespace

RecurrenceWriter::RecurrenceWriter(StepWriter& writer, Activations& activations, KvCache* cache)
    : writer_(writer),
      context_(writer.context()),
      activations_(activations),
      cache_(cache),
      r_(context_.sizes.recurrence) {
  if (!context_.recurrence) return;
  const std::vector<Chunk> chunks = chunks_of(*context_.recurrence);
  first_rank_ = chunks.front().index;
  for (const Chunk& chunk : chunks) {
    if (chunk.index == context_.groups.cp()) own_chunks_.push_back(chunk);
  }
  kernel_takes_cache_ = cache_ != nullptr && chunks.size() == 1;
  if (kernel_takes_cache_) return;
  parts_ = cache_ == nullptr ? halo_parts(chunks, reach()) : halo_parts_behind_cache(chunks, reach());
  if (cache_ != nullptr) to_cache_ = parts_to_cache(chunks, reach());
  const std::int64_t cached = cache_ != nullptr && has_first_row() ? reach() : 0;
  halo_rows_ = context_.layout.micro_batch * (cached + halo_rows(parts_, context_.groups.cp()));
}

RecurrenceWriter::Projected RecurrenceWriter::cut(const View& all) const {
  const std::int64_t convolved = r_.convolved(), values = r_.value_width();
  return {all, columns_of(all, 0, convolved), columns_of(all, convolved, values),
          columns_of(all, convolved + values, r_.numbers())};
}

std::vector<Weight> RecurrenceWriter::norm_weights(const LayerPlace& place) const {
  const LayerWeights& layer = this->layer(place);
  std::vector<Weight> weights{skips() ? layer.row_norm : layer.head_norm};
  if (skips()) weights.push_back(layer.skip);
  return weights;
}

// ---- forward ----

View RecurrenceWriter::forward(const LayerPlace& place, const Window& weights, const View& rows) {
  const LayerWeights& layer = this->layer(place);
  const std::int64_t tokens = context_.tokens, keys = r_.key_width(), values = r_.value_width();
  const Projected projected = cut(activations_.rows(A::projected, place, tokens, r_.projected()));
  writer_.matmul(rows, layer.projection.transposed(weights), projected.all, "recurrence projection");
  const View halo = this->halo(place);
  fetch(place, projected.convolved, halo);
  std::vector<View> seen = convolved_views(place, weights, projected.convolved), cached;
  if (kernel_takes_cache_ && has_first_row() && reach() > 0) cached.push_back(cache_->convolved(place));
  writer_.kernel({RowOperation::short_convolution,
                  std::move(seen),
                  {activations_.rows(A::recurrent_q, place, tokens, keys),
                   activations_.rows(A::recurrent_k, place, tokens, keys),
                   activations_.rows(A::recurrent_v, place, tokens, values)},
                  std::move(cached),
                  convolution_rule()},
                 "short convolution");
  cache_last_rows(place, projected.convolved, halo);
  writer_.kernel({RowOperation::decay_and_beta,
                  {projected.numbers, layer.numbers.flat(weights)},
                  {activations_.rows(A::log_decay, place, tokens, r_.value_heads),
                   activations_.rows(A::beta, place, tokens, r_.value_heads)},
                  {}},
                 "decay and beta");
  writer_.recurrence(RecurrencePass::forward, [&](std::string_view name, std::int64_t numel) {
    if (cache_ != nullptr && name == "state") return cache_->state(place);
    return activations_.recurrence_operand(name, place, numel);
  });
  View normed = activations_.rows(A::normed_out, place, tokens, values);
  normalize(place, weights, normed, "recurrence norm and gates");
  return normed;
}

void RecurrenceWriter::normalize(const LayerPlace& place, const Window& weights, const View& normed,
                                 const std::string& label) {
  const std::int64_t tokens = context_.tokens, values = r_.value_width();
  std::vector<View> reads{activations_.rows(A::recurrent_out, place, tokens, values),
                          cut(activations_.rows(A::projected, place, tokens, r_.projected())).gates};
  if (skips()) reads.push_back(activations_.rows(A::recurrent_v, place, tokens, values));
  for (const Weight& weight : norm_weights(place)) reads.push_back(weight.flat(weights));
  writer_.kernel({RowOperation::gated_norm, std::move(reads), {normed}, {}, gated_norm_rule(context_)},
                 label);
}

std::vector<View> RecurrenceWriter::convolved_views(const LayerPlace& place, const Window& weights,
                                                    const View& x) {
  const LayerWeights& layer = this->layer(place);
  std::vector<View> views{x, layer.convolution.flat(weights)};
  if (r_.convolution_bias) views.push_back(layer.convolution_bias.flat(weights));
  if (halo_rows_ > 0) views.push_back(halo(place));
  return views;
}

RowRule RecurrenceWriter::convolution_rule() const {
  if (cache_ != nullptr) return {};
  ConvolutionRule rule;
  rule.taps = r_.convolution, rule.sequences = context_.layout.micro_batch;
  if (r_.rule == RecurrenceRule::delta) rule.normalized = r_.key_dim;
  auto part = parts_.begin();
  for (const Chunk& chunk : own_chunks_) {
    // What stands before the chunk in its first document comes first. Another document begins anew.
    std::int64_t before = chunk.comes_in ? halo_rows_before(context_.recurrence->problem, chunk, reach()) : 0;
    bool begins = true;
    while (before > 0) {
      while (part->to != context_.groups.cp()) ++part;
      rule.runs.push_back({part->halo_row * rule.sequences, part->rows, true, begins});
      before -= part->rows, begins = false, ++part;
    }
    std::int64_t first = 0;
    std::vector<std::int64_t> ends = chunk.starts;
    ends.push_back(chunk.rows);
    for (const std::int64_t end : ends) {
      rule.runs.push_back({chunk.local_row + first, end - first, false, begins});
      first = end, begins = true;
    }
  }
  return rule;
}

// ---- backward ----

View RecurrenceWriter::output(const LayerPlace& place, const Window& weights) {
  View normed = activations_.rows(A::normed_out, place, context_.tokens, r_.value_width());
  if (!place.recomputed && !activations_.keeps(A::normed_out, place))
    normalize(place, weights, normed, "recurrence norm and gates again");
  return normed;
}

void RecurrenceWriter::backward(const LayerPlace& place, const Window& weights,
                                const GradientPlace& gradients, const View& rows, const View& d_out,
                                const View& d_rows) {
  const LayerWeights& layer = this->layer(place);
  const std::int64_t tokens = context_.tokens, keys = r_.key_width(), values = r_.value_width();
  const Projected projected = cut(activations_.rows(A::projected, place, tokens, r_.projected())),
                  d_projected = cut(writer_.working_rows("d projected", tokens, r_.projected()));
  const auto numbers_of_heads = [&](const char* name) {
    return writer_.working(name, DType::f32, tokens * r_.value_heads).dense(0, {tokens, r_.value_heads});
  };
  const View d_recurrent_out = writer_.working_rows("d recurrent out", tokens, values),
             d_q = writer_.working_rows("d recurrent q", tokens, keys),
             d_k = writer_.working_rows("d recurrent k", tokens, keys),
             d_v = writer_.working_rows("d recurrent v", tokens, values),
             d_log_decay = numbers_of_heads("d log decay"), d_beta = numbers_of_heads("d beta");
  std::vector<View> reads{d_out, activations_.rows(A::recurrent_out, place, tokens, values), projected.gates};
  std::vector<View> writes{d_recurrent_out, d_projected.gates};
  if (skips()) {
    reads.push_back(activations_.rows(A::recurrent_v, place, tokens, values));
    writes.push_back(writer_.working_rows("d v of the skip", tokens, values));
  }
  for (const Weight& weight : norm_weights(place)) reads.push_back(weight.flat(weights));
  writer_.kernel_with_gradients(
      {RowOperation::gated_norm_backward, std::move(reads), std::move(writes), {}, gated_norm_rule(context_)},
      norm_weights(place), gradients, "recurrence norm and gates, backward");
  writer_.recurrence(RecurrencePass::backward, [&](std::string_view name, std::int64_t numel) {
    for (const auto& [known, view] : {std::pair<std::string_view, const View&>{"dout", d_recurrent_out},
                                      {"dq", d_q},
                                      {"dk", d_k},
                                      {"dv", d_v},
                                      {"dlog_decay", d_log_decay},
                                      {"dbeta", d_beta}}) {
      if (name == known) return flat_view(view.buffer, view.offset, numel);
    }
    return activations_.recurrence_operand(name, place, numel);
  });
  if (skips()) writer_.accumulate(writer_.working_rows("d v of the skip", tokens, values), d_v, "d v");
  writer_.kernel_with_gradients({RowOperation::decay_and_beta_backward,
                                 {projected.numbers, layer.numbers.flat(weights), d_log_decay, d_beta},
                                 {d_projected.numbers},
                                 {}},
                                {layer.numbers}, gradients, "decay and beta, backward");
  // The gradients of the halo go back to the ranks that its rows came from.
  const View d_halo = writer_.working_rows("d halo", halo_rows_, r_.convolved());
  std::vector<View> seen = convolved_views(place, weights, projected.convolved);
  seen.insert(seen.end(), {d_q, d_k, d_v});
  std::vector<View> made{d_projected.convolved};
  if (halo_rows_ > 0) made.push_back(d_halo);
  std::vector<Weight> learnt{layer.convolution};
  if (r_.convolution_bias) learnt.push_back(layer.convolution_bias);
  writer_.kernel_with_gradients(
      {RowOperation::short_convolution_backward, std::move(seen), std::move(made), {}, convolution_rule()},
      learnt, gradients, "short convolution, backward");
  give_back(d_halo, d_projected.convolved);
  writer_.matmul(d_projected.all, layer.projection.matrix(weights), d_rows, "recurrence projection, dgrad");
  writer_.weight_gradient(transposed(d_projected.all), rows, layer.projection, gradients,
                          "recurrence projection, wgrad");
}

// ---- the halo ----

View RecurrenceWriter::halo(const LayerPlace& place) {
  return activations_.rows(A::halo, place, halo_rows_, r_.convolved());
}

View RecurrenceWriter::rows_of_batch(const View& matrix, std::int64_t first, std::int64_t count) const {
  const std::int64_t pitch = matrix.strides[0];
  return {matrix.buffer,
          matrix.offset + first * pitch,
          {context_.layout.micro_batch, count, matrix.shape[1]},
          {context_.new_rows * pitch, pitch, 1},
          matrix.advance};
}

// Rows of the halo, or of what is sent to others' halos: those of one part lie together, whatever the batch.
View RecurrenceWriter::packed(const View& buffer, std::int64_t first, std::int64_t count) const {
  View view = rows_of(buffer, first * context_.layout.micro_batch, count * context_.layout.micro_batch);
  const std::int64_t width = buffer.shape[1];
  view.shape = {context_.layout.micro_batch, count, width}, view.strides = {count * width, width, 1};
  return view;
}

RecurrenceWriter::HaloMoves RecurrenceWriter::halo_moves(const std::vector<HaloPart>& parts,
                                                         const View& matrix, const View& halo, const View& to,
                                                         const char* packed_name, bool back) {
  const int self = context_.groups.cp();
  std::int64_t rows = 0;  // of this rank in the halos of others
  for (const HaloPart& part : parts) rows += part.from == self && part.to != self ? part.rows : 0;
  const View of_others =
      writer_.working_rows(packed_name, context_.layout.micro_batch * rows, r_.convolved());
  HaloMoves moves;
  std::int64_t at = 0;
  for (const HaloPart& part : parts) {
    if (part.from == self) {
      const bool stays = part.to == self;
      const View place = stays ? packed(to, part.halo_row, part.rows) : packed(of_others, at, part.rows);
      moves.own_rows.emplace_back(part.cached
                                      ? rows_of_sequences(packed(halo, 0, reach()), part.from_row, part.rows)
                                      : rows_of_batch(matrix, part.from_row, part.rows),
                                  place);
      if (stays) continue;
      at += part.rows;
      moves.ways.push_back({!back, part.to, place});
    } else if (part.to == self) {
      moves.ways.push_back({back, part.from, packed(to, part.halo_row, part.rows)});
    }
  }
  return moves;
}

void RecurrenceWriter::fetch(const LayerPlace& place, const View& matrix, const View& halo) {
  const bool has_cached = cache_ != nullptr && !kernel_takes_cache_ && has_first_row() && reach() > 0;
  if (has_cached) writer_.copy(cache_->convolved(place), packed(halo, 0, reach()), "cached rows of a halo");
  const HaloMoves moves = halo_moves(parts_, matrix, halo, halo, "halo of others", false);
  for (const auto& [rows, there] : moves.own_rows) writer_.copy(rows, there, "rows of a halo");
  exchange(parts_, moves.ways, false, "halo");
}

void RecurrenceWriter::give_back(const View& halo, const View& matrix) {
  const HaloMoves moves = halo_moves(parts_, matrix, halo, halo, "d halo of others", true);
  exchange(parts_, moves.ways, true, "d halo");
  for (const auto& [rows, place] : moves.own_rows)
    writer_.accumulate(place, rows, "rows of a halo, backward");
}

// What is sent is contiguous, and the cache has each sequence's rows together: so they come together in a
// place of their own first.
void RecurrenceWriter::cache_last_rows(const LayerPlace& place, const View& matrix, const View& halo) {
  if (to_cache_.empty()) return;
  const View last = writer_.working_rows(
      "last rows", has_first_row() ? context_.layout.micro_batch * reach() : 0, r_.convolved());
  const HaloMoves moves = halo_moves(to_cache_, matrix, halo, last, "last rows of others", false);
  for (const auto& [rows, there] : moves.own_rows) writer_.copy(rows, there, "last rows");
  exchange(to_cache_, moves.ways, false, "last rows");
  if (!has_first_row()) return;
  for (const HaloPart& part : to_cache_) {
    writer_.copy(packed(last, part.halo_row, part.rows),
                 rows_of_sequences(cache_->convolved(place), part.halo_row, part.rows), "cache last rows");
  }
}

void RecurrenceWriter::exchange(const std::vector<HaloPart>& parts, const std::vector<Way>& ways, bool back,
                                const std::string& label) {
  std::vector<Count> counts;
  const std::int64_t each = context_.layout.micro_batch * r_.convolved();
  for (const HaloPart& part : parts) {
    if (part.from == part.to) continue;
    counts.push_back({back ? part.to : part.from, back ? part.from : part.to, part.rows * each});
  }
  if (counts.empty()) return;
  PlanBuilder& builder = writer_.builder();
  Exchange exchange;
  exchange.group = builder.group("cp", context_.groups.cp_group());
  exchange.counts = counts_digest(std::move(counts));
  for (const Way& way : ways) (way.sends ? exchange.sends : exchange.recvs).push_back({way.peer, way.view});
  builder.add(builder.stream("comm"), std::move(exchange), label);
}

}  // namespace cp
