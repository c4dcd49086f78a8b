#include "runtime/cuda/cudnn_attention.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include <cudnn_frontend.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cudnn_library.h"
#include "shared/base/error.h"
#include "shared/plan/cudnn_abilities.h"

namespace cp::runtime {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Tensor_attributes>;

std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& dims) {
  std::vector<std::int64_t> strides(dims.size(), 1);
  for (std::size_t i = dims.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

class Builder {
 public:
  Builder(const CudnnGraphKey& key, const DescribedGpu* gpu)
      : key_(key), shape_(key.shape), lengths_(lengths(key)), graph_(std::make_shared<Graph>()) {
    graph_->set_io_data_type(shape_.dtype == DType::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (gpu) graph_->set_sm_version(gpu->sm_version).set_device_properties(gpu->properties);  // before nodes
    if (is_packed()) {
      q_len_ = lengths_tensor("q_len", CudnnTensor::q_len);
      k_len_ = lengths_tensor("k_len", CudnnTensor::k_len);
    }
  }

  std::shared_ptr<Graph> build() {
    const TensorPtr q = input("q", CudnnTensor::q), k = input("k", CudnnTensor::k),
                    v = input("v", CudnnTensor::v);
    if (shape_.backward)
      backward(q, k, v);
    else
      forward(q, k, v);
    return std::move(graph_);
  }

 private:
  bool is_packed() const { return key_.bucket.has_value(); }

  void forward(const TensorPtr& q, const TensorPtr& k, const TensorPtr& v) {
    auto options = fe::graph::SDPA_attributes().set_name("attention_forward").set_generate_stats(true);
    set_mask(options);
    auto [out, lse] = graph_->sdpa(q, k, v, std::move(options));
    describe(out->set_output(true), CudnnTensor::out);
    describe_lse(lse->set_output(true));
  }

  void backward(const TensorPtr& q, const TensorPtr& k, const TensorPtr& v) {
    auto options = fe::graph::SDPA_backward_attributes().set_name("attention_backward");
    set_mask(options);
    if (is_packed())
      options.set_max_total_seq_len_q(key_.bucket->q_rows).set_max_total_seq_len_kv(key_.bucket->k_rows);
    if (key_.deterministic) options.set_deterministic_algorithm(true);
    const TensorPtr out = input("out", CudnnTensor::out), dout = input("dout", CudnnTensor::dout);
    Tensor_attributes stats;
    stats.set_name("lse");
    auto [dq, dk, dv] =
        graph_->sdpa_backward(q, k, v, out, dout, graph_->tensor(describe_lse(stats)), std::move(options));
    describe(dq->set_output(true), CudnnTensor::dq);
    describe(dk->set_output(true), CudnnTensor::dk);
    describe(dv->set_output(true), CudnnTensor::dv);
  }

  template <class Options>
  void set_mask(Options& options) {
    options.set_attn_scale(static_cast<float>(key_.softmax_scale));
    if (is_packed()) options.set_padding_mask(true).set_seq_len_q(q_len_).set_seq_len_kv(k_len_);
    if (shape_.mask == FusedShape::Mask::full) return;
    if (shape_.mask == FusedShape::Mask::window_tail) {
      options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
          .set_diagonal_band_left_bound(static_cast<int>(shape_.window));
      return;
    }
    options
        .set_diagonal_alignment(key_.top_left ? fe::DiagonalAlignment_t::TOP_LEFT
                                              : fe::DiagonalAlignment_t::BOTTOM_RIGHT)
        .set_diagonal_band_right_bound(0);
    if (shape_.mask == FusedShape::Mask::window)
      options.set_diagonal_band_left_bound(static_cast<int>(shape_.window));
  }

  TensorPtr input(const char* name, CudnnTensor operand) {
    Tensor_attributes tensor;
    tensor.set_name(name);
    return graph_->tensor(describe(tensor, operand));
  }

  Tensor_attributes& describe(Tensor_attributes& tensor, CudnnTensor operand) {
    const CudnnExtents extent = extents(shape_, operand);
    const std::int64_t rows = is_query_side(operand) ? lengths_.q : lengths_.k;
    const Shape& given = strides(key_, operand);
    const std::vector<std::int64_t> dims = {lengths_.batch, extent.heads, rows, extent.dim};
    std::vector<std::int64_t> stride = {given[0], given[2], given[1], given[3]};
    if (is_packed()) stride[0] = rows * stride[2];
    tensor.set_uid(static_cast<std::int64_t>(operand)).set_dim(dims).set_stride(stride);
    if (is_packed()) tensor.set_ragged_offset(offsets_tensor(offsets_of(operand)));
    return tensor;
  }

  Tensor_attributes& describe_lse(Tensor_attributes& tensor) {
    const std::vector<std::int64_t> dims = {lengths_.batch, shape_.q_heads, lengths_.q, 1};
    tensor.set_uid(static_cast<std::int64_t>(CudnnTensor::lse))
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim(dims)
        .set_stride(dense_strides(dims));
    if (is_packed())
      tensor.set_stride({lengths_.q * shape_.q_heads, 1, shape_.q_heads, 1})
          .set_ragged_offset(offsets_tensor(static_cast<std::int64_t>(CudnnTensor::lse_offsets)));
    return tensor;
  }

  TensorPtr offsets_tensor(std::int64_t uid) {
    return graph_->tensor(Tensor_attributes()
                              .set_name(str("offsets_", uid))
                              .set_uid(uid)
                              .set_data_type(fe::DataType_t::INT64)
                              .set_dim({lengths_.batch + 1, 1, 1, 1})
                              .set_stride({1, 1, 1, 1}));
  }

  TensorPtr lengths_tensor(const char* name, CudnnTensor uid) {
    return graph_->tensor(Tensor_attributes()
                              .set_name(name)
                              .set_uid(static_cast<std::int64_t>(uid))
                              .set_data_type(fe::DataType_t::INT32)
                              .set_dim({lengths_.batch, 1, 1, 1})
                              .set_stride({1, 1, 1, 1}));
  }

  const CudnnGraphKey& key_;
  const FusedShape& shape_;
  const CudnnLengths lengths_;
  std::shared_ptr<Graph> graph_;
  TensorPtr q_len_, k_len_;
};

// Takes the first of the graph's plans, which come best first, that needs no more workspace than the limit.
// The frontend's own limit is not used, because it does not count the workspace that the frontend itself
// adds.
fe::error_t build_within(Graph& graph, std::int64_t limit) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t i = 0; i < graph.get_execution_plan_count(); ++i) {
    std::int64_t bytes = 0;
    if (graph.build_plan_at_index(i).is_bad() || graph.get_workspace_size_plan_at_index(i, bytes).is_bad())
      continue;
    if (bytes <= limit) return {fe::error_code_t::OK, ""};
    least = std::min(least, bytes);
  }
  return {fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED,
          str("all its engines need more than ", limit, " bytes of workspace, at least ", least)};
}

// 90: the current device is a Hopper.
int current_sm_version() {
  int device = 0, major = 0, minor = 0;
  CP_CUDA(cudaGetDevice(&device));
  CP_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CP_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major * 10 + minor;
}

// Runs f(), which says how it went.
template <class F>
fe::error_t caught(const F& f) {
  try {
    return f();
  } catch (const std::exception& error) {
    return {fe::error_code_t::CUDNN_BACKEND_API_FAILED, error.what()};
  }
}

CudnnGraph build(const CudnnGraphKey& key, cudnnContext* handle, const DescribedGpu* gpu) {
  const CudnnVersion version = loaded_cudnn_version();
  const auto lacks = cudnn_lacks(
      version,
      cudnn_needs(key.shape, key.bucket, gpu ? gpu->sm_version : current_sm_version(), key.deterministic));
  for (const CudnnFact* fact : lacks)
    if (fact->is_defect) return {nullptr, 0, {}, to_text(*fact, version)};
  CudnnGraph built;
  fe::error_t status = caught([&] {
    built.graph = Builder(key, gpu).build();
    Graph& graph = *built.graph;
    fe::error_t went = graph.validate();
    if (went.is_good()) went = handle ? graph.build_operation_graph(handle) : graph.build_operation_graph();
    if (went.is_good()) went = graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    if (went.is_good()) went = graph.check_support();
    if (went.is_good()) went = key.limit ? build_within(graph, *key.limit) : graph.build_plans();
    if (went.is_good()) went = graph.get_workspace_size(built.workspace_bytes);
    if (went.is_good()) went = graph.get_plan_name(built.engine);
    return went;
  });
  if (status.is_good()) return built;
  if (lacks.empty()) return {nullptr, 0, {}, status.get_message()};
  return {nullptr, 0, {}, str(to_text(*lacks.front(), version), " (", status.get_message(), ")")};
}

// The name of the engine, and what the frontend writes.
CudnnGraph read(std::span<const std::byte> bytes, cudnnContext* handle, const DescribedGpu* gpu) {
  load_cudnn();
  const auto name_end = std::ranges::find(bytes, std::byte{0});
  if (name_end == bytes.end()) return {nullptr, 0, {}, "it has no name of an engine"};
  CudnnGraph made;
  made.graph = std::make_shared<Graph>();
  made.engine.assign(reinterpret_cast<const char*>(bytes.data()),
                     static_cast<std::size_t>(name_end - bytes.begin()));
  const std::span<const std::byte> rest(name_end + 1, bytes.end());
  const auto* const first = reinterpret_cast<const std::uint8_t*>(rest.data());
  const std::vector<std::uint8_t> written(first, first + rest.size());
  fe::error_t status = caught([&] {
    Graph& graph = *made.graph;
    if (gpu) graph.set_sm_version(gpu->sm_version).set_device_properties(gpu->properties);
    constexpr bool kPrecompiled = true, kWarmUp = false;
    fe::error_t went = handle ? graph.deserialize(handle, written, kPrecompiled, kWarmUp)
                              : graph.deserialize(written, kPrecompiled);
    if (went.is_good()) went = graph.get_workspace_size(made.workspace_bytes);
    return went;
  });
  if (status.is_bad()) return {nullptr, 0, {}, status.get_message()};
  return made;
}

}  // namespace

