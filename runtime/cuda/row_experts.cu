// The router of a mixture of experts, and the ways of rows to experts and back.
//
// Rows are moved by tables: which row stands in each slot, made by counting choices, without atomics, so that
// slots are given out in the order of rows. Moving rows is bound by memory. The tables and the router, whose
// rows are as short as there are experts, are not; they take some microseconds beside the experts' products.
#include <cmath>
#include <cstdint>
#include <limits>
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
#include "shared/base/text.h"
#include "shared/kernels/expert_slots.h"

namespace cp::runtime {
namespace {

// ---- slots ----

// The choices of all rows, one after another.
struct Choices {
  Indices chosen;
  Divider of_row;  // the choices of a row
  std::int32_t count = 0;

  CP_DEVICE std::int32_t expert(std::int32_t choice) const {
    const std::uint32_t row = of_row.quotient(static_cast<std::uint32_t>(choice));
    return chosen.at(row, static_cast<std::uint32_t>(choice) - row * of_row.size);
  }
};

// Of a block's choices, one of each thread: how many of the same expert stand before it in the block, and how
// many of each expert the block has.
struct CountChoices {
  static constexpr int kThreads = kRowThreads;
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(std::int32_t));
  static constexpr const char* kName = "count_choices";

  Choices choices;
  std::int64_t experts;
  std::int32_t *counts, *before;  // [block][expert]; of each choice

  CP_DEVICE void operator()(Block& block) const {
    auto* const tile = block.template shared<std::int32_t>();
    std::int32_t* const own_counts = counts + block.index() * experts;
    const auto first = static_cast<std::int32_t>(block.index() * kThreads);
    const int count = choices.count - first < kThreads ? choices.count - first : kThreads;
    block.for_each_thread([&](int thread) {
      for (std::int64_t e = thread; e < experts; e += kThreads) own_counts[e] = 0;
      if (thread < count) tile[thread] = choices.expert(first + thread);
    });
    block.last([&](int thread) {
      if (thread >= count) return;
      const std::int32_t expert = tile[thread];
      std::int32_t earlier = 0, later = 0;
      for (int i = 0; i < thread; ++i) earlier += tile[i] == expert ? 1 : 0;
      for (int i = thread + 1; i < count; ++i) later += tile[i] == expert ? 1 : 0;
      before[first + thread] = earlier;
      if (later == 0) own_counts[expert] = earlier + 1;
    });
  }
};

// Turns the counts of an expert into those of all blocks before; and begins with slots that nobody took.
struct AddUpChoices {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "add_up_choices";

  std::int64_t experts, blocks, slots;
  std::int32_t *counts, *taken;

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t number = block.index() * kThreads + thread;
      if (number < slots) taken[number] = -1;
      if (number >= experts) return;
      std::int32_t sum = 0;
      for_packs<16>(
          0, 1, blocks, [&](std::int64_t of) { return counts[of * experts + number]; },
          [&](std::int64_t of, std::int32_t count) {
            counts[of * experts + number] = sum;
            sum += count;
          });
    });
  }
};

// Gives each choice its slot, and each slot its choice.
struct TakeSlots {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "take_slots";

  Choices choices;
  std::int64_t experts;
  const std::int32_t* counts;
  const ExpertSlots::Slots* of_experts;
  std::int32_t *slots, *taken;  // slots: at first how many of its expert stand before a choice in its block

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const auto choice = static_cast<std::int32_t>(block.index() * kThreads + thread);
      if (choice >= choices.count) return;
      const std::int32_t expert = choices.expert(choice);
      const std::int64_t slot =
          of_experts[expert].begin + counts[block.index() * experts + expert] + slots[choice];
      const bool is_free = slot < of_experts[expert].end;
      slots[choice] = is_free ? static_cast<std::int32_t>(slot) : -1;
      if (is_free) taken[slot] = choice;
    });
  }
};

