#include "shared/kernels/host_kernels.h"

#include "shared/kernels/elements.h"
#include "shared/kernels/kernels.h"
#include "shared/kernels/row_kernels.h"

namespace cp {

void run_kernel(const Kernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  std::visit([&](const auto& chosen) { run(chosen, memory, iteration); }, kernel);
}

double load_element(DType dtype, const std::byte* data, std::int64_t index) {
  return with_element_type(dtype, [&]<class T>(std::type_identity<T>) {
    return static_cast<double>(load(reinterpret_cast<const T*>(data)[index]));
  });
}

void store_element(DType dtype, std::byte* data, std::int64_t index, double value) {
  with_element_type(
      dtype, [&]<class T>(std::type_identity<T>) { reinterpret_cast<T*>(data)[index] = convert<T>(value); });
}

std::vector<std::byte> encode(DType dtype, const std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(size_bytes(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    store_element(dtype, bytes.data(), static_cast<std::int64_t>(i), values[i]);
  }
  return bytes;
}

std::vector<double> decode(DType dtype, std::span<const std::byte> bytes) {
  std::vector<double> values(bytes.size() / static_cast<std::size_t>(size_bytes(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = load_element(dtype, bytes.data(), static_cast<std::int64_t>(i));
  }
  return values;
}

}  // namespace cp
