// The merge of two results over disjoint sets of keys, and the row sums that the gradients need. A block takes some whole rows, so that
// each row's log-sum-exp is read by all before it is written.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <type_traits>

#include "runtime/cuda/elementwise.h"
#include "shared/kernels/elements.h"

namespace cp::runtime {
namespace {

// The rows of [batch, seq, heads, dim] views, and of [batch, heads, seq] views beside them.
template <int kViews, int kStatistics>
struct RowPlaces {
  struct Dim {
    std::int64_t size = 1;
    std::int64_t view_steps[kViews] = {}, statistic_steps[kStatistics] = {};
  };
  Dim dims[3];  // outermost first
  std::int64_t rows = 0;
  int packs = 0;                         // of a row
  std::int64_t pack_steps[kViews] = {};  // from one pack to the next; all steps of views count packs

  struct Place {
    std::int64_t views[kViews] = {}, statistics[kStatistics] = {};
  };
  CP_DEVICE Place at(std::int64_t row) const {
    Place place;
    CP_UNROLL
    for (int d = 2; d >= 0; --d) {
      const std::int64_t digit = d == 0 ? row : row % dims[d].size;
      row /= dims[d].size;
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
  places.packs = static_cast<int>(last.shape[3] / pack);
  for (std::size_t d = 0; d < 3; ++d) {
    const std::size_t dim = order[d], of_statistic = dim == 0 ? 0 : 3 - dim;
    places.dims[d].size = last.shape[dim];
    for (std::size_t i = 0; i < kViews; ++i) places.dims[d].view_steps[i] = views[i]->strides[dim] / pack;
    for (std::size_t i = 0; i < kStatistics; ++i)
      places.dims[d].statistic_steps[i] = statistics[i]->strides[of_statistic];
  }
  for (std::size_t i = 0; i < kViews; ++i) places.pack_steps[i] = pack == 1 ? views[i]->strides[3] : 1;
  return places;
}

// ---- merge ----

template <class In, class Out, int kPack>
struct Merge {
  static constexpr int kThreads = 256;
  static constexpr int kPacks = 4;  // of a thread: all are read before the first is written
  static constexpr int kMaxRows = kThreads;
  static constexpr const char* kName = "attention_merge";
  static constexpr int kSharedBytes = kMaxRows * 24;
  using InPack = Pack<In, kPack>;
  using OutPack = Pack<Out, kPack>;

  RowPlaces<2, 2> places;  // in, out; in_lse, lse
  int block_rows;
  const InPack* in;
  OutPack* out;
  const float* in_lse;
  float* lse;

  struct Row {
    std::int64_t in, out;
    float old_factor, new_factor;  // negative: nothing to add
  };
  static_assert(sizeof(Row) * kMaxRows == kSharedBytes);

  CP_DEVICE Row weigh(std::int64_t number) const {
    const auto place = places.at(number);
    Row row{place.views[0], place.views[1], 0, -1};
    const float added = in_lse[place.statistics[0]], before = lse[place.statistics[1]];
    if (added == -INFINITY) return row;                      // also keeps inf - inf away
    const float greatest = before < added ? added : before;  // as std::max, NaNs included
    const float old_weight = expf(before - greatest), new_weight = expf(added - greatest);
    const float sum = old_weight + new_weight;
    row.old_factor = old_weight / sum, row.new_factor = new_weight / sum;
    lse[place.statistics[1]] = greatest + logf(sum);
    return row;
  }

  CP_DEVICE void operator()(Block& block) const {
    Row* rows = block.template shared<Row>();
    const std::int64_t first = block.index() * block_rows;
    const int count = static_cast<int>(places.rows - first < block_rows ? places.rows - first : block_rows);
    block.for_each_thread([&](int thread) {
      if (thread < count) rows[thread] = weigh(first + thread);
    });
    block.last([&](int thread) {
      const int packs = count * places.packs;
      for (int begin = thread; begin < packs; begin += kThreads * kPacks) merge_packs(rows, begin, packs);
    });
  }

  CP_DEVICE void merge_packs(const Row* rows, int begin, int packs) const {
    InPack added[kPacks] = {};
    OutPack before[kPacks] = {};
    CP_UNROLL
    for (int i = 0; i < kPacks; ++i) {
      const int number = begin + i * kThreads;
      if (number >= packs) continue;
      const Row& row = rows[number / places.packs];
      const int pack = number % places.packs;
      added[i] = in[row.in + pack * places.pack_steps[0]];
      before[i] = out[row.out + pack * places.pack_steps[1]];
    }
    CP_UNROLL
    for (int i = 0; i < kPacks; ++i) {
      const int number = begin + i * kThreads;
      if (number >= packs) continue;
      const Row& row = rows[number / places.packs];
      if (row.new_factor < 0) continue;
      OutPack merged;
      CP_UNROLL
      for (int e = 0; e < kPack; ++e) {
        merged.values[e] = convert<Out>(load(before[i].values[e]) * row.old_factor +
                                        load(added[i].values[e]) * row.new_factor);
      }
      out[row.out + number % places.packs * places.pack_steps[1]] = merged;
    }
  }
};

template <class In, class Out, int kPack>
void launch_merge(cudaStream_t stream, const RowPlaces<2, 2>& places, const void* in, void* out,
                  const void* in_lse, void* lse) {
  using Body = Merge<In, Out, kPack>;
  const int rows = std::clamp(Body::kThreads * Body::kPacks / std::max(places.packs, 1), 1, Body::kMaxRows);
  launch(stream, {ceil_div(places.rows, std::int64_t{rows}), Body::kSharedBytes},
         Body{places, rows, static_cast<const Pack<In, kPack>*>(in), static_cast<Pack<Out, kPack>*>(out),
              static_cast<const float*>(in_lse), static_cast<float*>(lse)});
}

template <class In, class Out>
PreparedKernel prepare_merge(const AttentionMerge& kernel, const CudaMemory& memory) {
  constexpr int kPack = 16 / static_cast<int>(std::max(sizeof(In), sizeof(Out)));
  const std::array<const View*, 2> views = {&kernel.in, &kernel.out},
                                   statistics = {&kernel.in_lse, &kernel.lse};
  const bool packs = has_packs(views, kPack);
  return [&kernel, &memory, packs, packed = places(views, statistics, packs ? kPack : 1),
          single = places(views, statistics, 1)](std::int64_t iteration, cudaStream_t stream) {
    const auto at = [&](const View& view) { return memory.at(view, iteration); };
    std::byte *in = at(kernel.in), *out = at(kernel.out);
    if (packs && is_aligned(in, sizeof(In) * kPack) && is_aligned(out, sizeof(Out) * kPack)) {
      launch_merge<In, Out, kPack>(stream, packed, in, out, at(kernel.in_lse), at(kernel.lse));
    } else {
      launch_merge<In, Out, 1>(stream, single, in, out, at(kernel.in_lse), at(kernel.lse));
    }
  };
}

// ---- delta ----

template <class Out, class DOut, int kPack>
struct Delta {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = 8;  // that share a row
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
  return with_floating_type(memory.dtype(kernel.in), [&]<class In>(std::type_identity<In>) {
    return with_floating_type(memory.dtype(kernel.out), [&]<class Out>(std::type_identity<Out>) {
      return prepare_merge<In, Out>(kernel, memory);
    });
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
