// Both ends of a model: the look-up of tokens, and the cross entropy of logits over a split vocabulary.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <variant>
#include <vector>

#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/row_access.h"
#include "runtime/cuda/row_kernels.h"

namespace cp::runtime {
namespace {

// The tokens of the rank, and its part of VocabularyRule.
struct OwnTokens {
  std::int64_t first = 0, count = 0;
  float scale = 1, softcap = 0, logit_scale = 1;

  explicit OwnTokens(const VocabularyRule& rule)
      : first(rule.first),
        count(rule.count),
        scale(static_cast<float>(rule.scale)),
        softcap(static_cast<float>(rule.softcap)),
        logit_scale(static_cast<float>(rule.logit_scale)) {}

  // The row of its table or the column of its logits; -1: another rank has it.
  CP_DEVICE std::int64_t index_of(std::int32_t token) const {
    const std::int64_t index = token - first;
    return index >= 0 && index < count ? index : -1;
  }
  CP_DEVICE float capped(float logit) const {
    const float scaled = logit_scale * logit;
    return softcap == 0 ? scaled : softcap * tanhf(scaled / softcap);
  }
  // Scales and caps a pack of logits. The branch stands before the loop, so that where neither is asked for
  // the elements of a pack have none.
  template <int kPack>
  CP_DEVICE void cap(float (&values)[kPack]) const {
    if (softcap == 0 && logit_scale == 1) return;
    CP_UNROLL
    for (int i = 0; i < kPack; ++i) values[i] = capped(values[i]);
  }
};

// ---- embedding ----

template <int kPack>
struct Embed {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "embed";

  RowLanes lanes;
  OwnTokens own;
  Indices tokens;
  RowMatrix<kPack> table, x;

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row >= lanes.rows) return;
      const std::int64_t index = own.index_of(tokens.at(row));
      for_packs(
          lanes.lane(thread), lanes.lanes(), lanes.packs,
          [&](std::int64_t pack) { return index < 0 ? RowBits{} : table.read(index, pack * kPack); },
          [&](std::int64_t pack, const RowBits& bits) {
            float values[kPack];
            table.values(bits, values);
            CP_UNROLL
            for (int i = 0; i < kPack; ++i) values[i] = index < 0 ? 0 : values[i] * own.scale;
            x.write(row, pack * kPack, values);
          });
    });
  }
};

// A row by its token: the row of the table, or kOthers.
struct alignas(8) SortedRow {
  static constexpr std::int32_t kOthers = std::numeric_limits<std::int32_t>::max() - 1;
  static constexpr std::int32_t kNone = kOthers + 1;  // behind the last row
  std::int32_t row = 0, key = kNone;
};

// The gradient of the table adds up rows of equal tokens, in their order. So rows are sorted by token first:
// what stands before a row's token is counted, by eight threads for each row, and that is its place. This
// takes n^2 comparisons, 2 to 3 instructions each, with four tokens for each access to the shared memory: for
// 8192 rows some 6 us of an H100, for 131,072 rows 1.5 ms, beside the 0.4 ms that it takes to read as many
// rows of 4096 columns of 16 bits.
struct SortTokens {
  static constexpr int kThreads = kRowThreads;
  static constexpr int kLanes = 8, kOwn = kThreads / kLanes;  // threads for each row, and rows of a block
  static constexpr int kTile = 4096;                          // tokens in shared memory
  static constexpr int kTokens = 4;                           // of an access
  static constexpr int kSharedBytes = (kTile + kThreads) * static_cast<int>(sizeof(std::int32_t));
  static constexpr const char* kName = "sort_tokens";
  using Tokens = Pack<std::int32_t, kTokens>;

  OwnTokens own;
  Indices tokens;
  std::int32_t rows;
  SortedRow* order;  // by token, those of other ranks at the end

  CP_DEVICE std::int32_t key_of(std::int64_t row) const {
    const std::int64_t index = own.index_of(tokens.at(row));
    return index < 0 ? SortedRow::kOthers : static_cast<std::int32_t>(index);
  }

