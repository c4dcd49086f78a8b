// AttentionCost: how long attention takes on a GPU. It uses the curve or the rates of the kernel that the
// software runs there (sim/cost/cluster/attention_kernels.h), for the head size that is asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/cost/cluster/cluster.h"
#include "sim/cost/cluster/software.h"
#include "sim/cost/timeline/kernel_work.h"

namespace cp::sim {

// The attention of a rank, if only sums over its kernels are known.
struct AttentionSum {
  double pairs = 0;  // of all heads
  double flops_per_pair = 0;
  double rows = 0;              // query rows of all heads, each computed at least once; 0: unknown
  double most_keys = 0;         // that a row meets in one kernel; 0: unknown
  double pairs_at_once = 0;     // in one kernel, at most
  bool few_rows = false;        // kernels may be of few rows (decoding)
  bool values_in_keys = false;  // as in KernelWork
};

class AttentionCost {
 public:
  // `cluster` must outlive this.
  AttentionCost(const Cluster& cluster, const SoftwareProfile& software);

  // Returns the time of one kernel in ns, without its launch and without what memory takes.
  //
  // Head sizes: if a size has no rate, its time lies on the straight line through the times of two sizes that
  // have one. (The products of a pair grow with the head size; its softmax does not.) Outside of the measured
  // sizes the line is continued, but never to a faster kernel than the nearest one, nor so that less work
  // takes longer. If there is only one rate, it counts for all sizes.
  //
  // One query against latent rows whose values lie in them (MLA's decoding) goes by the cluster's rate of
  // such a kernel, whatever the software's own is called, and for rows of other sizes as its flops and bytes
  // do.
  //
  // What is missing: without a backward rate, backward runs at kBackwardShare of the forward rate. With
  // neither a curve nor a rate, attention reaches kAttentionShare of the peak. Queries, keys and values in 8
  // bits have forward rates of their own; on a cluster without them the rates of 16 bits count, which are no
  // more than a guess then (see width()), and questions refuse it (with_attention_precision).
  double ns(const KernelWork& work, std::int64_t head_dim, bool backward) const;

  // A lower bound: no kernels that compute this attention take less.
  double least_ns(const AttentionSum& sum, std::int64_t head_dim, bool backward) const;

  // How far the truth may lie from ns(), as a share each way (widths.h). Eight in ten of the rate's own
  // errors, on rows that were left out of its fit, are below it. It is wider if the rate is of another head
  // size, another GPU or the other pass.
  double width(std::int64_t head_dim, bool backward) const;
  // The same for few rows (decoding), which have a rate of their own. Without one, it is width().
  double decode_width(std::int64_t head_dim) const;
  // The same of absorbed queries, whose values lie in their keys.
  double absorbed_width(std::int64_t head_dim) const;

  const std::string& kernel() const { return kernel_; }  // empty: of none

  // Attention with at most this many query rows that share a kv head fills one tile of a kernel. Kernels then
  // split the keys over the GPU instead (decoding), and another rate counts. Chosen: the rows of one tile.
  static constexpr double kFewRows = 64;
  static constexpr double kAttentionShare = 0.5;
  // FlashAttention 3 and cuDNN on the H100, head_dim 128, 16,384 tokens: 561 of 648 and 516 of 595 TFLOP/s
  // (arXiv:2407.08608).
  static constexpr double kBackwardShare = 0.866;

 private:
  // What is known of one pass: rates by ascending head size, or curves, or nothing.
  struct Pass {
    std::vector<const AttentionRate*> rates;
    std::vector<const AttentionCurve*> curves;
    double speed = 1;  // of the GPU over that of the rates, and of the pass
    bool of_forward = false;
  };
  Pass pass_of(bool backward) const;
  const Pass& pass(bool backward) const { return backward ? backward_ : forward_; }
  bool of_second_hand(const Provenance& rate) const;
  bool by_curve(const Pass& pass, std::int64_t head_dim) const;
  static const AttentionCurve& nearest_curve(const Pass& pass, std::int64_t head_dim, bool causal);
  static const AttentionRate& nearest_rate(const Pass& pass, std::int64_t head_dim);
  double curve_ns(const Pass& pass, const KernelWork& work, std::int64_t head_dim) const;
  // Of a head size by us(rate, flops of a pair) of one or two rates. `least`: what it never falls below for a
  // us() that ns() does not.
  template <class Us>
  double of_size(const Pass& pass, std::int64_t head_dim, double flops_per_pair, bool least, Us&& us) const;
  // Of the cache's bits where the kernel has such a rate; else of the other ones.
  const DecodeRate* decode_rate(std::int64_t head_dim) const;
  // Of latent rows, and the same cache.
  const LatentRate* latent_rate() const;

  const Cluster& cluster_;
  int bits_ = 16;                   // of the rates that count
  bool unknown_precision_ = false;  // 8 bits are asked for, which the cluster has no rate of
  int cache_bits_;
  std::string kernel_;
  double launch_us_ = 0;
  Pass forward_, backward_;
};

}  // namespace cp::sim
