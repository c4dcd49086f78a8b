// Says what the caller's buffers of attention plans hold, by the words of
// shared/context_parallel/attention_plan.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "sim/proof/ledger/tags.h"

namespace cp::sim {

// What a buffer holds: which part of which tensor, and where in the buffer.
struct BufferRole {
  Tensor tensor = Tensor::q;
  TensorPart part;
  Shape strides;  // in elements, from one batch, row, head and dim to the next
  std::int64_t dim = 1;
  // Where the heads lie in pieces, one after the other and each dense [row, batch, head, dim]: the first head
  // of each piece, counted from that of the part, and their number at the end. Empty: `strides` say all.
  std::vector<std::int64_t> pieces;
  bool has_batch = true;  // sinks, their gradient and the seed are the same for all batch entries

  std::int64_t numel(std::int64_t batch) const {
    return (has_batch ? batch : 1) * part.num_rows() * part.num_heads() * dim;
  }
  // Calls visit(batch, head, row, offset) for each row. Head and row are global; the offset, in elements, is
  // that of the row's first element in the buffer.
  template <class Visit>
  void for_each_row(std::int64_t batches, const Visit& visit) const {
    if (!has_batch) batches = 1;
    std::int64_t local = 0;
    for (const Run& run : part.rows) {
      for (std::int64_t block = 0; block < run.count; ++block) {
        for (std::int64_t i = 0; i < run.run; ++i, ++local) {
          for (std::int64_t b = 0; b < batches; ++b) {
            for (std::int64_t h = 0; h < part.num_heads(); ++h) {
              visit(b, part.head_begin + h, run.begin + block * run.stride + i,
                    pieces.empty() ? b * strides[0] + local * strides[1] + h * strides[2]
                                   : in_pieces(batches, b, local, h));
            }
          }
        }
      }
    }
  }

 private:
  std::int64_t in_pieces(std::int64_t batches, std::int64_t batch, std::int64_t row,
                         std::int64_t head) const {
    std::size_t piece = 0;
    while (head >= pieces[piece + 1]) ++piece;
    const std::int64_t first = pieces[piece], heads = pieces[piece + 1] - first;
    return (first * part.num_rows() * batches + (row * batches + batch) * heads + head - first) * dim;
  }
};

// The role of a buffer of that name on the cp rank number `index`. Nothing for a name that is none of the
// caller's, and for a gradient that the request does not ask for.
std::optional<BufferRole> buffer_role(const AttentionRequest& request, const AttentionSharding& sharding,
                                      AttentionPass pass, int index, std::string_view name);

// The names of the outputs that the request asks of a pass. Every rank's plan has all of them.
std::vector<std::string_view> asked_outputs(const AttentionRequest& request, AttentionPass pass);

}  // namespace cp::sim