// The slots of a kernel's choices, made anew at each launch, as the choices are.
class SlotTables {
 public:
  SlotTables(const View& chosen, const SlotsRule& rule, std::int64_t capacity, const CudaMemory& memory)
      : chosen_(chosen), memory_(memory), experts_(rule.experts), capacity_(capacity) {
    const std::int64_t count = chosen.numel();
    require_numbers(chosen.shape[0], chosen.shape[1]), require_numbers(capacity, 1);
    blocks_ = ceil_div(count, std::int64_t{kRowThreads});
    const std::vector<ExpertSlots::Slots> of_experts = ExpertSlots(rule, capacity).of_experts();
    of_experts_ = std::make_shared<const GpuBytes>(std::as_bytes(std::span(of_experts)));
    const std::int64_t numbers = count + capacity + blocks_ * experts_;
    tables_ = std::make_shared<const GpuBytes>(static_cast<std::size_t>(numbers) * sizeof(std::int32_t));
  }

  const std::int32_t* slots() const { return table(0); }                // of each choice; -1: dropped
  const std::int32_t* taken() const { return table(chosen_.numel()); }  // the choice in each slot; -1: none

  void launch_all(std::int64_t iteration, cudaStream_t stream) const {
    const std::int64_t count = chosen_.numel();
    std::int32_t* const counts = table(count + capacity_);
    const Choices choices{indices(chosen_, memory_, iteration),
                          divider(std::max<std::int64_t>(1, chosen_.shape[1])),
                          static_cast<std::int32_t>(count)};
    launch(stream, {blocks_, CountChoices::kSharedBytes}, CountChoices{choices, experts_, counts, table(0)});
    launch(stream, {ceil_div(std::max(experts_, capacity_), std::int64_t{kRowThreads})},
           AddUpChoices{experts_, blocks_, capacity_, counts, table(count)});
    launch(
        stream, {blocks_},
        TakeSlots{choices, experts_, counts, reinterpret_cast<const ExpertSlots::Slots*>(of_experts_->data()),
                  table(0), table(count)});
  }

 private:
  std::int32_t* table(std::int64_t first) const {
    return reinterpret_cast<std::int32_t*>(tables_->data()) + first;
  }

  const View& chosen_;
  const CudaMemory& memory_;
  std::int64_t experts_, capacity_, blocks_ = 0;
  std::shared_ptr<const GpuBytes> of_experts_, tables_;
};

// ---- rows ----

// Each row that is written is that of a table, and zeros where the table has none.
template <int kPack>
struct GatherRows {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "gather_rows";

  RowLanes lanes;
  const std::int32_t* table;
  RowMatrix<kPack> in, out;

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t row = lanes.row(block.index(), thread);
      if (row >= lanes.rows) return;
      const std::int32_t from = table[row];
      for_packs(
          lanes.lane(thread), lanes.lanes(), lanes.packs,
          [&](std::int64_t pack) { return from < 0 ? RowBits{} : in.read(from, pack * kPack); },
          [&](std::int64_t pack, const RowBits& bits) {
            float values[kPack];
            in.values(bits, values);
            out.write(row, pack * kPack, values);
          });
    });
  }
};

// Writes each token's row to the slots of its choices. So a row is read once; read by slot, it would come
// from memory once for each choice, since experts lie further apart than a cache reaches. Blocks behind
// those of the tokens leave zeros in slots that nobody took.
template <int kPack>
struct ScatterRows {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "dispatch";
  static constexpr int kSlots = 64;  // that a block looks at, a warp for each; chosen

  RowLanes lanes;  // rows: tokens
  const std::int32_t *slots, *taken;
  int of_token;
  std::int64_t capacity;
  RowMatrix<kPack> in, out;
  Statistics weights, of_slots;  // of choices, and where they go, if there are any

