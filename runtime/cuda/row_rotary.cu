// Rotary embeddings: columns of rows move to where attention takes them, and some are turned by the angles of
// the row's position.
//
// Each thread gathers packs of what is written. So what several moves read gets its gradient in one write,
// and both directions are one kernel. The other half of a pair, and the cosines and sines, which all heads of
// a row share, come from the multiprocessor's cache. What a thread reads for one pack, and the many threads
// that this kernel has room for, keep memory busy without more packs under way.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/row_access.h"
#include "runtime/cuda/row_kernels.h"
#include "runtime/cuda/walk.h"
#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"

namespace cp::runtime {
namespace {

// Some dimensions of a view as one, innermost first: the offset of the element, or of the pack, with a
// number.
struct Nest {
  // Chosen: rows have two dimensions, and columns heads and dims; those that lie one behind the other are
  // joined.
  static constexpr int kMaxDims = 4;
  int dims = 0;
  Divider sizes[kMaxDims];
  std::int64_t steps[kMaxDims] = {};

  CP_DEVICE std::int64_t at(std::int64_t number) const {
    auto rest = static_cast<std::uint32_t>(number);
    std::int64_t offset = 0;
    CP_UNROLL
    for (int d = 0; d < kMaxDims; ++d) {
      if (d >= dims) break;
      const std::uint32_t next = sizes[d].quotient(rest);
      offset += static_cast<std::int64_t>(rest - next * sizes[d].size) * steps[d];
      rest = next;
    }
    return offset;
  }
};

// A view's rows and columns, of which Nests are made: dimensions of more than one, those joined that lie one
// behind the other. Innermost first.
struct NestedDims {
  struct Dim {
    std::int64_t size = 1, step = 0;
  };
  std::vector<Dim> rows, columns;

  NestedDims(const View& view, std::int64_t count) {
    std::size_t dims = 0;
    std::int64_t leading = 1;
    while (dims < view.shape.size() && leading != count) leading *= view.shape[dims++];
    rows = joined(view, 0, dims), columns = joined(view, dims, view.shape.size());
    for (const auto& of : {rows, columns}) {
      if (of.size() > Nest::kMaxDims) {
        throw InvalidInput(str("a rotary kernel over a view with ", of.size(),
                               " dimensions of rows or of columns that do not follow one another: it takes ",
                               Nest::kMaxDims, "; copy the view into a dense one first"));
      }
    }
  }

  bool has_packs(std::int64_t pack) const {
    const auto whole = [pack](const Dim& dim) { return dim.step % pack == 0; };
    return !columns.empty() && columns[0].step == 1 && columns[0].size % pack == 0 &&
           std::all_of(columns.begin() + 1, columns.end(), whole) && std::ranges::all_of(rows, whole);
  }

 private:
  static std::vector<Dim> joined(const View& view, std::size_t begin, std::size_t end) {
    std::vector<Dim> dims;
    for (std::size_t d = end; d-- > begin;) {
      const Dim dim{view.shape[d], view.strides[d]};
      if (dim.size == 1) continue;
      if (!dims.empty() && dim.step == dims.back().size * dims.back().step) {
        dims.back().size *= dim.size;
      } else {
        dims.push_back(dim);
      }
    }
    return dims;
  }
};

Nest nest_of(const std::vector<NestedDims::Dim>& dims, std::int64_t pack) {
  Nest nest;
  for (const NestedDims::Dim& dim : dims) {
    const bool inner = nest.dims == 0;
    const auto at = static_cast<std::size_t>(nest.dims++);
    nest.sizes[at] = divider(std::max<std::int64_t>(1, inner ? dim.size / pack : dim.size));
    nest.steps[at] = inner ? dim.step * pack : dim.step;
  }
  return nest;
}

template <int kPack>
struct NestedRows {
  RowElements<kPack> elements;
  Nest rows, packs;

