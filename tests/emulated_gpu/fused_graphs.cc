// The graphs of the emulated GPU's fused attention: what cuDNN takes and refuses
// (shared/plan/fused_attention.h, cudnn_abilities.h), computed by the host kernels. As cuDNN does, a graph
// knows of its documents only what lies in the tables that it is given, and reads these when it runs.
//   CP_EMULATED_CUDNN   the version that it is, as cudnnGetVersion() counts (90900); none by default: a
//                       recent one
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/cuda/fused_graph.h"
#include "runtime/cuda/fused_kernels.h"
#include "shared/base/error.h"
#include "shared/kernels/host_kernels.h"
#include "shared/plan/fused_attention.h"
#include "shared/plan/target.h"
#include "tests/emulated_gpu/devices.h"
#include "tests/emulated_gpu/emulated_stream.h"

namespace cp::runtime {
namespace {

using Mask = FusedShape::Mask;

// What a graph of the key may be asked for at most, as refuse() wants it.
FusedShape largest(const CudnnGraphKey& key) {
  FusedShape shape = key.shape;
  if (!key.bucket) return shape;
  const FusedBucket& bucket = *key.bucket;
  shape.documents.assign(static_cast<std::size_t>(bucket.documents), {bucket.longest_q, bucket.longest_k});
  shape.q_len = bucket.documents * bucket.longest_q, shape.k_len = bucket.documents * bucket.longest_k;
  // Whether every row sees a key is up to each call.
  if (shape.mask == Mask::window_tail) shape.window = bucket.longest_q;
  return shape;
}

// The mask between the rows and keys of one document, or of the only one.
MaskSlice slice(const CudnnGraphKey& key, std::int64_t q_len, std::int64_t k_len) {
  const std::int64_t corner = key.top_left ? 0 : k_len - q_len, window = key.shape.window;
  switch (key.shape.mask) {
    case Mask::full:
      break;
    case Mask::causal:
    case Mask::causal_top_left:
      return {0, q_len, 0, k_len, MaskSlice::Kind::causal, corner, 0};
    case Mask::window:
      return {0, q_len, 0, k_len, MaskSlice::Kind::window, corner, window};
    case Mask::window_tail:  // its upper diagonal lies behind all keys
      return {0, q_len, 0, k_len, MaskSlice::Kind::window, k_len, window + k_len};
  }
  return {0, q_len, 0, k_len, MaskSlice::Kind::full, 0, 0};
}

// One document's share of a call, on a plan of its own, whose buffers are the operands where they lie.
class Part {
 public:
  Part(const CudnnGraphKey& key, const TensorAddresses& addresses, std::int64_t q_len, std::int64_t k_len)
      : key_(key), addresses_(addresses), q_len_(q_len), k_len_(k_len) {}

  // Of each tensor in elements; dense lse is [batch, heads, rows], that of a document [rows, heads].
  template <class Offset>
  void run(const Offset& offset_of) {
    const auto view = [&](CudnnTensor tensor) {
      const auto [rows, heads, dim] = extents(key_.shape, tensor);
      return placed(tensor, key_.shape.dtype, offset_of(tensor),
                    {key_.shape.batch, is_query_side(tensor) ? q_len_ : k_len_, heads, dim},
                    strides(key_, tensor));
    };
    const std::int64_t heads = key_.shape.q_heads;
    const View lse =
        placed(CudnnTensor::lse, DType::f32, offset_of(CudnnTensor::lse), {key_.shape.batch, heads, q_len_},
               key_.bucket ? Shape{0, 1, heads} : Shape{heads * q_len_, q_len_, 1});
    const std::vector<MaskSlice> slices = {slice(key_, q_len_, k_len_)};
    if (!key_.shape.backward)
      return run_now(AttentionForward{.q = view(CudnnTensor::q),
                                      .k = view(CudnnTensor::k),
                                      .v = view(CudnnTensor::v),
                                      .out = view(CudnnTensor::out),
                                      .lse = lse,
                                      .softmax_scale = key_.softmax_scale,
                                      .slices = slices,
                                      .engine = AttentionEngine::fused});
    run_now(AttentionBackward{.q = view(CudnnTensor::q),
                              .k = view(CudnnTensor::k),
                              .v = view(CudnnTensor::v),
                              .dout = view(CudnnTensor::dout),
                              .lse = lse,
                              .delta = {},
                              .dq = view(CudnnTensor::dq),
                              .dk = view(CudnnTensor::dk),
                              .dv = view(CudnnTensor::dv),
                              .softmax_scale = key_.softmax_scale,
                              .slices = slices,
                              .out = view(CudnnTensor::out),
                              .engine = AttentionEngine::fused});
  }

 private:
  View placed(CudnnTensor tensor, DType dtype, std::int64_t offset, Shape shape, Shape strides) {
    Buffer buffer;
    buffer.kind = BufferKind::inout;
    buffer.dtype = dtype;
    buffer.numel = 1;
    for (std::size_t i = 0; i < shape.size(); ++i) buffer.numel += (shape[i] - 1) * strides[i];
    const auto id = static_cast<BufferId>(plan_.buffers.size());
    auto* const begin = static_cast<std::byte*>(addresses_.at(static_cast<std::int64_t>(tensor)));
    bindings_.push_back({id, begin + offset * size_bytes(dtype), buffer.bytes()});
    plan_.buffers.push_back(buffer);
    return View{id, 0, std::move(shape), std::move(strides), {}};
  }
  template <class Op>
  void run_now(Op op) {
    const HostMemory host(plan_, bindings_);
    run_kernel(Kernel{std::move(op)}, host, 0);
  }