  std::int64_t blocks() const { return lanes.blocks() + ceil_div(capacity, std::int64_t{kSlots}); }

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t behind = block.index() - lanes.blocks();
      behind < 0 ? scatter(lanes.row(block.index(), thread), lanes.lane(thread))
                 : clear(behind * kSlots, thread);
    });
  }

  CP_DEVICE void scatter(std::int64_t token, int lane) const {
    if (token >= lanes.rows) return;
    const std::int32_t* const own = slots + token * of_token;
    if (weights.data != nullptr) {
      for (int k = lane; k < of_token; k += lanes.lanes()) {
        if (own[k] >= 0) of_slots.at(own[k]) = weights.at(token, k);
      }
    }
    for_packs(
        lane, lanes.lanes(), lanes.packs, [&](std::int64_t pack) { return in.read(token, pack * kPack); },
        [&](std::int64_t pack, const RowBits& bits) {
          float values[kPack];
          in.values(bits, values);
          for (int k = 0; k < of_token; ++k) {
            if (own[k] >= 0) out.write(own[k], pack * kPack, values);
          }
        });
  }

  CP_DEVICE void clear(std::int64_t first, int thread) const {
    const float zeros[kPack] = {};
    for (std::int64_t slot = first + thread / kWarpThreads; slot < first + kSlots && slot < capacity;
         slot += kThreads / kWarpThreads) {
      if (taken[slot] >= 0) continue;
      const int lane = thread % kWarpThreads;
      if (weights.data != nullptr && lane == 0) of_slots.at(slot) = 0;
      for (std::int64_t pack = lane; pack < lanes.packs; pack += kWarpThreads)
        out.write(slot, pack * kPack, zeros);
    }
  }
};

// The sum of the rows of a token's slots, in their order. A thread has two packs of two slots under way; with
// more of either fewer threads would have registers.
template <int kPack>
struct SumSlots {
  static constexpr int kThreads = kRowThreads;
  static constexpr int kLeastBlocks = 4;  // with 64 registers for each thread
  static constexpr int kPacks = 2, kTogether = 2;
  static constexpr const char* kName = "combine";

  RowLanes lanes;
  const std::int32_t* slots;
  int of_token;
  RowMatrix<kPack> rows, y;

  struct Own {
    bool is_there;
    RowBits packs[kPacks];
  };

  CP_DEVICE void operator()(Block& block) const {
    block.last([&](int thread) {
      const std::int64_t token = lanes.row(block.index(), thread);
      if (token >= lanes.rows) return;
      for (std::int64_t pack = lanes.lane(thread); pack < lanes.packs; pack += kPacks * lanes.lanes())
        sum_packs(token, pack);
    });
  }

  CP_DEVICE void sum_packs(std::int64_t token, std::int64_t pack) const {
    const std::int32_t* const own = slots + token * of_token;
    float sums[kPacks][kPack] = {};
    for_packs<kTogether>(
        0, 1, of_token,
        [&](std::int64_t k) {
          const std::int32_t slot = own[k];
          Own of_slot{slot >= 0, {}};
          CP_UNROLL
          for (int p = 0; p < kPacks; ++p) {
            const std::int64_t at = pack + p * lanes.lanes();
            if (slot >= 0 && at < lanes.packs) of_slot.packs[p] = rows.read(slot, at * kPack);
          }
          return of_slot;
        },
        [&](std::int64_t, const Own& of_slot) {
          if (!of_slot.is_there) return;
          CP_UNROLL
          for (int p = 0; p < kPacks; ++p) {
            float values[kPack];
            rows.values(of_slot.packs[p], values);
            CP_UNROLL
            for (int i = 0; i < kPack; ++i) sums[p][i] += values[i];
          }
        });
    CP_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t at = pack + p * lanes.lanes();
      if (at < lanes.packs) y.write(token, at * kPack, sums[p]);
    }
  }
};

// A table of the other side's rows, for rows that arrived or are to leave.
std::shared_ptr<const GpuBytes> table_of_arrived(const RowKernel& kernel) {
  const std::int64_t capacity = kernel.reads[0].shape[0];
  const bool to_experts = kernel.operation == RowOperation::dispatch;
  require_numbers(capacity, 1);
  std::vector<std::int32_t> table(static_cast<std::size_t>(capacity), -1);
  ExpertSlots(std::get<SlotsRule>(kernel.rule), capacity)
      .for_arrived([&](std::int64_t arrived, std::int64_t sorted) {
        table[idx(to_experts ? sorted : arrived)] = static_cast<std::int32_t>(to_experts ? arrived : sorted);
      });
  return std::make_shared<const GpuBytes>(std::as_bytes(std::span<const std::int32_t>(table)));
}