  CP_DEVICE void operator()(Block& block) const {
    auto* const tile = block.template shared<std::int32_t>();
    std::int32_t* const counts = tile + kTile;
    const auto first = static_cast<std::int32_t>(block.index() * kOwn);
    PerThread<std::int32_t> keys(block), places(block);
    block.for_each_thread([&](int thread) {
      const std::int32_t row = first + thread / kLanes;
      keys[thread] = row < rows ? key_of(row) : SortedRow::kOthers;
      places[thread] = 0;
    });
    for (std::int32_t begin = 0; begin < rows; begin += kTile) {
      const std::int32_t count = rows - begin < kTile ? rows - begin : kTile;
      block.for_each_thread([&](int thread) {
        // Whole accesses, of which those behind the last row come before nothing.
        for (std::int32_t i = thread; i < ceil_div(count, kTokens) * kTokens; i += kThreads)
          tile[i] = i < count ? key_of(begin + i) : SortedRow::kNone;
      });
      block.for_each_thread([&](int thread) {
        // Of equal tokens those of earlier rows stand before. Only one tile or two have both.
        const bool has_both = begin + count > first && begin < first + kOwn;
        const std::int32_t key = keys[thread], row = first + thread / kLanes,
                           behind = begin < first ? key + 1 : key;
        std::int32_t place = places[thread];
        for (std::int32_t i = thread % kLanes * kTokens; i < count; i += kLanes * kTokens) {
          const Tokens tokens_of = *reinterpret_cast<const Tokens*>(tile + i);
          CP_UNROLL
          for (int t = 0; t < kTokens; ++t) {
            const std::int32_t limit = !has_both ? behind : key + (begin + i + t < row ? 1 : 0);
            place += tokens_of.values[t] < limit ? 1 : 0;
          }
        }
        places[thread] = place;
      });
    }
    block.for_each_thread([&](int thread) { counts[thread] = places[thread]; });
    block.last([&](int thread) {
      if (thread >= kOwn || first + thread >= rows) return;
      std::int32_t place = 0;
      for (int lane = 0; lane < kLanes; ++lane) place += counts[thread * kLanes + lane];
      order[place] = {first + thread, key_of(first + thread)};
    });
  }
};

// Adds up the rows of each token, in packs. What bounds it is how long memory takes to answer: a thread reads
// its own place in the order and the one before, then two packs of its row and of the table together. Most
// tokens come once; of one that comes often, several rows are under way together.
template <int kPack>
struct EmbedBackward {
  static constexpr int kThreads = kRowThreads;
  static constexpr int kRows = 2, kPacks = 2;  // under way; of a thread; chosen
  static constexpr int kLeastBlocks = 4;       // with 64 registers for each thread, which these take
  static constexpr const char* kName = "embed_backward";

  RowLanes lanes;       // rows: places in the order
  std::int64_t chunks;  // of packs: a row has more of them than its lanes have
  float scale;
  const SortedRow* order;
  RowMatrix<kPack> dx, table;

  struct Own {
    RowBits packs[kPacks];
  };

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t chunk = block.index() % chunks, begin = lanes.row(block.index() / chunks, thread),
                         pack = chunk * lanes.lanes() * kPacks + lanes.lane(thread);
      if (begin >= lanes.rows || pack >= lanes.packs) return;
      const SortedRow first = order[begin], before = begin > 0 ? order[begin - 1] : SortedRow{};
      const std::int32_t key = first.key;
      if (key == SortedRow::kOthers || before.key == key) return;
      const Own old = read(table, key, pack), of_first = read(dx, first.row, pack);
      float sums[kPacks][kPack] = {};
      add(of_first, sums);
      for (std::int64_t next = begin + 1;; next += kRows) {
        SortedRow rows[kRows];
        CP_UNROLL
        for (int i = 0; i < kRows; ++i) rows[i] = next + i < lanes.rows ? order[next + i] : SortedRow{};
        if (rows[0].key != key) break;
        Own more[kRows];
        CP_UNROLL
        for (int i = 0; i < kRows; ++i) {
          if (rows[i].key == key) more[i] = read(dx, rows[i].row, pack);
        }
        CP_UNROLL
        for (int i = 0; i < kRows; ++i) {
          if (rows[i].key == key) add(more[i], sums);
        }
        if (rows[kRows - 1].key != key) break;
      }
      CP_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        const std::int64_t at = pack + p * lanes.lanes();
        if (at >= lanes.packs) continue;
        float values[kPack];
        table.values(old.packs[p], values);
        CP_UNROLL
        for (int e = 0; e < kPack; ++e) values[e] = sums[p][e] + values[e];
        table.write(key, at * kPack, values);
      }
    });
  }

  CP_DEVICE Own read(const RowMatrix<kPack>& from, std::int64_t row, std::int64_t pack) const {
    Own own{};
    CP_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t at = pack + p * lanes.lanes();
      if (at < lanes.packs) own.packs[p] = from.read(row, at * kPack);
    }
    return own;
  }

  CP_DEVICE void add(const Own& own, float (&sums)[kPacks][kPack]) const {
    CP_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      float values[kPack];
      dx.values(own.packs[p], values);
      CP_UNROLL
      for (int e = 0; e < kPack; ++e) sums[p][e] += scale * values[e];
    }
  }
};

