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
#include "shared/plan/target.h"

namespace cp {

using BufferId = std::int32_t;  // index into Plan::buffers
using GroupId = std::int32_t;   // index into Plan::groups
using StreamId = std::int32_t;  // 0 .. Plan::streams.size()-1
using StepId = std::int32_t;    // position among all steps of the plan, a Repeat's body counted once

// ---- memory
// ---------------------------------------------------------------------------------------------------------

// `input`, `output` and `inout` belong to the caller (bindings); `temporary` lives in the arena.
enum class BufferKind : std::uint8_t { input, output, inout, temporary };

struct Buffer {
  std::string name;
  BufferKind kind = BufferKind::temporary;
  DType dtype = DType::f32;
  std::int64_t numel = 0;  // all slots together
  // Temporaries only, filled by PlanBuilder::build(). One that a Repeat uses lives through all its steps.
  std::int64_t offset_bytes = 0;         // place in the arena
  StepId first_use = -1, last_use = -1;  // in issue order; -1: never used, and may share bytes with all
  bool operator==(const Buffer&) const = default;
  std::int64_t bytes() const { return numel * size_bytes(dtype); }
};

// How a view moves from one iteration of a Repeat to the next: it lies at offset + stride * ((iteration +
// phase) % period), without the modulus when period is 0. Slots of a double buffer have period 2; a stack of
// layers' weights has period 0.
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
// An operand that an operation can do without and has not: View{}, of buffer -1.
inline bool is_absent(const View& view) { return view == View{}; }
// Element offset of the view in the given iteration of its Repeat (0 outside of one).
std::int64_t offset_at(const View& view, std::int64_t iteration);

// ---- communication
// --------------------------------------------------------------------------------------------------

// A communicator: (name, ranks) identifies it in the whole world. All its collectives are issued on one
// stream.
struct Group {
  std::string name;
  std::vector<Rank> ranks;
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

// Every point-to-point transfer is part of an Exchange: one group start/end, so that a lone send, which could
// deadlock, cannot be written (contract 4). Several transfers with one peer match in order; each has its own dtype, and
// none is empty. A rank without transfers still takes part.
struct Transfer {
  std::int32_t peer = -1;  // index in the group; not the rank itself (that is a Copy)
  View view;
  bool operator==(const Transfer&) const = default;
};
struct Exchange {
  GroupId group = -1;
  std::vector<Transfer> sends, recvs;
  Digest counts;  // of the full matrix of counts (counts_digest), the same on all members
  bool operator==(const Exchange&) const = default;
};

using Collective = std::variant<AllGather, ReduceScatter, AllReduce, AllToAll, Broadcast, Exchange>;

// Digest of an Exchange's count matrix: its nonzero entries as (sender index, receiver index, elements), given in any
// order; several transfers of one pair add up.
struct Count {
  std::int32_t from = 0, to = 0;
  std::int64_t numel = 0;
  auto operator<=>(const Count&) const = default;
};
Digest counts_digest(std::vector<Count> counts);

// ---- computation
// ----------------------------------------------------------------------------------------------------

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
struct
    Accumulate {  // out = out op in; op is not avg (that is sum, then Scale). A 16-bit `in` may be added to an f32 `out`
  ReduceOp op = ReduceOp::sum;
  View in, out;
  bool operator==(const Accumulate&) const = default;
};
struct Scale {  // data *= factor, in f32 for the 16-bit types
  View data;
  double factor = 1;
  bool operator==(const Scale&) const = default;
};
struct MatMul {  // out[m,n] = a[m,k] * b[k,n], or += ; row-major 2-D views, strided
  View a, b, out;
  bool accumulate = false;
  bool operator==(const MatMul&) const = default;
};

// One rectangle of a mask in local coordinates: which keys of [k_begin, k_begin + k_len) the queries of
// [q_begin, q_begin + q_len) may see. With i and j counted from those begins:
//   full     all;    causal   j <= i + diagonal;    window   i + diagonal - window < j <= i + diagonal.
struct MaskSlice {
  enum class Kind : std::uint8_t { full, causal, window };
  std::int64_t q_begin = 0, q_len = 0, k_begin = 0, k_len = 0;
  Kind kind = Kind::full;
  std::int64_t diagonal = 0, window = 0;
  bool operator==(const MaskSlice&) const = default;
};
bool allows(const MaskSlice& slice, std::int64_t q, std::int64_t k);  // local coordinates of the views

// What computes attention.
//   exact   the project's own kernels: any slices, any dtype; sums and partial results in f32 where the views say so
//   fused   a library's kernels, for shapes and masks that Target::fused_attention takes (shared/plan/fused_attention.h): every
//           view but lse has q's dtype, nothing is accumulated, and `workspace` has the bytes that the library asks for. Its
//           contents mean nothing before and after.
// A device without such a library runs both by the same kernels.
enum class AttentionEngine : std::uint8_t { exact, fused };

// Scaled dot-product attention of some queries against some keys. Views are [batch, seq, heads, head_dim]
// whatever the layout in memory (BSHD and BNSD differ in strides); lse is [batch, heads, seq], f32, natural
// logarithm. kv_heads divides q_heads. Rows that no slice gives a key have out = 0 and lse = -inf.
struct AttentionForward {
  View q, k, v, out, lse;
  double softmax_scale = 1;
  std::vector<MaskSlice> slices;  // disjoint
  AttentionEngine engine = AttentionEngine::exact;
  View workspace = {};  // of a fused one, else absent
  bool operator==(const AttentionForward&) const = default;
};
// Gradients of the pairs in `slices`, given the FINAL out and lse of the whole row and delta = rowsum(dout *
// out), [batch, heads, seq], f32 (AttentionDelta); a fused one makes delta itself and has `out` instead. dq is written, or added to when `accumulate_dq`; dk and dv are, when
// `accumulate_dkv`: in a ring, dq stays at home while dk and dv travel. An exact one may lack gradients that nobody wants, but not all.
struct AttentionBackward {
  View q, k, v, dout, lse, delta, dq, dk, dv;
  double softmax_scale = 1;
  std::vector<MaskSlice> slices;
  bool accumulate_dq = false, accumulate_dkv = false;
  View out = {};  // of a fused one, else absent; `delta` the other way round
  AttentionEngine engine = AttentionEngine::exact;
  View workspace = {};  // of a fused one, else absent
  bool operator==(const AttentionBackward&) const = default;
};
struct AttentionDelta {  // delta = rowsum(dout * out)
  View out, dout, delta;
  bool operator==(const AttentionDelta&) const = default;
};
// (out, lse) = log-sum-exp merge of (out, lse), (in, in_lse) and the results in `more`, each of its own dtype; or, without any lse,
// out += in + more: partial gradients. In f32, in this order, rounded to out's dtype once.
struct AttentionMerge {
  View in, in_lse, out, lse;
  std::vector<View> more = {},
                    more_lse = {};  // with `in` at most kMostMerged; as many of both where there is lse
  bool operator==(const AttentionMerge&) const = default;
};
inline constexpr std::size_t kMostMerged = 3;

// Kernels that treat rows one by one, or move whole rows, and are bound by memory: what a transformer needs beside products and
// attention. Shape-only: no host version exists yet, so host_target() lacks them and devices refuse them by name; plans with
// them are complete, checked and timed.
enum class RowOperation : std::uint8_t {
  rms_norm,
  rms_norm_backward,
  rotary,
  rotary_backward,
  gated_activation,
  gated_activation_backward,
  embed,
  embed_backward,
  cross_entropy,
  cross_entropy_backward,
  route,
  route_backward,
  dispatch,
  combine,
  add_bias,
  squared_norm,
  optimizer,
};
// The operation's name in Targets, traces and messages is that of the RowOperation: "rms_norm".
std::string_view name(RowOperation operation);
struct RowKernel {  // one view at least is written or updated
  RowOperation operation = RowOperation::rms_norm;
  std::vector<View> reads, writes, updates;  // updates: read and written
  bool operator==(const RowKernel&) const = default;
};

using Kernel = std::variant<Copy, Cast, Fill, Accumulate, Scale, MatMul, AttentionForward, AttentionBackward,
                            AttentionDelta, AttentionMerge, RowKernel>;

// ---- steps
// ----------------------------------------------------------------------------------------------------------

using Work = std::variant<Kernel, Collective>;

// "The step `step`, `iterations_back` iterations of the enclosing Repeat ago" (nothing, where there was
// none). From outside a Repeat, a step of its body means that step's last iteration; from inside, a step
// before the Repeat means just that step.
struct Edge {
  StepId step = -1;
  std::int32_t iterations_back = 0;
  auto operator<=>(const Edge&) const = default;
};

struct Step {
  StreamId stream = 0;
  Work work;
  std::vector<Edge> after;  // steps of OTHER streams; the order within a stream is implied
  std::string label;        // for people; no part of the meaning
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
  Digest inputs;                 // of what the builder was given: equal on all ranks
  bool operator==(const Plan&) const = default;
};

// ---- looking at plans
// -----------------------------------------------------------------------------------------------

// "all_gather", "copy", ...: the name in Targets, traces and messages.
std::string_view operation_name(const Work& work);
bool is_collective(const Step& step);
GroupId group_of(const Collective& collective);

// What a step reads and writes; what it accumulates to (Accumulate, Scale, ...) it does both with. The rank's index in the group
// matters for a Broadcast alone, whose input is read at the root only.
struct Access {
  const View* view = nullptr;
  bool reads = false, writes = false;
};
std::vector<Access> accesses(const Work& work, std::int32_t index_in_group = 0);

// Bytes sent to and received from each member of the group, by index; 0 for the rank itself. A collective's
// nominal volume:
//   AllGather, AllToAll, Broadcast and Exchange: what each peer gets; AllReduce and ReduceScatter: the
//   buffer, the block.
struct Volume {
  std::vector<std::int64_t> sent, received;
  bool operator==(const Volume&) const = default;
};
Volume volume(const Collective& collective, const Plan& plan);

// All steps in order, a Repeat's body once, with the Repeat's count (1 outside).
struct StepRef {
  const Step* step = nullptr;
  StepId id = -1;
  std::int64_t count = 1;
  std::int32_t segment = -1;
};
std::vector<StepRef> steps_of(const Plan& plan);

// Index of plan.self in the group; throws InvalidInput when it is no member.
std::int32_t index_in_group(const Plan& plan, GroupId group);

// Peak bytes: the arena and all bindings.
std::int64_t peak_bytes(const Plan& plan);

// Digest of the whole plan without labels and names of buffers and streams.
Digest digest(const Plan& plan);
// Digest of the canonical sequence of collectives on a group: operation, dtype, reduction, root, counts,
// repeats. Equal on all members of the group; compared over the control plane before a plan's first use
// (contract 2).
Digest collective_digest(const Plan& plan, GroupId group);

// A readable text, one line a step; parse_plan(to_text(p)) == p (labels and names included).
std::string to_text(const Plan& plan);
Plan parse_plan(std::string_view text);

}  // namespace cp