  CP_DEVICE std::int64_t at(std::int64_t row, std::int64_t column) const {
    return rows.at(row) + packs.at(column / kPack);
  }
};

// A ColumnMove, from what the kernel reads to what it writes.
struct TurnedColumns {
  std::int64_t in_first = 0, in_step = 0, out_first = 0;
  Divider out_step;  // of size 1 if all heads have the same columns
  bool same = false;
  std::int64_t heads = 0, width = 0;
  int in = 0;
  bool rotated = false;
};

template <int kPack>
struct Rotary {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "rotary";
  // Chosen: latent attention has two moves into a matrix, gated attention with rotated parts of heads has
  // six from one.
  static constexpr int kMostMoves = 12, kMostIn = 6;
  static constexpr int kTablePack = kPack == 1 ? 1 : 4;

  RowLanes lanes;  // packs: of what is written
  Divider of_sequence;
  const std::int32_t* positions;
  bool interleaved, back;
  RowMatrix<kTablePack> table;
  NestedRows<kPack> out, in[kMostIn];
  int count;
  TurnedColumns moves[kMostMoves];

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row >= lanes.rows) return;
      const std::uint32_t sequence = of_sequence.quotient(static_cast<std::uint32_t>(row));
      const std::int64_t position = positions[row - std::int64_t{sequence} * of_sequence.size];
      for (std::int64_t pack = lanes.lane(thread); pack < lanes.packs; pack += lanes.lanes()) {
        float sums[kPack] = {};
        for (int m = 0; m < count; ++m) add_move(moves[m], row, position, pack * kPack, sums);
        out.elements.write(out.at(row, pack * kPack), sums);
      }
    });
  }

  // Adds what the move brings to the columns from `column` on, from each of its heads that they are of.
  CP_DEVICE void add_move(const TurnedColumns& move, std::int64_t row, std::int64_t position,
                          std::int64_t column, float (&sums)[kPack]) const {
    const std::int64_t behind = column - move.out_first;
    if (behind < 0) return;
    std::int64_t first = 0, last = move.heads - 1;
    if (move.same) {
      if (behind >= move.width) return;
    } else {
      const std::int64_t begun = move.out_step.quotient(static_cast<std::uint32_t>(behind));
      last = begun < last ? begun : last;
      if (behind >= move.width)
        first = move.out_step.quotient(static_cast<std::uint32_t>(behind - move.width)) + 1;
    }
    for (std::int64_t head = first; head <= last; ++head) {
      const std::int64_t within = behind - (move.same ? 0 : head * move.out_step.size);
      const std::int64_t from = move.in_first + head * move.in_step;
      float values[kPack];
      load(move.in, row, from + within, values);
      if (move.rotated) turn(move, row, position, from, within, values);
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) sums[i] += values[i];
    }
  }

  CP_DEVICE void load(int matrix, std::int64_t row, std::int64_t column, float (&values)[kPack]) const {
    const NestedRows<kPack>& rows = in[matrix];
    rows.elements.values(rows.elements.read(rows.at(row, column)), values);
  }

  // Values are those of a head from its column `within` on.
  CP_DEVICE void turn(const TurnedColumns& move, std::int64_t row, std::int64_t position, std::int64_t from,
                      std::int64_t within, float (&values)[kPack]) const {
    const std::int64_t pairs = move.width / 2;
    if constexpr (kPack == 1) {
      const bool second = interleaved ? within % 2 != 0 : within >= pairs;
      const std::int64_t pair = interleaved ? within / 2
                                : second    ? within - pairs
                                            : within,
                         distance = interleaved ? 1 : pairs;
      float other[1], cos[1], sin[1];
      load(move.in, row, from + within + (second ? -distance : distance), other);
      table.load(position, pair, cos), table.load(position, pair + pairs, sin);
      values[0] = turned(values[0], other[0], second, cos[0], sin[0]);
    } else if (interleaved) {
      const std::int64_t pair = within / 2;
      float angles[2][kTablePack];
      // A pack of four columns needs half a pack of the table.
      const std::int64_t at = pair / kTablePack * kTablePack;
      table.load(position, at, angles[0]), table.load(position, at + pairs, angles[1]);
      CP_UNROLL
      for (int i = 0; i < kPack / 2; ++i) {
        const bool later = kPack == 4 && pair != at;
        const float cos = later ? angles[0][(i + 2) % kTablePack] : angles[0][i],
                    sin = later ? angles[1][(i + 2) % kTablePack] : angles[1][i];
        const float a = values[2 * i], b = values[2 * i + 1];
        values[2 * i] = turned(a, b, false, cos, sin), values[2 * i + 1] = turned(b, a, true, cos, sin);
      }
    } else {
      const bool second = within >= pairs;
      const std::int64_t pair = second ? within - pairs : within;
      float others[kPack];
      load(move.in, row, from + (second ? pair : pair + pairs), others);
      CP_UNROLL
      for (int part = 0; part < kPack; part += kTablePack) {
        float cos[kTablePack], sin[kTablePack];
        table.load(position, pair + part, cos), table.load(position, pair + pairs + part, sin);
        CP_UNROLL
        for (int i = 0; i < kTablePack; ++i)
          values[part + i] = turned(values[part + i], others[part + i], second, cos[i], sin[i]);
      }
    }
  }

  CP_DEVICE float turned(float own, float other, bool second, float cos, float sin) const {
    const float turn = back ? -sin : sin;
    return second ? own * cos + other * turn : own * cos - other * turn;
  }
};

