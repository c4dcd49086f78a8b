// A Rotation moves blocks round a ring of ranks: while one step computes on its block, the next one arrives
// in another place, or with three places the one after it may. Internal to shared/context_parallel.
#pragma once

#include <string>
#include <vector>

#include "shared/context_parallel/attention_writer.h"
#include "shared/context_parallel/trips.h"

namespace cp::detail {

// A communicator whose members stand in a ring. In step t member p has the block of member p - direction * t.
struct Ring {
  Team team;
  StreamId stream = -1;
  int size = 1, self = 0;
  int direction = 1;

  int member(int distance, int from) const { return ((from + direction * distance) % size + size) % size; }
  int block(int step) const { return member(-step, self); }
};

// One of the dense tensors that a block consists of; `per_row` elements for each row. At home it begins at
// `offset`, and in a slot at the beginning.
struct Traveller {
  BufferId buffer = -1;
  DType dtype = DType::f32;
  std::int64_t per_row = 0;
  std::int64_t offset = 0;
  // Where copy engines take it from at home, from the beginning; -1: from `buffer`, as others do.
  BufferId sent_from = -1;
};
Traveller traveller(const Tensor& tensor);
Traveller traveller(const RowStatistic& statistic);

// The places for what arrives of each traveller (Strategy::slots), each large enough for any block. Rotations
// that follow one another can share them.
struct Slots {
  std::vector<std::vector<BufferId>> of_traveller;
};
Slots make_slots(AttentionWriter& writer, const std::vector<Traveller>& travellers, std::int64_t most_rows,
                 const std::string& label);

// Copies the travellers, of `rows` rows at home, to where copy engines take them from; nothing unless the
// strategy has these.
void place_for_sending(AttentionWriter& writer, std::vector<Traveller>& travellers, std::int64_t rows,
                       std::int64_t most_rows, const std::string& label);

class Rotation {
 public:
  // `rows` and `last` have for each block its rows, and the distance that it travels.
  Rotation(AttentionWriter& writer, const Ring& ring, std::vector<std::int64_t> rows, std::vector<int> last,
           std::vector<Traveller> travellers, const Slots& slots, std::string label);

  // Writes the hop that brings the blocks of `step` (1 .. size-1); nothing if no block travels that far.
  void bring(int step);

  // The buffer with the block of a step; in step 0 the rank's own.
  BufferId buffer(std::size_t traveller, int step) const {
    if (step == 0) return travellers_[traveller].buffer;
    const std::vector<BufferId>& slots = slots_.of_traveller[traveller];
    return slots[static_cast<std::size_t>(step) % slots.size()];
  }

 private:
  AttentionWriter& writer_;
  Ring ring_;
  std::vector<std::int64_t> rows_;
  std::vector<int> last_;
  std::vector<Traveller> travellers_;
  const Slots& slots_;
  std::string label_;
};

// Builds an Exchange transfer by transfer. Every member must count all transfers, and adds its own.
class ExchangeWriter {
 public:
  explicit ExchangeWriter(GroupId group) : exchange_{group, {}, {}, {}} {}

  // Says that `numel` elements go from one member to another. Call this for all pairs.
  void count(int from, int to, std::int64_t numel) {
    if (numel > 0) counts_.push_back({from, to, numel});
  }
  // `there`: where copy engines write it, a view of this rank's as the peer's is; absent without them.
  void send(int to, View view, View there = {}) {
    if (view.numel() > 0) exchange_.sends.push_back({to, std::move(view), std::move(there)});
  }
  void receive(int from, View view) {
    if (view.numel() > 0) exchange_.recvs.push_back({from, std::move(view)});
  }
  // Appends the step, unless nobody sends anything.
  void issue(PlanBuilder& builder, StreamId stream, std::string label) &&;

 private:
  Exchange exchange_;
  std::vector<Count> counts_;
};

}  // namespace cp::detail
