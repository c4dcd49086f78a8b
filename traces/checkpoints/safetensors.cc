#include "traces/checkpoints/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include <nlohmann/json.hpp>

#include "shared/base/error.h"
#include "shared/base/text.h"

namespace cp {
namespace {

// The format's own limit.
constexpr std::int64_t kMostHeaderBytes = 100'000'000;
constexpr std::int64_t kLengthBytes = 8;

constexpr std::array<std::pair<const char*, DType>, 5> kDtypes = {{{"F32", DType::f32},
                                                                   {"F16", DType::f16},
                                                                   {"BF16", DType::bf16},
                                                                   {"I32", DType::i32},
                                                                   {"I64", DType::i64}}};

const char* name_in_file(DType dtype) {
  return std::find_if(kDtypes.begin(), kDtypes.end(),
                      [&](const auto& known) { return known.second == dtype; })
      ->first;
}

FileTensor tensor_of(const std::string& name, const nlohmann::json& json) {
  FileTensor tensor;
  tensor.name = name;
  const auto dtype = json.at("dtype").get<std::string>();
  const auto known =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& k) { return k.first == dtype; });
  if (known == kDtypes.end())
    throw InvalidInput(
        str("tensor ", name, " has the dtype ", dtype, "; known are F32, F16, BF16, I32 and I64"));
  tensor.dtype = known->second;
  tensor.shape = json.at("shape").get<std::vector<std::int64_t>>();
  const auto offsets = json.at("data_offsets").get<std::array<std::int64_t, 2>>();
  tensor.offset = offsets[0];
  // No file has so many elements, and their bytes are still a number.
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  std::int64_t elements = 1;
  for (const std::int64_t size : tensor.shape) {
    if (size < 0 || size > kMost || (size > 0 && elements > kMost / size))
      throw InvalidInput(
          str("tensor ", name, " has a dimension of ", size, " elements, more than a file holds"));
    elements *= size;
  }
  if (offsets[0] < 0 || offsets[1] - offsets[0] != tensor.bytes())
    throw InvalidInput(
        str("tensor ", name, " of ", tensor.bytes(), " bytes lies from ", offsets[0], " to ", offsets[1]));
  return tensor;
}

void check_places(std::vector<FileTensor> tensors, std::int64_t bytes) {
  std::sort(tensors.begin(), tensors.end(),
            [](const FileTensor& a, const FileTensor& b) { return a.offset < b.offset; });
  std::int64_t end = 0;
  for (const FileTensor& tensor : tensors) {
    if (tensor.offset < end) throw InvalidInput(str("tensor ", tensor.name, " overlaps the one before it"));
    end = tensor.offset + tensor.bytes();
    if (end > bytes)
      throw InvalidInput(
          str("tensor ", tensor.name, " ends at byte ", end, " of ", bytes, "; the file is not whole"));
  }
}

}  // namespace

std::int64_t FileTensor::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::string begin_safetensors(std::vector<FileTensor> tensors,
                              const std::map<std::string, std::string>& metadata, FileLayout& layout) {
  nlohmann::ordered_json json;
  json["__metadata__"] = metadata;
  std::int64_t end = 0;
  for (FileTensor& tensor : tensors) {
    tensor.offset = end, end += tensor.bytes();
    json[tensor.name] = {{"dtype", name_in_file(tensor.dtype)},
                         {"shape", tensor.shape},
                         {"data_offsets", {tensor.offset, end}}};
  }
  std::string text = json.dump();
  // Readers map the file and want elements at addresses that their size divides.
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  std::string header(kLengthBytes, '\0');
  const std::uint64_t length = text.size();
  std::memcpy(header.data(), &length, kLengthBytes);
  header += text;
  layout = {std::move(tensors), std::ssize(header), std::ssize(header) + end};
  return header;
}

FileLayout read_safetensors_header(const DataFile& file) {
  FileLayout layout;
  layout.bytes = file.size();
  try {
    std::uint64_t length = 0;
    if (layout.bytes < kLengthBytes) throw InvalidInput(str("it has ", layout.bytes, " bytes"));
    file.read(0, std::as_writable_bytes(std::span(&length, 1)));
    if (length > kMostHeaderBytes || std::cmp_greater(length, layout.bytes - kLengthBytes))
      throw InvalidInput(str("its header has ", length, " bytes, and the file ", layout.bytes));
    std::string text(length, '\0');
    file.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
    layout.data = kLengthBytes + std::ssize(text);
    const nlohmann::json json = nlohmann::json::parse(text);
    for (const auto& [name, value] : json.items()) {
      if (name != "__metadata__") layout.tensors.push_back(tensor_of(name, value));
    }
    check_places(layout.tensors, layout.bytes - layout.data);
  } catch (const InvalidInput& error) {
    throw InvalidInput(str(file.path(), " is no whole safetensors file: ", error.what()));
  } catch (const nlohmann::json::exception& error) {
    throw InvalidInput(
        str(file.path(), " is no safetensors file: its header is not understood (", error.what(), ")"));
  }
  return layout;
}

}  // namespace cp