// The moves and views of a kernel in the direction in which it goes.
class Turn {
 public:
  Turn(const RowKernel& kernel, const CudaMemory& memory)
      : rule_(std::get<RotaryRule>(kernel.rule)),
        memory_(memory),
        back_(kernel.operation == RowOperation::rotary_backward),
        of_sequence_(size(rule_.positions)),
        rows_(rule_.sequences * of_sequence_),
        table_(kernel.reads.back()) {
    if (rows_ == 0) return;
    require_numbers(rows_, 1);
    for (std::size_t i = 0; i + 1 < kernel.reads.size(); ++i) in_.push_back(side(kernel.reads[i]));
    for (const View& view : kernel.writes) out_.push_back(side(view));
    moves_.resize(out_.size());
    for (const ColumnMove& move : rule_.moves) {
      TurnedColumns turned;
      const std::int64_t out_step = back_ ? move.from_step : move.to_step;
      turned.in_first = back_ ? move.to : move.from, turned.in_step = back_ ? move.to_step : move.from_step;
      turned.out_first = back_ ? move.from : move.to;
      turned.same = out_step == 0, turned.out_step = divider(std::max<std::int64_t>(1, out_step));
      turned.heads = move.heads, turned.width = move.width, turned.rotated = move.rotated;
      turned.in = static_cast<int>(back_ ? move.target : move.source);
      if (move.heads > 0 && move.width > 0) moves_[idx(back_ ? move.source : move.target)].push_back(turned);
    }
    using Body = Rotary<1>;
    const auto most = std::ranges::max(moves_, {}, [](const auto& of) { return of.size(); }).size();
    if (in_.size() > Body::kMostIn || most > Body::kMostMoves) {
      throw InvalidInput(str("a rotary kernel with ", in_.size(), " matrices and ", most,
                             " moves of one: it takes ", Body::kMostIn, " and ", Body::kMostMoves,
                             "; split the moves over two steps"));
    }
    pack_ = pack();
    std::vector<std::int32_t> positions;
    for (std::int64_t row = 0; row < of_sequence_; ++row)
      positions.push_back(static_cast<std::int32_t>(to_global(rule_.positions, row)));
    positions_ = std::make_shared<const GpuBytes>(std::as_bytes(std::span<const std::int32_t>(positions)));
  }

  void launch_all(std::int64_t iteration, cudaStream_t stream) const {
    if (rows_ == 0) return;
    if (pack_ == 8 && aligned(iteration)) return launch_packs<8>(iteration, stream);
    if (pack_ == 4 && aligned(iteration)) return launch_packs<4>(iteration, stream);
    launch_packs<1>(iteration, stream);
  }

