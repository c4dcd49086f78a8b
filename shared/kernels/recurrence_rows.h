// The rows that the kernels of recurrences read: those of one key head of one batch entry, with the value
// heads that share it, as f32 values.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/kernels/attention_rows.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {

// A [batch, rows, heads] view (log_decay, beta and their gradients) as [batch, rows, heads, 1].
View as_rows_of_one(const View& view);

// Some neighbouring rows of a [batch, rows, heads, dim] view, loaded: at(row, head) has dim values.
class LoadedRows {
 public:
  // `heads` neighbouring heads from `first_head` on, at most `most` rows at once.
  LoadedRows(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
             std::int64_t first_head, std::int64_t heads, std::int64_t most);

  void load(std::int64_t begin, std::int64_t count);
  // Writes what at() has for these rows back, rounded to the view's dtype.
  void store(std::int64_t begin, std::int64_t count) const;
  void fill(float value, std::int64_t count);

  float* at(std::int64_t row, std::int64_t head = 0) {
    return values_.data() + (row * heads_ + head) * rows_.dim();
  }
  const float* at(std::int64_t row, std::int64_t head = 0) const {
    return values_.data() + (row * heads_ + head) * rows_.dim();
  }
  std::int64_t size() const { return rows_.size() / heads_; }
  std::int64_t dim() const { return rows_.dim(); }

 private:
  HeadRows rows_;
  std::int64_t heads_;
  Floats values_;
};

}  // namespace cp
