// Attention: a plan of one fused step beside the same cuDNN graph called directly.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#ifdef CP_HAVE_CUDNN
#include <cudnn_frontend.h>

#include "runtime/cuda/cudnn_attention.h"
#include "runtime/cuda/cudnn_library.h"
#endif
#include "benchmarks/gpu/measure.h"
#include "benchmarks/gpu/suites.h"
#include "runtime/cuda/cuda_error.h"
#include "shared/base/error.h"
#include "shared/plan/builder.h"
#include "shared/plan/fused_attention.h"

namespace cp::benchmarks {

#ifndef CP_HAVE_CUDNN

void register_attention() { std::puts("built without cuDNN: its attention is not measured"); }

#else

namespace {

struct AttentionShape {
  const char* name = "";
  std::int64_t seq_len = 0, q_heads = 0, kv_heads = 0;
  FusedShape::Mask mask = FusedShape::Mask::causal;
};
constexpr std::int64_t kHeadDim = 128;

FusedShape fused_shape(const AttentionShape& shape, bool backward) {
  return {.backward = backward,
          .dtype = DType::bf16,
          .batch = 1,
          .q_len = shape.seq_len,
          .k_len = shape.seq_len,
          .q_heads = shape.q_heads,
          .kv_heads = shape.kv_heads,
          .head_dim = kHeadDim,
          .v_head_dim = kHeadDim,
          .mask = shape.mask,
          .window = 0,
          .documents = {}};
}

// A plan of one fused step; its buffers are called as in AttentionBackward.
Plan attention_step(const AttentionShape& shape, bool backward) {
  const cp::Target& target = runtime::gpu_target_of(0);
  PlanBuilder b(0, target);
  const auto tensor = [&](const char* name, bool is_input, std::int64_t heads) {
    const std::int64_t numel = shape.seq_len * heads * kHeadDim;
    return dense_view(is_input ? b.input(name, DType::bf16, numel) : b.output(name, DType::bf16, numel), 0,
                      {1, shape.seq_len, heads, kHeadDim});
  };
  const View q = tensor("q", true, shape.q_heads), k = tensor("k", true, shape.kv_heads),
             v = tensor("v", true, shape.kv_heads), out = tensor("out", backward, shape.q_heads);
  const std::int64_t rows = shape.q_heads * shape.seq_len;
  const View lse = dense_view(backward ? b.input("lse", DType::f32, rows) : b.output("lse", DType::f32, rows),
                              0, {1, shape.q_heads, shape.seq_len});
  const std::int64_t workspace = ceil_div(
      workspace_bytes(*target.fused_attention, fused_shape(shape, backward)), size_bytes(DType::f32));
  const View space = flat_view(b.temporary("workspace", DType::f32, workspace), 0, workspace);
  const std::vector<MaskSlice> slices = {
      {.q_len = shape.seq_len,
       .k_len = shape.seq_len,
       .kind = shape.mask == FusedShape::Mask::full ? MaskSlice::Kind::full : MaskSlice::Kind::causal}};
  const double scale = 0.08;
  if (!backward) {
    b.add(b.stream("compute"), AttentionForward{.q = q,
                                                .k = k,
                                                .v = v,
                                                .out = out,
                                                .lse = lse,
                                                .softmax_scale = scale,
                                                .slices = slices,
                                                .engine = AttentionEngine::fused,
                                                .workspace = space});
  } else {
    AttentionBackward step{.q = q,
                           .k = k,
                           .v = v,
                           .dout = tensor("dout", true, shape.q_heads),
                           .lse = lse,
                           .delta = {},
                           .dq = tensor("dq", false, shape.q_heads),
                           .dk = tensor("dk", false, shape.kv_heads),
                           .dv = tensor("dv", false, shape.kv_heads),
                           .softmax_scale = scale,
                           .slices = slices};
    step.out = out, step.engine = AttentionEngine::fused, step.workspace = space;
    b.add(b.stream("compute"), Kernel(step));
  }
  return std::move(b).build({});
}

// The graph with memory of its own.
class DirectAttention {
 public:
  DirectAttention(const AttentionShape& shape, bool backward) {
    runtime::load_cudnn();
    if (cudnn_frontend::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS)
      throw InvalidInput("cuDNN makes no handle");
    const runtime::CudnnAttention call = runtime::dense_bshd(fused_shape(shape, backward), 0.08);
    graph_ = runtime::build_cudnn_graph(runtime::graph_key(call), handle_);
    if (!graph_.graph) throw InvalidInput(graph_.refusal);
    workspace_ = std::make_unique<DeviceBytes>(graph_.workspace_bytes);
    const std::int64_t rows = shape.seq_len * std::max(shape.q_heads, shape.kv_heads);
    for (const runtime::CudnnTensor operand : runtime::operands(call.shape))
      bind(operand, rows * kHeadDim * size_bytes(DType::bf16));
    bind(runtime::CudnnTensor::lse, rows * size_bytes(DType::f32));
  }
  ~DirectAttention() { static_cast<void>(cudnn_frontend::detail::destroy_handle(handle_)); }
  DirectAttention(const DirectAttention&) = delete;
  DirectAttention& operator=(const DirectAttention&) = delete;

