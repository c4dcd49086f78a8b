// The merge of results over disjoint sets of keys, the sum of gradients, and the row sums that the gradients
// need. A block takes some whole rows, so that each row's log-sum-exp is read by all before it is written.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "runtime/cuda/elementwise.h"
#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/kernels/elements.h"

namespace cp::runtime {
namespace {

// The rows of [batch, seq, heads, dim] views, and of [batch, heads, seq] views beside them.
template <int kViews, int kStatistics>
struct RowPlaces {
  struct Dim {
    Divider size;
    std::int64_t view_steps[kViews] = {}, statistic_steps[kStatistics] = {};
  };
  Dim dims[3];            // outermost first
  std::int64_t rows = 0;  // below 2^31
  int packs = 0;          // of a row
  Divider by_packs;
  std::int64_t pack_steps[kViews] = {};  // from one pack to the next; all steps of views count packs

  struct Place {
    std::int64_t views[kViews] = {}, statistics[kStatistics] = {};
  };
  CP_DEVICE Place at(std::int64_t row) const {
    Place place;
    auto rest = static_cast<std::uint32_t>(row);
    CP_UNROLL
    for (int d = 2; d >= 0; --d) {
      const std::uint32_t next = d == 0 ? 0 : dims[d].size.quotient(rest);
      const std::int64_t digit = rest - next * dims[d].size.size;
      rest = next;
      CP_UNROLL
      for (int i = 0; i < kViews; ++i) place.views[i] += digit * dims[d].view_steps[i];
      CP_UNROLL
      for (int i = 0; i < kStatistics; ++i) place.statistics[i] += digit * dims[d].statistic_steps[i];
    }
    return place;
  }
};

// Whether the rows come in packs.
template <std::size_t kViews>
bool has_packs(const std::array<const View*, kViews>& views, std::int64_t pack) {
  const auto fits = [pack](const View* view) {
    const bool steps = std::all_of(view->strides.begin(), view->strides.begin() + 3,
                                   [pack](std::int64_t stride) { return stride % pack == 0; });
    return steps && view->shape[3] % pack == 0 && (view->strides[3] == 1 || view->shape[3] == 1);
  };
  return std::all_of(views.begin(), views.end(), fits);
}

// In the order in which the last view lies in memory, so that neighbouring rows are neighbours there.
template <std::size_t kViews, std::size_t kStatistics>
RowPlaces<kViews, kStatistics> places(const std::array<const View*, kViews>& views,
                                      const std::array<const View*, kStatistics>& statistics,
                                      std::int64_t pack) {
  const View& last = *views.back();
  std::array<std::size_t, 3> order = {0, 1, 2};
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return last.strides[a] > last.strides[b]; });
  RowPlaces<kViews, kStatistics> places;
  places.rows = last.shape[0] * last.shape[1] * last.shape[2];
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  if (places.rows > kMostRows) {
    throw InvalidInput(str("a kernel over ", last.shape[0], " x ", last.shape[1], " x ", last.shape[2],
                           " rows of attention: it numbers at most ", kMostRows,
                           "; split the batch, the sequence or the heads over several calls"));
  }
  places.packs = static_cast<int>(last.shape[3] / pack);
  places.by_packs = divider(std::max(places.packs, 1));
  for (std::size_t d = 0; d < 3; ++d) {
    const std::size_t dim = order[d], of_statistic = dim == 0 ? 0 : 3 - dim;
    places.dims[d].size = divider(std::max<std::int64_t>(last.shape[dim], 1));
    for (std::size_t i = 0; i < kViews; ++i) places.dims[d].view_steps[i] = views[i]->strides[dim] / pack;
    for (std::size_t i = 0; i < kStatistics; ++i)
      places.dims[d].statistic_steps[i] = statistics[i]->strides[of_statistic];
  }
  for (std::size_t i = 0; i < kViews; ++i) places.pack_steps[i] = pack == 1 ? views[i]->strides[3] : 1;
  return places;
}

// ---- merge ----

// The parts of a merge: how one access of a thread reads them. All have one type:
template <class T, int kPackOf>
struct TypedParts {
  static constexpr int kPack = kPackOf;
  using Read = Pack<T, kPack>;
  const void* data[kMostMerged];

  CP_DEVICE Read read(int part, std::int64_t pack) const {
    return static_cast<const Read*>(data[part])[pack];
  }
  CP_DEVICE static float value(const Read& read, int i) { return load(read.values[i]); }
};

