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
#include "shared/base/error.h"

namespace cp::runtime {
namespace {

namespace fe = cudnn_frontend;

constexpr std::size_t kKeptGraphs = 256;  // beside those of the prepared plan

void check_cudnn(cudnnStatus_t status, std::string_view call) {
  if (status != CUDNN_STATUS_SUCCESS)
    throw InvalidInput(str("cuDNN: ", call, " failed: ", fe::detail::get_error_string(status)));
}

// The memory of the GPU that a packed call's offsets and lengths lie in.
class UploadedBytes {
 public:
  explicit UploadedBytes(const std::vector<std::byte>& bytes) {
    if (bytes.empty()) return;
    CP_CUDA(cudaMalloc(&data_, bytes.size()));
    CP_CUDA(cudaMemcpy(data_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }
  ~UploadedBytes() { cudaFree(data_); }
  UploadedBytes(const UploadedBytes&) = delete;
  UploadedBytes& operator=(const UploadedBytes&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

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
  CachedGraph(CudnnAttention call_in, CudnnGraph graph_in, const Tables& tables)
      : call(std::move(call_in)), graph(std::move(graph_in)), uploaded(tables.bytes) {
    for (const auto& [uid, offset] : tables.tensors) pack[uid] = uploaded.data() + offset;
  }
  const CudnnAttention call;
  const CudnnGraph graph;
  const UploadedBytes uploaded;
  std::unordered_map<std::int64_t, void*> pack;  // by uid; a launch fills in the operands
};

struct PreparedStep {
  std::shared_ptr<CachedGraph> cached;
  std::string name;  // for messages
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

// Throws InvalidInput, to which the caller adds the step.
template <class Op>
CudnnAttention call_of(const Plan& plan, const Op& step) {
  const Shape &q = step.q.shape, &v = step.v.shape;
  auto shape = fused_form(step.slices, q[1], v[1]);
  if (!shape)
    throw InvalidInput(str("its ", step.slices.size(), " mask slices over ", q[1], " queries and ", v[1],
                           " keys are not of a form that cuDNN takes"));
  shape->backward = std::is_same_v<Op, AttentionBackward>;
  shape->dtype = plan.buffers[static_cast<std::size_t>(step.q.buffer)].dtype;
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
  return call;
}

}  // namespace

struct FusedKernels::Impl {
  Impl() { CP_CUDA(cudaGetDevice(&device)); }
  ~Impl() {
    if (handle) static_cast<void>(fe::detail::destroy_handle(handle));
  }

  template <class Op>
  PreparedStep prepare(const Plan& plan, const Op& step) {
    const CudnnAttention call = call_of(plan, step);
    PreparedStep prepared{graph_of(call), {}};
    const Buffer& buffer = plan.buffers[static_cast<std::size_t>(step.workspace.buffer)];
    const std::int64_t given = step.workspace.numel() * size_bytes(buffer.dtype);
    const std::int64_t needed = packed_lse_bytes(call.shape) + prepared.cached->graph.workspace_bytes;
    if (needed > given)
      throw InvalidInput(str(to_text(call.shape), ": cuDNN needs ", needed,
                             " bytes of workspace and the plan has ", given, " (engine ",
                             prepared.cached->graph.engine, ")"));
    return prepared;
  }

  std::shared_ptr<CachedGraph> graph_of(const CudnnAttention& call) {
    const auto known = std::ranges::find(
        cache, call, [](const auto& cached) -> const CudnnAttention& { return cached->call; });
    if (known != cache.end()) {
      cache.splice(cache.begin(), cache, known);
      return cache.front();
    }
    if (!handle) {
      load_cudnn();
      check_cudnn(fe::detail::create_handle(&handle), "cudnnCreate");
    }
    CudnnGraph graph = build_cudnn_graph(call, handle);
    if (!graph.graph)
      throw InvalidInput(
          str(to_text(call.shape), ": cuDNN ", cudnn_version().value_or(""), " refuses it: ", graph.refusal));
    cache.push_front(std::make_shared<CachedGraph>(call, std::move(graph), tables_of(call)));
    while (cache.size() > kKeptGraphs) cache.pop_back();
    return cache.front();
  }

  template <class Op>
  void launch(const Op& step, const CudaMemory& memory, std::int64_t iteration, cudaStream_t stream) {
    const auto found = steps.find(&step);
    CP_INVARIANT(found != steps.end(), "a fused attention step that was not prepared");
    CachedGraph& cached = *found->second.cached;
    const FusedShape& shape = cached.call.shape;
    if (!has_stream || stream != current_stream) {
      check_cudnn(fe::detail::set_stream(handle, stream), "cudnnSetStream");
      current_stream = stream;
      has_stream = true;
    }
    for (const auto& [operand, view] : operand_views(step))
      cached.pack[static_cast<std::int64_t>(operand)] = memory.at(*view, iteration);
    std::byte* workspace = memory.at(step.workspace, iteration);
    auto* const lse = reinterpret_cast<float*>(memory.at(step.lse, iteration));
    auto* const packed_lse = reinterpret_cast<float*>(workspace);
    const bool is_packed = !shape.documents.empty();
    cached.pack[static_cast<std::int64_t>(CudnnTensor::lse)] = is_packed ? packed_lse : lse;
    if (is_packed && shape.backward) transpose_f32(stream, lse, packed_lse, shape.q_heads, shape.q_len);
    fe::error_t status =
        cached.graph.graph->execute(handle, cached.pack, workspace + packed_lse_bytes(shape));
    if (status.is_bad())
      throw InvalidInput(
          str(found->second.name, ": ", to_text(shape), ": cuDNN did not run it: ", status.get_message()));
    if (is_packed && !shape.backward) transpose_f32(stream, packed_lse, lse, shape.q_len, shape.q_heads);
  }

  int device = 0;
  cudnnHandle_t handle = nullptr;
  cudaStream_t current_stream = nullptr;
  bool has_stream = false;
  std::list<std::shared_ptr<CachedGraph>> cache;        // latest first
  std::unordered_map<const void*, PreparedStep> steps;  // of the prepared plan, by the kernel's address
};

FusedKernels::FusedKernels() : impl_(std::make_unique<Impl>()) {}
FusedKernels::~FusedKernels() = default;

void FusedKernels::prepare(const Plan& plan) {
  impl_->steps.clear();
  for (const StepRef& ref : steps_of(plan)) {
    const auto* kernel = std::get_if<Kernel>(&ref.step->work);
    if (!kernel) continue;
    const auto prepare_op = [&]<class Op>(const Op& op) {
      if constexpr (std::is_same_v<Op, AttentionForward> || std::is_same_v<Op, AttentionBackward>) {
        if (op.engine != AttentionEngine::fused) return;
        const std::string name = str("step ", ref.id, " (", operation_name(ref.step->work),
                                     ref.step->label.empty() ? "" : ", ", ref.step->label, ")");
        try {
          impl_->steps.emplace(&op, impl_->prepare(plan, op)).first->second.name = name;
        } catch (const InvalidInput& error) {
          throw InvalidInput(str(name, ": ", error.what(), "; the exact engine takes any shape"));
        }
      }
    };
    std::visit(prepare_op, *kernel);
  }
}

void FusedKernels::launch(const AttentionForward& step, const CudaMemory& memory, std::int64_t iteration,
                          cudaStream_t stream) {
  impl_->launch(step, memory, iteration, stream);
}
void FusedKernels::launch(const AttentionBackward& step, const CudaMemory& memory, std::int64_t iteration,
                          cudaStream_t stream) {
  impl_->launch(step, memory, iteration, stream);
}

std::map<std::string, std::string> FusedKernels::library_versions() {
  std::map<std::string, std::string> versions;
  if (const auto version = cudnn_version()) versions["cudnn"] = *version;
  return versions;
}

}  // namespace cp::runtime
