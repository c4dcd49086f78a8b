// Kernels that treat each element on its own.
#include <type_traits>

#include "runtime/cuda/elementwise.h"
#include "shared/kernels/elements.h"

namespace cp::runtime {
namespace {

template <class InType, class OutType>
struct CastElement {
  static constexpr const char* kName = "cast";
  static constexpr bool kReadsIn = true, kReadsOut = false;
  using In = InType;
  using Out = OutType;
  CP_DEVICE Out operator()(In in, Out) const { return convert<Out>(load(in)); }
};

template <class T>
struct FillElement {
  static constexpr const char* kName = "fill";
  static constexpr bool kReadsIn = false, kReadsOut = false;
  using In = T;
  using Out = T;
  T value;
  CP_DEVICE T operator()(T, T) const { return value; }
};

template <class InType, class OutType>
struct AccumulateElement {
  static constexpr const char* kName = "accumulate";
  static constexpr bool kReadsIn = true, kReadsOut = true;
  using In = InType;
  using Out = OutType;
  ReduceOp op;

  CP_DEVICE Out operator()(In in, Out out) const {
    const ValueOf<Out> a = load(out), b = load(in);
    switch (op) {
      case ReduceOp::min:
        return convert<Out>(least(a, b));
      case ReduceOp::max:
        return convert<Out>(greatest(a, b));
      case ReduceOp::product:
        return convert<Out>(times(a, b));
      case ReduceOp::sum:
      case ReduceOp::avg:
        break;
    }
    return convert<Out>(plus(a, b));
  }
};

template <class T>
struct ScaleElement {
  static constexpr const char* kName = "scale";
  static constexpr bool kReadsIn = true, kReadsOut = false;
  using In = T;
  using Out = T;
  float factor;
  CP_DEVICE T operator()(T in, T) const { return convert<T>(load(in) * factor); }
};

}  // namespace

PreparedKernel prepare(const Cast& kernel, const CudaMemory& memory) {
  return with_element_type(memory.dtype(kernel.in), [&]<class In>(std::type_identity<In>) {
    return with_element_type(memory.dtype(kernel.out), [&]<class Out>(std::type_identity<Out>) {
      return prepare_elementwise(kernel.in, kernel.out, memory, CastElement<In, Out>{});
    });
  });
}

PreparedKernel prepare(const Fill& kernel, const CudaMemory& memory) {
  return with_element_type(memory.dtype(kernel.out), [&]<class T>(std::type_identity<T>) {
    return prepare_elementwise(kernel.out, kernel.out, memory, FillElement<T>{convert<T>(kernel.value)});
  });
}

PreparedKernel prepare(const Accumulate& kernel, const CudaMemory& memory) {
  return with_element_type(memory.dtype(kernel.in), [&]<class In>(std::type_identity<In>) {
    if constexpr (SixteenBit<In>) {
      if (memory.dtype(kernel.out) == DType::f32) {
        return prepare_elementwise(kernel.in, kernel.out, memory, AccumulateElement<In, float>{kernel.op});
      }
    }
    return prepare_elementwise(kernel.in, kernel.out, memory, AccumulateElement<In, In>{kernel.op});
  });
}

PreparedKernel prepare(const Scale& kernel, const CudaMemory& memory) {
  return with_floating_type(memory.dtype(kernel.data), [&]<class T>(std::type_identity<T>) {
    return prepare_elementwise(kernel.data, kernel.data, memory,
                               ScaleElement<T>{static_cast<float>(kernel.factor)});
  });
}

}  // namespace cp::runtime