// Or each has its own, which is rare: then it is read element by element.
struct AnyParts {
  static constexpr int kPack = 1;
  using Read = float;
  const void* data[kMostMerged];
  DType dtypes[kMostMerged];

  CP_DEVICE Read read(int part, std::int64_t element) const {
    switch (dtypes[part]) {
      case DType::f32:
        return static_cast<const float*>(data[part])[element];
      case DType::f16:
        return load(static_cast<const F16*>(data[part])[element]);
      default:
        return load(static_cast<const BF16*>(data[part])[element]);
    }
  }
  CP_DEVICE static float value(Read read, int) { return read; }
};

// Merges kParts parts into out, in three phases. In the first one a thread finds the places of one row. In
// the second one every thread reads its packs, while those with a row read its log-sum-exps and weigh it; the
// third one merges. All that a thread reads of memory is so under way together, and the block waits for
// memory once. Measured on an H200 at 64 MiB, as shares of the rate of a copy, bf16 into bf16, one part and
// three: so 0.95 and 0.99; with the factors before all reads 0.84 and 0.80; with the number of parts as a
// value, for which registers of three are taken, 0.75 and 0.57; with 256 threads 0.90 and 0.93.
template <class Parts, int kParts, class Out>
struct Merge {
  static constexpr int kThreads = 128, kPack = Parts::kPack;
  static constexpr int kPacks = kPack == 1 ? 8 : 2;  // of a thread at a time; of 2 measured as above
  // Blocks for which a multiprocessor is to have registers. Left to itself the compiler takes so few that a
  // thread waits for one read before it issues the next: 0.86 of one part, measured as above. With eight
  // blocks a thread has 64, which up to 80 bytes of reads need (three parts of bf16 into f32: 0.99, and 0.87
  // with one block); what is more would not stay in registers.
  static constexpr int kLeastBlocks =
      kPacks * (16 + kParts * static_cast<int>(sizeof(typename Parts::Read))) <= 80 ? 8 : 1;
  static constexpr int kMaxRows = kThreads;  // a thread weighs one row
  static constexpr const char* kName = "attention_merge";
  static constexpr int kOut = kParts;  // of views and statistics: parts, then out
  // For each row, and each part and out: an offset of 8 bytes and a factor of 4. At most 6 KiB.
  static constexpr int kSharedBytes = kMaxRows * (kParts + 1) * 12;
  using OutPack = Pack<Out, kPack>;
  using Places = RowPlaces<kParts + 1, kParts + 1>;

  Places places;
  int block_rows;
  bool has_lse;
  Parts in;
  const float* in_lse[kParts];
  OutPack* out;
  float* lse;

  // Where the block's rows begin in each view, and their factors. A negative factor says that the row must
  // not be looked at: its part has no keys, or, for out, there is nothing to add.
  struct Rows {
    std::int64_t* begins;  // [row][view]
    float* factors;
  };
  // What a thread has read: packs of neighbouring threads are neighbours.
  struct Own {
    std::int64_t to[kPacks];
    int rows[kPacks];  // as indices of begins and factors; negative where there is no pack
    OutPack before[kPacks];
    typename Parts::Read parts[kPacks][kParts];
  };

  CP_DEVICE void weigh(const std::int64_t* statistics, float* factors) const {
    CP_UNROLL
    for (int i = 0; i <= kParts; ++i) factors[i] = 1;
    if (!has_lse) return;
    float part_lse[kParts];
    const float before = lse[statistics[kOut]];
    float greatest = before;
    bool any = false;
    CP_UNROLL
    for (int i = 0; i < kParts; ++i) {
      part_lse[i] = in_lse[i][statistics[i]];
      if (part_lse[i] == -INFINITY) continue;                      // also keeps inf - inf away
      greatest = greatest < part_lse[i] ? part_lse[i] : greatest;  // as std::max, NaNs included
      any = true;
    }
    if (!any) {
      factors[kOut] = -1;
      return;
    }
    factors[kOut] = expf(before - greatest);
    float sum = factors[kOut];
    CP_UNROLL
    for (int i = 0; i < kParts; ++i) {
      if (part_lse[i] == -INFINITY) continue;
      factors[i] = expf(part_lse[i] - greatest);
      sum += factors[i];
    }
    CP_UNROLL
    for (int i = 0; i <= kParts; ++i) factors[i] /= sum;
    CP_UNROLL
    for (int i = 0; i < kParts; ++i) {
      if (part_lse[i] == -INFINITY) factors[i] = -1;
    }
    lse[statistics[kOut]] = greatest + logf(sum);
  }