 private:
  struct Side {
    const View* view;
    NestedDims dims;
  };
  Side side(const View& view) const { return {&view, NestedDims(view, rows_)}; }

  int pack() const {
    const auto narrow = [&](const Side& of) { return size_bytes(memory_.dtype(*of.view)) == 2; };
    const bool all_narrow = std::ranges::all_of(in_, narrow) && std::ranges::all_of(out_, narrow);
    for (const int pack : {8, 4}) {
      if ((pack < 8 || all_narrow) && fits(pack)) return pack;
    }
    return 1;
  }
  bool fits(int pack) const {
    const auto has_packs = [pack](const Side& of) { return of.dims.has_packs(pack); };
    const auto whole = [pack](std::int64_t columns) { return columns % pack == 0; };
    const bool moved = std::ranges::all_of(rule_.moves, [&](const ColumnMove& move) {
      return whole(move.from) && whole(move.to) && whole(move.from_step) && whole(move.to_step) &&
             whole(move.width) && (!move.rotated || whole(move.width / 2));
    });
    // The table's packs are of four, where anything is turned.
    const bool table = table_.shape[1] <= 1 || (table_.strides[1] == 1 && table_.strides[0] % 4 == 0);
    return moved && table && std::ranges::all_of(in_, has_packs) && std::ranges::all_of(out_, has_packs);
  }
  bool aligned(std::int64_t iteration) const {
    const auto is = [&](const Side& of) {
      return is_aligned(memory_.at(*of.view, iteration), pack_ * size_bytes(memory_.dtype(*of.view)));
    };
    return is_aligned(memory_.at(table_, iteration), 16) && std::ranges::all_of(in_, is) &&
           std::ranges::all_of(out_, is);
  }

  template <int kPack>
  NestedRows<kPack> nested(const Side& of, std::int64_t iteration) const {
    return {{memory_.at(*of.view, iteration), memory_.dtype(*of.view)},
            nest_of(of.dims.rows, 1),
            nest_of(of.dims.columns, kPack)};
  }

  template <int kPack>
  void launch_packs(std::int64_t iteration, cudaStream_t stream) const {
    for (std::size_t i = 0; i < out_.size(); ++i) {
      using Body = Rotary<kPack>;
      Body body{};
      body.lanes = row_lanes(rows_, out_[i].view->numel() / rows_ / kPack);
      body.of_sequence = divider(of_sequence_);
      body.positions = reinterpret_cast<const std::int32_t*>(positions_->data());
      body.interleaved = rule_.interleaved, body.back = back_;
      body.table = row_matrix<Body::kTablePack>(table_, memory_, iteration);
      body.out = nested<kPack>(out_[i], iteration);
      for (std::size_t m = 0; m < in_.size(); ++m) body.in[m] = nested<kPack>(in_[m], iteration);
      body.count = static_cast<int>(moves_[i].size());
      std::copy(moves_[i].begin(), moves_[i].end(), body.moves);
      launch(stream, {body.lanes.packs == 0 ? 0 : body.lanes.blocks()}, body);
    }
  }

  const RotaryRule& rule_;
  const CudaMemory& memory_;
  const bool back_;
  const std::int64_t of_sequence_, rows_;
  const View& table_;
  std::vector<Side> in_, out_;
  std::vector<std::vector<TurnedColumns>> moves_;  // into each of `out_`
  int pack_ = 1;
  std::shared_ptr<const GpuBytes> positions_;
};

}  // namespace

PreparedKernel prepare_rotary(const RowKernel& kernel, const CudaMemory& memory) {
  if (kernel.rule.index() == 0)
    throw InvalidInput("the GPU cannot run a rotary kernel without a rule; it has shapes only");
  return [turn = Turn(kernel, memory)](std::int64_t iteration, cudaStream_t stream) {
    turn.launch_all(iteration, stream);
  };
}

}  // namespace cp::runtime
