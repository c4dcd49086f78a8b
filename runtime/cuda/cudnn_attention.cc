#include "runtime/cuda/cudnn_attention.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include <cudnn_frontend.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cudnn_library.h"
#include "shared/base/error.h"

namespace cp::runtime {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using TensorPtr = std::shared_ptr<Tensor_attributes>;

struct Extents {
  std::int64_t rows, heads, dim;  // rows of all documents
};

Extents extents(const FusedShape& shape, CudnnTensor operand) {
  switch (operand) {
    case CudnnTensor::q:
    case CudnnTensor::dq:
      return {shape.q_len, shape.q_heads, shape.head_dim};
    case CudnnTensor::k:
    case CudnnTensor::dk:
      return {shape.k_len, shape.kv_heads, shape.head_dim};
    case CudnnTensor::v:
    case CudnnTensor::dv:
      return {shape.k_len, shape.kv_heads, shape.v_head_dim};
    default:
      return {shape.q_len, shape.q_heads, shape.v_head_dim};
  }
}

// As the library counts: a batch of documents of the longest one's length.
struct Lengths {
  std::int64_t batch, q, k;
};
Lengths lengths(const FusedShape& shape) {
  if (shape.documents.empty()) return {shape.batch, shape.q_len, shape.k_len};
  Lengths made{static_cast<std::int64_t>(shape.documents.size()), 0, 0};
  for (const FusedShape::Document& document : shape.documents) {
    made.q = std::max(made.q, document.q_len);
    made.k = std::max(made.k, document.k_len);
  }
  return made;
}

std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& dims) {
  std::vector<std::int64_t> strides(dims.size(), 1);
  for (std::size_t i = dims.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

class Builder {
 public:
  Builder(const CudnnAttention& call, const DescribedGpu* gpu)
      : call_(call), shape_(call.shape), lengths_(lengths(call.shape)), graph_(std::make_shared<Graph>()) {
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
  bool is_packed() const { return !shape_.documents.empty(); }

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
    if (is_packed()) options.set_max_total_seq_len_q(shape_.q_len).set_max_total_seq_len_kv(shape_.k_len);
    if (call_.deterministic) options.set_deterministic_algorithm(true);
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
    options.set_attn_scale(static_cast<float>(call_.softmax_scale));
    if (is_packed()) options.set_padding_mask(true).set_seq_len_q(q_len_).set_seq_len_kv(k_len_);
    if (shape_.mask == FusedShape::Mask::full) return;
    if (shape_.mask == FusedShape::Mask::window_tail) {
      options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
          .set_diagonal_band_left_bound(static_cast<int>(shape_.window));
      return;
    }
    bool square = shape_.q_len == shape_.k_len;
    for (const FusedShape::Document& document : shape_.documents) square &= document.q_len == document.k_len;
    const bool top_left = square || shape_.mask == FusedShape::Mask::causal_top_left;
    options
        .set_diagonal_alignment(top_left ? fe::DiagonalAlignment_t::TOP_LEFT
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
    const Extents extent = extents(shape_, operand);
    const std::int64_t rows = is_query_side(operand) ? lengths_.q : lengths_.k;
    const Shape& given = strides(call_, operand);
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

  const CudnnAttention& call_;
  const FusedShape& shape_;
  const Lengths lengths_;
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

CudnnGraph build(const CudnnAttention& call, cudnnContext* handle, const DescribedGpu* gpu,
                 WorkspaceLimit limit) {
  const CudnnVersion version = loaded_cudnn_version();
  const auto lacks = cudnn_lacks(
      version, cudnn_needs(call.shape, gpu ? gpu->sm_version : current_sm_version(), call.deterministic));
  for (const CudnnFact* fact : lacks)
    if (fact->is_defect) return {nullptr, 0, {}, to_text(*fact, version)};
  CudnnGraph built;
  fe::error_t status;
  try {
    built.graph = Builder(call, gpu).build();
    Graph& graph = *built.graph;
    status = graph.validate();
    if (status.is_good())
      status = handle ? graph.build_operation_graph(handle) : graph.build_operation_graph();
    if (status.is_good())
      status = graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    if (status.is_good()) status = graph.check_support();
    if (status.is_good()) status = limit ? build_within(graph, *limit) : graph.build_plans();
    if (status.is_good()) status = graph.get_workspace_size(built.workspace_bytes);
    if (status.is_good()) status = graph.get_plan_name(built.engine);
  } catch (const std::exception& error) {
    status = {fe::error_code_t::CUDNN_BACKEND_API_FAILED, error.what()};
  }
  if (status.is_good()) return built;
  if (lacks.empty()) return {nullptr, 0, {}, status.get_message()};
  return {nullptr, 0, {}, str(to_text(*lacks.front(), version), " (", status.get_message(), ")")};
}

enum class Order : std::uint8_t { bshd, bnsd, sbhd };

CudnnAttention dense(const FusedShape& shape, double softmax_scale, Order order) {
  CudnnAttention call;
  call.shape = shape;
  call.softmax_scale = softmax_scale;
  const auto of = [&](CudnnTensor operand) -> Shape {
    const auto [rows, heads, dim] = extents(shape, operand);
    switch (order) {
      case Order::bshd:
        break;
      case Order::bnsd:
        return {heads * rows * dim, dim, rows * dim, 1};
      case Order::sbhd:
        return {heads * dim, shape.batch * heads * dim, dim, 1};
    }
    return {rows * heads * dim, heads * dim, dim, 1};
  };
  call.q = of(CudnnTensor::q);
  call.k = of(CudnnTensor::k);
  call.v = of(CudnnTensor::v);
  call.out = of(CudnnTensor::out);
  if (shape.backward) {
    call.dout = call.out;
    call.dq = call.q;
    call.dk = call.k;
    call.dv = call.v;
  }
  return call;
}

}  // namespace

CudnnAttention dense_bshd(const FusedShape& shape, double softmax_scale) {
  return dense(shape, softmax_scale, Order::bshd);
}
CudnnAttention dense_bnsd(const FusedShape& shape, double softmax_scale) {
  return dense(shape, softmax_scale, Order::bnsd);
}
CudnnAttention dense_sbhd(const FusedShape& shape, double softmax_scale) {
  return dense(shape, softmax_scale, Order::sbhd);
}

std::vector<CudnnTensor> operands(const CudnnAttention& call) {
  std::vector<CudnnTensor> all = {CudnnTensor::q, CudnnTensor::k, CudnnTensor::v, CudnnTensor::out};
  if (call.shape.backward)
    all.insert(all.end(), {CudnnTensor::dout, CudnnTensor::dq, CudnnTensor::dk, CudnnTensor::dv});
  return all;
}

bool is_query_side(CudnnTensor operand) {
  return operand == CudnnTensor::q || operand == CudnnTensor::out || operand == CudnnTensor::dout ||
         operand == CudnnTensor::dq;
}

std::string_view name(CudnnTensor operand) {
  constexpr std::string_view kNames[] = {"q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv"};
  return kNames[static_cast<std::size_t>(operand) - 1];
}

Shape& strides(CudnnAttention& call, CudnnTensor operand) {
  switch (operand) {
    case CudnnTensor::q:
      return call.q;
    case CudnnTensor::k:
      return call.k;
    case CudnnTensor::v:
      return call.v;
    case CudnnTensor::out:
      return call.out;
    case CudnnTensor::dout:
      return call.dout;
    case CudnnTensor::dq:
      return call.dq;
    case CudnnTensor::dk:
      return call.dk;
    case CudnnTensor::dv:
      return call.dv;
    default:
      break;
  }
  CP_INVARIANT(false, "tensor ", static_cast<std::int64_t>(operand), " is no operand");
  return call.q;
}
const Shape& strides(const CudnnAttention& call, CudnnTensor operand) {
  return strides(const_cast<CudnnAttention&>(call), operand);
}

Shape normal_strides(const View& view) {
  Shape normal = view.strides;
  for (std::size_t i = 0; i < normal.size(); ++i) {
    if (view.shape[i] > 1) continue;
    normal[i] = 1;
    for (std::size_t j = i + 1; j < normal.size(); ++j)
      if (view.shape[j] > 1) normal[i] = std::max(normal[i], view.shape[j] * view.strides[j]);
  }
  return normal;
}

CudnnGraph build_cudnn_graph(const CudnnAttention& call, cudnnContext* handle, WorkspaceLimit limit) {
  return build(call, handle, nullptr, limit);
}
CudnnGraph build_cudnn_graph(const CudnnAttention& call, const DescribedGpu& gpu, WorkspaceLimit limit) {
  return build(call, nullptr, &gpu, limit);
}

DescribedGpu describe_gpu(int sm_version, const std::string& json) {
  load_cudnn();
  auto properties = std::make_shared<fe::DeviceProperties>();
  fe::error_t status = properties->deserialize({json.begin(), json.end()});
  if (status.is_bad())
    throw InvalidInput(str("cuDNN does not accept the description of the GPU: ", status.get_message()));
  return {sm_version, std::move(properties)};
}

std::int64_t packed_lse_bytes(const FusedShape& shape) {
  if (shape.documents.empty()) return 0;
  return align_up(shape.q_len * shape.q_heads * 4, 256);
}

}  // namespace cp::runtime
