// MatMul: blocks of both operands are packed as panels of dense values, tiles of products are summed (16-bit
// types in f32) in ascending k, and the sum is rounded once, unless it is kept in f32. The order of summation
// depends on no size of a block or of a tile, so that results are equal on every host.
#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>

#include "shared/base/index.h"
#include "shared/kernels/elements.h"
#include "shared/kernels/kernels.h"
#include "shared/kernels/product_tile.h"
#include "shared/kernels/product_tile_code.h"
#include "shared/kernels/transpose_four.h"

namespace cp {
namespace {

// A block of the result, and the depth of the products that are added to it at a time. Chosen: in f32 a panel
// of b, 32 columns, is 32 KiB, which stays in a first-level cache of 48 KiB, a block of a 1 MiB, which stays
// in a second-level cache of 2 MiB, and each packed element is a factor of 1,024 products. The block of the
// result is 4 MiB. No result depends on them: each sum runs in ascending k in one accumulator.
constexpr std::int64_t kRows = 1024, kColumns = 1024, kDepth = 256;

// Elements of a vector, or vectors, that are packed beside one another. Chosen: 16 floats are a cache line.
constexpr std::int64_t kBeside = 16;

// Integers are summed one by one.
template <class T>
struct IntegerLane {
  using Value = T;
  using Vector = T;
  static constexpr int kCount = 1;
  static T load(const T* from) { return *from; }
  static void store(T* to, T value) { *to = value; }
  static T all(T value) { return value; }
  static T add_product(T sum, T a, T b) { return plus(sum, times(a, b)); }
};

template <class Value>
const ProductTile<Value>& tile_of() {
  if constexpr (std::is_same_v<Value, float>) {
    return product_tile();
  } else {
    static constexpr ProductTile<Value> kTile = TileProducts<IntegerLane<Value>, 4, 8>::tile();
    return kTile;
  }
}

constexpr std::int64_t rounded_up(std::int64_t count, std::int64_t to) { return (count + to - 1) / to * to; }

// Packs one panel: element k of vector i goes to out[k * width + i]. Four elements at a time where neighbours
// in memory are floats, either way.
template <class T>
void pack_panel(const T* from, std::int64_t count, std::int64_t step, std::int64_t depth,
                std::int64_t depth_step, std::int64_t width, ValueOf<T>* out) {
  std::int64_t fours = 0;
  if constexpr (std::is_same_v<T, float>) {
    if (step == 1) {
      fours = count / 4 * 4;
      for (std::int64_t k = 0; k < depth; ++k) {
        for (std::int64_t i = 0; i < fours; i += 4)
          std::memcpy(out + k * width + i, from + k * depth_step + i, sizeof(Four));
      }
    } else if (depth_step == 1) {
      fours = count / 4 * 4;
      const std::int64_t whole = depth / 4 * 4;
      for (std::int64_t begin = 0; begin < whole; begin += kBeside) {
        for (std::int64_t i = 0; i < fours; i += 4) {
          for (std::int64_t k = begin; k < std::min(whole, begin + kBeside); k += 4)
            transpose_four(from + i * step + k, step, out + k * width + i, width);
        }
      }
      for (std::int64_t k = whole; k < depth; ++k) {
        for (std::int64_t i = 0; i < fours; ++i) out[k * width + i] = from[i * step + k];
      }
    }
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t i = fours; i < count; ++i) out[k * width + i] = load(from[i * step + k * depth_step]);
    for (std::int64_t i = count; i < width; ++i) out[k * width + i] = {};
  }
}

// Rows of a, or columns of b: `count` vectors of `depth` elements, `step` apart, whose elements are
// `depth_step` apart. Panels of `width` vectors lie one behind the other; the last one is filled up with
// zeros.
template <class T>
void pack(const T* from, std::int64_t count, std::int64_t step, std::int64_t depth, std::int64_t depth_step,
          std::int64_t width, ValueOf<T>* out) {
  // Where vectors are neighbours, some depths of all panels before the next ones: memory is read in long
  // stretches, not in short ones of one panel each.
  const std::int64_t beside = step == 1 ? kBeside : depth;
  for (std::int64_t k = 0; k < depth; k += beside) {
    for (std::int64_t first = 0; first < count; first += width)
      pack_panel(from + first * step + k * depth_step, std::min(width, count - first), step,
                 std::min(beside, depth - k), depth_step, width, out + first * depth + k * width);
  }
}

template <class T, class Out>
class Product {
 public:
  Product(const MatMul& kernel, const HostMemory& memory, std::int64_t iteration)
      : kernel_(kernel),
        a_(reinterpret_cast<const T*>(memory.at(kernel.a, iteration))),
        b_(reinterpret_cast<const T*>(memory.at(kernel.b, iteration))),
        out_(reinterpret_cast<Out*>(memory.at(kernel.out, iteration))),
        most_rows_(rounded_up(std::min(kRows, rows()), tile_.rows)),
        most_columns_(rounded_up(std::min(kColumns, columns()), tile_.columns)),
        sums_(values(most_rows_ * most_columns_)),
        a_panels_(values(most_rows_ * std::min(kDepth, depth()))),
        b_panels_(values(most_columns_ * std::min(kDepth, depth()))) {}

