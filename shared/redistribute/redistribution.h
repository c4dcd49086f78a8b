// Redistribution describes how a distributed tensor gets from one layout to another, as a chain of moves.
//
// plan_redistribution() finds the cheapest chain; lower() (lower.h) writes it down as a Plan for one rank.
// The layouts may be on the same mesh, on different meshes over the same ranks, or on different sets of
// ranks. A rank outside of the source mesh holds nothing before the move, and a rank outside of the target
// mesh holds nothing after it.
//
// Candidate moves, each along one mesh axis or merged over several:
//   slice            Replicate → Shard, local
//   all_gather       innermost Shard axes of any dims → Replicate
//   all_to_all       innermost Shard axes of one dim → innermost of another
//   reduce_scatter   Partial → Shard
//   all_reduce       Partial → Replicate
//   exchange         a permutation (every dim stays split into as many parts), or straight to the target;
//                    nothing is reduced
//   reduce_exchange  as reduce_scatter, or straight to the target, in rounds of Exchange and Accumulate:
//                    little memory
//   to_partial       Replicate → Partial, or Shard → Partial(sum), local: one rank of the axis, or each with
//                    its part, holds the value, the others what the reduction leaves alone
//
// A chain ends in the target, or in a layout with the same index sets. Between meshes the chain works on the
// source's mesh, crosses in one exchange (to the target, or to a layout that splits the target further, over
// axes where the target is replicated) or one reduce_exchange (to the target), and may go on there.
//
// What travels. A piece is what an old shard and a new one share. Where several ranks hold a piece, a
// receiver that holds it keeps it; else it comes from the holder whose coordinates agree with the receiver's
// on the slowest axes that they can: compared axis by axis from the first one, agreeing beats differing.
// Among equals (between meshes) it comes from number (receiver's position % number of equals), positions
// being indices in the source's mesh, then those of further ranks of the target's in its order. Ranks that
// hold the same index sets count as one receiver's box: a sender packs a piece for such a box once.
//
// Staging. In a collective with equal counts all blocks are as large as the largest piece of the group. A
// rank packs unless its old shard is, in memory, just the blocks in the group's order (for all_gather: one
// block), and unpacks unless its new shard is. In an exchange a rank packs all that it sends as soon as one
// piece is not contiguous in its old shard, and receives everything into staging as soon as one is not
// contiguous in its new one. A reduce_exchange works in rounds: in round k members send to the member k
// places on; packing (one piece, where not contiguous) and arrival (always) each reuse one area as large as
// the rank's largest piece.
//
// Memory. M is the largest source or target shard of any rank in bytes (a Partial shard counts its full
// local size). Temporaries (intermediate shards, staging, padding) never exceed max_memory_factor x 2M on
// any rank. Alive together are: packing: old shard and packed staging; travelling: packed staging (or the
// old shard) and received staging (or the new shard); unpacking: received staging and the new shard; where
// the caller's source and target count nothing. An exchange between two temporaries moves the part that
// stays on the rank through the staging, too. A rank that has nothing to send, or nothing to receive, needs
// no shard for it while others exchange. An all_reduce between temporaries is in place; a local move has
// both shards alive. A reduce_exchange holds each of the four as long as its rounds need it: the old shard
// until its last piece is packed or sent, the packed staging from the first packing to the last exchange of
// what was packed, the received staging from the first arrival to the last accumulation, the new shard from
// its first contribution on (the rank's own comes first).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/placement/layout.h"
#include "shared/redistribute/cost_model.h"