// ---- loss ----

// Reads the logits once, also where it finds the maximum: where a greater one comes, a thread makes its sum
// that much smaller. The lanes of a row find their maximum first; then each scales its own sum, and they are
// added up: in a chain of sums as of other maxima each step would wait for an exponential.
//
// What bounds it is the instructions, not only memory: an exponential takes some eight, so that nothing else
// may be done for each element that can be done for a pack. The exponentials of a pack are added up in f32,
// and the sums of packs in f64: more conversions would take longer than the reads.
template <int kPack>
struct CrossEntropy {
  static constexpr int kThreads = kRowThreads;
  // With 64 registers for each thread, and 64 KiB of logits under way on a multiprocessor. The compiler would
  // take as many as leave room for half of the threads.
  static constexpr int kLeastBlocks = 4;
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(double));
  static constexpr const char* kName = "cross_entropy";

  RowLanes lanes;
  OwnTokens own;
  bool finds_maxima, adds_up;
  RowMatrix<kPack> logits;
  RowMatrix<1> single;  // the same
  Statistics maxima, sums;
  Indices labels;

  // The sum of exp(l - most) over some logits, and the largest of them.
  struct Exponentials {
    float most = -INFINITY;
    double sum = 0;
  };

  CP_DEVICE void operator()(Block& block) const {
    PerThread<Exponentials> found(block);
    PerThread<float> most(block);
    PerThread<double> scaled(block);
    block.for_each_thread([&](int thread) {
      found[thread] = {};
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row < lanes.rows) found[thread] = of_lane(row, lanes.lane(thread));
      most[thread] = found[thread].most;
    });
    float* const of_rows = block.template shared<float>();
    join_lanes(
        block, lanes, most, of_rows, [](float a, float b) { return fmaxf(a, b); },
        [](float of_row, int) { return of_row; });
    block.for_each_thread([&](int thread) {
      most[thread] = of_rows[lanes.first_lane(thread)];
      // A lane without logits, or with infinite ones alone, has no sum.
      const Exponentials& of_lane = found[thread];
      scaled[thread] = of_lane.sum == 0 ? 0 : of_lane.sum * expf(of_lane.most - most[thread]);
    });
    join_lanes(
        block, lanes, scaled, block.template shared<double>(), [](double a, double b) { return a + b; },
        [&](double sum, int thread) {
          const std::int64_t row = lanes.row(block.index(), thread);
          if (row < lanes.rows) give(row, {most[thread], sum});
          return sum;
        });
  }

  CP_DEVICE Exponentials of_lane(std::int64_t row, int lane) const {
    Exponentials found;
    if (!finds_maxima) found.most = maxima.at(row);
    for_packs(
        lane, lanes.lanes(), lanes.packs, [&](std::int64_t pack) { return logits.read(row, pack * kPack); },
        [&](std::int64_t pack, const RowBits& bits) {
          float values[kPack];
          logits.values(bits, values);
          own.cap(values);
          if ((pack + 1) * kPack > own.count) {
            CP_UNROLL
            for (int i = 0; i < kPack; ++i) {
              if (pack * kPack + i >= own.count) values[i] = -INFINITY;
            }
          }
          float most = found.most;
          if (finds_maxima) {
            CP_UNROLL
            for (int i = 0; i < kPack; ++i) most = fmaxf(most, values[i]);
          }
          if (!adds_up || most == -INFINITY) {
            found.most = most;
            return;
          }
          if (most > found.most) found.sum *= expf(found.most - most);
          found.most = most;
          float sum = 0;
          CP_UNROLL
          for (int i = 0; i < kPack; ++i) sum += expf(values[i] - most);
          found.sum += sum;
        });
    return found;
  }

  CP_DEVICE void give(std::int64_t row, const Exponentials& of_row) const {
    if (finds_maxima) maxima.at(row) = of_row.most;
    if (!adds_up) return;
    const std::int64_t label = own.index_of(labels.at(row));
    float logit[1] = {0};
    if (label >= 0) single.load(row, label, logit);
    sums.at(row, 0) = static_cast<float>(of_row.sum);
    sums.at(row, 1) = label < 0 ? 0 : own.capped(logit[0]);
  }
};

