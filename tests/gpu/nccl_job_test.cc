// runtime::Job on the nccl backend: the buffers of a program are addresses of its rank's GPU.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/cuda/cuda_error.h"
#include "runtime/job.h"
#include "runtime/job_environment.h"
#include "runtime/nccl/nccl_device.h"
#include "runtime/rendezvous/server.h"
#include "shared/base/error.h"
#include "shared/context_parallel/attention.h"
#include "shared/context_parallel/sequence.h"
#include "shared/kernels/host_kernels.h"
#include "shared/plan/builder.h"
#include "shared/plan/execute.h"
#include "sim/proof/run/attention_shards.h"
#include "sim/proof/run/attention_tolerance.h"
#include "tests/gpu/gpu_processes.h"
#include "tests/gpu/gpu_ranks.h"
#include "tests/runtime/processes.h"
#include "tests/support/shard_data.h"
#include "tests/support/values.h"

namespace cp {
namespace {

using runtime::Job;
using runtime::RendezvousServer;
using Bytes = std::vector<std::byte>;

constexpr int kRanks = 2;
constexpr std::chrono::seconds kPatience{60};

template <class Condition>
bool soon(const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Memory of the current GPU.
class GpuBuffer {
 public:
  explicit GpuBuffer(const Bytes& contents) : size_(contents.size()) {
    CP_CUDA(cudaMalloc(&data_, std::max<std::size_t>(size_, 1)));
    CP_CUDA(cudaMemcpy(data_, contents.data(), size_, cudaMemcpyHostToDevice));
    CP_CUDA(cudaDeviceSynchronize());
  }
  ~GpuBuffer() { cudaFree(data_); }
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;

  void* data() const { return data_; }
  std::int64_t size_bytes() const { return static_cast<std::int64_t>(size_); }
  Bytes contents() const {
    Bytes bytes(size_);
    CP_CUDA(cudaMemcpy(bytes.data(), data_, size_, cudaMemcpyDeviceToHost));
    return bytes;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

// What a rank does in its job; returns what went wrong, in words.
using Work = std::string (*)(Job& job);

// As cprun starts a rank, but that the server is in the process of rank 0.
std::string run_rank(Rank rank, const std::string& port_file, Work work) {
  runtime::JobEnvironment environment;
  environment.rank = environment.local_rank = rank, environment.world_size = kRanks;
  environment.token = "0123456789abcdef0123456789abcdef";
  environment.backend = "nccl", environment.allow_shared_gpu = true;
  std::unique_ptr<RendezvousServer> server;
  if (rank == 0) {
    server = std::make_unique<RendezvousServer>(
        runtime::ServerOptions{.world_size = kRanks, .token = environment.token});
    std::ofstream(port_file + ".new") << server->port();
    std::filesystem::rename(port_file + ".new", port_file);
  }
  if (!soon([&] { return std::filesystem::exists(port_file); })) return "no server";
  std::ifstream(port_file) >> environment.port;
  for (const std::string& variable : runtime::variables_of(environment)) {
    const std::size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  testing::become_rank(rank, kRanks);
  std::string wrong;
  {
    Job job;
    wrong = work(job);
  }
  const auto is_there = [](const runtime::RankStatus& status) {
    return status.state == runtime::RankState::joined;
  };
  if (server && !soon([&] { return std::ranges::none_of(server->ranks(), is_there); })) return "some stay";
  return wrong;
}

int run_job(Work work) {
  const testing::TemporaryDirectory directory;
  return testing::run_gpu_processes(
      kRanks, [&](Rank rank) { return run_rank(rank, directory.path() + "/port", work); });
}

using NcclJob = testing::GpuProcesses;

std::string target_of_the_current_gpu() {
  int device = -1;
  CP_CUDA(cudaGetDevice(&device));
  return runtime::gpu_target_of(device).name;
}

// ---- redistribution

// The numbers of the whole tensor's elements, counted from `first`, that the rank holds.
Bytes numbered(const Layout& layout, Rank rank, double first) {
  std::vector<double> values;
  for (const std::int64_t element : testing::element_numbers(layout, rank))
    values.push_back(first + static_cast<double>(element));
  return encode(layout.dtype, values);
}

// Twice by one plan, between other buffers each time.
std::string redistribute_twice(Job& job, const std::string& target) {
  if (job.host_memory()) return "its buffers are host memory";
  if (job.target().name != target) return str("target ", job.target().name, " instead of ", target);
  const Mesh mesh = Mesh::parse("cp=2");
  const Layout rows = parse_layout("S(0)", mesh, {13, 8}, DType::f32),
               columns = parse_layout("S(1,head_tail)", mesh, {13, 8}, DType::f32);
  const Rank rank = job.rank();
  std::vector<std::unique_ptr<GpuBuffer>> buffers;  // to the end, so that no address comes again
  const auto new_buffer = [&](const Bytes& contents) -> const GpuBuffer& {
    return *buffers.emplace_back(std::make_unique<GpuBuffer>(contents));
  };
  for (const double first : {1.0, 1000.0}) {
    const Bytes given = numbered(rows, rank, first), expected = numbered(columns, rank, first);
    const GpuBuffer &in = new_buffer(given), &out = new_buffer(Bytes(expected.size()));
    job.redistribute(from_local(rows, rank, in.data(), in.size_bytes()),
                     from_local(columns, rank, out.data(), out.size_bytes()));
    if (out.contents() != expected) return str("from ", first, ": other columns");
    if (in.contents() != given) return str("from ", first, ": the input has changed");
  }
  return "";
}

TEST_F(NcclJob, RedistributesBetweenBuffersOnTheGpu) {
  CP_EXPECT_RIGHT(run_job([](Job& job) { return redistribute_twice(job, target_of_the_current_gpu()); }));
}

// Several moves there and back between copies in a stream of the program's own, for which nobody waits until
// the end.
std::string redistribute_in_a_stream(Job& job) {
  constexpr int kMoves = 5;
  const Mesh mesh = Mesh::parse("cp=2");
  const Layout rows = parse_layout("S(0)", mesh, {13, 8}, DType::f32),
               columns = parse_layout("S(1,head_tail)", mesh, {13, 8}, DType::f32);
  const Rank rank = job.rank();
  cudaStream_t stream = nullptr;
  CP_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::string wrong;
  {
    const Bytes some = numbered(rows, rank, 0), others = numbered(columns, rank, 0);
    const GpuBuffer in{Bytes(some.size())}, out{Bytes(others.size())}, back{Bytes(some.size())};
    const auto tensor = [rank](const Layout& layout, const GpuBuffer& buffer) {
      return from_local(layout, rank, buffer.data(), buffer.size_bytes());
    };
    std::vector<Bytes> given, moved(kMoves, Bytes(others.size())), returned(kMoves, Bytes(some.size()));
    for (int i = 0; i < kMoves; ++i) given.push_back(numbered(rows, rank, 1000 * i + 1));
    PlanRun last;
    for (std::size_t i = 0; i < kMoves; ++i) {
      CP_CUDA(cudaMemcpyAsync(in.data(), given[i].data(), some.size(), cudaMemcpyHostToDevice, stream));
      job.start_redistribute(tensor(rows, in), tensor(columns, out), {}, stream);
      CP_CUDA(cudaMemcpyAsync(moved[i].data(), out.data(), others.size(), cudaMemcpyDeviceToHost, stream));
      last = job.start_redistribute_backward(rows, columns, tensor(columns, out), tensor(rows, back), {},
                                             stream);
      CP_CUDA(cudaMemcpyAsync(returned[i].data(), back.data(), some.size(), cudaMemcpyDeviceToHost, stream));
    }
    CP_CUDA(cudaStreamSynchronize(stream));
    if (!last.has_ended()) wrong += "the stream has not waited; ";
    for (std::size_t i = 0; i < kMoves; ++i) {
      if (moved[i] != numbered(columns, rank, 1000.0 * static_cast<double>(i) + 1))
        wrong += str("move ", i, ": other columns; ");
      if (returned[i] != given[i]) wrong += str("move ", i, ": another gradient; ");
    }
  }
  CP_CUDA(cudaStreamDestroy(stream));
  return wrong;
}

TEST_F(NcclJob, RedistributesInAStreamOfTheProgram) { CP_EXPECT_RIGHT(run_job(redistribute_in_a_stream)); }

// The gradient of a gather of packed documents, times the ranks that gathered.
std::string redistribute_backward(Job& job) {
  const std::vector<std::vector<std::int64_t>> sizes = {{3, 0, 4}, {1, 5, 0}};
  const Layout rows = make_layout(Mesh::parse("cp=2"), {Shard{0, packed_sizes(sizes)}}, {13, 8}, DType::f32);
  const SequenceMove gather = gather_forward_split_backward(rows, "cp");
  const Rank rank = job.rank();
  Bytes expected = numbered(rows, rank, 0);
  std::vector<double> doubled = decode(DType::f32, expected);
  for (double& value : doubled) value *= 2;
  expected = encode(DType::f32, doubled);
  const GpuBuffer grad_out(numbered(gather.to, rank, 0)), grad_in(Bytes(expected.size()));
  job.redistribute_backward(
      gather.from, gather.to, from_local(gather.to, rank, grad_out.data(), grad_out.size_bytes()),
      from_local(gather.from, rank, grad_in.data(), grad_in.size_bytes()), gradient_options(gather));
  return grad_in.contents() == expected ? "" : "another gradient";
}

TEST_F(NcclJob, TakesScaledGradientsBackBetweenBuffersOnTheGpu) {
  CP_EXPECT_RIGHT(run_job(redistribute_backward));
}

#ifdef CP_GPU_EMULATED

TEST_F(NcclJob, WithGpusOfDifferentGenerationsIsForTheHostsTarget) {
  setenv("CP_EMULATED_GPU_CAPABILITY", "8.0,9.0", 1);
  CP_EXPECT_RIGHT(run_job([](Job& job) { return redistribute_twice(job, "host"); }));
  unsetenv("CP_EMULATED_GPU_CAPABILITY");
}

#endif

// ---- attention

// Forward and backward; what differs from one device.
std::string attend(Job& job) {
  AttentionProblem problem;
  problem.q_len = problem.kv_len = 61;
  problem.q_heads = 4, problem.kv_heads = 2, problem.head_dim = problem.v_head_dim = 16;
  problem.dtype = DType::bf16, problem.causal = true;
  const AttentionRequest request{problem, {0, 1}, named_strategy({"ring", {}, {}}, problem, kRanks)};
  const sim::AttentionTestData data(problem, 7);
  const sim::AttentionShards shards(data, request);
  const auto tolerances = sim::attention_tolerances(data, request, true, job.target());
  ContextParallelAttention attention(job.device(), request.ranks, request.strategy, job.plans());
  sim::RankBuffers memory;
  std::string wrong;
  for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
    const Plan plan = attention_plan(request, pass, job.rank(), job.target());
    shards.bind(pass, plan, memory);
    std::map<std::string, std::unique_ptr<GpuBuffer>> on_gpu;
    NamedBuffers buffers;
    for (const auto& [name, bytes] : attention.buffer_bytes(problem, pass)) {
      on_gpu[name] = std::make_unique<GpuBuffer>(memory.at(name));
      buffers[name] = on_gpu[name]->data();
    }
    pass == AttentionPass::forward ? attention.forward(problem, buffers)
                                   : attention.backward(problem, buffers);
    for (const auto& [name, buffer] : on_gpu) memory[name] = buffer->contents();
    for (const auto& [tensor, error] : shards.compare(pass, plan, memory, tolerances)) {
      if (!error.holds()) wrong += str(error.tensor, ": ", error.finding, "; ");
    }
  }
  return wrong;
}

TEST_F(NcclJob, AttentionOverBuffersOnTheGpuIsOneDevices) { CP_EXPECT_RIGHT(run_job(attend)); }

// ---- plans of the program's own

Plan reduction(Rank self, ReduceOp op) {
  PlanBuilder b(self, host_target());
  const View x = flat_view(b.inout("x", DType::f32, 4), 0, 4);
  b.add(b.stream("main"), AllReduce{b.group("cp", {0, 1}), op, x, x});
  return std::move(b).build(Hasher().add(name(op)).digest());
}

std::string run_own_plan(Job& job) {
  const Plan& plan = job.plans().get(Digest{0, 1}, [&] { return reduction(job.rank(), ReduceOp::sum); });
  const GpuBuffer x(encode(DType::f32, {1.0 + job.rank(), 2, 3, 4}));
  execute(plan, job.device(), {{0, x.data(), x.size_bytes()}});
  return x.contents() == encode(DType::f32, {3, 4, 6, 8}) ? "" : "other sums";
}

TEST_F(NcclJob, RunsOwnPlansOverBuffersOnTheGpu) { CP_EXPECT_RIGHT(run_job(run_own_plan)); }

// Nothing hangs, were they run: the sums of one are the maxima of the other.
std::string run_another_plan_on_rank_1(Job& job) {
  const ReduceOp op = job.rank() == 1 ? ReduceOp::max : ReduceOp::sum;
  try {
    job.plans().get(Digest{0, 1}, [&] { return reduction(job.rank(), op); });
  } catch (const CollectiveMismatch& error) {
    const std::string said = error.what();
    return said.find("the ranks' plans differ") == std::string::npos ? said : "";
  }
  return "the plans are taken for equal";
}

TEST_F(NcclJob, ARankWithAnotherPlanIsFoundBeforeItRuns) {
  CP_EXPECT_RIGHT(run_job(run_another_plan_on_rank_1));
}

}  // namespace
}  // namespace cp