  CP_DEVICE void operator()(Block& block) const {
    const Rows rows = {
        block.template shared<std::int64_t>(),
        block.template shared<float>(kMaxRows * (kParts + 1) * static_cast<int>(sizeof(std::int64_t)))};
    const std::int64_t first = block.index() * block_rows;
    const int count = static_cast<int>(places.rows - first < block_rows ? places.rows - first : block_rows);
    const int packs = count * places.packs;
    PerThread<typename Places::Place> place(block);
    block.for_each_thread([&](int thread) {
      if (thread >= count) return;
      place[thread] = places.at(first + thread);
      CP_UNROLL
      for (int i = 0; i <= kParts; ++i) rows.begins[thread * (kParts + 1) + i] = place[thread].views[i];
    });
    PerThread<Own> own(block);
    int begin = 0;
    do {  // once, unless a row is a long one; also where rows have no elements, for their log-sum-exp
      block.for_each_thread([&](int thread) {
        read(rows, begin + thread, packs, own[thread]);
        if (begin == 0 && thread < count)
          weigh(place[thread].statistics, rows.factors + thread * (kParts + 1));
      });
      // Needs no barrier behind it in the loop either: what follows reads the places, which nobody writes
      // again.
      block.last([&](int thread) { merge(rows, own[thread]); });
      begin += kThreads * kPacks;
    } while (begin < packs);
  }

  // All places first, and then all reads: so the compiler issues the reads of all packs one after another.
  CP_DEVICE void read(const Rows& rows, int first, int packs, Own& own) const {
    std::int64_t columns[kPacks];
    CP_UNROLL
    for (int i = 0; i < kPacks; ++i) {
      const int number = first + i * kThreads;
      const std::uint32_t row = places.by_packs.quotient(static_cast<std::uint32_t>(number));
      columns[i] = number - static_cast<int>(row * places.by_packs.size);
      own.rows[i] = number < packs ? static_cast<int>(row) * (kParts + 1) : -1;
      if (number < packs) own.to[i] = rows.begins[own.rows[i] + kOut] + columns[i] * places.pack_steps[kOut];
    }
    CP_UNROLL
    for (int i = 0; i < kPacks; ++i) {
      if (own.rows[i] >= 0) own.before[i] = out[own.to[i]];
    }
    CP_UNROLL
    for (int part = 0; part < kParts; ++part) {
      CP_UNROLL
      for (int i = 0; i < kPacks; ++i) {
        if (own.rows[i] < 0) continue;
        own.parts[i][part] =
            in.read(part, rows.begins[own.rows[i] + part] + columns[i] * places.pack_steps[part]);
      }
    }
  }

  CP_DEVICE void merge(const Rows& rows, const Own& own) const {
    CP_UNROLL
    for (int i = 0; i < kPacks; ++i) {
      if (own.rows[i] < 0) continue;
      const float* factors = rows.factors + own.rows[i];
      if (factors[kOut] < 0) continue;
      float sums[kPack];
      CP_UNROLL
      for (int e = 0; e < kPack; ++e) sums[e] = load(own.before[i].values[e]) * factors[kOut];
      CP_UNROLL
      for (int part = 0; part < kParts; ++part) {
        if (factors[part] < 0) continue;
        CP_UNROLL
        for (int e = 0; e < kPack; ++e) sums[e] += Parts::value(own.parts[i][part], e) * factors[part];
      }
      OutPack merged;
      CP_UNROLL
      for (int e = 0; e < kPack; ++e) merged.values[e] = convert<Out>(sums[e]);
      out[own.to[i]] = merged;
    }
  }
};

// The views of a merge in the kernel's order.
template <int kParts>
struct MergeViews {
  std::array<const View*, kParts + 1> views, statistics;
  View no_lse;

  explicit MergeViews(const AttentionMerge& kernel) {
    const Shape& shape = kernel.out.shape;
    no_lse = {-1, 0, {shape[0], shape[2], shape[1]}, {0, 0, 0}, {}};
    const bool has_lse = !is_absent(kernel.lse);
    for (std::size_t i = 0; i < kParts; ++i) {
      views[i] = i == 0 ? &kernel.in : &kernel.more[i - 1];
      statistics[i] = !has_lse ? &no_lse : i == 0 ? &kernel.in_lse : &kernel.more_lse[i - 1];
    }
    views.back() = &kernel.out, statistics.back() = has_lse ? &kernel.lse : &no_lse;
  }
  MergeViews(const MergeViews&) = delete;
  MergeViews& operator=(const MergeViews&) = delete;
};