  // Of the operand that the plan calls so.
  void* data(const std::string& operand) const { return by_name_.at(operand); }
  void enqueue(cudaStream_t stream) {
    static_cast<void>(cudnn_frontend::detail::set_stream(handle_, stream));
    if (graph_.graph->execute(handle_, pack_, workspace_->data()).is_bad())
      throw InvalidInput("cuDNN did not run");
  }

 private:
  void bind(runtime::CudnnTensor tensor, std::int64_t bytes) {
    memory_.push_back(std::make_unique<DeviceBytes>(bytes));
    by_name_[std::string(name(tensor))] = pack_[static_cast<std::int64_t>(tensor)] = memory_.back()->data();
  }

  cudnnHandle_t handle_ = nullptr;
  runtime::CudnnGraph graph_;
  std::unique_ptr<DeviceBytes> workspace_;
  std::vector<std::unique_ptr<DeviceBytes>> memory_;
  std::unordered_map<std::int64_t, void*> pack_;
  std::map<std::string, void*> by_name_;
};

// The plan's inputs, through the host.
void upload_inputs(PlanSession& session, const DirectAttention& direct) {
  for (const BufferId id : session.inputs()) {
    const Buffer& buffer = session.plan().buffers[static_cast<std::size_t>(id)];
    if (buffer.kind != BufferKind::input) continue;
    const std::vector<std::byte> bytes = session.download(id);
    CP_CUDA(cudaMemcpy(direct.data(buffer.name), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }
}

void attention(benchmark::State& state, const AttentionShape& shape, bool backward) {
  const Plan plan = attention_step(shape, backward);
  const auto device = make_device();
  PlanSession session(*device, plan);
  upload_values(session);
  DirectAttention direct(shape, backward);
  upload_inputs(session, direct);
  constexpr int kRuns = 10;
  compare(
      state, [&] { return seconds_of_plan(*device, session, kRuns); },
      [&] { return seconds_on_stream(kRuns, [&](cudaStream_t stream) { direct.enqueue(stream); }); });
  const double pairs = static_cast<double>(shape.seq_len) * static_cast<double>(shape.seq_len) *
                       (shape.mask == FusedShape::Mask::causal ? 0.5 : 1);
  const double flops = pairs * static_cast<double>(shape.q_heads) * kHeadDim * (backward ? 10 : 4);
  state.counters["Tflop/s"] = flops / (state.counters["ours_us"].value * 1e-6) * 1e-12;
}

}  // namespace

void register_attention() {
  for (const AttentionShape& shape :
       {AttentionShape{"causal/4k/16x16", 4'096, 16, 16}, AttentionShape{"causal/16k/32x8", 16'384, 32, 8},
        AttentionShape{"full/8k/16x16", 8'192, 16, 16, FusedShape::Mask::full}}) {
    for (const bool backward : {false, true}) {
      add_benchmark(str("Attention/", backward ? "backward/" : "forward/", shape.name), 21,
                    [=](benchmark::State& state) { attention(state, shape, backward); });
    }
  }
}

#endif

}  // namespace cp::benchmarks
