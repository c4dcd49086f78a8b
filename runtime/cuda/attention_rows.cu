// The merge of results over disjoint sets of keys, the sum of gradients, and the row sums that the gradients
// need. A block takes some whole rows, so that each row's log-sum-exp is read by all before it is written.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
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

// Calls f(std::type_identity<T>{}).
template <class F>
CP_DEVICE void with_type(DType dtype, F&& f) {
  if (dtype == DType::f32) {
    f(std::type_identity<float>());
  } else if (dtype == DType::f16) {
    f(std::type_identity<F16>());
  } else {
    f(std::type_identity<BF16>());
  }
}

template <class Out, int kPack>
struct Merge {
  static constexpr int kThreads = 256;  // chosen
  // How many packs a thread has: at most 16 elements, whose sums are in its registers, and at most 4 packs.
  static constexpr int kPacks = 16 / kPack > 4 ? 4 : 16 / kPack;
  static constexpr int kMaxRows = kThreads;  // a thread finds the places and factors of one row
  static constexpr const char* kName = "attention_merge";
  static constexpr int kMost = static_cast<int>(kMostMerged),
                       kOut = kMost;  // of views and statistics: parts, then out
  // For each row, and each part and out: an offset of 8 bytes and a factor of 4. 12 KiB, as kMost is 3.
  static constexpr int kSharedBytes = kMaxRows * (kMost + 1) * 12;
  using OutPack = Pack<Out, kPack>;

  RowPlaces<kMost + 1, kMost + 1> places;
  int block_rows, parts;
  bool has_lse;
  const void* in[kMost];
  DType dtypes[kMost];
  const float* in_lse[kMost];
  OutPack* out;
  float* lse;

  // Where the block's rows begin in each view, and their factors. A negative factor says that the row must
  // not be looked at: its part has no keys, or, for out, there is nothing to add.
  struct Rows {
    std::int64_t* begins;  // [row][view]
    float* factors;
  };
  CP_DEVICE static Rows rows_of(Block& block) {
    return {block.template shared<std::int64_t>(),
            block.template shared<float>(kMaxRows * (kMost + 1) * static_cast<int>(sizeof(std::int64_t)))};
  }

  CP_DEVICE void weigh(std::int64_t number, std::int64_t* begins, float* factors) const {
    const auto place = places.at(number);
    CP_UNROLL
    for (int i = 0; i <= kMost; ++i) begins[i] = place.views[i], factors[i] = 1;
    if (!has_lse) return;
    float part_lse[kMost];
    const float before = lse[place.statistics[kOut]];
    float greatest = before;
    bool any = false;
    CP_UNROLL
    for (int i = 0; i < kMost; ++i) {
      part_lse[i] = i < parts ? in_lse[i][place.statistics[i]] : -INFINITY;
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
    for (int i = 0; i < kMost; ++i) {
      if (part_lse[i] == -INFINITY) continue;
      factors[i] = expf(part_lse[i] - greatest);
      sum += factors[i];
    }
    CP_UNROLL
    for (int i = 0; i <= kMost; ++i) factors[i] /= sum;
    CP_UNROLL
    for (int i = 0; i < kMost; ++i) {
      if (part_lse[i] == -INFINITY) factors[i] = -1;
    }
    lse[place.statistics[kOut]] = greatest + logf(sum);
  }

  CP_DEVICE void operator()(Block& block) const {
    const Rows rows = rows_of(block);
    const std::int64_t first = block.index() * block_rows;
    const int count = static_cast<int>(places.rows - first < block_rows ? places.rows - first : block_rows);
    block.for_each_thread([&](int thread) {
      const int at = thread * (kMost + 1);
      if (thread < count) weigh(first + thread, rows.begins + at, rows.factors + at);
    });
    block.last([&](int thread) {
      const int packs = count * places.packs;
      int next = thread;
      for (; next + (kPacks - 1) * kThreads < packs; next += kThreads * kPacks)
        merge_packs<kPacks>(rows, next);
      for (; next < packs; next += kThreads) merge_packs<1>(rows, next);
    });
  }

  // The packs of a thread: the row of each, as an index of its begins and factors, and its place in the row.
  template <int kCount>
  struct OwnPacks {
    int rows[kCount];
    int columns[kCount];
  };

  // Merges the packs with the numbers first, first + kThreads, and so on. All packs of out, and then all of
  // each part, are read before one is used, so that the reads are under way together. Measured on an H200,
  // parts and out of bf16, as shares of the rate of a copy: so 0.80 to 0.82; with out and a part read
  // together 0.71 to 0.74; with both read before the factors are known 0.57 to 0.60.
  template <int kCount>
  CP_DEVICE void merge_packs(const Rows& rows, int first) const {
    OwnPacks<kCount> own;
    CP_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const auto number = static_cast<std::uint32_t>(first + i * kThreads);
      const std::uint32_t row = places.by_packs.quotient(number);
      own.rows[i] = static_cast<int>(row) * (kMost + 1);
      own.columns[i] = static_cast<int>(number - row * places.by_packs.size);
    }
    float sums[kCount][kPack];
    for_each_pack(rows, own, kOut, out, [&](int i, float factor, const OutPack& pack) {
      CP_UNROLL
      for (int e = 0; e < kPack; ++e) sums[i][e] = load(pack.values[e]) * factor;
    });
    CP_NO_UNROLL
    for (int part = 0; part < parts; ++part) {
      with_type(dtypes[part], [&]<class T>(std::type_identity<T>) {
        using PartPack = Pack<T, kPack>;
        for_each_pack(rows, own, part, static_cast<const PartPack*>(in[part]),
                      [&](int i, float factor, const PartPack& pack) {
                        if (factor < 0) return;
                        CP_UNROLL
                        for (int e = 0; e < kPack; ++e) sums[i][e] += load(pack.values[e]) * factor;
                      });
      });
    }
    CP_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (rows.factors[own.rows[i] + kOut] < 0) continue;
      OutPack merged;
      CP_UNROLL
      for (int e = 0; e < kPack; ++e) merged.values[e] = convert<Out>(sums[i][e]);
      out[rows.begins[own.rows[i] + kOut] + own.columns[i] * places.pack_steps[kOut]] = merged;
    }
  }

  // Calls f(i, factor, pack) for each of these packs in a view.
  template <int kCount, class AnyPack, class F>
  CP_DEVICE void for_each_pack(const Rows& rows, const OwnPacks<kCount>& own, int view, const AnyPack* data,
                               F&& f) const {
    AnyPack read[kCount];
    CP_UNROLL
    for (int i = 0; i < kCount; ++i)
      read[i] = data[rows.begins[own.rows[i] + view] + own.columns[i] * places.pack_steps[view]];
    CP_UNROLL
    for (int i = 0; i < kCount; ++i) f(i, rows.factors[own.rows[i] + view], read[i]);
  }
};

