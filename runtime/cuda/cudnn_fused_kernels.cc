#include <algorithm>
#include <cstddef>
#include <list>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <cudnn_frontend.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cudnn_attention.h"
#include "runtime/cuda/cudnn_library.h"
#include "runtime/cuda/cudnn_lse.h"
#include "runtime/cuda/fused_kernels.h"
#include "runtime/cuda/gpu_bytes.h"
#include "shared/base/error.h"

namespace cp::runtime {
namespace {

namespace fe = cudnn_frontend;

// How many cuDNN graphs are kept for later plans, the latest ones; steps of the prepared plan keep theirs in
// any case. Chosen: building one again takes time, keeping one takes memory.
constexpr std::size_t kKeptGraphs = 256;

void check_cudnn(cudnnStatus_t status, std::string_view call) {
  if (status != CUDNN_STATUS_SUCCESS)
    throw InvalidInput(str("cuDNN: ", call, " failed: ", fe::detail::get_error_string(status)));
}

// What a packed call binds beside its operands: at which byte of a table each tensor begins.
struct Tables {
  std::vector<std::byte> bytes;
  std::vector<std::pair<std::int64_t, std::size_t>> tensors;

  template <class T>
  void add(std::int64_t uid, const std::vector<T>& values) {
    tensors.emplace_back(uid, bytes.size());
    const auto* begin = reinterpret_cast<const std::byte*>(values.data());
    bytes.insert(bytes.end(), begin, begin + values.size() * sizeof(T));
    bytes.resize((bytes.size() + 15) / 16 * 16);
  }
};

Tables tables_of(const CudnnAttention& call) {
  Tables tables;
  const FusedShape& shape = call.shape;
  if (shape.documents.empty()) return tables;
  std::vector<std::int32_t> q_lens, k_lens;
  std::vector<std::int64_t> q_begins = {0}, k_begins = {0};
  for (const FusedShape::Document& document : shape.documents) {
    q_lens.push_back(static_cast<std::int32_t>(document.q_len));
    k_lens.push_back(static_cast<std::int32_t>(document.k_len));
    q_begins.push_back(q_begins.back() + document.q_len);
    k_begins.push_back(k_begins.back() + document.k_len);
  }
  const auto scaled = [](std::vector<std::int64_t> begins, std::int64_t row) {
    for (std::int64_t& begin : begins) begin *= row;
    return begins;
  };
  tables.add(static_cast<std::int64_t>(CudnnTensor::q_len), q_lens);
  tables.add(static_cast<std::int64_t>(CudnnTensor::k_len), k_lens);
  tables.add(static_cast<std::int64_t>(CudnnTensor::lse_offsets), scaled(q_begins, shape.q_heads));
  for (const CudnnTensor operand : operands(call))
    tables.add(offsets_of(operand),
               scaled(is_query_side(operand) ? q_begins : k_begins, strides(call, operand)[1]));
  return tables;
}

struct CachedGraph {
  CachedGraph(CudnnAttention call_in, CudnnGraph graph_in, const Tables& offsets)
      : call(std::move(call_in)), graph(std::move(graph_in)), uploaded(offsets.bytes) {
    for (const auto& [uid, offset] : offsets.tensors) tables[uid] = uploaded.data() + offset;
  }
  const CudnnAttention call;
  const CudnnGraph graph;
  const GpuBytes uploaded;                         // a packed call's offsets and lengths
  std::unordered_map<std::int64_t, void*> tables;  // on the GPU, by uid
};

using Operand = std::pair<CudnnTensor, const View*>;

std::vector<Operand> operand_views(const AttentionForward& step) {
  return {{CudnnTensor::q, &step.q},
          {CudnnTensor::k, &step.k},
          {CudnnTensor::v, &step.v},
          {CudnnTensor::out, &step.out}};
}
std::vector<Operand> operand_views(const AttentionBackward& step) {
  return {{CudnnTensor::q, &step.q},     {CudnnTensor::k, &step.k},       {CudnnTensor::v, &step.v},
          {CudnnTensor::out, &step.out}, {CudnnTensor::dout, &step.dout}, {CudnnTensor::dq, &step.dq},
          {CudnnTensor::dk, &step.dk},   {CudnnTensor::dv, &step.dv}};
}

template <class Op>
std::int64_t workspace_bytes_of(const Op& step, const CudaMemory& memory) {
  return step.workspace.numel() * size_bytes(memory.dtype(step.workspace));
}

template <class Op>
CudnnAttention call_of(const Op& step, const CudaMemory& memory) {
  const Shape &q = step.q.shape, &v = step.v.shape;
  auto shape = fused_form(step.slices, q[1], v[1]);
  if (!shape)
    throw InvalidInput(str("its ", step.slices.size(), " mask slices over ", q[1], " queries and ", v[1],
                           " keys do not have a form that cuDNN supports"));
  shape->backward = std::is_same_v<Op, AttentionBackward>;
  shape->dtype = memory.dtype(step.q);
  shape->batch = q[0];
  shape->q_heads = q[2];
  shape->kv_heads = v[2];
  shape->head_dim = q[3];
  shape->v_head_dim = v[3];
  CudnnAttention call;
  call.shape = *shape;
  call.softmax_scale = step.softmax_scale;
  for (const auto& [operand, view] : operand_views(step)) {
    const auto refusal = refuse_operand(*shape, *view, operand >= CudnnTensor::dq);
    if (refusal) throw InvalidInput(str(name(operand), " has ", *refusal));
    strides(call, operand) = normal_strides(*view);
  }
  if (const auto refusal = refuse_lse(*shape, step.lse)) throw InvalidInput(*refusal);
  return call;
}

}  // namespace

struct FusedKernels::Impl {
  Impl() { CP_CUDA(cudaGetDevice(&device)); }
  ~Impl() {
    cache.clear();
    if (handle) static_cast<void>(fe::detail::destroy_handle(handle));
  }

