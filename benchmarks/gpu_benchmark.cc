// The GPU's device beside what it stands on, by CUDA's events. Each rate is a median, and so is its share of the library's own:
//   Attention   a plan of one fused step beside the same cuDNN graph called directly
//   Ring        one rank of four on a ring, transfers replaced by copies of its own blocks, beside its attention steps alone
//   Moves       merge, pack, unpack, cast and accumulate beside cudaMemcpyAsync from the GPU to itself
//   HostCost    what the host spends on a step: the executor and the device, with kernels of one element
// Says "no GPU" and ends well where there is none.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#ifdef CP_HAVE_CUDNN
#include <cudnn_frontend.h>

#include "runtime/cuda/cudnn_attention.h"
#include "runtime/cuda/cudnn_library.h"
#endif
#include "runtime/cuda/cuda_error.h"
#include "runtime/cuda/cuda_streams.h"
#include "runtime/nccl/nccl_device.h"
#include "shared/base/error.h"
#include "shared/context_parallel/attention_plan.h"
#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "shared/plan/fused_attention.h"

namespace cp {
namespace {

using runtime::CudaEvent;
using runtime::CudaStream;
using runtime::NcclDevice;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// ---- measuring

// A device of one rank without peers.
std::unique_ptr<NcclDevice> make_device(Rank rank = 0) {
  runtime::NcclOptions options;
  options.rank = rank;
  options.share = [](const std::string&, const std::optional<std::string>& id) { return *id; };
  return std::make_unique<NcclDevice>(std::move(options));
}

// Seconds of one run of the prepared plan, from the begin of its first step to the end of its last; of several in a row.
double seconds_of_plan(NcclDevice& device, const Plan& plan, int runs) {
  static_cast<void>(device.take_times());
  for (int i = 0; i < runs; ++i) enqueue_steps(plan, device);
  device.synchronize();
  static_cast<void>(device.take_observed());
  std::int64_t begin = INT64_MAX, end = 0;
  for (const TimedOp& op : device.take_times().steps) {
    begin = std::min(begin, op.begin_ns);
    end = std::max(end, op.end_ns);
  }
  return static_cast<double>(end - begin) * 1e-9 / runs;
}

// The same of anything on a stream.
double seconds_on(const CudaStream& stream, int runs, const std::function<void(cudaStream_t)>& enqueue) {
  static const CudaEvent begin(CudaEvent::Timing::on), end(CudaEvent::Timing::on);
  CP_CUDA(cudaEventRecord(begin.get(), stream.get()));
  for (int i = 0; i < runs; ++i) enqueue(stream.get());
  CP_CUDA(cudaEventRecord(end.get(), stream.get()));
  CP_CUDA(cudaEventSynchronize(end.get()));
  float milliseconds = 0;
  CP_CUDA(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  return static_cast<double>(milliseconds) * 1e-3 / runs;
}

// One after the other, so that both see the same clocks. `share`: how much of the library's rate ours has.
void compare(benchmark::State& state, const std::function<double()>& ours,
             const std::function<double()>& library) {
  for (int i = 0; i < 3; ++i) static_cast<void>(ours()), static_cast<void>(library());
  std::vector<double> our_seconds, library_seconds;
  for (auto _ : state) {
    library_seconds.push_back(library());
    our_seconds.push_back(ours());
    state.SetIterationTime(our_seconds.back());
  }
  state.counters["ours_us"] = median(our_seconds) * 1e6;
  state.counters["library_us"] = median(library_seconds) * 1e6;
  state.counters["share"] = median(library_seconds) / median(our_seconds);
}

class DeviceBytes {
 public:
  explicit DeviceBytes(std::int64_t bytes) {
    CP_CUDA(cudaMalloc(&data_, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))));
    CP_CUDA(cudaMemset(data_, 0, static_cast<std::size_t>(bytes)));
  }
  ~DeviceBytes() { static_cast<void>(cudaFree(data_)); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

// Values in (-1, 1) in all inputs: products of small numbers and of huge ones cost different power, and so different clocks.
void upload_values(NcclDevice& device, const Plan& plan) {
  for (std::size_t id = 0; id < plan.buffers.size(); ++id) {
    const Buffer& buffer = plan.buffers[id];
    if (buffer.kind == BufferKind::temporary || buffer.kind == BufferKind::output) continue;
    std::vector<std::uint16_t> halves(static_cast<std::size_t>(buffer.bytes()) / 2);
    std::uint32_t state = 1;
    for (std::uint16_t& half : halves) {
      state = state * 1664525 + 1013904223;
      // A bf16 of exponent 2^-2 and any sign and fraction; two of them are an f32 of that size.
      half = static_cast<std::uint16_t>((state >> 16 & 0x807F) | 0x3E80);
    }
    device.upload(static_cast<BufferId>(id), std::as_bytes(std::span(halves)));
  }
}

// ---- attention

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
  const Target& target = runtime::gpu_target_of(0);
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

#ifdef CP_HAVE_CUDNN

// The graph with memory of its own.
class DirectAttention {
 public:
  DirectAttention(const AttentionShape& shape, bool backward) {
    runtime::load_cudnn();
    if (cudnn_frontend::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS)
      throw InvalidInput("cuDNN makes no handle");
    const runtime::CudnnAttention call = runtime::dense_bshd(fused_shape(shape, backward), 0.08);
    graph_ = runtime::build_cudnn_graph(call, handle_);
    if (!graph_.graph) throw InvalidInput(graph_.refusal);
    workspace_ = std::make_unique<DeviceBytes>(graph_.workspace_bytes);
    for (const runtime::CudnnTensor operand : runtime::operands(call))
      bind(operand,
           shape.seq_len * std::max(shape.q_heads, shape.kv_heads) * kHeadDim * size_bytes(DType::bf16));
    bind(runtime::CudnnTensor::lse, shape.seq_len * shape.q_heads * size_bytes(DType::f32));
  }
  ~DirectAttention() { static_cast<void>(cudnn_frontend::detail::destroy_handle(handle_)); }
  DirectAttention(const DirectAttention&) = delete;
  DirectAttention& operator=(const DirectAttention&) = delete;

  // As the buffer of that name in the plan.
  void* data(runtime::CudnnTensor tensor) { return pack_.at(static_cast<std::int64_t>(tensor)); }
  void enqueue(cudaStream_t stream) {
    static_cast<void>(cudnn_frontend::detail::set_stream(handle_, stream));
    if (graph_.graph->execute(handle_, pack_, workspace_->data()).is_bad())
      throw InvalidInput("cuDNN did not run");
  }

 private:
  void bind(runtime::CudnnTensor tensor, std::int64_t bytes) {
    memory_.push_back(std::make_unique<DeviceBytes>(bytes));
    pack_[static_cast<std::int64_t>(tensor)] = memory_.back()->data();
  }

  cudnnHandle_t handle_ = nullptr;
  runtime::CudnnGraph graph_;
  std::unique_ptr<DeviceBytes> workspace_;
  std::vector<std::unique_ptr<DeviceBytes>> memory_;
  std::unordered_map<std::int64_t, void*> pack_;
};

void attention(benchmark::State& state, const AttentionShape& shape, bool backward) {
  const Plan plan = attention_step(shape, backward);
  const auto device = make_device();
  device->prepare(plan, {});
  upload_values(*device, plan);
  DirectAttention direct(shape, backward);
  for (const auto tensor :
       {runtime::CudnnTensor::q, runtime::CudnnTensor::k, runtime::CudnnTensor::v, runtime::CudnnTensor::dout,
        runtime::CudnnTensor::out, runtime::CudnnTensor::lse}) {
    // The plan's values, through the host.
    for (std::size_t id = 0; id < plan.buffers.size(); ++id) {
      const Buffer& buffer = plan.buffers[id];
      if (buffer.kind != BufferKind::input ||
          (tensor == runtime::CudnnTensor::lse) != (buffer.name == "lse") ||
          (tensor != runtime::CudnnTensor::lse && buffer.name != name(tensor)))
        continue;
      std::vector<std::byte> bytes(static_cast<std::size_t>(buffer.bytes()));
      device->download(static_cast<BufferId>(id), bytes);
      CP_CUDA(cudaMemcpy(direct.data(tensor), bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
    }
  }
  const CudaStream stream(CudaStream::Priority::normal);
  constexpr int kRuns = 10;
  compare(
      state, [&] { return seconds_of_plan(*device, plan, kRuns); },
      [&] { return seconds_on(stream, kRuns, [&](cudaStream_t on) { direct.enqueue(on); }); });
  const double pairs = static_cast<double>(shape.seq_len) * static_cast<double>(shape.seq_len) *
                       (shape.mask == FusedShape::Mask::causal ? 0.5 : 1);
  const double flops = pairs * static_cast<double>(shape.q_heads) * kHeadDim * (backward ? 10 : 4);
  state.counters["Tflop/s"] = flops / (state.counters["ours_us"].value * 1e-6) * 1e-12;
}

void register_attention() {
  for (const AttentionShape& shape :
       {AttentionShape{"causal/4k/16x16", 4'096, 16, 16}, AttentionShape{"causal/16k/32x8", 16'384, 32, 8},
        AttentionShape{"full/8k/16x16", 8'192, 16, 16, FusedShape::Mask::full}}) {
    for (const bool backward : {false, true}) {
      benchmark::RegisterBenchmark(
          str("Attention/", backward ? "backward/" : "forward/", shape.name).c_str(),
          [shape, backward](benchmark::State& state) { attention(state, shape, backward); })
          ->UseManualTime()
          ->Iterations(21);
    }
  }
}

#else

void register_attention() { std::puts("built without cuDNN: its attention is not measured"); }

#endif

// ---- a ring

// The plan's steps for which `replace` gives some work, without groups; edges of the others are gone.
Plan replaced(const Plan& plan, const std::function<std::vector<Work>(const Work&)>& replace) {
  Plan made = plan;
  made.groups.clear(), made.segments.clear();
  std::vector<StepId> last;  // that a step became, by its id; -1: none
  StepId next = 0;
  const auto translate = [&](const Step& step) {
    std::vector<Step> steps;
    std::vector<Edge> after;
    for (const Edge& edge : step.after) {
      if (edge.iterations_back == 0 && last[static_cast<std::size_t>(edge.step)] >= 0)
        after.push_back({last[static_cast<std::size_t>(edge.step)], 0});
    }
    for (Work& work : replace(step.work)) {
      steps.push_back({step.stream, std::move(work), after, step.label});
      ++next;
    }
    last.push_back(steps.empty() ? -1 : next - 1);
    return steps;
  };
  for (const Segment& segment : plan.segments) {
    const Step* one = std::get_if<Step>(&segment);
    CP_INVARIANT(one != nullptr, "attention plans have no Repeat");
    for (Step& step : translate(*one)) made.segments.emplace_back(std::move(step));
  }
  for (Buffer& buffer : made.buffers) buffer.first_use = buffer.last_use = -1;
  return made;
}

std::vector<Work> as_copies(const Plan& plan, const Work& work) {
  const Collective* collective = std::get_if<Collective>(&work);
  if (collective == nullptr) return {work};
  std::vector<Work> copies;
  const auto dtype = [&](const View& view) {
    return plan.buffers[static_cast<std::size_t>(view.buffer)].dtype;
  };
  if (const Exchange* exchange = std::get_if<Exchange>(collective)) {
    for (std::size_t i = 0; i < std::min(exchange->sends.size(), exchange->recvs.size()); ++i) {
      const View &from = exchange->sends[i].view, &to = exchange->recvs[i].view;
      if (from.numel() == to.numel() && dtype(from) == dtype(to)) copies.push_back(Kernel(Copy{from, to}));
    }
  }
  return copies;
}

bool is_attention(const Work& work) {
  const Kernel* kernel = std::get_if<Kernel>(&work);
  return kernel != nullptr && (std::holds_alternative<AttentionForward>(*kernel) ||
                               std::holds_alternative<AttentionBackward>(*kernel));
}

void ring(benchmark::State& state, AttentionPass pass, const std::string& balance) {
  constexpr Rank kSelf = 3;
  AttentionRequest request;
  AttentionProblem& problem = request.problem;
  problem.q_len = problem.kv_len = 32'768;
  problem.q_heads = problem.kv_heads = 16;
  problem.head_dim = problem.v_head_dim = kHeadDim;
  problem.dtype = DType::bf16;
  problem.causal = true;
  request.ranks = {0, 1, 2, 3};
  request.strategy.core = Core::ring;
  request.strategy.balance = parse_balance(balance);
  const Plan whole = attention_plan(request, pass, kSelf, runtime::gpu_target_of(0));
  const Plan plan = replaced(whole, [&](const Work& work) { return as_copies(whole, work); });
  const Plan alone = replaced(whole, [&](const Work& work) {
    return is_attention(work) ? std::vector<Work>{work} : std::vector<Work>{};
  });
  const auto device = make_device(kSelf), other = make_device(kSelf);
  device->prepare(plan, {}), other->prepare(alone, {});
  upload_values(*device, plan), upload_values(*other, alone);
  constexpr int kRuns = 3;
  compare(
      state, [&] { return seconds_of_plan(*device, plan, kRuns); },
      [&] { return seconds_of_plan(*other, alone, kRuns); });
}

// ---- moves

struct Move {
  const char* name = "";
  // Adds a step over tensors of `numel` elements; returns the bytes that it reads and writes.
  std::function<std::int64_t(PlanBuilder&, std::int64_t numel)> add;
};

std::vector<Move> moves() {
  constexpr std::int64_t kHeads = 16;
  const auto strided = [](BufferId buffer,
                          std::int64_t numel) {  // [heads, rows, dim] of memory [rows, heads, dim]
    return View{
        buffer, 0, {kHeads, numel / kHeads / kHeadDim, kHeadDim}, {kHeadDim, kHeads * kHeadDim, 1}, {}};
  };
  const auto dense = [](BufferId buffer, std::int64_t numel) {
    return dense_view(buffer, 0, {kHeads, numel / kHeads / kHeadDim, kHeadDim});
  };
  return {{"pack",
           [=](PlanBuilder& b, std::int64_t numel) {
             b.add(b.stream("s"), Copy{strided(b.input("x", DType::bf16, numel), numel),
                                       dense(b.output("y", DType::bf16, numel), numel)});
             return 4 * numel;
           }},
          {"unpack",
           [=](PlanBuilder& b, std::int64_t numel) {
             b.add(b.stream("s"), Copy{dense(b.input("x", DType::bf16, numel), numel),
                                       strided(b.output("y", DType::bf16, numel), numel)});
             return 4 * numel;
           }},
          {"cast",
           [=](PlanBuilder& b, std::int64_t numel) {
             b.add(b.stream("s"), Cast{dense(b.input("x", DType::f32, numel), numel),
                                       dense(b.output("y", DType::bf16, numel), numel)});
             return 6 * numel;
           }},
          {"accumulate",
           [=](PlanBuilder& b, std::int64_t numel) {
             b.add(b.stream("s"), Accumulate{ReduceOp::sum, dense(b.input("x", DType::f32, numel), numel),
                                             dense(b.inout("y", DType::f32, numel), numel)});
             return 12 * numel;
           }},
          {"merge", [=](PlanBuilder& b, std::int64_t numel) {
             const std::int64_t rows = numel / kHeads / kHeadDim;
             const auto out = [&](BufferId id) { return dense_view(id, 0, {1, rows, kHeads, kHeadDim}); };
             const auto lse = [&](BufferId id) { return dense_view(id, 0, {1, kHeads, rows}); };
             b.add(b.stream("s"), AttentionMerge{out(b.input("in", DType::f32, numel)),
                                                 lse(b.input("in_lse", DType::f32, kHeads * rows)),
                                                 out(b.inout("out", DType::f32, numel)),
                                                 lse(b.inout("lse", DType::f32, kHeads * rows))});
             return 12 * numel + 12 * kHeads * rows;
           }}};
}

// `share`: of the rate at which cudaMemcpyAsync reads and writes.
void move(benchmark::State& state, const Move& made, std::int64_t mebibytes) {
  PlanBuilder b(0, runtime::gpu_target_of(0));
  const std::int64_t large = mebibytes << 20;
  const std::int64_t bytes = made.add(b, large / 4);
  const Plan plan = std::move(b).build({});
  const auto device = make_device();
  device->prepare(plan, {});
  upload_values(*device, plan);
  const std::int64_t copied = bytes / 2;
  const DeviceBytes from(copied), to(copied);
  const CudaStream stream(CudaStream::Priority::normal);
  constexpr int kRuns = 20;
  compare(
      state, [&] { return seconds_of_plan(*device, plan, kRuns); },
      [&] {
        return seconds_on(stream, kRuns, [&](cudaStream_t on) {
          CP_CUDA(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(copied),
                                  cudaMemcpyDeviceToDevice, on));
        });
      });
  state.counters["GB/s"] = static_cast<double>(bytes) / state.counters["ours_us"].value * 1e-3;
}

// ---- the host

// Microseconds of the host for each step; after so many steps the next one goes to the other stream, and waits.
void host_cost(benchmark::State& state) {
  constexpr int kSteps = 128;
  const auto steps_to_a_stream = static_cast<int>(state.range(0));
  PlanBuilder b(0, runtime::gpu_target_of(0));
  const View x = flat_view(b.inout("x", DType::f32, 1), 0, 1);
  for (int i = 0; i < kSteps; ++i)
    b.add(b.stream(i / steps_to_a_stream % 2 == 0 ? "first" : "second"), Scale{x, 1});
  const Plan plan = std::move(b).build({});
  const auto device = make_device();
  device->prepare(plan, {});
  std::vector<double> seconds;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    enqueue_steps(plan, *device);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    state.SetIterationTime(seconds.back());
    device->synchronize();
  }
  state.counters["us/step"] = median(seconds) * 1e6 / kSteps;
}

void register_all() {
  register_attention();
  const auto manual = [](const std::string& name, const std::function<void(benchmark::State&)>& run,
                         int iterations) {
    return benchmark::RegisterBenchmark(name.c_str(), run)->UseManualTime()->Iterations(iterations);
  };
  for (const char* balance : {"contiguous", "head_tail"}) {
    manual(
        str("Ring/forward/", balance),
        [balance](auto& state) { ring(state, AttentionPass::forward, balance); }, 21);
    manual(
        str("Ring/backward/", balance),
        [balance](auto& state) { ring(state, AttentionPass::backward, balance); }, 21);
  }
  for (const Move& made : moves()) {
    for (const std::int64_t mebibytes : {64, 256})
      manual(
          str("Moves/", made.name, "/", mebibytes, "MiB"), [=](auto& state) { move(state, made, mebibytes); },
          21);
  }
  manual("HostCost", host_cost, 200)->Arg(128)->Arg(1)->ArgName("steps_to_a_stream");
}

}  // namespace
}  // namespace cp

int main(int argc, char** argv) {
  if (cp::runtime::gpu_count() == 0) {
    std::puts("no GPU");
    return 0;
  }
  cp::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