PreparedKernel prepare_sort(const RowKernel& kernel, const CudaMemory& memory) {
  const View &in = kernel.reads[0], &out = kernel.writes[0];
  return prepare_rows({&in, &out}, {}, memory,
                      [&in, &out, table = table_of_arrived(kernel), &memory]<int kPack>(
                          std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
                        const RowLanes lanes = row_lanes(out.shape[0], out.shape[1] / kPack);
                        launch(stream, {lanes.blocks()},
                               GatherRows<kPack>{lanes, reinterpret_cast<const std::int32_t*>(table->data()),
                                                 row_matrix<kPack>(in, memory, iteration),
                                                 row_matrix<kPack>(out, memory, iteration)});
                      });
}

// ---- router ----

// The lanes of a row of the router, whose scores lie in shared memory.
constexpr int kRouterLanes = 32;
constexpr std::int64_t kRouterBytes = 48 * 1024 - kRowThreads * static_cast<int>(sizeof(double));
// Rows of a block: as many as there are lanes for, and scores there is room for.
std::int64_t router_rows(std::int64_t floats_of_row) {
  const std::int64_t rows = kRouterBytes / static_cast<std::int64_t>(sizeof(float)) / floats_of_row;
  if (rows == 0) {
    throw InvalidInput(str("a router with ", floats_of_row, " numbers for each row: a block of the GPU has ",
                           "room for ", kRouterBytes / sizeof(float)));
  }
  return std::min<std::int64_t>(rows, kRowThreads / kRouterLanes);
}

struct RouterScores {
  RouterRule rule;
  std::int64_t rows;
  int rows_of_block, experts, top_k;
  RowMatrix<1> logits;

  CP_DEVICE std::int64_t row(std::int64_t block, int thread) const {
    const int own = thread / kRouterLanes;
    const std::int64_t row = block * rows_of_block + own;
    return own < rows_of_block && row < rows ? row : -1;
  }

  // Leaves the scores of each row in `scores`, [row of the block][stride]. `shared` has a double for each
  // thread.
  CP_DEVICE void make(Block& block, double* shared, float* scores, int stride) const {
    PerThread<double> found(block);
    const RowLanes lanes{rows, experts, 5};
    block.for_each_thread([&](int thread) {
      found[thread] = -INFINITY;
      const std::int64_t own_row = row(block.index(), thread);
      if (own_row < 0) return;
      float* const own = scores + thread / kRouterLanes * stride;
      double most = -INFINITY;
      for (int e = thread % kRouterLanes; e < experts; e += kRouterLanes) {
        float logit[1];
        logits.load(own_row, e, logit);
        own[e] = rule.sigmoid ? 1 / (1 + expf(-logit[0])) : logit[0];
        most = own[e] > most ? own[e] : most;
      }
      found[thread] = most;
    });
    if (rule.sigmoid) return;
    join_lanes(
        block, lanes, found, shared, [](double a, double b) { return a > b ? a : b; },
        [](double most, int) { return most; });
    block.for_each_thread([&](int thread) {
      const auto most = static_cast<float>(shared[lanes.first_lane(thread)]);
      found[thread] = 0;
      if (row(block.index(), thread) < 0) return;
      float* const own = scores + thread / kRouterLanes * stride;
      double sum = 0;
      for (int e = thread % kRouterLanes; e < experts; e += kRouterLanes) {
        own[e] = expf(own[e] - most);
        sum += own[e];
      }
      found[thread] = sum;
    });
    join_lanes(
        block, lanes, found, shared, [](double a, double b) { return a + b; },
        [](double sum, int) { return sum; });
    block.for_each_thread([&](int thread) {
      if (row(block.index(), thread) < 0) return;
      float* const own = scores + thread / kRouterLanes * stride;
      const double sum = shared[lanes.first_lane(thread)];
      for (int e = thread % kRouterLanes; e < experts; e += kRouterLanes)
        own[e] = static_cast<float>(own[e] / sum);
    });
  }

  // What a row's chosen scores are divided by. chosen(k) gives the k-th one's expert.
  template <class Chosen>
  CP_DEVICE double divisor(const float* scores, Chosen&& chosen) const {
    if (!rule.normalized) return 1;
    double sum = 0;
    for (int k = 0; k < top_k; ++k) sum += scores[chosen(k)];
    return sum;
  }
};