// As cross_entropy, it leaves nothing to each element that a pack can do: the label is one element of a row,
// and its pack is looked for once.
template <int kPack>
struct CrossEntropyBackward {
  static constexpr int kThreads = kRowThreads;
  static constexpr int kLeastBlocks = 4;  // as of cross_entropy
  static constexpr const char* kName = "cross_entropy_backward";

  RowLanes lanes;
  OwnTokens own;
  std::int64_t ignored;
  RowMatrix<kPack> logits, d_logits;
  Statistics maxima, sums, weight, losses;
  Indices labels;

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row >= lanes.rows) return;
      const std::int32_t token = labels.at(row);
      const bool counts = token != ignored;
      const std::int64_t label = own.index_of(token);
      const float most = maxima.at(row), sum = sums.at(row, 0), factor = weight.at(0) * own.logit_scale,
                  share = factor / sum;
      if (lanes.lane(thread) == 0) losses.at(row) = counts ? logf(sum) + most - sums.at(row, 1) : 0;
      for_packs(
          lanes.lane(thread), lanes.lanes(), lanes.packs,
          [&](std::int64_t pack) { return counts ? logits.read(row, pack * kPack) : RowBits{}; },
          [&](std::int64_t pack, const RowBits& bits) {
            float values[kPack] = {};
            if (counts) {
              logits.values(bits, values);
              gradients(pack * kPack, label, most, share, factor, values);
            }
            d_logits.write(row, pack * kPack, values);
          });
    });
  }

  // Of the logits from `column` on, in their place.
  CP_DEVICE void gradients(std::int64_t column, std::int64_t label, float most, float share, float factor,
                           float (&values)[kPack]) const {
    own.cap(values);
    float slopes[kPack] = {};
    if (own.softcap != 0) {
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) {
        const float part = values[i] / own.softcap;
        slopes[i] = 1 - part * part;
      }
    }
    CP_UNROLL
    for (int i = 0; i < kPack; ++i) values[i] = share * expf(values[i] - most);
    if (label >= column && label < column + kPack) {
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) {
        if (column + i == label) values[i] -= factor;
      }
    }
    if (own.softcap != 0) {
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) values[i] *= slopes[i];
    }
    if (column + kPack > own.count) {
      CP_UNROLL
      for (int i = 0; i < kPack; ++i) {
        if (column + i >= own.count) values[i] = 0;
      }
    }
  }
};

}  // namespace

PreparedKernel prepare_embed(const RowKernel& kernel, const CudaMemory& memory) {
  const View &tokens = kernel.reads[0], &table = kernel.reads[1], &x = kernel.writes[0];
  return prepare_rows(
      {&table, &x}, {}, memory,
      [own = OwnTokens(std::get<VocabularyRule>(kernel.rule)), &tokens, &table, &x, &memory]<int kPack>(
          std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
        const RowLanes lanes = row_lanes(x.shape[0], x.shape[1] / kPack);
        launch(stream, {lanes.blocks()},
               Embed<kPack>{lanes, own, indices(tokens, memory, iteration),
                            row_matrix<kPack>(table, memory, iteration),
                            row_matrix<kPack>(x, memory, iteration)});
      });
}

