// Says how much memory a rank of a strategy may need at most, from the parts that it holds and the words of
// the strategies. It is a bound in closed form, to hold beside the exact number that a plan declares.
#pragma once

#include <cstdint>

#include "shared/context_parallel/attention_plan.h"

namespace cp::sim {

// The bound in bytes, of the caller's buffers and all temporaries of the cp rank number `index`. Let Q, K and
// O be the bytes, in the problem's dtype, of the query rows, of the K and V rows and of the output that a
// rank computes on (the largest of all ranks), and Qf, Kf and Of the same in f32. The bound is the sum of:
//
//   moves     (Ulysses, head_tail_exchange) what arrives, packed and unpacked: 3 (Q + K + O), and 3 lse that
//             come home
//   gathered  all K and V, packed once more at home (need_only: for each user): K of all ranks + K. Backward:
//             the same of dK and dV in f32, once for what is computed and once for what arrives, and home
//             sums: 2 x all + 3 Kf; and dQ: Qf
//   ring      two blocks of K and V, on two levels in a double ring. Backward: five blocks of dK and dV under
//             way, and home sums: 8 Kf for each level; and dQ: Qf
//   pass_q    two blocks of queries, backward with dout, lse and delta; partial outputs or dQ of all ranks,
//             sent and arrived. Backward: home sums Kf, and dQ twice
//   merging   the sum and one part: 2 (Of + lse); backward delta
//   fused     for a call: its output and lse, a sum of several in f32, and backward dQ, dK and dV likewise;
//             of all K and V if they are gathered, and once more if they are rounded; lse of its rows; the
//             greatest workspace. pass_q takes out along
//   latent    where latent rows travel, K is those rows wherever it moves; and expanded and not yet
//             contracted are at any time, for the heads of the rank, all rows that are gathered, or those of
//             one block: keys once and, as they come from the product, keys without rotated part and values;
//             backward twice that, and rotated parts in f32. Where heads travel, the same of the rows at home
//             and all heads. Then, and for fused calls, values are there once more
//   places    what places in the arena lose by the target's alignment, for each of the plan's temporaries
//
// dq, dk and dv count only if they are asked for; but fused calls write all three. Of the plan, only its
// target and the number of its temporaries are used.
std::int64_t peak_bound_bytes(const AttentionRequest& request, AttentionPass pass, int index,
                              const Plan& plan);

}  // namespace cp::sim