// How many of `count` values come before number `own`: greater ones, and equal ones that stand before it.
template <class Value>
CP_DEVICE int rank_of(int own, int count, Value&& value) {
  const float mine = value(own);
  int rank = 0;
  for (int other = 0; other < count; ++other)
    rank += value(other) > mine || (value(other) == mine && other < own) ? 1 : 0;
  return rank;
}

// Each expert's place is how many come before it. This compares all pairs of a row's experts: of 256 experts
// and 8192 rows some 50 us, as long as the product that gave the logits.
struct Route {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "route";

  RouterScores router;
  Statistics correction;  // of the scores that choose; without data there is none
  Statistics weights;
  Indices chosen;

  CP_DEVICE void operator()(Block& block) const {
    const RouterRule& rule = router.rule;
    // Of a row: scores, values of groups, corrected scores of those that may be chosen, and the chosen ones.
    const int experts = router.experts, groups = static_cast<int>(rule.groups), each = experts / groups,
              row_floats = 2 * experts + groups + router.top_k;
    auto* const shared = block.template shared<double>();
    auto* const scores = block.template shared<float>(kThreads * static_cast<int>(sizeof(double)));
    router.make(block, shared, scores, row_floats);
    block.for_each_thread([&](int thread) {
      if (router.row(block.index(), thread) < 0) return;
      float* const own = scores + thread / kRouterLanes * row_floats;
      for (int e = thread % kRouterLanes; e < experts; e += kRouterLanes)
        own[experts + groups + e] = own[e] + (correction.data != nullptr ? correction.at(e) : 0);
    });
    block.for_each_thread([&](int thread) {
      if (router.row(block.index(), thread) < 0) return;
      float* const own = scores + thread / kRouterLanes * row_floats;
      for (int group = thread % kRouterLanes; group < groups; group += kRouterLanes)
        own[experts + group] = value_of_group(own + experts + groups + group * each, each);
    });
    block.for_each_thread([&](int thread) {
      if (router.row(block.index(), thread) < 0) return;
      float* const own = scores + thread / kRouterLanes * row_floats;
      for (int e = thread % kRouterLanes; e < experts; e += kRouterLanes) {
        const bool may = rule.top_groups >= rule.groups || rank_of(e / each, groups, [&](int group) {
                                                             return own[experts + group];
                                                           }) < rule.top_groups;
        if (!may) own[experts + groups + e] = -INFINITY;  // scores and corrections are finite
      }
    });
    block.for_each_thread([&](int thread) {
      if (router.row(block.index(), thread) < 0) return;
      float* const own = scores + thread / kRouterLanes * row_floats;
      const float* const may = own + experts + groups;
      for (int e = thread % kRouterLanes; e < experts; e += kRouterLanes) {
        if (may[e] == -INFINITY) continue;
        const int rank = rank_of(e, experts, [&](int other) { return may[other]; });
        if (rank < router.top_k) own[2 * experts + groups + rank] = static_cast<float>(e);
      }
    });
    block.last([&](int thread) {
      const std::int64_t row = router.row(block.index(), thread);
      if (row < 0) return;
      const float* const own = scores + thread / kRouterLanes * row_floats;
      const auto expert = [&](int k) { return static_cast<int>(own[2 * experts + groups + k]); };
      const double divisor = router.divisor(own, expert);
      for (int k = thread % kRouterLanes; k < router.top_k; k += kRouterLanes) {
        weights.at(row, k) = static_cast<float>(rule.scale * own[expert(k)] / divisor);
        chosen.at(row, k) = expert(k);
      }
    });
  }

  // The largest score, and with sigmoids the second one, too.
  CP_DEVICE float value_of_group(const float* own, int each) const {
    float first = -INFINITY, second = -INFINITY;
    for (int e = 0; e < each; ++e) {
      if (own[e] > first) {
        second = first, first = own[e];
      } else if (own[e] > second) {
        second = own[e];
      }
    }
    return router.rule.sigmoid && each > 1 ? first + second : first;
  }
};

