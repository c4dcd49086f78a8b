#include "runtime/cuda/fused_kernels.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/fused_graph.h"
#include "runtime/cuda/gpu_bytes.h"
#include "runtime/cuda/graph_cache.h"
#include "runtime/cuda/graph_files.h"
#include "runtime/cuda/packed_lse.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"

namespace cp::runtime {
namespace {

using OperandView = std::pair<CudnnTensor, const View*>;

std::vector<OperandView> operand_views(const AttentionForward& step) {
  return {{CudnnTensor::q, &step.q},
          {CudnnTensor::k, &step.k},
          {CudnnTensor::v, &step.v},
          {CudnnTensor::out, &step.out}};
}
std::vector<OperandView> operand_views(const AttentionBackward& step) {
  return {{CudnnTensor::q, &step.q},     {CudnnTensor::k, &step.k},       {CudnnTensor::v, &step.v},
          {CudnnTensor::out, &step.out}, {CudnnTensor::dout, &step.dout}, {CudnnTensor::dq, &step.dq},
          {CudnnTensor::dk, &step.dk},   {CudnnTensor::dv, &step.dv}};
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

// What the calls of one plan share on the GPU.
struct Beside {
  GpuBytes tables;
  std::map<StreamId, GpuBytes> workspaces;  // steps of one stream follow one another
};

// A step on its way to a kernel.
struct Request {
  const FusedStep* step = nullptr;
  CudnnAttention call;
  std::int64_t declared_bytes = 0;  // of workspace
  std::size_t tables_begin = 0;
  CudnnTables tables = {};
  std::shared_ptr<const FusedGraph> graph = {};
  bool is_short = false;

  std::int64_t lse_bytes() const { return packed_lse_bytes(call.shape); }
  std::int64_t needed_bytes() const { return lse_bytes() + graph->workspace_bytes(); }
};

// The call of one step: its graph, and the addresses that the graph gets.
template <class Op>
class FusedCall {
 public:
  FusedCall(const Request& request, const Op& step, const CudaMemory& memory, std::shared_ptr<Beside> beside)
      : graph_(request.graph),
        shape_(request.call.shape),
        step_(step),
        memory_(memory),
        beside_(std::move(beside)),
        workspace_(request.is_short ? beside_->workspaces.at(request.step->stream).data() : nullptr) {
    for (const auto& [tensor, offset] : request.tables.tensors)
      addresses_[tensor] = beside_->tables.data() + request.tables_begin + offset;
    for (const auto& [operand, view] : operand_views(step)) operands_.emplace_back(&slot(operand), view);
    lse_ = &slot(CudnnTensor::lse);
  }

  void enqueue(std::int64_t iteration, cudaStream_t stream) {
    for (const auto& [address, view] : operands_) *address = memory_.at(*view, iteration);
    std::byte* const workspace = workspace_ != nullptr ? workspace_ : memory_.at(step_.workspace, iteration);
    auto* const lse = reinterpret_cast<float*>(memory_.at(step_.lse, iteration));
    auto* const packed_lse = reinterpret_cast<float*>(workspace);
    const bool is_packed = !shape_.documents.empty();
    *lse_ = is_packed ? packed_lse : lse;
    if (is_packed && shape_.backward) transpose_f32(stream, lse, packed_lse, shape_.q_heads, shape_.q_len);
    try {
      graph_->enqueue(addresses_, workspace + packed_lse_bytes(shape_), stream);
    } catch (const InvalidInput& error) {
      throw InvalidInput(str(to_text(shape_), ": ", error.what()));
    }
    if (is_packed && !shape_.backward) transpose_f32(stream, packed_lse, lse, shape_.q_len, shape_.q_heads);
  }

 private:
  void*& slot(CudnnTensor tensor) { return addresses_[static_cast<std::int64_t>(tensor)]; }

  const std::shared_ptr<const FusedGraph> graph_;
  const FusedShape shape_;
  const Op& step_;
  const CudaMemory& memory_;
  const std::shared_ptr<Beside> beside_;
  std::byte* const workspace_;  // beside the plan; null: the plan's
  TensorAddresses addresses_;
  std::vector<std::pair<void**, const View*>> operands_;  // in addresses_
  void** lse_ = nullptr;
};

[[noreturn]] void refuse(const FusedStep& step, std::string_view why) {
  throw InvalidInput(str(step.name, ": ", why, "; use the exact engine, which supports every shape"));
}

std::shared_ptr<GraphFiles> files_of(const FusedOptions& options) {
  const std::filesystem::path folder =
      options.graph_folder ? *options.graph_folder : graph_folder_of_environment();
  return folder.empty() ? nullptr : std::make_shared<GraphFiles>(folder, options.on_note);
}

}  // namespace

std::string to_text(const WorkspaceShortfall& shortfall) {
  return str(shortfall.step, ": cuDNN needs ", shortfall.needed_bytes,
             " bytes of workspace, but the plan declares ", shortfall.declared_bytes,
             ", so it has a workspace beside the plan");
}

struct FusedKernels::Impl {
  explicit Impl(FusedOptions options_in)
      : options(std::move(options_in)), cache(fused_graph_builder(), {.files = files_of(options)}) {}