template <class Parts, int kParts, class Out>
void launch_merge(cudaStream_t stream, const RowPlaces<kParts + 1, kParts + 1>& places,
                  const MergeViews<kParts>& all, const CudaMemory& memory, std::int64_t iteration) {
  using Body = Merge<Parts, kParts, Out>;
  Body body{};
  body.places = places, body.has_lse = all.statistics.back() != &all.no_lse;
  for (std::size_t i = 0; i < kParts; ++i) {
    body.in.data[i] = memory.at(*all.views[i], iteration);
    if constexpr (std::is_same_v<Parts, AnyParts>) body.in.dtypes[i] = memory.dtype(*all.views[i]);
    if (body.has_lse)
      body.in_lse[i] = reinterpret_cast<const float*>(memory.at(*all.statistics[i], iteration));
  }
  body.out = reinterpret_cast<typename Body::OutPack*>(memory.at(*all.views.back(), iteration));
  if (body.has_lse) body.lse = reinterpret_cast<float*>(memory.at(*all.statistics.back(), iteration));
  body.block_rows = std::clamp(Body::kThreads * Body::kPacks / std::max(places.packs, 1), 1, Body::kMaxRows);
  launch(stream, {ceil_div(places.rows, std::int64_t{body.block_rows}), Body::kSharedBytes}, body);
}

// In and Out: of all parts, and of out, where In is as wide as Out or narrower.
template <int kParts, class In, class Out>
PreparedKernel prepare_packed_merge(const AttentionMerge& kernel, const CudaMemory& memory) {
  constexpr int kPack = 16 / static_cast<int>(sizeof(Out));
  const auto all = std::make_shared<const MergeViews<kParts>>(kernel);
  const bool packs = has_packs(all->views, kPack);
  return [&memory, all, packs, packed = places(all->views, all->statistics, packs ? kPack : 1),
          single = places(all->views, all->statistics, 1)](std::int64_t iteration, cudaStream_t stream) {
    bool aligned = packs && is_aligned(memory.at(*all->views.back(), iteration), sizeof(Out) * kPack);
    for (std::size_t i = 0; i < kParts; ++i)
      aligned = aligned && is_aligned(memory.at(*all->views[i], iteration), sizeof(In) * kPack);
    if (aligned) {
      launch_merge<TypedParts<In, kPack>, kParts, Out>(stream, packed, *all, memory, iteration);
    } else {
      launch_merge<AnyParts, kParts, Out>(stream, single, *all, memory, iteration);
    }
  };
}

template <int kParts, class Out>
PreparedKernel prepare_merge(const AttentionMerge& kernel, const CudaMemory& memory) {
  const DType in = memory.dtype(kernel.in), out = memory.dtype(kernel.out);
  const bool alike =
      std::ranges::all_of(kernel.more, [&](const View& view) { return memory.dtype(view) == in; });
  if (alike && in == out) return prepare_packed_merge<kParts, Out, Out>(kernel, memory);
  if constexpr (std::is_same_v<Out, float>) {
    if (alike && in == DType::f16) return prepare_packed_merge<kParts, F16, Out>(kernel, memory);
    if (alike && in == DType::bf16) return prepare_packed_merge<kParts, BF16, Out>(kernel, memory);
  }
  const auto all = std::make_shared<const MergeViews<kParts>>(kernel);
  return [&memory, all, single = places(all->views, all->statistics, 1)](std::int64_t iteration,
                                                                         cudaStream_t stream) {
    launch_merge<AnyParts, kParts, Out>(stream, single, *all, memory, iteration);
  };
}

// ---- delta ----

template <class Out, class DOut, int kPack>
struct Delta {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = 8;  // threads that share a row; chosen
  static constexpr int kRows = kThreads / kLanes;
  static constexpr const char* kName = "attention_delta";
  static constexpr int kSharedBytes = kThreads * static_cast<int>(sizeof(float));

  RowPlaces<2, 1> places;  // out, dout; delta
  const Pack<Out, kPack>* out;
  const Pack<DOut, kPack>* dout;
  float* delta;