// The load of an expert, which a block has: whole numbers, so that the order of the sum makes no difference.
struct AddLoads {
  static constexpr int kThreads = kRowThreads;
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(std::int32_t));
  static constexpr const char* kName = "add_loads";

  Choices choices;
  Statistics loads;

  CP_DEVICE void operator()(Block& block) const {
    auto* const counts = block.template shared<std::int32_t>();
    const auto expert = static_cast<std::int32_t>(block.index());
    block.for_each_thread([&](int thread) {
      std::int32_t count = 0;
      for (std::int32_t choice = thread; choice < choices.count; choice += kThreads)
        count += choices.expert(choice) == expert ? 1 : 0;
      counts[thread] = count;
    });
    block.last([&](int thread) {
      if (thread > 0) return;
      std::int32_t sum = 0;
      for (int i = 0; i < kThreads; ++i) sum += counts[i];
      loads.at(expert) += static_cast<float>(sum);
    });
  }
};

struct RouteBackward {
  static constexpr int kThreads = kRowThreads;
  static constexpr const char* kName = "route_backward";

  RouterScores router;
  Indices chosen;
  const std::int32_t* slots;
  Statistics d_slots;
  RowMatrix<1> d_logits;

  CP_DEVICE void operator()(Block& block) const {
    const RouterRule& rule = router.rule;
    const int experts = router.experts, top_k = router.top_k;
    auto* const shared = block.template shared<double>();
    auto* const scores = block.template shared<float>(kThreads * static_cast<int>(sizeof(double)));
    router.make(block, shared, scores, experts);
    block.last([&](int thread) {
      const std::int64_t row = router.row(block.index(), thread);
      if (row < 0) return;
      const float* const own = scores + thread / kRouterLanes * experts;
      const auto expert = [&](int k) { return chosen.at(row, k); };
      const auto d_weight = [&](int k) -> double {
        const std::int32_t slot = slots[row * top_k + k];
        return slot < 0 ? 0 : d_slots.at(slot);
      };
      const double divisor = router.divisor(own, expert);
      // Where scores are normalized: what all of the chosen lose by a larger sum.
      double shared_loss = 0;
      if (rule.normalized) {
        for (int k = 0; k < top_k; ++k) shared_loss += d_weight(k) * own[expert(k)] / divisor;
      }
      const auto gradient = [&](int k) { return rule.scale * (d_weight(k) - shared_loss) / divisor; };
      double along = 0;  // of a softmax: the sum of score times gradient
      for (int k = 0; k < top_k; ++k) along += gradient(k) * own[expert(k)];
      for (int e = thread % kRouterLanes; e < experts; e += kRouterLanes) {
        float d = 0;
        for (int k = 0; k < top_k; ++k) {
          if (expert(k) == e) d = static_cast<float>(gradient(k));
        }
        const double score = own[e];
        const float result[1] = {
            static_cast<float>(rule.sigmoid ? d * score * (1 - score) : (d - along) * score)};
        d_logits.write(row, e, result);
      }
    });
  }
};

RouterScores router_scores(const RowKernel& kernel, std::int64_t top_k, std::int64_t floats_of_row,
                           const CudaMemory& memory, std::int64_t iteration) {
  const View& logits = kernel.reads[0];
  return {std::get<RouterRule>(kernel.rule),
          logits.shape[0],
          static_cast<int>(router_rows(floats_of_row)),
          static_cast<int>(logits.shape[1]),
          static_cast<int>(top_k),
          row_matrix<1>(logits, memory, iteration)};
}

}  // namespace

PreparedKernel prepare_route(const RowKernel& kernel, const CudaMemory& memory) {
  const auto& rule = std::get<RouterRule>(kernel.rule);
  const View &logits = kernel.reads[0], &weights = kernel.writes[0], &chosen = kernel.writes[1];
  const std::int64_t top_k = chosen.shape[1], floats = 2 * logits.shape[1] + rule.groups + top_k,
                     rows = router_rows(floats);
  require_numbers(chosen.shape[0], top_k);
  const Grid grid{ceil_div(logits.shape[0], rows),
                  static_cast<int>(kRowThreads * static_cast<std::int64_t>(sizeof(double)) +
                                   rows * floats * static_cast<std::int64_t>(sizeof(float)))};
  return [&kernel, &weights, &chosen, top_k, floats, grid, &memory](std::int64_t iteration,
                                                                    cudaStream_t stream) {
    launch(stream, grid,
           Route{router_scores(kernel, top_k, floats, memory, iteration),
                 kernel.reads.size() > 1 ? statistics(kernel.reads[1], memory, iteration) : Statistics{},
                 statistics(weights, memory, iteration), indices(chosen, memory, iteration)});
    if (kernel.updates.empty()) return;
    const Choices choices{indices(chosen, memory, iteration), divider(top_k),
                          static_cast<std::int32_t>(chosen.numel())};
    launch(stream, {kernel.reads[0].shape[1], AddLoads::kSharedBytes},
           AddLoads{choices, statistics(kernel.updates[0], memory, iteration)});
  };
}

