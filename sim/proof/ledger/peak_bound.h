// What a rank of a strategy may need at most, from the parts that it holds and the words of the strategies: a
// closed bound beside the exact number that a plan declares.
#pragma once

#include <cstdint>

#include "shared/context_parallel/attention_plan.h"

namespace cp::sim {

// Bytes of the caller's buffers and of all temporaries, of the cp rank number `index`. With Q, K, O the bytes
// of the query rows, of the K and V rows and of the output that a rank computes on (the largest of all
// ranks), in the problem's dtype, and Qf, Kf, Of the same in f32:
//
//   moves    (Ulysses, head_tail_exchange) what arrives, packed and unpacked: 3 (Q + K + O), and 3 lse that
//            come home
//   gathered all K and V, packed once more at home (need_only: for each user): K of all ranks + K.  Backward:
//   the same of dK and dV in f32, once
//            for what is computed, once for what arrives, and home sums: 2 x all + 3 Kf; and dQ: Qf
//   ring     two blocks of K and V, on two levels in a double ring.  Backward: five blocks of dK and dV under way, and
//            home sums: 8 Kf for each level; and dQ: Qf
//   pass_q   two blocks of queries, with dout, lse and delta backward; partial outputs or dQ of all ranks,
//            sent and
//            arrived.  Backward: home sums Kf, dQ twice
//   merging  the sum and one part: 2 (Of + lse); backward delta
//   fused    of a call: its output and lse, a sum of several in f32, and backward dQ, dK and dV likewise, of
//            all K and V where they are gathered, once more where they are rounded; lse of its rows; the
//            greatest workspace. pass_q takes out along
// where dq, dk and dv count as far as they are asked for, but for fused calls, which write all three,
// and what places in the arena lose by the target's alignment, for each of the plan's temporaries. The plan
// is asked for its target and the number of these alone.
std::int64_t peak_bound_bytes(const AttentionRequest& request, AttentionPass pass, int index,
                              const Plan& plan);

}  // namespace cp::sim