  std::vector<Request> requests_of(std::span<const FusedStep> steps, const CudaMemory& memory) const {
    std::vector<Request> requests;
    for (const FusedStep& step : steps) {
      try {
        std::visit(
            [&](const auto* op) {
              requests.push_back(
                  {.step = &step,
                   .call = call_of(*op, memory),
                   .declared_bytes = op->workspace.numel() * size_bytes(memory.dtype(op->workspace))});
            },
            step.work);
      } catch (const InvalidInput& error) {
        refuse(step, error.what());
      }
      requests.back().tables = tables_of(requests.back().call);
    }
    return requests;
  }

  // Finds or builds the graphs of all.
  void find_graphs(std::vector<Request>& requests) {
    std::vector<CudnnGraphKey> keys;
    keys.reserve(requests.size());
    for (const Request& request : requests) keys.push_back(graph_key(request.call));
    if (keys.empty()) return;
    std::vector<BuiltGraph> built;
    try {
      built = cache.get(keys);
    } catch (const InvalidInput& error) {  // there is no library
      refuse(*requests.front().step, error.what());
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (!built[i].graph)
        refuse(*requests[i].step, str(to_text(requests[i].call.shape), ": cuDNN ", version(),
                                      " refuses it: ", built[i].refusal));
      requests[i].graph = built[i].graph;
      requests[i].is_short = requests[i].needed_bytes() > requests[i].declared_bytes;
    }
  }

  static std::string version() {
    const auto versions = library_versions();
    return versions.empty() ? "" : versions.begin()->second;
  }

  // Tables with the same content lie once.
  static std::vector<std::byte> place_tables(std::vector<Request>& requests) {
    std::vector<std::byte> all;
    std::map<Digest, std::size_t> begins;
    for (Request& request : requests) {
      if (request.tables.bytes.empty()) continue;
      const auto [place, is_new] = begins.try_emplace(
          Hasher().add(std::span<const std::byte>(request.tables.bytes)).digest(), all.size());
      if (is_new) all.insert(all.end(), request.tables.bytes.begin(), request.tables.bytes.end());
      request.tables_begin = place->second;
    }
    return all;
  }

  // A workspace for the steps of a stream that declare too little. Without room for it, slower graphs.
  void add_workspace(StreamId stream, std::span<Request* const> shorts, FusedPlan& plan, Beside& beside) {
    std::int64_t most = 0;
    for (const Request* request : shorts) most = std::max(most, request->needed_bytes());
    try {
      beside.workspaces.emplace(stream, GpuBytes(static_cast<std::size_t>(most)));
      plan.bytes_beside += most;
    } catch (const InvalidInput& no_room) {
      for (Request* request : shorts) find_smaller(*request, no_room.what());
      return;
    }
    for (const Request* request : shorts) {
      plan.shortfalls.push_back({request->step->name, request->needed_bytes(), request->declared_bytes});
      if (options.on_note) options.on_note(to_text(plan.shortfalls.back()));
    }
  }

  void find_smaller(Request& request, std::string_view no_room) {
    const CudnnGraphKey key = graph_key(request.call, request.declared_bytes - request.lse_bytes());
    const BuiltGraph smaller = cache.get({&key, 1}).front();
    if (!smaller.graph)
      refuse(*request.step, str(to_text(request.call.shape), ": cuDNN needs ", request.needed_bytes(),
                                " bytes of workspace, but the plan has ", request.declared_bytes,
                                ", and the GPU no more (", no_room, "); ", smaller.refusal));
    request.graph = smaller.graph;
    request.is_short = false;
  }

  const FusedOptions options;
  GraphCache cache;
};

FusedKernels::FusedKernels(FusedOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
FusedKernels::~FusedKernels() = default;

FusedPlan FusedKernels::prepare(std::span<const FusedStep> steps, const CudaMemory& memory) {
  FusedPlan plan;
  std::vector<Request> requests = impl_->requests_of(steps, memory);
  impl_->find_graphs(requests);
  auto beside = std::make_shared<Beside>();
  const std::vector<std::byte> tables = Impl::place_tables(requests);
  beside->tables = GpuBytes(tables);
  plan.bytes_beside = std::ssize(tables);
  std::map<StreamId, std::vector<Request*>> shorts;
  for (Request& request : requests)
    if (request.is_short) shorts[request.step->stream].push_back(&request);
  for (const auto& [stream, of_stream] : shorts) impl_->add_workspace(stream, of_stream, plan, *beside);
  for (const Request& request : requests) {
    std::visit(
        [&]<class Op>(const Op* op) {
          auto call = std::make_shared<FusedCall<Op>>(request, *op, memory, beside);
          plan.kernels.emplace_back([call = std::move(call)](std::int64_t iteration, cudaStream_t stream) {
            call->enqueue(iteration, stream);
          });
        },
        request.step->work);
  }
  return plan;
}

std::size_t FusedKernels::graphs_made() const {
  const GraphCache::Counts counts = impl_->cache.counts();
  return counts.built + counts.read;
}

std::map<std::string, std::string> FusedKernels::library_versions() { return fused_library_versions(); }

}  // namespace cp::runtime
