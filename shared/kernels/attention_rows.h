// What the attention kernels read and write: rows of f32 values, whatever the layout and dtype in memory, and
// the panels in which products of tiles take them.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "shared/kernels/tile_kernels.h"
#include "shared/plan/host_memory.h"
#include "shared/plan/plan.h"

namespace cp {

// An array of floats, not initialised, aligned for every vector.
class Floats {
 public:
  explicit Floats(std::int64_t count);
  float* data() { return data_.get(); }
  const float* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(float* data) const { ::operator delete[](data, kAlignment); }
  };
  // A cache line, and the widest vector (AVX-512).
  static constexpr std::align_val_t kAlignment{64};
  std::unique_ptr<float[], Free> data_;
};

inline std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Neighbouring heads of one batch of a [batch, seq, heads, dim] view. Row r is position r / heads of head
// first_head + r % heads: the queries that share a key head lie side by side, and see the same keys.
class HeadRows {
 public:
  HeadRows(const View& view, const HostMemory& memory, std::int64_t iteration, std::int64_t batch,
           std::int64_t first_head, std::int64_t heads);

  std::int64_t size() const { return view_.shape[1] * heads_; }
  std::int64_t dim() const { return view_.shape[3]; }

  // Row begin + i is at rows + i * row_size.
  void load(std::int64_t begin, std::int64_t count, float* rows, std::int64_t row_size) const;
  // Writes the rows, or adds them to what is there. Rounds once.
  void store(std::int64_t begin, std::int64_t count, const float* rows, std::int64_t row_size,
             bool accumulate = false) const;

 private:
  View view_;
  std::byte* data_;  // of the first head, position 0
  DType dtype_;
  std::int64_t heads_;
};

// A [batch, heads, seq] view (lse, delta) as [batch, seq, heads, 1].
View as_rows(const View& statistic);

// sum over i of a[i] b[i], in f32: a row of delta.
float row_dot(const float* a, const float* b, std::int64_t dim);

// Whether products over the dim of two tensors use the processor's products of bf16, which are exact: both
// must be bf16, and the processor must have them.
bool multiplies_pairs(const TileKernels& tiles, const HostMemory& memory, const View& a, const View& b);
// Terms of a chain in products over the dim. Chosen: half the default of 64, since an error of a score is
// in all weights and gradients of its pair.
inline constexpr std::int64_t kDimChain = 32;

// The depth of a product over `dim` dimensions; pairs of bf16 count once.
inline std::int64_t depth_of(std::int64_t dim, bool pairs) { return pairs ? (dim + 1) / 2 : dim; }

// out[column][row] = in[row][column], for rows x columns of in.
void transpose(const float* in, std::int64_t in_row, std::int64_t rows, std::int64_t columns, float* out,
               std::int64_t out_row);

// Packs pairs of rows to one row of pairs of bf16, with the even row's values in the lower halves: from
// [rows][columns] of values that are exact in bf16 to [(rows + 1) / 2][columns], for multiply_pairs(). `out`
// may be `in`.
void pack_pairs(const float* in, std::int64_t rows, std::int64_t columns, float* out);

// The rows of a head as operands `a` of multiply_panels(). Tiles are packed when they are first asked for;
// zeros fill the last panels.
class PackedRows {
 public:
  // For which products the rows are: for those that sum over the dim (rows are m), those that sum over the
  // rows (rows are k), or both.
  enum class For : std::uint8_t { dim_sums, row_sums, both };
  // With `pairs`, from() is an operand of multiply_pairs(): rows are bf16.
  PackedRows(const HeadRows& rows, const TileKernels& kernels, std::int64_t tile_rows, For use, bool pairs);

  void pack(std::int64_t tile);
  // For sums over the dim, from the given row, a multiple of panel_rows, on: [panel][depth][panel_rows],
  // where depth is the dim, or half of it.
  const float* from(std::int64_t row) const { return dim_sums_.data() + row * depth_; }
  std::int64_t from_panel() const { return kernels_->panel_rows * depth_; }
  // For sums over rows, from the given row on: [panel of the dim][row][panel_rows].
  const float* columns_from(std::int64_t row) const { return row_sums_.data() + row * kernels_->panel_rows; }
  std::int64_t columns_panel() const { return padded_rows_ * kernels_->panel_rows; }

 private:
  HeadRows rows_;
  const TileKernels* kernels_;
  std::int64_t tile_rows_, padded_rows_, padded_dim_, depth_;
  For use_;
  bool pairs_;
  std::vector<bool> packed_;  // tiles
  Floats dim_sums_, row_sums_, loaded_, columns_;
};

}  // namespace cp
