// Kernels that treat each element on its own, and the reduction that collectives use.
#include <algorithm>
#include <array>

#include "shared/kernels/elements.h"
#include "shared/kernels/host_kernels.h"
#include "shared/kernels/kernels.h"
#include "shared/kernels/strided.h"

namespace cp {
namespace {

// Calls f(combine) with the function that folds one more value in; avg folds like sum.
template <class T, class F>
void with_reduction(ReduceOp op, F&& f) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return f([](T a, T b) { return plus(a, b); });
    case ReduceOp::min:
      return f([](T a, T b) { return least(a, b); });
    case ReduceOp::max:
      return f([](T a, T b) { return greatest(a, b); });
    case ReduceOp::product:
      return f([](T a, T b) { return times(a, b); });
  }
}

// out[i] = f(in[i], out[i]) over two views; the contiguous case has its own loop so that it vectorises.
template <class In, class Out, class F>
void apply(const View& in_view, const In* in, const View& out_view, Out* out, F&& f) {
  for_each_run(
      in_view, out_view,
      [&](std::int64_t from, std::int64_t from_step, std::int64_t to, std::int64_t to_step, std::int64_t n) {
        const In* source = in + from;
        Out* target = out + to;
        if (from_step == 1 && to_step == 1) {
          for (std::int64_t i = 0; i < n; ++i) target[i] = f(source[i], target[i]);
        } else {
          for (std::int64_t i = 0; i < n; ++i) {
            target[i * to_step] = f(source[i * from_step], target[i * to_step]);
          }
        }
      });
}

template <class T>
T* data(const View& view, const HostMemory& memory, std::int64_t iteration) {
  return reinterpret_cast<T*>(memory.at(view, iteration));
}

// Elements that reduce() adds up at a time. Chosen: their f32 accumulators are 4 KiB, an eighth of a usual
// first-level cache, where they stay while all inputs pass.
constexpr std::int64_t kBlock = 1024;

template <class T>
void reduce_block(ReduceOp op, std::span<const std::byte* const> inputs, std::byte* out, std::int64_t begin,
                  std::int64_t count) {
  using Value = ValueOf<T>;
  std::array<Value, kBlock> accumulator;
  const T* first = reinterpret_cast<const T*>(inputs[0]) + begin;
  for (std::int64_t i = 0; i < count; ++i) accumulator[static_cast<std::size_t>(i)] = load(first[i]);
  with_reduction<Value>(op, [&](auto combine) {
    for (const std::byte* input : inputs.subspan(1)) {
      const T* next = reinterpret_cast<const T*>(input) + begin;
      Value* so_far = accumulator.data();
      for (std::int64_t i = 0; i < count; ++i) so_far[i] = combine(so_far[i], load(next[i]));
    }
  });
  if constexpr (std::floating_point<Value>) {
    const Value divisor = static_cast<Value>(inputs.size());
    if (op == ReduceOp::avg) {
      for (std::int64_t i = 0; i < count; ++i) accumulator[static_cast<std::size_t>(i)] /= divisor;
    }
  } else {
    CP_INVARIANT(op != ReduceOp::avg, "avg of integers");
  }
  T* target = reinterpret_cast<T*>(out) + begin;
  for (std::int64_t i = 0; i < count; ++i) target[i] = convert<T>(accumulator[static_cast<std::size_t>(i)]);
}

}  // namespace

void run(const Cast& kernel, const HostMemory& memory, std::int64_t iteration) {
  with_element_type(memory.dtype(kernel.in), [&]<class In>(std::type_identity<In>) {
    with_element_type(memory.dtype(kernel.out), [&]<class Out>(std::type_identity<Out>) {
      apply(kernel.in, data<const In>(kernel.in, memory, iteration), kernel.out,
            data<Out>(kernel.out, memory, iteration), [](In in, Out) { return convert<Out>(load(in)); });
    });
  });
}

void run(const Fill& kernel, const HostMemory& memory, std::int64_t iteration) {
  with_element_type(memory.dtype(kernel.out), [&]<class T>(std::type_identity<T>) {
    const T value = convert<T>(kernel.value);
    T* out = data<T>(kernel.out, memory, iteration);
    apply(kernel.out, out, kernel.out, out, [value](T, T) { return value; });
  });
}

void run(const Accumulate& kernel, const HostMemory& memory, std::int64_t iteration) {
  const auto add = [&]<class In, class T>(std::type_identity<In>, std::type_identity<T>) {
    with_reduction<ValueOf<T>>(kernel.op, [&](auto combine) {
      apply(kernel.in, data<const In>(kernel.in, memory, iteration), kernel.out,
            data<T>(kernel.out, memory, iteration),
            [&](In in, T out) { return convert<T>(combine(load(out), load(in))); });
    });
  };
  const DType in = memory.dtype(kernel.in), out = memory.dtype(kernel.out);
  if (in == out) return with_element_type(out, [&](auto type) { add(type, type); });
  CP_INVARIANT(out == DType::f32, "adds ", name(in), " to ", name(out));
  with_floating_type(in, [&](auto type) { add(type, std::type_identity<float>()); });
}

void run(const Scale& kernel, const HostMemory& memory, std::int64_t iteration) {
  with_floating_type(memory.dtype(kernel.data), [&]<class T>(std::type_identity<T>) {
    const float factor = static_cast<float>(kernel.factor);
    T* out = data<T>(kernel.data, memory, iteration);
    apply(kernel.data, out, kernel.data, out,
          [factor](T, T value) { return convert<T>(load(value) * factor); });
  });
}

void reduce(ReduceOp op, DType dtype, std::span<const std::byte* const> inputs, std::byte* out,
            std::int64_t numel) {
  CP_INVARIANT(!inputs.empty(), "a reduction of nothing");
  with_element_type(dtype, [&]<class T>(std::type_identity<T>) {
    for (std::int64_t begin = 0; begin < numel; begin += kBlock) {
      reduce_block<T>(op, inputs, out, begin, std::min(kBlock, numel - begin));
    }
  });
}

}  // namespace cp