  // Returns a graph of the call from the cache, or builds it. It needs at most `space` bytes of workspace, if
  // there is such a graph; the caller checks. Throws InvalidInput with cuDNN's words if cuDNN refuses the
  // call.
  std::shared_ptr<const CachedGraph> graph_of(const CudnnAttention& call, std::int64_t space) {
    const auto known = std::ranges::find_if(cache, [&](const auto& cached) {
      return cached->call == call && cached->graph.workspace_bytes <= space;
    });
    if (known != cache.end()) {
      cache.splice(cache.begin(), cache, known);
      return cache.front();
    }
    if (!handle) {
      load_cudnn();
      check_cudnn(fe::detail::create_handle(&handle), "cudnnCreate");
    }
    CudnnGraph graph = build_cudnn_graph(call, handle);
    // The graph that cuDNN expects to be fastest may need too much workspace, where a slower one does not.
    if (graph.graph && graph.workspace_bytes > space) {
      CudnnGraph smaller = build_cudnn_graph(call, handle, space);
      if (smaller.graph) graph = std::move(smaller);
    }
    if (!graph.graph)
      throw InvalidInput(
          str(to_text(call.shape), ": cuDNN ", cudnn_version().value_or(""), " refuses it: ", graph.refusal));
    cache.push_front(std::make_shared<CachedGraph>(call, std::move(graph), tables_of(call)));
    while (cache.size() > kKeptGraphs) cache.pop_back();
    return cache.front();
  }

  void use(cudaStream_t stream) {
    if (has_stream && stream == current_stream) return;
    check_cudnn(fe::detail::set_stream(handle, stream), "cudnnSetStream");
    current_stream = stream;
    has_stream = true;
  }