  CP_DEVICE void operator()(Block& block) const {
    float* sums = block.template shared<float>();
    const std::int64_t first = block.index() * kRows;
    block.for_each_thread([&](int thread) {
      const std::int64_t row = first + thread / kLanes;
      if (row >= places.rows) return;
      const auto place = places.at(row);
      float sum = 0;
      for (int pack = thread % kLanes; pack < places.packs; pack += kLanes) {
        const Pack<Out, kPack> a = out[place.views[0] + pack * places.pack_steps[0]];
        const Pack<DOut, kPack> b = dout[place.views[1] + pack * places.pack_steps[1]];
        CP_UNROLL
        for (int e = 0; e < kPack; ++e) sum += load(a.values[e]) * load(b.values[e]);
      }
      sums[thread] = sum;
    });
    block.last([&](int thread) {
      const std::int64_t row = first + thread;
      if (thread >= kRows || row >= places.rows) return;
      float sum = 0;
      CP_UNROLL
      for (int lane = 0; lane < kLanes; ++lane) sum += sums[thread * kLanes + lane];
      delta[places.at(row).statistics[0]] = sum;
    });
  }
};

template <class Out, class DOut, int kPack>
void launch_delta(cudaStream_t stream, const RowPlaces<2, 1>& places, const void* out, const void* dout,
                  void* delta) {
  using Body = Delta<Out, DOut, kPack>;
  launch(stream, {ceil_div(places.rows, std::int64_t{Body::kRows}), Body::kSharedBytes},
         Body{places, static_cast<const Pack<Out, kPack>*>(out), static_cast<const Pack<DOut, kPack>*>(dout),
              static_cast<float*>(delta)});
}

template <class Out, class DOut>
PreparedKernel prepare_typed_delta(const View& out, const View& dout, const View& delta_view,
                                   const std::function<void*(std::int64_t iteration)>& delta_at,
                                   const CudaMemory& memory) {
  constexpr int kPack = 16 / static_cast<int>(std::max(sizeof(Out), sizeof(DOut)));
  const std::array<const View*, 2> views = {&out, &dout};
  const std::array<const View*, 1> statistics = {&delta_view};
  const bool packs = has_packs(views, kPack);
  return [&out, &dout, delta_at, &memory, packs, packed = places(views, statistics, packs ? kPack : 1),
          single = places(views, statistics, 1)](std::int64_t iteration, cudaStream_t stream) {
    std::byte *a = memory.at(out, iteration), *b = memory.at(dout, iteration);
    if (packs && is_aligned(a, sizeof(Out) * kPack) && is_aligned(b, sizeof(DOut) * kPack)) {
      launch_delta<Out, DOut, kPack>(stream, packed, a, b, delta_at(iteration));
    } else {
      launch_delta<Out, DOut, 1>(stream, single, a, b, delta_at(iteration));
    }
  };
}

PreparedKernel prepare_any_delta(const View& out, const View& dout, const View& delta_view,
                                 const std::function<void*(std::int64_t iteration)>& delta_at,
                                 const CudaMemory& memory) {
  return with_floating_type(memory.dtype(out), [&]<class Out>(std::type_identity<Out>) {
    return with_floating_type(memory.dtype(dout), [&]<class DOut>(std::type_identity<DOut>) {
      return prepare_typed_delta<Out, DOut>(out, dout, delta_view, delta_at, memory);
    });
  });
}

}  // namespace

PreparedKernel prepare(const AttentionMerge& kernel, const CudaMemory& memory) {
  static_assert(kMostMerged == 3);
  return with_floating_type(memory.dtype(kernel.out), [&]<class Out>(std::type_identity<Out>) {
    switch (kernel.more.size()) {
      case 0:
        return prepare_merge<1, Out>(kernel, memory);
      case 1:
        return prepare_merge<2, Out>(kernel, memory);
      default:
        return prepare_merge<3, Out>(kernel, memory);
    }
  });
}

PreparedKernel prepare(const AttentionDelta& kernel, const CudaMemory& memory) {
  return prepare_any_delta(
      kernel.out, kernel.dout, kernel.delta,
      [&](std::int64_t iteration) { return memory.at(kernel.delta, iteration); }, memory);
}

PreparedKernel prepare_delta(const View& out, const View& dout, float* delta, const CudaMemory& memory) {
  const View dense = dense_view(-1, 0, {out.shape[0], out.shape[2], out.shape[1]});
  return prepare_any_delta(
      out, dout, dense, [delta](std::int64_t) { return delta; }, memory);
}

}  // namespace cp::runtime
