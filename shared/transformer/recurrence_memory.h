// The part of least_memory.h that recurrences have: what their layers keep, make on their way and cache, and
// what recurrence plans allocate. Internal to least_memory.cc.
#pragma once

#include <cstdint>

#include "shared/transformer/attention_memory.h"
#include "shared/transformer/parallel_layout.h"
#include "shared/transformer/sizes.h"

namespace cp {

// Of a model without recurrences everything is 0. In training with cp, what states need is that of rank
// cp / 2, whose plans are read besides those of the busiest one (memory_reading.h). All arguments must
// outlive it.
class RecurrenceMemory {
 public:
  RecurrenceMemory(const Transformer& model, const Workload& workload, const ParallelLayout& layout,
                   const LocalSizes& sizes);

  // What a layer's recurrence keeps for the backward pass.
  LayerKept kept() const;
  // Bytes that live at one moment inside of the region of a recurrence at least: what the projection gives,
  // and q, k and v; backward their gradients, and those of the output before and behind its norm.
  std::int64_t bytes_inside() const;
  // Where rows are computed where they are: what lives of that while the kernel is at work, or 0.
  std::int64_t bytes_beside_kernel() const;
  // States of all chunks that come at once, before there are gradients of the layer.
  std::int64_t bytes_from_afar() const;
  // What recurrence plans allocate for the heads that are computed at once: backward the states of rows.
  std::int64_t workspace_bytes() const;
  // What a layer caches where a token is written, on the rank of the token, or where there is one rank: the
  // state, of which with heads every rank has a part, and the rows that the convolution saw last. Of a prompt
  // over several ranks nothing is claimed: others than the one that caches may need most.
  std::int64_t cached_bytes() const;

 private:
  // Of the chunks of rank cp / 2: how many have states that come in, how many hand these on, and whose states
  // come from afar with all_gather, forward and backward. That of the chunk before an own one comes to where
  // it is kept.
  struct ScanShare {
    std::int64_t incoming = 0, handed_on = 0, from_afar = 0;
  };
  ScanShare scan_of_a_rank() const;
  // A rank may have its rows in two chunks, one after the other.
  bool has_two_chunks() const;
  bool trades_heads() const { return layout_.scan == StateScan::heads && layout_.cp > 1; }

  const Transformer& model_;
  const Workload& workload_;
  const ParallelLayout& layout_;
  const LocalSizes& sizes_;
  const std::int64_t width_;
  const bool present_, training_;
  ScanShare scan_;
};

}  // namespace cp
