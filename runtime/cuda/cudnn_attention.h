// Makes cuDNN's graph of fused attention calls, and writes it down. The device that runs it and tests that
// ask the library about a GPU that is not there use the same code.
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
//     mask. Both are read from the GPU's memory when the graph runs, so that the graph says only how many
//     documents there may be and how long (shared/plan/fused_bucket.h); it touches no rows but those that
//     offsets and lengths name, in operands that may be shorter than the graph says;
//   - set_max_total_seq_len_{q,kv} makes the accumulators of a packed backward as long as the rows, not
//     documents x the longest one; on GPUs below sm90 and on sm120, and for dims that 16 does not divide, it
//     is ignored;
//   - Graph::serialize() writes a plan with the kernels that cuDNN has compiled for it, without the graph
//     that it came from (serialize_structure); the plan runs by the tensors' numbers, as the graph does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/cuda/fused_call.h"

struct cudnnContext;
namespace cudnn_frontend {
class DeviceProperties;
namespace graph {
class Graph;
}
}  // namespace cudnn_frontend

namespace cp::runtime {

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
// cuDNN expects to be fastest; if the key has a limit, of those with at most so many bytes of workspace. This
// takes about a second. Several threads may build at once, each with a handle of its own. Throws InvalidInput
// if cuDNN itself is missing (load_cudnn).
CudnnGraph build_cudnn_graph(const CudnnGraphKey& key, cudnnContext* handle);
CudnnGraph build_cudnn_graph(const CudnnGraphKey& key, const DescribedGpu& gpu);

// Writes a graph down, and makes it again for the same version of cuDNN and the same kind of GPU. Nothing if
// cuDNN cannot write it.
std::vector<std::byte> write_cudnn_graph(const CudnnGraph& graph);
// A refusal if the bytes are no such graph, or if this cuDNN does not take it.
CudnnGraph read_cudnn_graph(std::span<const std::byte> bytes, cudnnContext* handle);
CudnnGraph read_cudnn_graph(std::span<const std::byte> bytes, const DescribedGpu& gpu);

// Reads cuDNN's description from its JSON form. Throws InvalidInput with what cuDNN says.
DescribedGpu describe_gpu(int sm_version, const std::string& json);

}  // namespace cp::runtime
