// The part of least_memory.h that recurrences have: what their layers keep, make on their way and cache, and
// what recurrence plans allocate.
#pragma once

#include <cstdint>
#include <vector>

#include "shared/transformer/mixers/mixer.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/sizes.h"

namespace cp {

// In training with cp, what states need is that of rank cp / 2, whose plans are read besides those of the
// busiest one (memory_reading.h). All arguments must outlive it.
class RecurrenceMemory : public MixerMemory {
 public:
  RecurrenceMemory(const Transformer& model, const Workload& workload, const ParallelLayout& layout,
                   const LocalSizes& sizes);

  LayerKept kept() const override;
  // What the projection gives, and q, k and v; backward their gradients, and those of the output before and
  // behind its norm.
  std::int64_t bytes_inside() const override;
  // What recurrence plans allocate for the heads that are computed at once: backward the states of rows.
  std::int64_t workspace_bytes() const override;
  // Where rows are computed where they are, what lives inside while the kernel is at work, with its
  // workspace; and states of all chunks that come at once, before there are gradients of the layer.
  std::vector<Moment> moments() const override;
  // What a layer caches where a token is written, on the rank of the token, or where there is one rank: the
  // state, of which with heads every rank has a part, and the rows that the convolution saw last. Of a prompt
  // over several ranks nothing is claimed: others than the one that caches may need most.
  std::int64_t cached_bytes() const override;

 private:
  // Of the chunks of rank cp / 2: how many have states that come in, how many hand these on, and whose states
  // come from afar with all_gather, forward and backward. That of the chunk before an own one comes to where
  // it is kept.
  struct ScanShare {
    std::int64_t incoming = 0, handed_on = 0, from_afar = 0;
  };
  ScanShare scan_of_a_rank() const;
  // Or 0.
  std::int64_t bytes_beside_kernel() const;
  std::int64_t bytes_from_afar() const;
  // A rank may have its rows in two chunks, one after the other.
  bool has_two_chunks() const;
  bool trades_heads() const { return layout_.scan == StateScan::heads && layout_.cp > 1; }

  const Transformer& model_;
  const Workload& workload_;
  const ParallelLayout& layout_;
  const LocalSizes& sizes_;
  const std::int64_t width_;
  const bool training_;
  ScanShare scan_;
};

}  // namespace cp
