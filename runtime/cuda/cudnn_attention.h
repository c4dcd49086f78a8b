// Makes the cuDNN graph of one fused attention call. The device that runs it and tests that ask the library
// about a GPU that is not there use the same code.
//
// The rules of the library (cudnn-frontend 1.32, cuDNN 9.19), and where they are from:
//   - operands are [batch, heads, seq, dim] with any strides, the last 1; other strides and addresses are
//     multiples of 16 bytes (validate_sdpa_operand_stride_alignment in node/sdpa_support_surface.h):
//     refuse_operand();
//   - left bound L masks j <= i - L, so it is the window itself; bottom-right moves the diagonal by k_len -
//     q_len, with lengths of each document where lengths are given (compute_ref in
//     test/python/sdpa/fp16_ref.py); a left bound needs no right one since cuDNN 9.10.2, but as many keys as
//     queries where there are no lengths (9.14.0 refuses it above 1024 keys; node/sdpa_support_surface.h);
//   - stats are the natural logarithm of the row's sum, f32; without ragged offsets backward wants them
//     packed [batch, heads, seq], with them [rows, heads] (node/scaled_dot_product_flash_attention.h;
//     test/python/sdpa/fp16.py and Transformer Engine's fused_attn_f16_arbitrary_seqlen.cu, which cuDNN 9.6
//     made it possible for);
//   - ragged offsets count elements, one more than there are documents; they come with lengths and a padding
//     mask;
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

// The call that a graph is made for. Strides count elements, and are those of views [batch, seq, heads, dim].
struct CudnnAttention {
  FusedShape shape;
  double softmax_scale = 1;
  Shape q, k, v, out;
  Shape dout, dq, dk, dv;  // of the backward pass
  // Whether the backward pass sums dq up in a fixed order. Then its workspace grows with q_len * k_len.
  bool deterministic = false;
  bool operator==(const CudnnAttention&) const = default;
};
// Make calls with dense views. In memory they are [batch, seq, heads, dim] (BSHD), [batch, heads, seq, dim]
// (BNSD) or [seq, batch, heads, dim] (SBHD).
CudnnAttention dense_bshd(const FusedShape& shape, double softmax_scale);
CudnnAttention dense_bnsd(const FusedShape& shape, double softmax_scale);
CudnnAttention dense_sbhd(const FusedShape& shape, double softmax_scale);  // without documents

// The tensors that a call binds. Only a packed call has offsets (int64) and lengths (int32). Each operand has
// its own offsets.
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

// The operands of the call without lse, in the order of CudnnTensor.
std::vector<CudnnTensor> operands(const CudnnAttention& call);
bool is_query_side(CudnnTensor operand);  // its rows are queries
std::string_view name(CudnnTensor operand);
const Shape& strides(const CudnnAttention& call, CudnnTensor operand);
Shape& strides(CudnnAttention& call, CudnnTensor operand);
// The strides of a view, except that dimensions with one element, whose strides may be anything, get the
// strides of a dense view. So equal calls have equal strides.
Shape normal_strides(const View& view);

// cuDNN's own description of a GPU that need not be there.
struct DescribedGpu {
  int sm_version = 0;  // 90: a Hopper
  std::shared_ptr<const cudnn_frontend::DeviceProperties> properties;
};

// A graph that can run, or cuDNN's refusal.
struct CudnnGraph {
  std::shared_ptr<cudnn_frontend::graph::Graph> graph;  // null if cuDNN refused
  std::int64_t workspace_bytes = 0;                     // of the graph alone
  std::string engine;                                   // cuDNN's name of the kernels and their settings
  std::string refusal;
};
// Builds the graph for the handle's device or, without a handle, for a described GPU. It is the one that
// cuDNN expects to be fastest; if a limit is given, of those with at most so many bytes of workspace. This
// takes about a second. Throws InvalidInput if cuDNN itself is missing (load_cudnn).
using WorkspaceLimit = std::optional<std::int64_t>;
CudnnGraph build_cudnn_graph(const CudnnAttention& call, cudnnContext* handle, WorkspaceLimit limit = {});
CudnnGraph build_cudnn_graph(const CudnnAttention& call, const DescribedGpu& gpu, WorkspaceLimit limit = {});

// Reads cuDNN's description from its JSON form. Throws InvalidInput with what cuDNN says.
DescribedGpu describe_gpu(int sm_version, const std::string& json);

// The bytes of lse as [rows, heads]. The workspace of a packed call begins with it, and the graph's own
// workspace follows. The workspace of any other call is the graph's own.
std::int64_t packed_lse_bytes(const FusedShape& shape);

}  // namespace cp::runtime
