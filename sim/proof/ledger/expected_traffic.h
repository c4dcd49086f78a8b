// Says what every rank must receive, by the words of the strategies alone: from the parts that the ranks hold
// and the mask, by counting rows. Nothing here looks at a plan.
//
// Parts are those where the ranks compute. A pair is the queries of one ring index and the keys of another;
// it counts only if the mask allows any of its cells.
//
//   ulysses      q, k, v of the whole Ulysses group come, for the rank's heads; out comes back, and lse if it
//                is asked for at home. Backward: dout comes, and dq, dk and dv come back. A kv head that
//                several ranks compute with goes to each of them, and comes back from each: then dk and dv
//                are partial, else final.
//   head_tail_exchange  comes then: the query rows that the rank computes without owning them, and the rows
//                of out (and lse) that it owns and others computed. Backward: dout comes, and dq comes back.
//   all_gather   all K and V come. Backward: the same; and dK and dV of the rank's own rows from all others.
//   ring         a block of K and V goes from rank to rank as far as the last one that makes a pair with it.
//                Backward: the same, in whichever direction takes fewer bytes (if they are equal, to lower
//                ranks); dK and dV start at the first foreign rank that makes a pair, travel along, and go
//                home from the last one straight.
//   double ring  K and V go round the nodes at equal position, as far as the last node with a rank that makes
//                a pair, and in each node round its ring. Backward: dK and dV go in each node to the position
//                of their home as in a ring, and from there home straight. Both directions are chosen as in a
//                ring.
//   need_only    the rows of K and V come that some query of the rank may see. Backward: the same; dK and dV
//                of these rows go home.
//   pass_q       a block of queries, backward with dout, lse and delta, goes round as K and V do in a ring,
//                in whichever direction takes fewer bytes (if they are equal, to higher ranks); partial out
//                and lse, or partial dQ, come straight home from every rank that makes a pair. If fused
//                attention is used, which makes delta itself, out comes instead of delta.
//   gradients    those of dq, dk and dv that are not asked for do not travel.
//   latent rows  travel as what they are, one head that everybody gets whole, wherever k and v would, and so
//                do their gradients, which are parts wherever they go; or heads travel, as above. Then the
//                rotated part of a key is an element of its latent row, and counts as that.
//   send_empty   blocks of a ring and of pass_q go all the way round, and in a ring dK and dV with them.
#pragma once

#include <vector>

#include "shared/context_parallel/attention_plan.h"
#include "sim/proof/ledger/shadow_run.h"

namespace cp::sim {

// What each cp rank must receive in a pass, in the order of request.ranks. `fused` is uses_fused_attention()
// of the plans' target.
std::vector<Received> expected_traffic(const AttentionRequest& request, AttentionPass pass, bool fused);

// What travels in place of keys and values: what the strategy says; else whichever moves fewer bytes by these
// counts over the passes that there are (both if the forward pass keeps what the backward pass needs), and
// heads if both move the same or if latent rows are refused. Heads without latent rows.
Strategy::Keys keys_of_fewest_bytes(const AttentionRequest& request);

// What a rank adds to the gradient of the weight of latent rows. Where heads travel, it contracts the
// finished gradients of its keys at home. Where rows travel, it contracts what its queries and heads make of
// the keys that come by; but if queries come by instead, what its heads and all of these make of the keys
// that it computes on.
struct WeightShare {
  // The rows are queries, with all keys; else keys, with all queries.
  bool of_queries = false;
  IndexSet rows;
  std::int64_t head_begin = 0, head_end = 0;  // of queries
};
WeightShare weight_share(const AttentionRequest& request, const AttentionSharding& sharding, int index);

}  // namespace cp::sim