  int device = 0;
  cudnnHandle_t handle = nullptr;
  cudaStream_t current_stream = nullptr;
  bool has_stream = false;
  std::list<std::shared_ptr<const CachedGraph>> cache;  // latest first
};

namespace {

// The call of one step: its graph, and the addresses that the graph gets.
template <class Op>
class FusedCall {
 public:
  // Throws InvalidInput if the step has too little workspace.
  FusedCall(std::shared_ptr<const CachedGraph> cached, const Op& step, const CudaMemory& memory)
      : cached_(std::move(cached)), step_(step), memory_(memory), pack_(cached_->tables) {
    const CudnnGraph& graph = cached_->graph;
    const std::int64_t given = workspace_bytes_of(step, memory),
                       needed = packed_lse_bytes(shape()) + graph.workspace_bytes;
    if (needed > given)
      throw InvalidInput(str(to_text(shape()), ": cuDNN needs ", needed,
                             " bytes of workspace, but the plan has ", given, " (engine ", graph.engine,
                             ")"));
    for (const auto& [operand, view] : operand_views(step)) operands_.emplace_back(&slot(operand), view);
    lse_ = &slot(CudnnTensor::lse);
  }

  void enqueue(cudnnHandle_t handle, std::int64_t iteration, cudaStream_t stream) {
    for (const auto& [address, view] : operands_) *address = memory_.at(*view, iteration);
    std::byte* const workspace = memory_.at(step_.workspace, iteration);
    auto* const lse = reinterpret_cast<float*>(memory_.at(step_.lse, iteration));
    auto* const packed_lse = reinterpret_cast<float*>(workspace);
    const bool is_packed = !shape().documents.empty();
    *lse_ = is_packed ? packed_lse : lse;
    if (is_packed && shape().backward) transpose_f32(stream, lse, packed_lse, shape().q_heads, shape().q_len);
    fe::error_t status = cached_->graph.graph->execute(handle, pack_, workspace + packed_lse_bytes(shape()));
    if (status.is_bad()) {
      CP_CUDA(cudaGetLastError());  // the GPU is lost
      throw InvalidInput(str(to_text(shape()), ": cuDNN could not run it: ", status.get_message()));
    }
    if (is_packed && !shape().backward)
      transpose_f32(stream, packed_lse, lse, shape().q_len, shape().q_heads);
  }

 private:
  const FusedShape& shape() const { return cached_->call.shape; }
  void*& slot(CudnnTensor tensor) { return pack_[static_cast<std::int64_t>(tensor)]; }

  const std::shared_ptr<const CachedGraph> cached_;
  const Op& step_;
  const CudaMemory& memory_;
  std::unordered_map<std::int64_t, void*> pack_;          // by uid
  std::vector<std::pair<void**, const View*>> operands_;  // addresses in the pack
  void** lse_ = nullptr;
};

}  // namespace

FusedKernels::FusedKernels() : impl_(std::make_unique<Impl>()) {}
FusedKernels::~FusedKernels() = default;

template <class Op>
PreparedKernel FusedKernels::prepare_step(const Op& step, const CudaMemory& memory) {
  const CudnnAttention attention = call_of(step, memory);
  const std::int64_t space = workspace_bytes_of(step, memory) - packed_lse_bytes(attention.shape);
  auto call = std::make_shared<FusedCall<Op>>(impl_->graph_of(attention, space), step, memory);
  return [impl = impl_.get(), call = std::move(call)](std::int64_t iteration, cudaStream_t stream) {
    impl->use(stream);
    call->enqueue(impl->handle, iteration, stream);
  };
}
PreparedKernel FusedKernels::prepare(const AttentionForward& step, const CudaMemory& memory) {
  return prepare_step(step, memory);
}
PreparedKernel FusedKernels::prepare(const AttentionBackward& step, const CudaMemory& memory) {
  return prepare_step(step, memory);
}

std::map<std::string, std::string> FusedKernels::library_versions() {
  std::map<std::string, std::string> versions;
  if (const auto version = cudnn_version()) versions["cudnn"] = *version;
  return versions;
}

}  // namespace cp::runtime