CudnnGraph build_cudnn_graph(const CudnnGraphKey& key, cudnnContext* handle) {
  return build(key, handle, nullptr);
}
CudnnGraph build_cudnn_graph(const CudnnGraphKey& key, const DescribedGpu& gpu) {
  return build(key, nullptr, &gpu);
}

std::vector<std::byte> write_cudnn_graph(const CudnnGraph& graph) {
  std::vector<std::uint8_t> written;
  constexpr bool kStructure = false;
  if (caught([&] { return graph.graph->serialize(written, kStructure); }).is_bad()) return {};
  std::vector<std::byte> bytes;
  for (const char letter : graph.engine) bytes.push_back(static_cast<std::byte>(letter));
  bytes.push_back(std::byte{0});
  const std::span<const std::byte> plan = std::as_bytes(std::span(written));
  bytes.insert(bytes.end(), plan.begin(), plan.end());
  return bytes;
}
CudnnGraph read_cudnn_graph(std::span<const std::byte> bytes, cudnnContext* handle) {
  return read(bytes, handle, nullptr);
}
CudnnGraph read_cudnn_graph(std::span<const std::byte> bytes, const DescribedGpu& gpu) {
  return read(bytes, nullptr, &gpu);
}

DescribedGpu describe_gpu(int sm_version, const std::string& json) {
  load_cudnn();
  auto properties = std::make_shared<fe::DeviceProperties>();
  fe::error_t status = properties->deserialize({json.begin(), json.end()});
  if (status.is_bad())
    throw InvalidInput(str("cuDNN does not accept the description of the GPU: ", status.get_message()));
  return {sm_version, std::move(properties)};
}

}  // namespace cp::runtime