PreparedKernel prepare_route_backward(const RowKernel& kernel, const CudaMemory& memory) {
  const auto& rule = std::get<RouterRule>(kernel.rule);
  const View &logits = kernel.reads[0], &chosen = kernel.reads[1], &d_slots = kernel.reads[2];
  const std::int64_t top_k = chosen.shape[1], experts = logits.shape[1], rows = router_rows(experts);
  const Grid grid{ceil_div(logits.shape[0], rows),
                  static_cast<int>(kRowThreads * static_cast<std::int64_t>(sizeof(double)) +
                                   rows * experts * static_cast<std::int64_t>(sizeof(float)))};
  return [&kernel, &chosen, &d_slots, top_k, experts, grid,
          tables = SlotTables(chosen, {experts, rule.ranks}, d_slots.shape[0], memory),
          &memory](std::int64_t iteration, cudaStream_t stream) {
    tables.launch_all(iteration, stream);
    launch(stream, grid,
           RouteBackward{router_scores(kernel, top_k, experts, memory, iteration),
                         indices(chosen, memory, iteration), tables.slots(),
                         statistics(d_slots, memory, iteration),
                         row_matrix<1>(kernel.writes[0], memory, iteration)});
  };
}

PreparedKernel prepare_dispatch(const RowKernel& kernel, const CudaMemory& memory) {
  if (kernel.reads.size() == 1) return prepare_sort(kernel, memory);
  const View &x = kernel.reads[0], &rows = kernel.writes[0], &chosen = kernel.reads.back();
  const SlotTables tables(chosen, std::get<SlotsRule>(kernel.rule), rows.shape[0], memory);
  return prepare_rows({&x, &rows}, {}, memory,
                      [&kernel, &x, &rows, &chosen, tables, &memory]<int kPack>(
                          std::integral_constant<int, kPack>, std::int64_t iteration, cudaStream_t stream) {
                        tables.launch_all(iteration, stream);
                        ScatterRows<kPack> body{row_lanes(x.shape[0], x.shape[1] / kPack),
                                                tables.slots(),
                                                tables.taken(),
                                                static_cast<int>(chosen.shape[1]),
                                                rows.shape[0],
                                                row_matrix<kPack>(x, memory, iteration),
                                                row_matrix<kPack>(rows, memory, iteration),
                                                {},
                                                {}};
                        if (kernel.reads.size() == 3) {
                          body.weights = statistics(kernel.reads[1], memory, iteration);
                          body.of_slots = statistics(kernel.writes[1], memory, iteration);
                        }
                        launch(stream, {body.blocks()}, body);
                      });
}

PreparedKernel prepare_combine(const RowKernel& kernel, const CudaMemory& memory) {
  if (kernel.reads.size() == 1) return prepare_sort(kernel, memory);
  const View &rows = kernel.reads[0], &y = kernel.writes[0], &chosen = kernel.reads[1];
  const SlotTables tables(chosen, std::get<SlotsRule>(kernel.rule), rows.shape[0], memory);
  return prepare_rows(
      {&rows, &y}, {}, memory,
      [&rows, &y, &chosen, tables, &memory]<int kPack>(std::integral_constant<int, kPack>,
                                                       std::int64_t iteration, cudaStream_t stream) {
        tables.launch_all(iteration, stream);
        using Body = SumSlots<kPack>;
        const RowLanes lanes = row_lanes(y.shape[0], y.shape[1] / kPack, Body::kPacks);
        launch(stream, {lanes.blocks()},
               Body{lanes, tables.slots(), static_cast<int>(chosen.shape[1]),
                    row_matrix<kPack>(rows, memory, iteration), row_matrix<kPack>(y, memory, iteration)});
      });
}

}  // namespace cp::runtime
