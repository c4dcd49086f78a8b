#include "shared/transformer/halo_writer.h"

#include "shared/base/index.h"

namespace cp {
namespace {

// Rows first .. first + count - 1 of each sequence: of [batch, rows, width].
View rows_of_sequences(const View& all, std::int64_t first, std::int64_t count) {
  View view = all;
  view.offset += first * all.strides[1], view.shape[1] = count;
  return view;
}

}  // namespace

HaloWriter::HaloWriter(StepWriter& writer, KvCache* cache, ConvolvedSequence sequence)
    : writer_(writer), context_(writer.context()), cache_(cache), sequence_(std::move(sequence)) {
  const std::vector<Chunk>& chunks = sequence_.chunks;
  first_rank_ = chunks.front().index;
  kernel_takes_cache_ = cache_ != nullptr && chunks.size() == 1;
  if (kernel_takes_cache_) return;
  parts_ = cache_ == nullptr ? halo_parts(chunks, reach()) : halo_parts_behind_cache(chunks, reach());
  if (cache_ != nullptr) to_cache_ = parts_to_cache(chunks, reach());
  const std::int64_t cached = cache_ != nullptr && has_first_row() ? reach() : 0;
  rows_ = context_.layout.micro_batch * (cached + halo_rows(parts_, context_.groups.cp()));
}

std::vector<View> HaloWriter::cached(const LayerPlace& place) const {
  if (!kernel_takes_cache_ || !has_first_row() || reach() == 0) return {};
  return {cache_->convolved(place)};
}

ConvolutionRule HaloWriter::rule() const {
  ConvolutionRule rule;
  rule.taps = sequence_.taps, rule.sequences = context_.layout.micro_batch;
  auto part = parts_.begin();
  for (const Chunk& chunk : sequence_.chunks) {
    if (chunk.index != context_.groups.cp()) continue;
    // What stands before the chunk in its first document comes first. Another document begins anew.
    std::int64_t before = chunk.comes_in ? halo_rows_before(sequence_.document_starts, chunk, reach()) : 0;
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

View HaloWriter::rows_of_batch(const View& matrix, std::int64_t first, std::int64_t count) const {
  const std::int64_t pitch = matrix.strides[0];
  return {matrix.buffer,
          matrix.offset + first * pitch,
          {context_.layout.micro_batch, count, matrix.shape[1]},
          {context_.new_rows * pitch, pitch, 1},
          matrix.advance};
}

// Rows of the halo, or of what is sent to others' halos: those of one part lie together, whatever the batch.
View HaloWriter::packed(const View& buffer, std::int64_t first, std::int64_t count) const {
  View view = rows_of(buffer, first * context_.layout.micro_batch, count * context_.layout.micro_batch);
  const std::int64_t width = buffer.shape[1];
  view.shape = {context_.layout.micro_batch, count, width}, view.strides = {count * width, width, 1};
  return view;
}

HaloWriter::Moves HaloWriter::moves(const std::vector<HaloPart>& parts, const View& matrix, const View& halo,
                                    const View& to, const char* packed_name, bool back) {
  const int self = context_.groups.cp();
  std::int64_t rows = 0;  // of this rank in the halos of others
  for (const HaloPart& part : parts) rows += part.from == self && part.to != self ? part.rows : 0;
  const View of_others =
      writer_.working_rows(packed_name, context_.layout.micro_batch * rows, sequence_.width);
  Moves moves;
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

void HaloWriter::fetch(const LayerPlace& place, const View& matrix, const View& halo) {
  const bool has_cached = cache_ != nullptr && !kernel_takes_cache_ && has_first_row() && reach() > 0;
  if (has_cached) writer_.copy(cache_->convolved(place), packed(halo, 0, reach()), "cached rows of a halo");
  const Moves own = moves(parts_, matrix, halo, halo, "halo of others", false);
  for (const auto& [rows, there] : own.own_rows) writer_.copy(rows, there, "rows of a halo");
  exchange(parts_, own.ways, false, "halo");
}

void HaloWriter::give_back(const View& halo, const View& matrix) {
  const Moves own = moves(parts_, matrix, halo, halo, "d halo of others", true);
  exchange(parts_, own.ways, true, "d halo");
  for (const auto& [rows, place] : own.own_rows) writer_.accumulate(place, rows, "rows of a halo, backward");
}

// What is sent is contiguous, and the cache has each sequence's rows together: so they come together in a
// place of their own first.
void HaloWriter::cache_last_rows(const LayerPlace& place, const View& matrix, const View& halo) {
  if (to_cache_.empty()) return;
  const View last = writer_.working_rows(
      "last rows", has_first_row() ? context_.layout.micro_batch * reach() : 0, sequence_.width);
  const Moves own = moves(to_cache_, matrix, halo, last, "last rows of others", false);
  for (const auto& [rows, there] : own.own_rows) writer_.copy(rows, there, "last rows");
  exchange(to_cache_, own.ways, false, "last rows");
  if (!has_first_row()) return;
  for (const HaloPart& part : to_cache_) {
    writer_.copy(packed(last, part.halo_row, part.rows),
                 rows_of_sequences(cache_->convolved(place), part.halo_row, part.rows), "cache last rows");
  }
}

void HaloWriter::exchange(const std::vector<HaloPart>& parts, const std::vector<Way>& ways, bool back,
                          const std::string& label) {
  std::vector<Count> counts;
  const std::int64_t each = context_.layout.micro_batch * sequence_.width;
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