  void compute() {
    for (std::int64_t column = 0; column < columns(); column += kColumns) {
      for (std::int64_t row = 0; row < rows(); row += kRows)
        compute({row, column, std::min(kRows, rows() - row), std::min(kColumns, columns() - column)});
    }
  }

 private:
  using Value = ValueOf<T>;
  struct Block {
    std::int64_t row, column, rows, columns;
  };

  // What is read of it is written before.
  static std::unique_ptr<Value[]> values(std::int64_t count) {
    return std::make_unique_for_overwrite<Value[]>(idx(count));
  }
  std::int64_t rows() const { return kernel_.out.shape[0]; }
  std::int64_t columns() const { return kernel_.out.shape[1]; }
  std::int64_t depth() const { return kernel_.a.shape[1]; }
  // Where the sums of a tile lie: below those of the tile before it in its columns.
  Value* sums_at(const Block& block, std::int64_t row, std::int64_t column) const {
    return sums_.get() + column * rounded_up(block.rows, tile_.rows) + row * tile_.columns;
  }

  void compute(const Block& block) {
    const View &a = kernel_.a, &b = kernel_.b;
    std::int64_t k = 0;
    do {  // once for a depth of 0 too: its sums are zeros
      const std::int64_t part = std::min(kDepth, depth() - k);
      pack(a_ + block.row * a.strides[0] + k * a.strides[1], block.rows, a.strides[0], part, a.strides[1],
           tile_.rows, a_panels_.get());
      pack(b_ + k * b.strides[0] + block.column * b.strides[1], block.columns, b.strides[1], part,
           b.strides[0], tile_.columns, b_panels_.get());
      for (std::int64_t c = 0; c < block.columns; c += tile_.columns) {
        for (std::int64_t r = 0; r < block.rows; r += tile_.rows)
          tile_.multiply(sums_at(block, r, c), a_panels_.get() + r * part, b_panels_.get() + c * part,
                         std::min(tile_.rows, block.rows - r), part, k == 0);
      }
      k += kDepth;
    } while (k < depth());
    store(block);
  }

  void store(const Block& block) const {
    const View& view = kernel_.out;
    for (std::int64_t r = 0; r < block.rows; ++r) {
      Out* const row = out_ + (block.row + r) * view.strides[0] + block.column * view.strides[1];
      const std::int64_t in_tile = r % tile_.rows;
      for (std::int64_t first = 0; first < block.columns; first += tile_.columns) {
        const Value* const sums = sums_at(block, r - in_tile, first) + in_tile * tile_.columns;
        const std::int64_t count = std::min(tile_.columns, block.columns - first);
        for (std::int64_t c = 0; c < count; ++c) {
          Out& out = row[(first + c) * view.strides[1]];
          out = convert<Out>(kernel_.accumulate ? plus(load(out), sums[c]) : sums[c]);
        }
      }
    }
  }

  const MatMul& kernel_;
  const T* const a_;
  const T* const b_;
  Out* const out_;
  const ProductTile<Value>& tile_ = tile_of<Value>();
  const std::int64_t most_rows_, most_columns_;  // of a block, in whole tiles
  const std::unique_ptr<Value[]> sums_, a_panels_, b_panels_;
};

template <class T, class Out>
void multiply(const MatMul& kernel, const HostMemory& memory, std::int64_t iteration) {
  Product<T, Out>(kernel, memory, iteration).compute();
}

}  // namespace

void run(const MatMul& kernel, const HostMemory& memory, std::int64_t iteration) {
  if (kernel.out.shape.size() == 3) {
    for (std::int64_t i = 0; i < num_products(kernel); ++i) run(product_of(kernel, i), memory, iteration);
    return;
  }
  const bool same = memory.dtype(kernel.out) == memory.dtype(kernel.a);
  with_element_type(memory.dtype(kernel.a), [&]<class T>(std::type_identity<T>) {
    if constexpr (SixteenBit<T>) {
      if (!same) return multiply<T, float>(kernel, memory, iteration);
    }
    multiply<T, T>(kernel, memory, iteration);
  });
}

}  // namespace cp
