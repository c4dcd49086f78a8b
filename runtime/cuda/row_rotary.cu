// Rotary embeddings: columns of rows move to where attention takes them, and some are turned by the angles of
// the row's position.
//
// Where the columns of a row come from and go to is the same for all rows, so the host says it once, in a
// table of units. A unit writes two packs: the halves of turned columns, so that each of them, and their
// cosines and sines, are read once for both; or two packs that only move. What several moves bring, as in the
// gradient of a part that heads share, and pairs of neighbouring columns are summed pack by pack. A thread
// has a unit of some rows, and reads all that they need before it writes the first.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
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

// The dimensions of a view's rows as one, innermost first: the offset of the row with a number.
struct Nest {
  // Chosen: rows have two dimensions, and those that lie one behind the other are joined.
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
    if (rows.size() > Nest::kMaxDims) {
      throw InvalidInput(str("a rotary kernel over a view with ", rows.size(),
                             " dimensions of rows that do not follow one another: it takes ", Nest::kMaxDims,
                             "; copy the view into a dense one first"));
    }
  }

  // Of the column with that number, in a row.
  std::int64_t column(std::int64_t number) const {
    std::int64_t offset = 0;
    for (const Dim& dim : columns) offset += number % dim.size * dim.step, number /= dim.size;
    return offset;
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

Nest nest_of(const std::vector<NestedDims::Dim>& dims) {
  Nest nest;
  for (const NestedDims::Dim& dim : dims) {
    const auto at = static_cast<std::size_t>(nest.dims++);
    nest.sizes[at] = divider(std::max<std::int64_t>(1, dim.size)), nest.steps[at] = dim.step;
  }
  return nest;
}

template <int kPack>
struct NestedRows {
  RowElements<kPack> elements;
  Nest rows;
};

// A ColumnMove, from what the kernel reads to what it writes.
struct TurnedColumns {
  std::int64_t in_first = 0, in_step = 0, out_first = 0, out_step = 0;
  std::int64_t heads = 0, width = 0;
  int in = 0;
  bool rotated = false, scaled = false;
};

// What a move brings to a pack. Offsets are those of elements, from the begin of a row.
struct RotaryTerm {
  std::int64_t own = 0, other = 0;  // the pack, and that of the pairs' other halves
  std::int32_t pair = 0;            // the first of the pack, in a row of the table
  std::int16_t in = 0;              // the matrix
  bool rotated = false, scaled = false;
  bool second = false;     // whether the pack has the second halves of its pairs
  std::int32_t pairs = 0;  // of a head
};

// What a thread writes of a row.
struct alignas(16) RotaryUnit {
  enum class Kind : std::int32_t {
    moved,   // two packs, as they are
    turned,  // the first and the second halves of pairs
    summed   // one pack, which is the sum of terms
  };
  std::int64_t out[2] = {}, in[2] = {};  // offsets of elements; `in` not of a sum
  Kind kind = Kind::summed;
  std::int32_t matrix = 0, pair = 0, pairs = 0;  // as of a term
  std::int32_t first = 0, count = 0;             // terms of a sum
  bool scaled = false;                           // of moved ones
};

template <int kPack>
struct Rotary {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "rotary";
  static constexpr int kMostIn = 6;  // chosen: latent attention has three
  static constexpr int kTablePack = kPack == 1 ? 1 : 4;
  static constexpr int kParts = kPack / kTablePack;
  // Rows of a thread. Of each it has 32 bytes of columns under way, and as many numbers of the table as a
  // pack has pairs, which come from a cache. With more rows fewer threads would have registers. Chosen.
  static constexpr int kRows = 2;
  static constexpr int kLeastBlocks = 2;

  std::int64_t rows, threads;  // threads: with a unit and rows
  Divider units, of_sequence;  // units: of a row
  const std::int32_t* positions;
  const float* scales;  // of the rows of a sequence; null if nothing is scaled
  const RotaryUnit* all_units;
  const RotaryTerm* terms;
  bool interleaved, back;
  RowMatrix<kTablePack> table;
  NestedRows<kPack> out, in[kMostIn];

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t number = block.index() * kThreads + thread;
      if (number >= threads) return;
      const std::uint32_t group = units.quotient(static_cast<std::uint32_t>(number));
      const RotaryUnit unit = all_units[static_cast<std::uint32_t>(number) - group * units.size];
      const std::int64_t first = std::int64_t{group} * kRows;
      if (unit.kind == RotaryUnit::Kind::summed) {
        CP_NO_UNROLL
        for (std::int64_t row = first; row < first + kRows && row < rows; ++row) sum_terms(unit, row);
      } else {
        turn_pairs(unit, first);
      }
    });
  }

  CP_DEVICE std::int64_t row_of_sequence(std::int64_t row) const {
    const std::uint32_t sequence = of_sequence.quotient(static_cast<std::uint32_t>(row));
    return row - std::int64_t{sequence} * of_sequence.size;
  }
  CP_DEVICE std::int64_t position(std::int64_t row) const { return positions[row_of_sequence(row)]; }

  CP_DEVICE void turn_pairs(const RotaryUnit& unit, std::int64_t first) const {
    const NestedRows<kPack>& from = in[unit.matrix];
    const bool turns = unit.kind == RotaryUnit::Kind::turned;
    RowBits halves[kRows][2], angles[kRows][2][kParts];
    CP_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = first + r;
      if (row >= rows) continue;
      const std::int64_t begin = from.rows.at(row);
      CP_UNROLL
      for (int half = 0; half < 2; ++half) halves[r][half] = from.elements.read(begin + unit.in[half]);
      if (!turns) continue;
      const std::int64_t angle = position(row);
      CP_UNROLL
      for (int part = 0; part < kParts; ++part) {
        const std::int64_t pair = unit.pair + part * kTablePack;
        angles[r][0][part] = table.read(angle, pair),
        angles[r][1][part] = table.read(angle, unit.pairs + pair);
      }
    }
    CP_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = first + r;
      if (row >= rows) continue;
      float a[kPack], b[kPack];
      from.elements.values(halves[r][0], a), from.elements.values(halves[r][1], b);
      if (turns) {
        CP_UNROLL
        for (int part = 0; part < kParts; ++part) {
          float cos[kTablePack], sin[kTablePack];
          table.values(angles[r][0][part], cos), table.values(angles[r][1][part], sin);
          CP_UNROLL
          for (int i = 0; i < kTablePack; ++i) {
            float &x = a[part * kTablePack + i], &y = b[part * kTablePack + i];
            const float before = x;
            x = turned(x, y, false, cos[i], sin[i]), y = turned(y, before, true, cos[i], sin[i]);
          }
        }
      }
      if (unit.scaled) {
        const float scale = scales[row_of_sequence(row)];
        CP_UNROLL
        for (int i = 0; i < kPack; ++i) a[i] *= scale, b[i] *= scale;
      }
      // What comes is added to 0, of which -0 becomes 0.
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) a[i] += 0.0F, b[i] += 0.0F;
      const std::int64_t begin = out.rows.at(row);
      out.elements.write(begin + unit.out[0], a), out.elements.write(begin + unit.out[1], b);
    }
  }

  CP_DEVICE void sum_terms(const RotaryUnit& unit, std::int64_t row) const {
    float sums[kPack] = {};
    for (std::int32_t t = 0; t < unit.count; ++t) {
      const RotaryTerm& term = terms[unit.first + t];
      float values[kPack];
      load(term.in, row, term.own, values);
      if (term.rotated) turn(term, row, values);
      const float scale = term.scaled ? scales[row_of_sequence(row)] : 1;
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) sums[i] += scale * values[i];
    }
    out.elements.write(out.rows.at(row) + unit.out[0], sums);
  }

  CP_DEVICE void load(int matrix, std::int64_t row, std::int64_t column, float (&values)[kPack]) const {
    const NestedRows<kPack>& from = in[matrix];
    from.elements.values(from.elements.read(from.rows.at(row) + column), values);
  }

  CP_DEVICE void turn(const RotaryTerm& term, std::int64_t row, float (&values)[kPack]) const {
    const std::int64_t angle = position(row);
    if (kPack > 1 && interleaved) {
      float angles[2][kTablePack];
      // A pack of four columns needs half a pack of the table.
      const std::int32_t at = term.pair / kTablePack * kTablePack;
      table.load(angle, at, angles[0]), table.load(angle, at + term.pairs, angles[1]);
      CP_UNROLL
      for (int i = 0; i < kPack / 2; ++i) {
        const bool later = kPack == 4 && term.pair != at;
        const float cos = later ? angles[0][(i + 2) % kTablePack] : angles[0][i],
                    sin = later ? angles[1][(i + 2) % kTablePack] : angles[1][i];
        const float a = values[2 * i], b = values[2 * i + 1];
        values[2 * i] = turned(a, b, false, cos, sin), values[2 * i + 1] = turned(b, a, true, cos, sin);
      }
    } else {
      float others[kPack];
      load(term.in, row, term.other, others);
      CP_UNROLL
      for (int part = 0; part < kPack; part += kTablePack) {
        float cos[kTablePack], sin[kTablePack];
        table.load(angle, term.pair + part, cos), table.load(angle, term.pair + term.pairs + part, sin);
        CP_UNROLL
        for (int i = 0; i < kTablePack; ++i)
          values[part + i] = turned(values[part + i], others[part + i], term.second, cos[i], sin[i]);
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
      turned.in_first = back_ ? move.to : move.from, turned.in_step = back_ ? move.to_step : move.from_step;
      turned.out_first = back_ ? move.from : move.to;
      turned.out_step = back_ ? move.from_step : move.to_step;
      turned.heads = move.heads, turned.width = move.width;
      turned.rotated = move.rotated, turned.scaled = move.scaled;
      turned.in = static_cast<int>(back_ ? move.target : move.source);
      if (move.heads > 0 && move.width > 0) moves_[idx(back_ ? move.source : move.target)].push_back(turned);
    }
    if (in_.size() > Rotary<1>::kMostIn) {
      throw InvalidInput(str("a rotary kernel that reads ", in_.size(), " matrices: it takes ",
                             Rotary<1>::kMostIn, "; split the moves over two steps"));
    }
    pack_ = pack();
    for (std::size_t i = 0; i < out_.size(); ++i) {
      packed_.push_back(columns(i, pack_));
      single_.push_back(pack_ == 1 ? packed_.back() : columns(i, 1));
    }
    std::vector<std::int32_t> positions;
    for (std::int64_t row = 0; row < of_sequence_; ++row)
      positions.push_back(static_cast<std::int32_t>(to_global(rule_.positions, row)));
    positions_ = std::make_shared<const GpuBytes>(std::as_bytes(std::span<const std::int32_t>(positions)));
    if (std::ranges::none_of(rule_.moves, &ColumnMove::scaled)) return;
    std::vector<float> scales;
    for (const std::int32_t position : positions) scales.push_back(query_scale(rule_, position));
    scales_ = std::make_shared<const GpuBytes>(std::as_bytes(std::span<const float>(scales)));
  }

  void launch_all(std::int64_t iteration, cudaStream_t stream) const {
    if (rows_ == 0) return;
    if (pack_ == 8 && aligned(iteration)) return launch_packs<8>(iteration, stream);
    if (pack_ == 4 && aligned(iteration)) return launch_packs<4>(iteration, stream);
    launch_packs<1>(iteration, stream);
  }

 private:
  // The units of what is written, and their terms.
  struct Columns {
    std::int64_t units = 0;
    std::shared_ptr<const GpuBytes> all_units, terms;
  };

  struct Side {
    const View* view;
    NestedDims dims;
  };
  Side side(const View& view) const { return {&view, NestedDims(view, rows_)}; }

  // What comes to each pack of `out_[number]`.
  std::vector<std::vector<RotaryTerm>> terms_of(std::size_t number, std::int64_t pack) const {
    std::vector<std::vector<RotaryTerm>> terms(idx(out_[number].view->numel() / rows_ / pack));
    for (const TurnedColumns& move : moves_[number]) {
      const NestedDims& from = in_[idx(move.in)].dims;
      const std::int64_t pairs = move.width / 2;
      for (std::int64_t head = 0; head < move.heads; ++head) {
        for (std::int64_t within = 0; within < move.width; within += pack) {
          const std::int64_t begin = move.in_first + head * move.in_step;
          RotaryTerm term;
          term.own = from.column(begin + within);
          term.in = static_cast<std::int16_t>(move.in), term.rotated = move.rotated;
          term.scaled = move.scaled;
          if (move.rotated) {
            const bool neighbours = rule_.interleaved;
            term.second = neighbours ? within % 2 != 0 : within >= pairs;
            term.pair = static_cast<std::int32_t>(neighbours ? within / 2 : within % pairs);
            term.pairs = static_cast<std::int32_t>(pairs);
            const std::int64_t distance = neighbours ? 1 : pairs;
            // A pack of neighbours has both halves.
            if (pack == 1 || !neighbours)
              term.other = from.column(begin + within + (term.second ? -distance : distance));
          }
          terms[idx((move.out_first + head * move.out_step + within) / pack)].push_back(term);
        }
      }
    }
    return terms;
  }

  // Of packs to which one term comes, turned ones become units with their other halves, and others of a
  // matrix in pairs that lie half of them apart, so that neighbouring threads have neighbouring packs.
  Columns columns(std::size_t number, std::int64_t pack) const {
    using Kind = RotaryUnit::Kind;
    const std::vector<std::vector<RotaryTerm>> of_packs = terms_of(number, pack);
    std::vector<RotaryUnit> units;
    std::vector<RotaryTerm> terms;
    const auto out = [&](std::size_t at) {
      return out_[number].dims.column(static_cast<std::int64_t>(at) * pack);
    };
    const auto add_pair = [&](Kind kind, std::size_t first, std::size_t second) {
      const RotaryTerm &a = of_packs[first][0], &b = of_packs[second][0];
      units.push_back(
          {{out(first), out(second)}, {a.own, b.own}, kind, a.in, a.pair, a.pairs, 0, 0, a.scaled});
    };
    const auto add_sum = [&](std::size_t at) {
      const auto begin = static_cast<std::int32_t>(terms.size()),
                 count = static_cast<std::int32_t>(of_packs[at].size());
      units.push_back({{out(at), 0}, {0, 0}, Kind::summed, 0, 0, 0, begin, count, false});
      terms.insert(terms.end(), of_packs[at].begin(), of_packs[at].end());
    };
    // Packs that lack their other halves. Columns of a view may share memory: so the pair belongs to it.
    std::map<std::array<std::int64_t, 4>, std::size_t> halves;
    std::vector<std::vector<std::size_t>> moved(2 * in_.size());  // of each matrix: as they are, scaled
    for (std::size_t at = 0; at < of_packs.size(); ++at) {
      if (of_packs[at].size() != 1 || (of_packs[at][0].rotated && rule_.interleaved && pack > 1)) {
        add_sum(at);
        continue;
      }
      const RotaryTerm& own = of_packs[at][0];
      if (!own.rotated) {
        moved[2 * idx(own.in) + (own.scaled ? 1 : 0)].push_back(at);
        continue;
      }
      const auto [low, high] = std::minmax(own.own, own.other);
      const auto [half, is_first] = halves.try_emplace({own.in, low, high, own.pair}, at);
      if (is_first) continue;
      const std::size_t before = half->second;
      if (of_packs[before][0].second == own.second) {
        add_sum(at);
        continue;
      }
      own.second ? add_pair(Kind::turned, before, at) : add_pair(Kind::turned, at, before);
      halves.erase(half);
    }
    for (const auto& [key, at] : halves) add_sum(at);
    for (const std::vector<std::size_t>& of : moved) {
      const std::size_t half = of.size() / 2;
      for (std::size_t i = 0; i < half; ++i) add_pair(Kind::moved, of[i], of[half + i]);
      if (of.size() % 2 != 0) add_sum(of.back());
    }
    return {static_cast<std::int64_t>(units.size()),
            std::make_shared<const GpuBytes>(std::as_bytes(std::span<const RotaryUnit>(units))),
            std::make_shared<const GpuBytes>(std::as_bytes(std::span<const RotaryTerm>(terms)))};
  }

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
    return {{memory_.at(*of.view, iteration), memory_.dtype(*of.view)}, nest_of(of.dims.rows)};
  }

  template <int kPack>
  void launch_packs(std::int64_t iteration, cudaStream_t stream) const {
    for (std::size_t i = 0; i < out_.size(); ++i) {
      using Body = Rotary<kPack>;
      const Columns& columns = kPack == 1 ? single_[i] : packed_[i];
      const std::int64_t groups = ceil_div(rows_, std::int64_t{Body::kRows});
      require_numbers(groups, columns.units);
      Body body{};
      body.rows = rows_, body.threads = groups * columns.units;
      body.units = divider(std::max<std::int64_t>(1, columns.units)),
      body.of_sequence = divider(of_sequence_);
      body.positions = reinterpret_cast<const std::int32_t*>(positions_->data());
      body.scales = scales_ ? reinterpret_cast<const float*>(scales_->data()) : nullptr;
      body.all_units = reinterpret_cast<const RotaryUnit*>(columns.all_units->data());
      body.terms = reinterpret_cast<const RotaryTerm*>(columns.terms->data());
      body.interleaved = rule_.interleaved, body.back = back_;
      body.table = row_matrix<Body::kTablePack>(table_, memory_, iteration);
      body.out = nested<kPack>(out_[i], iteration);
      for (std::size_t m = 0; m < in_.size(); ++m) body.in[m] = nested<kPack>(in_[m], iteration);
      launch(stream, {ceil_div(body.threads, std::int64_t{Body::kThreads})}, body);
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
  std::vector<Columns> packed_, single_;                // of each of `out_`: in packs of pack_, and of one
  std::shared_ptr<const GpuBytes> positions_, scales_;  // scales_: null if nothing is scaled
};

}  // namespace

PreparedKernel prepare_rotary(const RowKernel& kernel, const CudaMemory& memory) {
  return [turn = Turn(kernel, memory)](std::int64_t iteration, cudaStream_t stream) {
    turn.launch_all(iteration, stream);
  };
}

}  // namespace cp::runtime
