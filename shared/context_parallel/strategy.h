// Strategy says how attention over a sequence that is split across ranks is computed; refuse() says which
// combinations are legal.
//
// The cp ranks form a grid of ring_size x ulysses_degree. Along the Ulysses axis an all-to-all trades rows
// for heads (DeepSpeed-Ulysses, Jacobs et al. 2023); along the ring axis the `core` brings keys and queries
// together. ulysses_degree == cp is plain Ulysses, ulysses_degree == 1 the core alone; what lies between is
// the hybrid (USP, Fang and Zhao 2024; HyperParallel's co x ds mesh).
//
// What travels, and where to:
//   ring      In the forward pass, K and V blocks go from ring index r to r+1, as far as the last rank that
//             has an allowed pair with them. In the backward pass they rotate in the direction that takes
//             fewer bytes, or to r-1 if both take the same. The partial dK and dV of a block begin at the
//             first other rank that has pairs with it. They follow the block, and go straight home from the
//             last rank, while the home's own part waits there.
//             A double ring does the same inside each inner ring, where one rank is the block's home, and
//             between these homes along the outer ring. Their partial dK and dV go straight home.
//   pass_q    The queries travel instead (with dout, lse and delta in the backward pass), in the direction
//             that takes fewer bytes, or to r+1 if both take the same. Partial outputs, or dQ, go home by one
//             all-to-all at the end.
//   all_gather, need_only, Ulysses, head_tail_exchange: what a rank lacks comes straight from its home.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/digest.h"
#include "shared/context_parallel/problem.h"
#include "shared/plan/target.h"

