// What the attention kernels share: rows of head_dim values in f32 whatever the layout and dtype in memory,
// and the keys that a query may see.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {

// Where one value of an attention view lies: [batch, seq, head].
struct RowIndex {
  std::int64_t batch = 0, seq = 0, head = 0;
};

// One head of a [batch, seq, heads, head_dim] view as dense f32 rows, which may be changed and stored again.
class Rows {
 public:
  Rows(std::int64_t seq_len, std::int64_t head_dim);  // zeros
  // The rows of one head.
  static Rows load(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
                   std::int64_t head);
  // Writes the rows to the head of the view, or adds them to it in f32; rounds once.
  void store(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
             std::int64_t head, bool accumulate) const;

  std::int64_t seq_len() const { return seq_len_; }
  std::span<float> operator[](std::int64_t seq) {
    return {values_.data() + seq * head_dim_, static_cast<std::size_t>(head_dim_)};
  }
  std::span<const float> operator[](std::int64_t seq) const {
    return {values_.data() + seq * head_dim_, static_cast<std::size_t>(head_dim_)};
  }

 private:
  std::int64_t seq_len_, head_dim_;
  std::vector<float> values_;
};

// Reads and writes of a [batch, heads, seq] f32 view (lse, delta).
float& row_statistic(const View& view, const HostMemory& memory, std::int64_t iteration,
                     const RowIndex& index);

// Keys [begin, end).
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};
// The keys that the slices let query `q` see; one range at most for each slice, in the slices' order, none
// empty.
void keys_of(std::span<const MaskSlice> slices, std::int64_t q, std::vector<KeyRange>& ranges);

float dot(std::span<const float> a, std::span<const float> b);
// out += factor * in.
void add_scaled(float factor, std::span<const float> in, std::span<float> out);

}  // namespace cp
