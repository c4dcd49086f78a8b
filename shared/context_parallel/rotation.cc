#include "shared/context_parallel/rotation.h"

#include <utility>

#include "shared/base/text.h"

namespace cp::detail {

Traveller traveller(const Tensor& tensor) {
  return {tensor.buffer, tensor.dtype, tensor.batch * tensor.heads * tensor.dim, tensor.offset};
}
Traveller traveller(const RowStatistic& statistic) {
  return {statistic.buffer, DType::f32, statistic.batch * statistic.heads};
}

Slots make_slots(AttentionWriter& writer, const std::vector<Traveller>& travellers, std::int64_t most_rows,
                 const std::string& label) {
  Slots slots;
  for (const Traveller& t : travellers) {
    std::vector<BufferId> places(static_cast<std::size_t>(writer.strategy().slots));
    for (BufferId& slot : places) {
      slot = writer.reached(str(label, " slot"), t.dtype, most_rows * t.per_row);
    }
    slots.of_traveller.push_back(std::move(places));
  }
  return slots;
}

void place_for_sending(AttentionWriter& writer, std::vector<Traveller>& travellers, std::int64_t rows,
                       std::int64_t most_rows, const std::string& label) {
  if (!writer.by_copy_engine()) return;
  for (Traveller& t : travellers) {
    t.sent_from = writer.reached(str(label, " sent"), t.dtype, most_rows * t.per_row);
    const std::int64_t numel = rows * t.per_row;
    writer.convert(flat_view(t.buffer, t.offset, numel), flat_view(t.sent_from, 0, numel),
                   str("place ", label));
  }
}

void ExchangeWriter::issue(PlanBuilder& builder, StreamId stream, std::string label) && {
  if (counts_.empty()) return;  // on all members alike
  exchange_.counts = counts_digest(std::move(counts_));
  builder.add(stream, std::move(exchange_), std::move(label));
}

Rotation::Rotation(AttentionWriter& writer, const Ring& ring, std::vector<std::int64_t> rows,
                   std::vector<int> last, std::vector<Traveller> travellers, const Slots& slots,
                   std::string label)
    : writer_(writer),
      ring_(ring),
      rows_(std::move(rows)),
      last_(std::move(last)),
      travellers_(std::move(travellers)),
      slots_(slots),
      label_(std::move(label)) {}

void Rotation::bring(int step) {
  const auto numel = [&](int block, const Traveller& t) {
    return rows_[static_cast<std::size_t>(block)] * t.per_row;
  };
  const auto travels = [&](int block) { return step <= last_[static_cast<std::size_t>(block)]; };
  ExchangeWriter exchange(ring_.team.moves());
  for (int block = 0; block < ring_.size; ++block) {
    if (!travels(block)) continue;
    for (const Traveller& t : travellers_) {
      exchange.count(ring_.member(step - 1, block), ring_.member(step, block), numel(block, t));
    }
  }
  const int leaving = ring_.block(step - 1), arriving = ring_.block(step);
  for (std::size_t i = 0; i < travellers_.size(); ++i) {
    if (travels(leaving)) {
      const Traveller& t = travellers_[i];
      const std::int64_t elements = numel(leaving, t);
      const bool placed = step == 1 && t.sent_from >= 0;
      // The next rank receives it in the slot of this step, as this rank does what comes to it.
      exchange.send(ring_.member(1, ring_.self),
                    flat_view(placed ? t.sent_from : buffer(i, step - 1), step == 1 && !placed ? t.offset : 0,
                              elements),
                    ring_.team.copy_engine() ? flat_view(buffer(i, step), 0, elements) : View{});
    }
    if (travels(arriving)) {
      exchange.receive(ring_.member(-1, ring_.self),
                       flat_view(buffer(i, step), 0, numel(arriving, travellers_[i])));
    }
  }
  std::move(exchange).issue(writer_.builder(), ring_.stream, str(label_, " of step ", step));
}

}  // namespace cp::detail