PreparedKernel prepare_embed_backward(const RowKernel& kernel, const CudaMemory& memory) {
  const View &tokens = kernel.reads[0], &dx = kernel.reads[1], &table = kernel.updates[0];
  const std::int64_t rows = tokens.shape[0];
  require_numbers(rows, 1);
  const auto order = std::make_shared<const GpuBytes>(static_cast<std::size_t>(rows) * sizeof(SortedRow));
  return prepare_rows(
      {&dx, &table}, {}, memory,
      [own = OwnTokens(std::get<VocabularyRule>(kernel.rule)), &tokens, &dx, &table, rows, order,
       &memory]<int kPack>(std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
        const SortTokens sort{own, indices(tokens, memory, iteration), static_cast<std::int32_t>(rows),
                              reinterpret_cast<SortedRow*>(order->data())};
        launch(stream, {ceil_div(rows, std::int64_t{SortTokens::kOwn}), SortTokens::kSharedBytes}, sort);
        // A lane for each kPacks packs, as far as a block has threads.
        using Body = EmbedBackward<kPack>;
        const std::int64_t packs = dx.shape[1] / kPack;
        const RowLanes lanes = row_lanes(rows, packs, Body::kPacks);
        const std::int64_t chunks = ceil_div(packs, std::int64_t{lanes.lanes()} * Body::kPacks);
        launch(stream, {lanes.blocks() * chunks},
               Body{lanes, chunks, sort.own.scale, sort.order, row_matrix<kPack>(dx, memory, iteration),
                    row_matrix<kPack>(table, memory, iteration)});
      });
}

PreparedKernel prepare_cross_entropy(const RowKernel& kernel, const CudaMemory& memory) {
  const View& logits = kernel.reads[0];
  return prepare_rows(
      {&logits}, {}, memory,
      [own = OwnTokens(std::get<VocabularyRule>(kernel.rule)), &kernel, &logits, &memory]<int kPack>(
          std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
        using Body = CrossEntropy<kPack>;
        const bool finds_maxima = kernel.reads.size()<3, adds_up = kernel.reads.size()> 1;
        Body body{row_lanes(logits.shape[0], ceil_div(own.count, std::int64_t{kPack})),
                  own,
                  finds_maxima,
                  adds_up,
                  row_matrix<kPack>(logits, memory, iteration),
                  row_matrix<1>(logits, memory, iteration),
                  statistics(finds_maxima ? kernel.writes[0] : kernel.reads[1], memory, iteration),
                  {},
                  {}};
        if (adds_up) {
          body.sums = statistics(kernel.writes.back(), memory, iteration);
          body.labels = indices(kernel.reads.back(), memory, iteration);
        }
        launch(stream, {body.lanes.blocks(), Body::kSharedBytes}, body);
      });
}

PreparedKernel prepare_cross_entropy_backward(const RowKernel& kernel, const CudaMemory& memory) {
  const View &logits = kernel.reads[0], &d_logits = kernel.writes[0];
  return prepare_rows(
      {&logits, &d_logits}, {}, memory,
      [rule = std::get<VocabularyRule>(kernel.rule), &kernel, &logits, &d_logits, &memory]<int kPack>(
          std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
        const RowLanes lanes = row_lanes(logits.shape[0], logits.shape[1] / kPack);
        const auto statistic = [&](const View& view) { return statistics(view, memory, iteration); };
        launch(stream, {lanes.blocks()},
               CrossEntropyBackward<kPack>{
                   lanes, OwnTokens(rule), rule.ignored, row_matrix<kPack>(logits, memory, iteration),
                   row_matrix<kPack>(d_logits, memory, iteration), statistic(kernel.reads[1]),
                   statistic(kernel.reads[2]), statistic(kernel.reads[4]), statistic(kernel.writes[1]),
                   indices(kernel.reads[3], memory, iteration)});
      });
}

}  // namespace cp::runtime
