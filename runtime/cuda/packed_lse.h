// Transposes lse (the log-sum-exp of each row) of a packed call: plans keep it as [heads, rows], but cuDNN
// wants [rows, heads].
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace cp::runtime {

// Enqueues out[j][i] = in[i][j] for a dense `in` of `rows` x `columns` floats. Both are addresses of the GPU.
void transpose_f32(cudaStream_t stream, const float* in, float* out, std::int64_t rows, std::int64_t columns);

}  // namespace cp::runtime
