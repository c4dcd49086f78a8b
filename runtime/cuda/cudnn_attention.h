// The cuDNN graph of one fused attention call: the same for the device that runs it and for tests that ask
// the library about a GPU that is not there.
//
// Rules of the library (cudnn-frontend 1.32, cuDNN 9.19), and where they are from:
//   - operands are [batch, heads, seq, dim] with any strides, the last 1; other strides and addresses are
//     multiples of 16 bytes (validate_sdpa_operand_stride_alignment in node/sdpa_support_surface.h):
//     refuse_operand();
//   - left bound L masks j <= i - L, so it is the window itself; bottom-right moves the diagonal by k_len -
//     q_len, with lengths of each document where lengths are given (compute_ref in
//     test/python/sdpa/fp16_ref.py);
//   - stats are the natural logarithm of the row's sum, f32; without ragged offsets backward wants them
//     packed [batch, heads, seq], with them [rows, heads] (node/scaled_dot_product_flash_attention.h;
//     test/python/sdpa/fp16.py and Transformer Engine's fused_attn_f16_arbitrary_seqlen.cu, which cuDNN 9.6
//     made it possible for);
//   - ragged offsets count elements, one more than there are documents; they come with lengths and a padding mask;
//   - set_max_total_seq_len_{q,kv} makes the accumulators of a packed backward as long as the rows, not
//     documents x the longest one; on GPUs below sm90 and on sm120, and for dims that 16 does not divide, it
//     is ignored.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/types.h"
#include "shared/plan/fused_attention.h"
#include "shared/plan/plan.h"

struct cudnnContext;
namespace cudnn_frontend {
class DeviceProperties;
namespace graph {
class Graph;
}
}  // namespace cudnn_frontend

namespace cp::runtime {

// What a graph is made for. Strides count elements of views [batch, seq, heads, dim].
struct CudnnAttention {
  FusedShape shape;
  double softmax_scale = 1;
  Shape q, k, v, out;
  Shape dout, dq, dk, dv;  // of the backward pass
  // backward: dq is summed up in one order. Its workspace grows with q_len * k_len
  bool deterministic = false;
  bool operator==(const CudnnAttention&) const = default;
};
// With dense views [batch, seq, heads, dim] (BSHD), or [batch, heads, seq, dim] or [seq, batch, heads, dim]
// in memory (BNSD, SBHD).
CudnnAttention dense_bshd(const FusedShape& shape, double softmax_scale);
CudnnAttention dense_bnsd(const FusedShape& shape, double softmax_scale);
CudnnAttention dense_sbhd(const FusedShape& shape, double softmax_scale);  // without documents

// The tensors that a call binds. Offsets (int64) and lengths (int32) are a packed call's alone; each operand
// has offsets of its own.
enum class CudnnTensor : std::int64_t {
  q = 1,
  k,
  v,
  out,
  lse,
  dout,
  dq,
  dk,
  dv,
  q_len,
  k_len,
  lse_offsets,
  first_offsets,  // of q; those of operand t are offsets_of(t)
};
constexpr std::int64_t offsets_of(CudnnTensor operand) {
  return static_cast<std::int64_t>(CudnnTensor::first_offsets) + static_cast<std::int64_t>(operand) -
         static_cast<std::int64_t>(CudnnTensor::q);
}

// Operands of the call beside lse, in the order of CudnnTensor.
std::vector<CudnnTensor> operands(const CudnnAttention& call);
bool is_query_side(CudnnTensor operand);  // its rows are queries
std::string_view name(CudnnTensor operand);
const Shape& strides(const CudnnAttention& call, CudnnTensor operand);
Shape& strides(CudnnAttention& call, CudnnTensor operand);
// A view's strides where those of dimensions with one element, which may be anything, are what a dense view's
// would be: equal calls have equal strides.
Shape normal_strides(const View& view);

// A GPU that is not there: cuDNN's own description of one.
struct DescribedGpu {
  int sm_version = 0;  // 90: a Hopper
  std::shared_ptr<const cudnn_frontend::DeviceProperties> properties;
};

// A graph that can run, or what cuDNN said against it.
struct CudnnGraph {
  std::shared_ptr<cudnn_frontend::graph::Graph> graph;  // null where cuDNN refused
  std::int64_t workspace_bytes = 0;                     // of the graph alone
  std::string engine;                                   // cuDNN's name of the kernels and their settings
  std::string refusal;
};
// For the handle's device, or, without a handle, for a described GPU: the graph that cuDNN expects to be
// fastest, of those with at most so many bytes of workspace, if these are given. Takes about a second. Throws
// InvalidInput where cuDNN itself is missing (load_cudnn).
using WorkspaceLimit = std::optional<std::int64_t>;
CudnnGraph build_cudnn_graph(const CudnnAttention& call, cudnnContext* handle, WorkspaceLimit limit = {});
CudnnGraph build_cudnn_graph(const CudnnAttention& call, const DescribedGpu& gpu, WorkspaceLimit limit = {});

// cuDNN's description from its JSON form. Throws InvalidInput with what cuDNN said.
DescribedGpu describe_gpu(int sm_version, const std::string& json);

// A call's workspace is the graph's own, and for a packed call, before it, lse as [rows, heads].
std::int64_t packed_lse_bytes(const FusedShape& shape);

}  // namespace cp::runtime
