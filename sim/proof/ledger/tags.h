// Tags: what a place in memory holds instead of a value, while plans are executed in the shadow run.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shared/context_parallel/problem.h"

namespace cp::sim {

// The last four are those of latent rows (context_parallel/problem.h). The rotated part of a key is an
// element of its latent row, in whatever head it stands, and that of dk a part of the row's gradient: so tags
// of k and dk go on with those of latent and dlatent (TagSpace::later_in_row).
enum class Tensor : std::uint8_t {
  q,
  k,
  v,
  out,
  lse,
  dout,
  delta,
  dq,
  dk,
  dv,
  sinks,
  dsinks,
  seed,
  latent,
  kv_up,
  dlatent,
  dkv_up
};
inline constexpr int kTensors = 17;
std::string_view name(Tensor tensor);
// Whether its rows are queries and its heads query heads. The others have keys and kv heads.
constexpr bool is_query(Tensor tensor) {
  switch (tensor) {
    case Tensor::k:
    case Tensor::v:
    case Tensor::dk:
    case Tensor::dv:
    case Tensor::latent:
    case Tensor::kv_up:
    case Tensor::dlatent:
    case Tensor::dkv_up:
      return false;
    default:
      return true;
  }
}

// Stands for an element of a global tensor, and says what its value is made of so far: `cells` (query, key)
// pairs, the sum of whose random weights is `print` (CellWeights). The sum shows a pair that is lost while
// another one, taken twice, makes up for it in the count. Inputs are made of no cells.
struct Tag {
  std::uint64_t id = 0;
  std::uint32_t cells = 0;
  std::uint32_t print = 0;
  bool operator==(const Tag&) const = default;
};
// The ids that stand for no element of a tensor. The ids of elements (TagSpace) begin behind them.
inline constexpr std::uint64_t kUnwritten = 0, kZeros = 1, kMinusInfinity = 2, kOtherConstant = 3;
inline constexpr std::uint64_t kFirstElement = 4;
// The id for a row that no pair contributes to.
constexpr std::uint64_t nothing_in(Tensor tensor) { return tensor == Tensor::lse ? kMinusInfinity : kZeros; }
inline bool is_element(const Tag& tag) { return tag.id >= kFirstElement; }

struct Element {
  Tensor tensor = Tensor::q;
  std::int64_t batch = 0, head = 0, row = 0, column = 0;  // all global
};

// Gives each element of all tensors of a problem its id. The ids of one row follow one another.
class TagSpace {
 public:
  explicit TagSpace(const AttentionProblem& problem);

  std::int64_t dim(Tensor tensor) const { return sizes_[index(tensor)].dim; }  // lse, delta: 1
  std::int64_t heads(Tensor tensor) const { return sizes_[index(tensor)].heads; }
  std::int64_t seq_len(Tensor tensor) const { return sizes_[index(tensor)].seq_len; }

  std::uint64_t id(Tensor tensor, std::int64_t batch, std::int64_t head, std::int64_t row,
                   std::int64_t column = 0) const {
    const Sizes& s = sizes_[index(tensor)];
    return s.first +
           static_cast<std::uint64_t>(((batch * s.heads + head) * s.seq_len + row) * s.dim + column);
  }
  Element element(std::uint64_t id) const;
  // The tag of the element so many columns behind the first one of a row; constants stay what they are.
  Tag later_in_row(const Tag& first, std::int64_t columns) const;
  Tensor tensor(std::uint64_t id) const;

  // The number (batch * heads + head) * seq_len + row of the row that begins with this element of the tensor,
  // so that the rows of q, out, lse, ... that belong together have equal numbers. -1 for any other tag.
  std::int64_t row_number(Tensor tensor, const Tag& tag) const {
    const Sizes& s = sizes_[index(tensor)];
    if (tag.id < s.first || tag.id >= s.end) return -1;
    const auto at = static_cast<std::int64_t>(tag.id - s.first);
    return at % s.dim == 0 ? at / s.dim : -1;
  }
  std::uint64_t id_of_row(Tensor tensor, std::int64_t row_number) const {
    const Sizes& s = sizes_[index(tensor)];
    return s.first + static_cast<std::uint64_t>(row_number * s.dim);
  }

  // In words: "dk of batch 0, head 1, row 17", "zeros", "unwritten memory".
  std::string text(const Tag& tag) const;

 private:
  struct Sizes {
    std::uint64_t first = 0, end = 0;
    std::int64_t heads = 0, seq_len = 0, dim = 0;
  };
  static std::size_t index(Tensor tensor) { return static_cast<std::size_t>(tensor); }
  std::array<Sizes, kTensors> sizes_;
  LatentShape latent_;
  std::int64_t nope_ = 0;  // elements of a key before its rotated part
};

// What a row is made of: a number of cells and the sum of their weights, modulo 2^32.
struct Cells {
  std::uint32_t count = 0, print = 0;
  bool operator==(const Cells&) const = default;
  Cells& operator+=(const Cells& other) {
    count += other.count;
    print += other.print;
    return *this;
  }
};
inline Cells cells_of(const Tag& tag) { return {tag.cells, tag.print}; }

// Random weights of cells. A row of out, lse or dq is a sum over keys, and a cell's weight in it is that of
// the key alone; a sink is one more key of out and lse. A row of dk or dv is a sum over queries and query
// heads, and the weight is that of the query times that of the head. Which row it is, the tags tell. A latent
// row's gradient is such a sum over all heads; in dkv_up keys are added up, too, and the weight is also that
// of the key.
class CellWeights {
 public:
  explicit CellWeights(const AttentionProblem& problem);

  std::uint32_t key(std::int64_t key) const { return keys_[static_cast<std::size_t>(key)]; }
  std::uint32_t query(std::int64_t query) const { return queries_[static_cast<std::size_t>(query)]; }
  std::uint32_t head(std::int64_t head) const { return heads_[static_cast<std::size_t>(head)]; }
  static Cells sink();
  // The cells of a head's dsinks are queries.
  Cells of_dsink(std::int64_t query) const { return {1, this->query(query)}; }
  // The pairs of a key in one head whose weight is 1.
  const Cells& of_key(std::int64_t batch, std::int64_t key) const {
    return by_key_[static_cast<std::size_t>(batch)][static_cast<std::size_t>(key)];
  }
  // Cells of a gradient of this key, as they count in dkv_up.
  Cells of_dkv_up(std::int64_t key, const Cells& cells) const {
    return {cells.count, cells.print * this->key(key)};
  }

  // The cells that a finished row of the tensor consists of. None for inputs.
  Cells all(Tensor tensor, std::int64_t batch, std::int64_t head, std::int64_t row) const;

 private:
  std::vector<std::uint32_t> keys_, queries_, heads_;
  std::vector<std::vector<Cells>> by_query_;  // by batch entry and query: over the keys that it sees
  std::vector<std::vector<Cells>> by_key_;  // by batch entry and key: over the queries that see it, one head
  std::vector<std::uint32_t> groups_;       // sum of the heads' weights, by kv head
  std::uint32_t all_heads_ = 0;             // of all heads
  std::uint32_t heads_per_kv_ = 1;
  bool sinks_ = false;
};

}  // namespace cp::sim