namespace cp {

enum class Core : std::uint8_t {
  all_gather,  // every rank gathers all K and V (Colossal-AI; Llama 3)
  ring,        // K and V blocks rotate (Liu et al. 2023)
  need_only,   // every rank gets just the K and V rows that its queries may see
  pass_q,  // queries rotate, partial outputs come home (Yang et al. 2024, "Context Parallelism for Scalable
           // Million-Token Inference")
};

std::string_view name(Core core);  // "all_gather", "ring", ...; more of each in cores.h

// How the sequence is split along the ring axis, which decides how even the work is under a mask.
struct Balance {
  enum class Kind : std::uint8_t {
    contiguous,
    head_tail,  // zigzag: parts r and 2n-1-r of 2n
    striped,    // blocks of `block`, dealt in turn (Brandon et al. 2023)
    cost,  // blocks of `block` queries, dealt by their number of allowed cells, in all batch entries together
    // K and V contiguous at home, and Q too; each rank computes the first half of its own queries and the
    // second half of those of rank n-1-r, which are exchanged and whose outputs are given back
    // (HyperParallel).
    head_tail_exchange,
  };
  Kind kind = Kind::contiguous;
  std::int64_t block = 1;  // striped, cost
  // For contiguous, head_tail and striped: each document is split on its own (MindSpeed). The rows of all
  // batch entries are split alike; so if the entries have documents of their own, what is split is each piece
  // between neighbouring boundaries of all of them.
  bool per_document = false;
  bool operator==(const Balance&) const = default;
};
// The texts are "contiguous" (or "none"), "head_tail", "striped:16", "cost:64", "head_tail_exchange" and
// "per_document:head_tail". Without a number, striped has blocks of 1 and cost has blocks of 64.
// parse_balance throws InvalidInput that lists them.
std::string to_string(const Balance& balance);
Balance parse_balance(std::string_view text);

// Places for blocks that arrive: one is computed on while the next one fills, so no fewer than two; a fourth
// could only hold what nobody waits for.
inline constexpr int kLeastSlots = 2, kMostSlots = 3;

struct Strategy {
  Core core = Core::ring;
  int ulysses_degree = 1;
  // Neighbouring ranks form a Ulysses group (true: HyperParallel, USP) or a ring.
  bool ulysses_inner = true;
  // Ring of rings (LoongTrain, Gu et al. 2024): this many neighbours on the ring axis form an inner ring, and
  // the inner rings pass their blocks on along an outer one. 1: a plain ring.
  int inner_ring = 1;
  enum class Rotation : std::uint8_t { exchange, all_gather };
  // Of the ring; all_gather: all blocks at once, then used one by one.
  Rotation rotation = Rotation::exchange;
  Balance balance;
  bool input_dtype_gradients = false;  // partial dQ, dK and dV travel in the problem's dtype instead of f32
  bool input_dtype_merge = false;      // partial outputs are kept and merged in the problem's dtype, not f32
  bool send_empty = false;             // ring, pass_q: also send blocks that nobody further on needs
  // ring, pass_q: the places into which blocks arrive in turn. With 2, the next block may come only when the
  // attention of the step before has ended, and so becomes ready together with that of this step: on a GPU,
  // attention may then take all multiprocessors first, and the transfer waits for it. With 3, the transfer is
  // ready a whole step earlier. It costs one more block of memory.
  int slots = kLeastSlots;
  // What comes at once, by Ulysses or to the cores that gather, may come in this many pieces of whole kv
  // heads with the query heads that they serve: while attention runs on one piece, the next one travels, and
  // what the one before made is on its way home. With 1, everything is there before attention begins.
  int pieces = 1;
  // What moves K, V, Q and results from rank to rank on a GPU: its multiprocessors, or its copy engines,
  // which leave all multiprocessors to attention. Copy engines take all_gather, all_to_all and the blocks of
  // a ring, from and to memory that has one place on all ranks. What is added up on its way (partial dK and
  // dV) stays with the multiprocessors.
  enum class Transfers : std::uint8_t { sm, copy_engine };
  Transfers transfers = Transfers::sm;
  // Where partial results (out with lse, dq, dk, dv) are put together: in turn with attention, on its stream,
  // or beside the attention of the next step, on a stream of their own. Beside it a part waits for its merge
  // in one of a few places that are used in turn (part_pool.h), which costs one more part of memory.
  enum class Merges : std::uint8_t { in_turn, beside };
  Merges merges = Merges::in_turn;
  // Of a problem with latent rows: what travels in place of K and V. `heads`: each rank expands the rows at
  // its home, and K and V travel as without latent rows. `latent`: the rows themselves travel, and each rank
  // expands what arrives for the heads that it computes on; gradients of the rows travel back.
  // `fewer_bytes`: whichever of both moves less (travelling_keys.h).
  enum class Keys : std::uint8_t { fewer_bytes, heads, latent };
  Keys keys = Keys::fewer_bytes;
  bool operator==(const Strategy&) const = default;
};

// "sm" and "copy_engine".
std::string_view name(Strategy::Transfers transfers);
// "in_turn" and "beside".
std::string_view name(Strategy::Merges merges);
// "fewer_bytes", "heads" and "latent".
std::string_view name(Strategy::Keys keys);
Strategy::Keys parse_keys(std::string_view text);  // throws InvalidInput that lists them
// The stream of merges beside attention.
inline constexpr std::string_view kMergeStream = "merge";

// A text for people: "ring head_tail", "ulysses(4) x ring striped:1", "double_ring(4) contiguous". If `cp` is
// given and Ulysses takes all of it, the core has nothing to do and is not named: "ulysses(8) contiguous".
std::string to_string(const Strategy& strategy, int cp = 0);
Hasher& hash(Hasher& hasher, const Strategy& strategy);

// Ulysses alone, on all of the ranks: no core has anything to do, and texts name none.
Strategy whole_ulysses(int cp);

// ---- names ----

// The strategies by the names of the command line, on `cp` ranks:
//   ulysses, all_gather, ring, double_ring, need_only, pass_q, ulysses_all_gather, ulysses_ring
// whole Ulysses and what the rows of the cores name (cores.h). If the hybrids' degree or the size of the
// inner ring is not given, it is the largest divisor of cp that is at most the square root of cp; a hybrid's
// degree is also at most q_heads. For example, on 8 ranks both are 2. Throws InvalidInput that names the
// nearest strategy.
struct StrategyRequest {
  std::string name = "ring";
  std::optional<int> ulysses_degree, inner_ring;
};
Strategy named_strategy(const StrategyRequest& request, const AttentionProblem& problem, int cp);
const std::vector<std::string>& strategy_names();
// Whether that name is of a core between Ulysses groups, so that a degree is to be chosen; of a ring of inner
// rings, so that their size is.
bool is_hybrid(std::string_view name);
bool has_inner_rings(std::string_view name);

// Every strategy on `cp` ranks, with the balances and variants that its systems use. These are what is
// compared when a user asks for all. Some of them may not be legal for the problem.
std::vector<Strategy> standard_strategies(const AttentionProblem& problem, int cp);

// ---- legality ----

// Why a combination cannot run, and the nearest one that can.
struct Refusal {
  std::string reason;  // with the values, the reason and the alternative in words
  AttentionProblem problem;
  Strategy strategy;
};

// The one answer to "is this legal?", which the command line, the planner and the tests use. It refuses only
//   - features that kernels of other systems have and none here does (kernel_options.h),
//   - a dtype that no kernel of the target has,
//   - fewer query heads than ulysses_degree,
//   - degrees (ulysses_degree, inner_ring) that do not divide the ranks,
//   - slots other than 2 or 3, and more pieces than most_pieces(),
//   - transfers by copy engines that nothing would use, that the target's library lacks, or whose blocks are
//     not all equally large where they come at once,
//   - a choice of travelling keys without latent rows, and latent rows that travel in pieces of heads, which
//     they have none of, or where no keys travel.
// It never refuses a length, documents, a window, kv_heads or a balance but for copy engines. Throws
// InvalidInput if the problem itself makes no sense (validate_problem, cp < 1, a block < 1).
std::optional<Refusal> refuse(const AttentionProblem& problem, int cp, const Strategy& strategy,
                              const Target& target = host_target());

// The most pieces in which the strategy can move what it moves: the fewest kv heads that any rank computes
// on; 1 where nothing comes at once (a ring or pass_q without Ulysses, a single rank). The degrees must be
// legal.
int most_pieces(const AttentionProblem& problem, int cp, const Strategy& strategy);

}  // namespace cp