  const CudnnGraphKey& key_;
  const TensorAddresses& addresses_;
  const std::int64_t q_len_, k_len_;
  Plan plan_;
  Bindings bindings_;
};

// The tables of a call, as they lie on the GPU.
class Documents {
 public:
  Documents(const CudnnGraphKey& key, const TensorAddresses& addresses) : key_(key), addresses_(addresses) {}

  std::int64_t count() const { return key_.bucket->documents; }
  std::int64_t q_len(std::int64_t document) const { return length(CudnnTensor::q_len, document); }
  std::int64_t k_len(std::int64_t document) const { return length(CudnnTensor::k_len, document); }
  std::int64_t offset(CudnnTensor tensor, std::int64_t document) const {
    const std::int64_t table =
        tensor == CudnnTensor::lse ? static_cast<std::int64_t>(CudnnTensor::lse_offsets) : offsets_of(tensor);
    return static_cast<const std::int64_t*>(addresses_.at(table))[document];
  }

  // What cuDNN takes for granted, and would show by wrong results alone.
  void check() const {
    const FusedBucket& bucket = *key_.bucket;
    std::int64_t q_rows = 0, k_rows = 0;
    for (std::int64_t i = 0; i < count(); ++i) {
      require(q_len(i) >= 0 && q_len(i) <= bucket.longest_q && k_len(i) >= 0 && k_len(i) <= bucket.longest_k,
              i, "is longer than the graph is made for");
      const std::int64_t heads = key_.shape.q_heads;
      require(offset(CudnnTensor::lse, i) == q_rows * heads, i, "has no statistics of its own");
      q_rows += q_len(i), k_rows += k_len(i);
    }
    require(!key_.shape.backward || (q_rows <= bucket.q_rows && k_rows <= bucket.k_rows), count(),
            "ends behind the rows that the graph is made for");
  }

 private:
  std::int64_t length(CudnnTensor table, std::int64_t document) const {
    return static_cast<const std::int32_t*>(addresses_.at(static_cast<std::int64_t>(table)))[document];
  }
  static void require(bool holds, std::int64_t document, const char* what) {
    if (!holds) throw std::runtime_error(str("fused attention: document ", document, " ", what));
  }

  const CudnnGraphKey& key_;
  const TensorAddresses& addresses_;
};

class EmulatedGraph final : public FusedGraph {
 public:
  EmulatedGraph(CudnnGraphKey key, std::int64_t workspace_bytes)
      : key_(std::move(key)), workspace_bytes_(workspace_bytes) {}

  std::int64_t workspace_bytes() const override { return workspace_bytes_; }
  std::string engine() const override { return "the host's kernels"; }
  void enqueue(TensorAddresses& addresses, std::byte* workspace, cudaStream_t stream) const override {
    const emulated::Inside inside("cudnn");
    for (const CudnnTensor operand : operands(key_.shape))
      if (reinterpret_cast<std::uintptr_t>(addresses.at(static_cast<std::int64_t>(operand))) % 16 != 0)
        throw InvalidInput(str(name(operand), " does not begin at a multiple of 16 bytes"));
    emulated::enqueue(stream, [key = key_, size = workspace_bytes_, addresses, workspace] {
      // Its contents mean nothing before and after.
      std::memset(workspace, 0xFB, static_cast<std::size_t>(size));
      if (!key.bucket) {
        Part(key, addresses, key.shape.q_len, key.shape.k_len).run([](CudnnTensor) { return 0; });
        return;
      }
      const Documents documents(key, addresses);
      documents.check();
      for (std::int64_t i = 0; i < documents.count(); ++i) {
        if (documents.q_len(i) == 0 && documents.k_len(i) == 0) continue;
        Part(key, addresses, documents.q_len(i), documents.k_len(i)).run([&](CudnnTensor tensor) {
          return documents.offset(tensor, i);
        });
      }
    });
  }

 private:
  const CudnnGraphKey key_;
  const std::int64_t workspace_bytes_;
};

class EmulatedBuilder final : public FusedGraphBuilder {
 public:
  BuiltGraph build(const CudnnGraphKey& key) override {
    std::this_thread::sleep_for(emulated::build_time(device_));
    const int capability = emulated::compute_capability(device_);
    const FusedAttention& library = *gpu_target(str("sm", capability)).fused_attention;
    if (const auto why = refuse(library, largest(key))) return {nullptr, *why};
    if (const auto version = fused_library_version()) {
      const auto lacks =
          cudnn_lacks(*version, cudnn_needs(key.shape, key.bucket, capability, key.deterministic));
      if (!lacks.empty()) return {nullptr, to_text(*lacks.front(), *version)};
    }
    const std::int64_t bytes = graph_workspace_bytes(library, key.shape, key.bucket);
    if (key.limit && bytes > *key.limit) return {nullptr, str("all its engines need ", bytes, " bytes")};
    return {std::make_shared<EmulatedGraph>(key, bytes), ""};
  }
  std::string version() override { return ""; }
  std::vector<std::byte> write(const FusedGraph&) override { return {}; }
  BuiltGraph read(std::span<const std::byte>) override { return {}; }

 private:
  const int device_ = emulated::current_device();
};

}  // namespace

std::unique_ptr<FusedGraphBuilder> fused_graph_builder() { return std::make_unique<EmulatedBuilder>(); }

std::optional<CudnnVersion> fused_library_version() {
  const char* text = std::getenv("CP_EMULATED_CUDNN");
  if (text == nullptr) return {};
  return std::strtoll(text, nullptr, 10);
}

std::map<std::string, std::string> fused_library_versions() { return {{"cudnn", "emulated"}}; }

}  // namespace cp::runtime
