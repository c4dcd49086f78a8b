// Plan: everything one rank does, as plain data.
//
// A plan holds no pointer, clock, random number or process state. It is equal for equal inputs on every
// machine. The same plan is checked, executed on the simulated fabric and on real processes, recorded, timed
// on a model of a cluster, and printed.
//
//   groups     communicators: which ranks talk
//   buffers    all memory, declared: the caller's, and temporaries at fixed places in one arena
//   segments   steps in issue order; a Repeat holds the steps of a loop body
//
// A step runs on a stream, after the steps before it on that stream and after the steps its edges name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shared/base/digest.h"
#include "shared/base/dtype.h"
#include "shared/base/types.h"
#include "shared/placement/index_set.h"
#include "shared/plan/row_operations.h"
#include "shared/plan/target.h"

namespace cp {

using BufferId = std::int32_t;  // index into Plan::buffers
using GroupId = std::int32_t;   // index into Plan::groups
using StreamId = std::int32_t;  // 0 .. Plan::streams.size()-1
using StepId = std::int32_t;    // position among all steps of the plan, a Repeat's body counted once

// ---- memory ----

// The caller owns buffers of kind `input`, `output` and `inout`, and binds its memory to them; a `temporary`
// lives in the arena, which the device owns.
enum class BufferKind : std::uint8_t { input, output, inout, temporary };

struct Buffer {
  std::string name;
  BufferKind kind = BufferKind::temporary;
  DType dtype = DType::f32;
  std::int64_t numel = 0;  // all slots together
  // A temporary in the plan's symmetric segment: at one place, and equally large, on all ranks
  // (Plan::symmetric_bytes).
  bool symmetric = false;
  // These are for temporaries only, and PlanBuilder::build() fills them in. A temporary that a Repeat uses
  // lives through all steps of that Repeat; if each iteration reads only what it has written itself, and no
  // other step uses it, it lives anew in each iteration, from its first to its last use (lives.h).
  std::int64_t offset_bytes = 0;         // place in the arena
  StepId first_use = -1, last_use = -1;  // in issue order; -1: never used, and may share bytes with all
  bool operator==(const Buffer&) const = default;
  std::int64_t bytes() const { return numel * size_bytes(dtype); }
};

// How a view moves from one iteration of a Repeat to the next: it lies at
// offset + stride * ((iteration + phase) % period), or without the modulus when period is 0. For example, the
// two slots of a double buffer have period 2, and a stack of layers' weights has period 0.
struct Advance {
  std::int64_t stride = 0, period = 0, phase = 0;
  bool operator==(const Advance&) const = default;
};

// A strided window of a buffer. All numbers count elements. Never a pointer.
struct View {
  BufferId buffer = -1;
  std::int64_t offset = 0;
  Shape shape;
  Shape strides;  // one for each dimension, >= 0; 0 repeats an element and is allowed for reading only
  Advance advance;
  bool operator==(const View&) const = default;
  std::int64_t numel() const { return cp::numel(shape); }
};

// A view of contiguous elements [offset, offset + numel).
View flat_view(BufferId buffer, std::int64_t offset, std::int64_t numel, Advance advance = {});
// A row-major contiguous view of the shape.
View dense_view(BufferId buffer, std::int64_t offset, Shape shape, Advance advance = {});
bool is_contiguous(const View& view);
// Whether an optional operand was left out. Such an operand is View{}, whose buffer is -1.
inline bool is_absent(const View& view) { return view == View{}; }
// Element offset of the view in the given iteration of its Repeat (0 outside of one).
std::int64_t offset_at(const View& view, std::int64_t iteration);

// ---- communication ----

// A communicator. Its name and its ranks together identify it in the whole world, and all its collectives are
// issued on one stream.
//
// What goes through a group with `copy_engine` is moved by the GPUs' copy engines where the library can do
// that, and takes no multiprocessor from what computes. Such a group has no collective that computes, and its
// views lie in symmetric temporaries (copy_engine_rules.h). On a host it is a group as any other.
struct Group {
  std::string name;
  std::vector<Rank> ranks;
  bool copy_engine = false;
  bool operator==(const Group&) const = default;
};

// Views of collectives are contiguous. `n` is the group's size; blocks come in the order of the group's
// ranks. Input and output may be the same memory only in NCCL's in-place forms: AllReduce and Broadcast with
// out == in, AllGather with in == block `index` of out, ReduceScatter with out == block `index` of in.
struct AllGather {  // out: n blocks of in's size
  GroupId group = -1;
  View in, out;
  bool operator==(const AllGather&) const = default;
};
struct ReduceScatter {  // in: n blocks of out's size
  GroupId group = -1;
  ReduceOp op = ReduceOp::sum;
  View in, out;
  bool operator==(const ReduceScatter&) const = default;
};
struct AllReduce {
  GroupId group = -1;
  ReduceOp op = ReduceOp::sum;
  View in, out;
  bool operator==(const AllReduce&) const = default;
};
struct AllToAll {  // in, out: n blocks of equal size
  GroupId group = -1;
  View in, out;
  bool operator==(const AllToAll&) const = default;
};
struct Broadcast {  // in is read at the root only
  GroupId group = -1;
  std::int32_t root = 0;  // index in the group
  View in, out;
  bool operator==(const Broadcast&) const = default;
};

// Every point-to-point transfer is part of an Exchange, which is one group start/end of NCCL. So nobody can
// write a lone send, which could deadlock (contract 4). Several transfers with one peer match in order. Each
// transfer has its own dtype, and none is empty. A rank without transfers still takes part.
//
// In a group with copy_engine, a send is a write into the peer's memory, so it also says where that is:
// `there` is a view of this rank's symmetric temporary that lies where the peer's receiving view does. It is
// absent in receives and in other groups.
struct Transfer {
  std::int32_t peer = -1;  // index in the group; not the rank itself (that is a Copy)
  View view;
  View there = {};
  bool operator==(const Transfer&) const = default;
};
struct Exchange {
  GroupId group = -1;
  std::vector<Transfer> sends, recvs;
  Digest counts;  // of the full matrix of counts (counts_digest), the same on all members
  bool operator==(const Exchange&) const = default;
};

using Collective = std::variant<AllGather, ReduceScatter, AllReduce, AllToAll, Broadcast, Exchange>;

// Digest of an Exchange's count matrix. The caller gives its nonzero entries as (sender index, receiver
// index, elements) in any order; several entries of one pair are added up.
struct Count {
  std::int32_t from = 0, to = 0;
  std::int64_t numel = 0;
  auto operator<=>(const Count&) const = default;
};
Digest counts_digest(std::vector<Count> counts);

// ---- computation ----

struct Copy {  // out = in; shapes have equal numbers of elements, taken row-major
  View in, out;
  bool operator==(const Copy&) const = default;
};
struct Cast {  // out = in converted to out's dtype, round to nearest even
  View in, out;
  bool operator==(const Cast&) const = default;
};
struct Fill {  // out = value
  View out;
  double value = 0;
  bool operator==(const Fill&) const = default;
};
// out = out op in. `op` is never avg, which is written as a sum and then a Scale. A 16-bit `in` may be added
// to an f32 `out`.
struct Accumulate {
  ReduceOp op = ReduceOp::sum;
  View in, out;
  bool operator==(const Accumulate&) const = default;
};
struct Scale {  // data *= factor, in f32 for the 16-bit types
  View data;
  double factor = 1;
  bool operator==(const Scale&) const = default;
};
// out[m,n] = a[m,k] * b[k,n], or += ; row-major 2-D views, strided. Or several such products of one size, as
// a rank's experts have them: a[p,m,k], b[p,k,n] and out[p,m,n] are p pairs of matrices and their products.
struct MatMul {
  View a, b, out;
  bool accumulate = false;
  bool operator==(const MatMul&) const = default;
};
// How many products these are, and one of them, in two dimensions.
std::int64_t num_products(const MatMul& all);
MatMul product_of(const MatMul& all, std::int64_t which);

// One rectangle of a mask in local coordinates: which keys of [k_begin, k_begin + k_len) the queries of
// [q_begin, q_begin + q_len) may see. With query i and key j counted from those begins, a slice allows
//   full     all pairs
//   causal   those with j <= i + diagonal
//   window   those with i + diagonal - window < j <= i + diagonal
// For example, the causal mask of 4 queries that are the last ones of 6 keys has diagonal 2: query 0 sees the
// keys 0, 1 and 2.
struct MaskSlice {
  enum class Kind : std::uint8_t { full, causal, window };
  std::int64_t q_begin = 0, q_len = 0, k_begin = 0, k_len = 0;
  Kind kind = Kind::full;
  std::int64_t diagonal = 0, window = 0;
  bool operator==(const MaskSlice&) const = default;
};
bool allows(const MaskSlice& slice, std::int64_t q, std::int64_t k);  // local coordinates of the views

// Which kernels compute attention.
//   exact   The project's own kernels take any slices and any dtype. Sums and partial results are f32 where
//           the views say so.
//   fused   A library's kernels take the shapes and masks that Target::fused_attention allows
//           (shared/plan/fused_attention.h). Every view but lse has q's dtype, nothing is accumulated, and
//           `workspace` has as many bytes as the library asks for. Nobody reads its contents before the call
//           or after it.
// A device without such a library runs both with the same kernels.
enum class AttentionEngine : std::uint8_t { exact, fused };

// Dropout of weights (context_parallel/problem.h, Dropout), and where the step's rows and heads are among
// all. The step's `seed` has one element or kPlacedSeed: the seed; what is added to `layer`, and to
// `first_batch`.
inline constexpr std::int64_t kPlacedSeed = 3;
struct AttentionDropout {
  double probability = 0;  // 0: none, and all else has its default
  std::int64_t layer = 0;
  // The numbers of the views' first batch entry and first query head, and how many query heads there are.
  std::int64_t first_batch = 0, first_head = 0, heads = 0;
  IndexSet queries, keys;  // the numbers of the rows of q, and of k
  bool operator==(const AttentionDropout&) const = default;
};

// Scaled dot-product attention of some queries against some keys. Views are [batch, seq, heads, head_dim]
// whatever the layout in memory (BSHD and BNSD differ in strides); lse is [batch, heads, seq], f32, natural
// logarithm. kv_heads divides q_heads. Rows that no slice gives a key have out = 0 and lse = -inf.
struct AttentionForward {
  View q, k, v, out, lse;
  double softmax_scale = 1;
  std::vector<MaskSlice> slices;  // disjoint
  AttentionEngine engine = AttentionEngine::exact;
  View workspace = {};  // only a fused step has one
  // A scaled score s becomes softcap * tanh(s / softcap); 0: it stays. Only an exact step has these three.
  double softcap = 0;
  AttentionDropout dropout = {};
  View seed = {};  // of dropout: i64
  bool operator==(const AttentionForward&) const = default;
};
// Gradients of the pairs in `slices`. They are computed from the FINAL lse of the whole row and from
// delta = rowsum(dout * out), which is [batch, heads, seq] in f32 and made by AttentionDelta. A fused step
// computes delta itself from the final `out`, so it has `out` and no `delta`.
//   accumulate_dq    adds to dq instead of overwriting it
//   accumulate_dkv   does the same with dk and dv
// They are two flags because in a ring dq stays at home while dk and dv travel. An exact step may leave out
// gradients that nobody wants (their views are absent), but not all of them.
struct AttentionBackward {
  View q, k, v, dout, lse, delta, dq, dk, dv;
  double softmax_scale = 1;
  std::vector<MaskSlice> slices;
  bool accumulate_dq = false, accumulate_dkv = false;
  View out = {};  // a fused step has `out` and no `delta`, an exact one `delta` and no `out`
  AttentionEngine engine = AttentionEngine::exact;
  View workspace = {};  // only a fused step has one
  double softcap = 0;   // these three as in the forward step
  AttentionDropout dropout = {};
  View seed = {};
  bool operator==(const AttentionBackward&) const = default;
};
struct AttentionDelta {  // delta = rowsum(dout * out)
  View out, dout, delta;
  bool operator==(const AttentionDelta&) const = default;
};
// The gradient of sinks (context_parallel/problem.h), from the final out and lse, which have them:
//   dsinks[h] = - sum over the rows of exp(sinks[h] - lse) rowsum(dout * out)
// out and dout are [batch, seq, heads, head_dim], lse [batch, heads, seq], sinks and dsinks [heads], f32.
struct AttentionSinkGradient {
  View sinks, lse, out, dout, dsinks;
  bool operator==(const AttentionSinkGradient&) const = default;
};
// Brings partial results together. With lse it is the log-sum-exp merge of (out, lse), (in, in_lse) and the
// results in `more`, written to (out, lse). Without any lse it is out += in + more, as for partial gradients.
// Each operand may have a dtype of its own. The step computes in f32, in the order given, and rounds to out's
// dtype once. `in` and `more` together are at most kMostMerged; with lse, `more_lse` is as long as `more`.
struct AttentionMerge {
  View in, in_lse, out, lse;
  std::vector<View> more = {}, more_lse = {};
  bool operator==(const AttentionMerge&) const = default;
};
// Results that one AttentionMerge adds to `out`. Chosen: with `out` they are four streams of memory, and
// `out` is read and written once for three results instead of three times. A larger number would need larger
// argument lists of the GPU's kernel (runtime/cuda/attention_rows.cu).
inline constexpr std::size_t kMostMerged = 3;

// ---- recurrences ----

// How a recurrent layer's state S [key_dim, value_dim] changes with a row. Per batch entry and head, of the
// row's q, k [key_dim], v [value_dim], log_decay and beta:
//   decay   S = exp(log_decay) S + beta k v^T                          (Mamba-2: beta is its time step)
//   delta   S = exp(log_decay) (S - beta k (S^T k)^T) + beta k v^T     (gated delta rule, Yang et al. 2024)
// and then out = scale S^T q. A head of the state has its own v, log_decay and beta; value_heads / key_heads
// neighbouring ones share q and k. In both rules S after some rows is T S0 + (what the rows wrote), with a
// transition T that does not depend on v: a number for decay, a [key_dim, key_dim] matrix for delta.
//
// Views of rows are [batch, rows, key_heads, key_dim], [batch, rows, value_heads, value_dim], and [batch,
// rows, value_heads] in f32 for log_decay and beta; states are [batch, value_heads, key_dim, value_dim] and
// transitions [batch, value_heads, n, n] with n = 1 or key_dim, both f32. q, k, v, out and their gradients
// have one floating dtype; all is computed in f32. Rows come in the order of the sequence.
enum class RecurrenceRule : std::uint8_t { decay, delta };

// `state` is S before the first row; absent: zeros. `starts` are the rows, ascending and not 0, before which
// S becomes zeros, since a document begins there. `final_state` is S behind the last row; absent: nobody
// wants it. It may be the same view as `state`, which is then updated in place.
struct RecurrenceForward {
  View q, k, v, log_decay, beta, state, out;
  std::vector<std::int64_t> starts;
  double scale = 1;
  RecurrenceRule rule = RecurrenceRule::decay;
  View final_state = {};
  bool operator==(const RecurrenceForward&) const = default;
};
// What some rows make of a state: `state` is S behind the last one if it was zeros before the first, and
// `transition`, which may be absent, is T.
struct RecurrenceSummary {
  View k, v, log_decay, beta, state, transition;
  RecurrenceRule rule = RecurrenceRule::decay;
  bool operator==(const RecurrenceSummary&) const = default;
};
// The same for the way back: the gradient of S before the first row, of the rows' own outputs alone.
struct RecurrenceSummaryGradient {
  View q, k, log_decay, beta, dout, dstate;
  double scale = 1;
  RecurrenceRule rule = RecurrenceRule::decay;
  bool operator==(const RecurrenceSummaryGradient&) const = default;
};
// out += transition in, or with its transpose, as gradients want it; out = ... if it does not accumulate. So
// states go on, and transitions ([.., n, n] in `in` and `out`) become one of more rows.
struct RecurrenceJoin {
  View transition, in, out;
  bool accumulate = false, transposed = false;
  bool operator==(const RecurrenceJoin&) const = default;
};
// Gradients of all inputs. `state` is as in the forward step; `dstate` is the gradient of S behind the last
// row, absent: zeros. The states of the rows are computed once more. The contents of `workspace` (f32) are
// nobody else's; a kernel works on as many heads at once as it holds (shared/plan/recurrence_rules.h).
struct RecurrenceBackward {
  View q, k, v, log_decay, beta, state, dout, dstate, dq, dk, dv, dlog_decay, dbeta, workspace;
  std::vector<std::int64_t> starts;
  double scale = 1;
  RecurrenceRule rule = RecurrenceRule::decay;
  bool operator==(const RecurrenceBackward&) const = default;
};

// ---- rows ----

// Kernels that work on rows one by one, or move whole rows: a transformer needs them beside products and
// attention. row_operations.h says of each operation which views it has, in which order, and what it
// computes.
struct RowKernel {  // at least one view is written or updated
  RowOperation operation = RowOperation::rms_norm;
  std::vector<View> reads, writes, updates;  // updates: read and written
  RowRule rule = {};
  bool operator==(const RowKernel&) const = default;
};

using Kernel =
    std::variant<Copy, Cast, Fill, Accumulate, Scale, MatMul, AttentionForward, AttentionBackward,
                 AttentionDelta, AttentionSinkGradient, AttentionMerge, RecurrenceForward, RecurrenceSummary,
                 RecurrenceSummaryGradient, RecurrenceJoin, RecurrenceBackward, RowKernel>;

// ---- steps ----

using Work = std::variant<Kernel, Collective>;

// An edge says: wait for the step `step`, as it ran `iterations_back` iterations of the enclosing Repeat ago.
// In the first iterations, where there was no such iteration, it waits for nothing. A step behind a Repeat
// that names a step of its body waits for that step's last iteration. A step of the body that names a step
// before the Repeat waits for just that step, in every iteration.
struct Edge {
  StepId step = -1;
  std::int32_t iterations_back = 0;
  auto operator<=>(const Edge&) const = default;
};

struct Step {
  StreamId stream = 0;
  Work work;
  std::vector<Edge> after;  // steps of OTHER streams; the order within a stream is implied
  std::string label;        // for people; it is no part of the plan's meaning
  bool operator==(const Step&) const = default;
};

struct Repeat {
  std::int64_t count = 1;
  std::vector<Step> steps;
  bool operator==(const Repeat&) const = default;
};

using Segment = std::variant<Step, Repeat>;

struct Plan {
  Rank self = 0;
  Target target;
  std::vector<Group> groups;
  std::vector<Buffer> buffers;
  std::vector<std::string> streams;  // names
  std::vector<Segment> segments;
  std::int64_t arena_bytes = 0;  // of the temporaries
  // The arena begins with the symmetric segment, where each symmetric temporary has the same place on all
  // ranks. A device may keep the segment apart from the rest. 0: there is none.
  std::int64_t symmetric_bytes = 0;
  Digest inputs;  // of what the builder was given: equal on all ranks
  bool operator==(const Plan&) const = default;
};

// ---- looking at plans ----

// "all_gather", "copy", ...: the name in Targets, traces and messages.
std::string_view operation_name(const Work& work);
// Whether the kernel lacks the rule that it is computed by (row_operations.h).
bool is_shape_only(const RowKernel& kernel);
// The operation's name, and whether it has shapes only: "short_convolution without a rule".
std::string operation_words(const Work& work);
bool has_operation(const Target& target, const Work& work);
bool is_collective(const Step& step);
GroupId group_of(const Collective& collective);

// The views that a step reads and writes. It does both with a view that it accumulates to (as Accumulate and
// Scale do). `index_in_group` matters only for a Broadcast, which reads its input at the root alone.
struct Access {
  const View* view = nullptr;
  bool reads = false, writes = false;
};
std::vector<Access> accesses(const Work& work, std::int32_t index_in_group = 0);

// Bytes that a rank sends to each member of the group and receives from it, by index in the group; 0 for the
// rank itself. This is a collective's nominal volume, which does not depend on the library's algorithm. For
// AllGather, AllToAll, Broadcast and Exchange it is what each peer gets; for an AllReduce it is the whole
// buffer for each peer, and for a ReduceScatter the block.
struct Volume {
  std::vector<std::int64_t> sent, received;
  bool operator==(const Volume&) const = default;
};
Volume volume(const Collective& collective, const Plan& plan);

// All steps in order. The steps of a Repeat's body come once, with the count of the Repeat; others have count
// 1. The references point into the plan, which must outlive them.
struct StepRef {
  const Step* step = nullptr;
  StepId id = -1;
  std::int64_t count = 1;
  std::int32_t segment = -1;
};
std::vector<StepRef> steps_of(const Plan& plan);
std::vector<StepRef> steps_of(Plan&& plan) = delete;

// The index of plan.self in the group. Throws InvalidInput if it is not a member.
std::int32_t index_in_group(const Plan& plan, GroupId group);

// The most memory that the plan uses: the bytes of its arena and of all buffers of the caller.
std::int64_t peak_bytes(const Plan& plan);

// Digest of the whole plan without labels and names of buffers and streams.
Digest digest(const Plan& plan);
// Digest of the canonical sequence of collectives on a group: operation, dtype, reduction, root, counts and
// repeats. It is equal on all members of the group, which compare it over the control plane before they use a
// plan for the first time (contract 2).
Digest collective_digest(const Plan& plan, GroupId group);

// A readable text with one line for each step. Reading it gives the same plan again, labels and names
// included: parse_plan(to_text(p)) == p. parse_plan throws InvalidInput for a text that is no plan.
std::string to_text(const Plan& plan);
Plan parse_plan(std::string_view text);

}  // namespace cp