namespace cp {

enum class MoveKind : std::uint8_t {
  slice,
  all_gather,
  all_to_all,
  reduce_scatter,
  all_reduce,
  exchange,
  reduce_exchange,
  to_partial,
};
std::string_view name(MoveKind kind);

// One move between two layouts of the tensor. `axes`: the mesh axes of `from` along which ranks communicate
// (all of them for an exchange), empty for local moves and between meshes.
struct Move {
  MoveKind kind = MoveKind::slice;
  std::vector<int> axes;
  Layout from, to;
};

struct RedistributionStep {
  Move move;
  double time_us = 0;                          // of the slowest rank in this step
  std::int64_t bytes_received_max = 0;         // payload, largest over the ranks
  std::int64_t bytes_received_total = 0;       // payload, sum over the ranks
  std::int64_t wire_bytes_received_total = 0;  // with padding
  std::int64_t temporary_bytes_max = 0;        // live temporaries, largest over the ranks
};

// How a Replicate becomes a Partial(sum). The other reductions need no rule: all ranks may keep the value for
// avg, min and max, and for a product the first rank keeps it and the others hold ones.
enum class PartialRule : std::uint8_t {
  first_keeps,  // the first rank of the axis keeps the value and the others hold zero: exact for every dtype
  divide,       // everybody holds value / n, as in PyTorch: for floating types only
};

// Of what the best chain has least.
//   time    Ties are broken by the bytes on the wire.
//   bytes   These are the bytes on the wire, with padding, of the rank that receives most in each step. Ties
//           are broken by the bytes of all ranks, then by peak memory, then by time.
enum class Objective : std::uint8_t { time, bytes };

struct Redistribution {
  Layout source, target;
  // What the moves carry; casts before and after where source or target differ.
  DType travel_dtype = DType::f32;
  PartialRule partial_rule = PartialRule::first_keeps;
  std::vector<RedistributionStep> steps;  // empty when the layouts are equivalent
  double time_us = 0;                     // sum over the steps: each is over when its slowest rank is
  std::int64_t bytes_received_max = 0;    // payload: sum over the steps of the most that a rank receives
  std::int64_t bytes_received_total = 0;  // payload: sum over steps and ranks
  // With padding: sum over the steps of the most that a rank receives.
  std::int64_t wire_bytes_received_max = 0;
  std::int64_t peak_bytes = 0;   // exact: source + target + temporaries, largest over the ranks
  std::int64_t bound_bytes = 0;  // source + target + max_memory_factor x 2M, largest over the ranks
  // By the objective, in microseconds or bytes, no chain of moves that keeps the memory bound is better than
  // this. It is the plan's own figure if the plan is proven to be the best, and less if there were too many
  // layouts to try all.
  double least_possible = 0;
  Objective objective = Objective::time;
  Digest inputs;  // of layouts and options

  // How far from the best the plan may be: it takes at most this many times the best one's time, or bytes. 1
  // means that it is the best.
  double times_the_best() const;
};

struct RedistributeOptions {
  CostModel cost;
  Objective objective = Objective::time;
  double max_memory_factor = 1;
  std::optional<DType> travel_dtype;  // default: the target's dtype
  PartialRule partial_rule = PartialRule::first_keeps;
};
// Adds every field. The result is part of the digest of a plan's inputs, and of the keys by which callers
// keep plans.
Hasher& hash(Hasher& hasher, const RedistributeOptions& options);

// No chain was found that keeps the memory bound.
class MemoryBoundTooTight : public Infeasible {
 public:
  MemoryBoundTooTight(const std::string& message, double factor_that_works)
      : Infeasible(message), factor_that_works_(factor_that_works) {}
  // The smallest max_memory_factor that was found to work, rounded up to thousandths: planning with it gives
  // a chain.
  double factor_that_works() const { return factor_that_works_; }

 private:
  double factor_that_works_;
};

// The best chain by the objective, if there are few enough layouts to try all; that is so for most requests
// on up to four axes. Otherwise it is the best of the chains that source and target suggest, with a bound on
// how far from the best it may be (Redistribution::least_possible). The search takes less than a second and
// 256 MiB for 16,384 ranks on any axes. The result is the same every time: last ties are broken by fewer
// steps, then by the order of the moves as listed above. Throws InvalidInput for an illegal request (the
// message says which axis asks for what and why), MemoryBoundTooTight if no chain keeps the memory bound, and
// Infeasible if an index set would have more runs than it may (index_set.h).
Redistribution plan_redistribution(const Layout& source, const Layout& target,
                                   const RedistributeOptions& options = {});

// All chains that no other beats in both time and peak memory, fastest first.
std::vector<Redistribution> pareto_redistributions(const Layout& source, const Layout& target,
                                                   const RedistributeOptions& options = {});

// What a given chain of moves from source to target takes, for comparisons. The memory bound is reported, but
// not enforced. Each move must begin where the one before ended. Throws InvalidInput if the moves do not lead
// from the source to the target so, or if they use a split that neither source nor target has.
Redistribution follow_moves(const Layout& source, const Layout& target, std::span<const Move> moves,
                            const RedistributeOptions& options = {});

// Throws InvalidInput if no plan could make the request legal: if shapes or types differ, or if it asks for
// one reduction to become another.
void validate_redistribution(const Layout& source, const Layout& target, const RedistributeOptions& options);

}  // namespace cp