constexpr int kMergePack = 8;  // elements: 16 bytes of a 16-bit part

// The views of a merge in the kernel's order; those that are not there stand for out.
struct MergeViews {
  std::vector<const View*> parts, part_lse;
  View no_lse;
  std::array<const View*, kMostMerged + 1> views, statistics;

  explicit MergeViews(const AttentionMerge& kernel) : parts{&kernel.in}, part_lse{&kernel.in_lse} {
    for (const View& view : kernel.more) parts.push_back(&view);
    for (const View& view : kernel.more_lse) part_lse.push_back(&view);
    const Shape& shape = kernel.out.shape;
    no_lse = {-1, 0, {shape[0], shape[2], shape[1]}, {0, 0, 0}, {}};
    const bool has_lse = !is_absent(kernel.lse);
    for (std::size_t i = 0; i < kMostMerged; ++i) {
      views[i] = i < parts.size() ? parts[i] : &kernel.out;
      statistics[i] = has_lse && i < parts.size() ? part_lse[i] : &no_lse;
    }
    views.back() = &kernel.out, statistics.back() = has_lse ? &kernel.lse : &no_lse;
  }
  MergeViews(const MergeViews&) = delete;
  MergeViews& operator=(const MergeViews&) = delete;
};

template <class Out>
PreparedKernel prepare_merge(const AttentionMerge& kernel, const CudaMemory& memory) {
  const MergeViews all(kernel);
  const bool packs = has_packs(all.views, kMergePack);
  return [&kernel, &memory, packs, packed = places(all.views, all.statistics, packs ? kMergePack : 1),
          single = places(all.views, all.statistics, 1)](std::int64_t iteration, cudaStream_t stream) {
    const bool has_lse = !is_absent(kernel.lse);
    std::byte* const out = memory.at(kernel.out, iteration);
    const std::size_t parts = 1 + kernel.more.size();
    bool aligned = packs && is_aligned(out, sizeof(Out) * kMergePack);
    const auto fill = [&](auto& body) {
      for (std::size_t i = 0; i < kMostMerged; ++i) {
        const View& view = i == 0 || i >= parts ? kernel.in : kernel.more[i - 1];
        body.in[i] = memory.at(view, iteration);
        body.dtypes[i] = memory.dtype(view);
        if (!has_lse) continue;
        const View& lse = i == 0 || i >= parts ? kernel.in_lse : kernel.more_lse[i - 1];
        body.in_lse[i] = reinterpret_cast<const float*>(memory.at(lse, iteration));
      }
    };
    const auto go = [&]<int kPack>(std::integral_constant<int, kPack>, const auto& of_rows) {
      using Body = Merge<Out, kPack>;
      Body body{};
      body.places = of_rows, body.parts = static_cast<int>(parts), body.has_lse = has_lse;
      fill(body);
      body.out = reinterpret_cast<Pack<Out, kPack>*>(out);
      if (has_lse) body.lse = reinterpret_cast<float*>(memory.at(kernel.lse, iteration));
      body.block_rows =
          std::clamp(Body::kThreads * Body::kPacks / std::max(of_rows.packs, 1), 1, Body::kMaxRows);
      launch(stream, {ceil_div(of_rows.rows, std::int64_t{body.block_rows}), Body::kSharedBytes}, body);
    };
    for (std::size_t i = 0; i < parts; ++i) {
      const View& view = i == 0 ? kernel.in : kernel.more[i - 1];
      aligned =
          aligned && is_aligned(memory.at(view, iteration), size_bytes(memory.dtype(view)) * kMergePack);
    }
    if (aligned) {
      go(std::integral_constant<int, kMergePack>(), packed);
    } else {
      go(std::integral_constant<int, 1>(), single);
    }
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
  return with_floating_type(memory.dtype(kernel.out), [&]<class Out>(std::type_identity<Out>) {
    return prepare_merge<Out>(kernel, memory);
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
