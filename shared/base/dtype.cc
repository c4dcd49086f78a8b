#include "shared/base/dtype.h"

#include <array>
#include <utility>

#include "shared/base/error.h"

namespace cp {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 5> kDTypes = {{{DType::f32, "f32"},
                                                                        {DType::f16, "f16"},
                                                                        {DType::bf16, "bf16"},
                                                                        {DType::i32, "i32"},
                                                                        {DType::i64, "i64"}}};
constexpr std::array<std::pair<ReduceOp, std::string_view>, 5> kReduceOps = {
    {{ReduceOp::sum, "sum"},
     {ReduceOp::avg, "avg"},
     {ReduceOp::min, "min"},
     {ReduceOp::max, "max"},
     {ReduceOp::product, "product"}}};

// As PyTorch writes them, with or without "torch." before; they are read and never written.
constexpr std::array<std::pair<DType, std::string_view>, 9> kTorchDTypes = {{{DType::f32, "float32"},
                                                                             {DType::f32, "float"},
                                                                             {DType::f16, "float16"},
                                                                             {DType::f16, "half"},
                                                                             {DType::f16, "fp16"},
                                                                             {DType::bf16, "bfloat16"},
                                                                             {DType::f32, "fp32"},
                                                                             {DType::i32, "int32"},
                                                                             {DType::i64, "int64"}}};

template <class Table, class Value>
std::string_view name_in(const Table& table, Value value) {
  for (const auto& [candidate, text] : table) {
    if (candidate == value) return text;
  }
  return "?";
}

template <class Table>
auto parse_in(const Table& table, std::string_view text, std::string_view what) {
  std::string known;
  for (const auto& [value, candidate] : table) {
    if (candidate == text) return value;
    known += str(known.empty() ? "" : ", ", candidate);
  }
  throw InvalidInput(str("unknown ", what, " '", text, "'; use one of ", known));
}

}  // namespace

std::string_view name(DType dtype) { return name_in(kDTypes, dtype); }
std::string_view name(ReduceOp op) { return name_in(kReduceOps, op); }
DType parse_dtype(std::string_view text) {
  constexpr std::string_view kTorch = "torch.";
  const std::string_view bare = text.starts_with(kTorch) ? text.substr(kTorch.size()) : text;
  for (const auto& [dtype, torch_name] : kTorchDTypes) {
    if (torch_name == bare) return dtype;
  }
  return parse_in(kDTypes, text, "dtype");
}
ReduceOp parse_reduce_op(std::string_view text) { return parse_in(kReduceOps, text, "reduction"); }

}  // namespace cp
