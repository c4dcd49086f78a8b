// The rules of every operation: see plan.h for what each one means.
#include "shared/plan/step_rules.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include "shared/base/index.h"
#include "shared/plan/copy_engine_rules.h"
#include "shared/plan/fused_attention.h"
#include "shared/plan/recurrence_rules.h"
#include "shared/plan/row_rules.h"
#include "shared/plan/view_rules.h"

namespace cp {
namespace {

class StepRules : ViewRules {
 public:
  using ViewRules::ViewRules;

  void check() {
    require(step_.stream >= 0 && idx(step_.stream) < plan_.streams.size(), "stream ", step_.stream,
            " is not one of the plan's ", plan_.streams.size(), " streams");
    require(count_ >= 1 && count_ <= kMaxIterations, "the Repeat has ", count_, " iterations; use 1 to 2^31");
    if (const Kernel* kernel = std::get_if<Kernel>(&step_.work)) {
      check_target("kernel", plan_.target.kernels);
      check_views();
      std::visit([&](const auto& op) { check_kernel(op); }, *kernel);
      check_kernel_aliases();
    } else {
      const Collective& collective = std::get<Collective>(step_.work);
      check_target("collective", plan_.target.collectives);
      index_ = index_in_group(plan_, group_of(collective));
      group_size_ = static_cast<std::int64_t>(plan_.groups[idx(group_of(collective))].ranks.size());
      check_views();
      std::visit([&](const auto& op) { check_collective(op); }, collective);
      CopyEngineRules(plan_, step_, count_).check(collective);
    }
  }

 private:
  void check_target(std::string_view kind, const std::set<std::string>& known) const {
    if (has_operation(plan_.target, step_.work)) return;
    fail("target ", plan_.target.name, " has no ", kind, " ", operation_words(step_.work), "; it has ",
         join(known, ", "));
  }

  void check_views() {
    for_each_access(step_.work, index_,
                    [&](const Access& access) { check_view(*access.view, access.writes); });
  }

  // `in` lies exactly at element `start` of `out`, in every iteration.
  static bool in_place(const View& in, const View& out, std::int64_t start) {
    return in.buffer == out.buffer && in.offset == out.offset + start && in.advance == out.advance;
  }

  // ---- collectives ----

  void check_in_out(const View& in, const View& out) const {
    contiguous(in), contiguous(out), same_dtype(in, out);
  }
  void check_reduction(ReduceOp op, const View& view) const {
    if (op == ReduceOp::avg) floating(view);
  }

  void check_collective(const AllGather& op) const {
    check_in_out(op.in, op.out);
    require(op.out.numel() == group_size_ * op.in.numel(), "out has ", op.out.numel(), " elements; ",
            group_size_, " members with ", op.in.numel(), " each make ", group_size_ * op.in.numel());
    if (!in_place(op.in, op.out, index_ * op.in.numel())) {
      disjoint(op.in, op.out, "in place, in is block ", index_, " of out");
    }
  }
  void check_collective(const ReduceScatter& op) const {
    check_in_out(op.in, op.out), check_reduction(op.op, op.out);
    require(op.in.numel() == group_size_ * op.out.numel(), "in has ", op.in.numel(), " elements; ",
            group_size_, " members with ", op.out.numel(), " each need ", group_size_ * op.out.numel());
    if (!in_place(op.out, op.in, index_ * op.out.numel())) {
      disjoint(op.in, op.out, "in place, out is block ", index_, " of in");
    }
  }
  void check_collective(const AllReduce& op) const {
    check_in_out(op.in, op.out), check_reduction(op.op, op.out), same_numel(op.in, op.out);
    if (!in_place(op.in, op.out, 0)) disjoint(op.in, op.out, "in place, in and out are the same");
  }
  void check_collective(const AllToAll& op) const {
    check_in_out(op.in, op.out), same_numel(op.in, op.out);
    require(op.in.numel() % group_size_ == 0, "in has ", op.in.numel(), " elements, not a multiple of the ",
            group_size_, " members; pad it, or use an exchange");
    disjoint(op.in, op.out, "all_to_all has no in-place form");
  }
  void check_collective(const Broadcast& op) const {
    require(op.root >= 0 && op.root < group_size_, "root ", op.root, " is not an index in a group of ",
            group_size_);
    contiguous(op.out);
    if (index_ != op.root) return;
    check_in_out(op.in, op.out), same_numel(op.in, op.out);
    if (!in_place(op.in, op.out, 0)) disjoint(op.in, op.out, "in place, in and out are the same");
  }
  void check_collective(const Exchange& op) const {
    for (const std::vector<Transfer>* side : {&op.sends, &op.recvs}) {
      for (const Transfer& transfer : *side) {
        require(transfer.peer >= 0 && transfer.peer < group_size_, "peer ", transfer.peer,
                " is not an index in a group of ", group_size_);
        require(transfer.peer != index_, "peer ", transfer.peer, " is the rank itself; use a copy");
        require(transfer.view.numel() > 0, "an empty transfer with peer ", transfer.peer, "; leave it out");
        contiguous(transfer.view);
      }
    }
    check_exchange_aliases(op);
  }

  // What is received shares memory with nothing else. Views that advance alike are sorted, so that an
  // exchange with a thousand peers does not compare all pairs.
  void check_exchange_aliases(const Exchange& op) const {
    struct Item {
      const View* view;
      bool received;
    };
    std::vector<Item> items;
    items.reserve(op.sends.size() + op.recvs.size());
    for (const Transfer& send : op.sends) items.push_back({&send.view, false});
    for (const Transfer& recv : op.recvs) items.push_back({&recv.view, true});
    const auto conflict = [&](const Item& a, const Item& b) {
      if (a.received || b.received) disjoint(*a.view, *b.view, "an exchange has no in-place form");
    };
    std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
      return std::pair(a.view->buffer, a.view->offset) < std::pair(b.view->buffer, b.view->offset);
    });
    const bool alike = std::all_of(items.begin(), items.end(), [&](const Item& item) {
      return item.view->advance == items[0].view->advance;
    });
    // Sorted by offset, a view meets an earlier one only if it meets the one that reaches farthest. Reads may
    // share with reads, so both kinds are followed apart.
    const Item *last_read = nullptr, *last_written = nullptr;  // the ones that reach farthest
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!alike) {
        for (std::size_t j = 0; j < i; ++j) conflict(items[j], items[i]);
        continue;
      }
      if (last_written != nullptr) conflict(*last_written, items[i]);
      if (last_read != nullptr && items[i].received) conflict(*last_read, items[i]);
      const Item*& farthest = items[i].received ? last_written : last_read;
      if (farthest == nullptr || farthest->view->buffer != items[i].view->buffer ||
          extent_at(*farthest->view, 0).end < extent_at(*items[i].view, 0).end) {
        farthest = &items[i];
      }
    }
  }

  // ---- kernels ----

  // What is 16 bits wide may be kept, or added up, in f32.
  bool is_wider_sum(const View& in, const View& out) const {
    const DType dtype = dtype_of(in);
    return dtype_of(out) == DType::f32 && (dtype == DType::f16 || dtype == DType::bf16);
  }

  void check_kernel(const Copy& op) const { same_dtype(op.in, op.out), same_numel(op.in, op.out); }
  void check_kernel(const Cast& op) const { same_numel(op.in, op.out); }
  void check_kernel(const Fill&) const {}
  void check_kernel(const Accumulate& op) const {
    require(op.op != ReduceOp::avg, "accumulates with avg; use sum, then scale");
    if (!is_wider_sum(op.in, op.out)) same_dtype(op.in, op.out);
    same_numel(op.in, op.out);
  }
  void check_kernel(const Scale& op) const { floating(op.data); }
  void check_kernel(const MatMul& op) const {
    same_dtype(op.a, op.b);
    if (!is_wider_sum(op.a, op.out)) same_dtype(op.a, op.out);
    const std::size_t dims = op.out.shape.size() == 3 ? 3 : 2;
    for (const View* view : {&op.a, &op.b, &op.out}) {
      require(view->shape.size() == dims, text(*view), " is not ",
              dims == 2 ? "a matrix" : "several matrices", "; give it ",
              dims == 2 ? "two dimensions" : "three dimensions, as the result has them");
    }
    Shape b, out;
    if (dims == 3) b = out = {op.a.shape[0]};
    const Shape &of_a = op.a.shape, &of_b = op.b.shape;
    b.insert(b.end(), {of_a[dims - 1], of_b[dims - 1]});
    out.insert(out.end(), {of_a[dims - 2], of_b[dims - 1]});
    shaped(op.b, b, "b"), shaped(op.out, out, "out");
  }
  void check_kernel(const AttentionForward& op) const {
    check_attention(op.q, op.k, op.v);
    const Shape &q = op.q.shape, &v = op.v.shape;
    floating(op.out), is_f32(op.lse, "lse");
    shaped(op.out, {q[0], q[1], q[2], v[3]}, "out");
    shaped(op.lse, {q[0], q[2], q[1]}, "lse");
    check_slices(op.slices, q[1], v[1]), check_scores(op);
    if (op.engine == AttentionEngine::fused) {
      check_fused(op, {&op.q, &op.k, &op.v, &op.out}, {});
    } else {
      require(is_absent(op.workspace), "is exact and has a workspace; only a fused one has");
    }
  }
  void check_kernel(const AttentionBackward& op) const {
    const bool fused = op.engine == AttentionEngine::fused;
    require(is_absent(op.delta) == fused, fused ? "is fused and has delta; it makes its own from out"
                                                : "is exact and lacks delta; add an attention_delta");
    require(is_absent(op.out) != fused, fused ? "is fused and lacks out, which it makes delta from"
                                              : "is exact and has out; it reads delta instead");
    require(fused || is_absent(op.workspace), "is exact and has a workspace; only a fused one has");
    check_attention(op.q, op.k, op.v);
    const Shape &q = op.q.shape, &v = op.v.shape;
    floating(op.dout), is_f32(op.lse, "lse");
    shaped(op.dout, {q[0], q[1], q[2], v[3]}, "dout");
    shaped(op.lse, {q[0], q[2], q[1]}, "lse");
    if (!fused) is_f32(op.delta, "delta"), shaped(op.delta, op.lse.shape, "delta");
    const auto gradient = [&](const View& view, const Shape& shape, std::string_view role) {
      if (!is_absent(view)) return floating(view), shaped(view, shape, role);
      require(!fused, "is fused and lacks ", role, "; its kernel writes all three: give it a temporary");
    };
    gradient(op.dq, q, "dq"), gradient(op.dk, op.k.shape, "dk"), gradient(op.dv, v, "dv");
    require(!is_absent(op.dq) || !is_absent(op.dk) || !is_absent(op.dv),
            "has neither dq nor dk nor dv; leave it out");
    check_slices(op.slices, q[1], v[1]), check_scores(op);
    if (!fused) return;
    require(!op.accumulate_dq && !op.accumulate_dkv,
            "is fused and accumulates; let it write a temporary, and accumulate that");
    shaped(op.out, op.dout.shape, "out");
    check_fused(op, {&op.q, &op.k, &op.v, &op.out, &op.dout}, {&op.dq, &op.dk, &op.dv});
  }
  void check_kernel(const AttentionDelta& op) const {
    floating(op.out), floating(op.dout);
    check_rows(op.out, op.delta, "delta");
    shaped(op.dout, op.out.shape, "dout");
  }
  void check_kernel(const AttentionSinkGradient& op) const {
    floating(op.out), floating(op.dout);
    check_rows(op.out, op.lse, "lse");
    shaped(op.dout, op.out.shape, "dout");
    is_f32(op.sinks, "sinks"), shaped(op.sinks, {op.out.shape[2]}, "sinks");
    is_f32(op.dsinks, "dsinks"), shaped(op.dsinks, {op.out.shape[2]}, "dsinks");
  }
  void check_kernel(const AttentionMerge& op) const {
    const bool has_lse = !is_absent(op.lse);
    require(op.more.size() < kMostMerged, "merges ", op.more.size() + 1, " results into out; at most ",
            kMostMerged, " at once");
    require(is_absent(op.in_lse) != has_lse && op.more_lse.size() == (has_lse ? op.more.size() : 0),
            has_lse ? "merges results of which some lack their lse" : "adds results, and some have an lse");
    four_dims(op.out), floating(op.in), floating(op.out);
    shaped(op.in, op.out.shape, "in");
    for (const View& view : op.more) floating(view), shaped(view, op.out.shape, "more");
    if (!has_lse) return;
    check_rows(op.out, op.lse, "lse");
    shaped(op.in_lse, op.lse.shape, "in_lse"), is_f32(op.in_lse, "in_lse");
    for (const View& view : op.more_lse) shaped(view, op.lse.shape, "more_lse"), is_f32(view, "more_lse");
  }

  template <class Op>
  requires kIsRecurrence<Op>
  void check_kernel(const Op& op) const { RecurrenceRules(plan_, step_, count_).check(op); }

  void check_kernel(const RowKernel& op) const { RowRules(plan_, step_, count_).check(op); }

  using Views = std::initializer_list<const View*>;
  template <class Op>
  void check_fused(const Op& op, Views operands, Views gradients) const {
    const std::optional<FusedAttention>& library = plan_.target.fused_attention;
    require(library.has_value(), "target ", plan_.target.name,
            " has no fused attention; use the exact engine");
    for (const Views& views : {operands, gradients}) {
      for (const View* view : views) same_dtype(op.q, *view);
    }
    const Shape &q = op.q.shape, &v = op.v.shape;
    std::optional<FusedShape> shape = fused_form(op.slices, q[1], v[1]);
    require(shape.has_value(), "its ", op.slices.size(), " mask slices over ", q[1], " queries and ", v[1],
            " keys have no form that fused attention supports; cut the views, or use the exact engine");
    shape->backward = std::is_same_v<Op, AttentionBackward>;
    shape->dtype = dtype_of(op.q);
    shape->batch = q[0], shape->q_heads = q[2], shape->kv_heads = v[2];
    shape->head_dim = q[3], shape->v_head_dim = v[3];
    if (const auto reason = refuse(*library, *shape)) {
      fail("the fused attention of target ", plan_.target.name, " does not support this call: ", *reason,
           "; use the exact engine");
    }
    for (const Views& views : {operands, gradients}) {
      for (const View* view : views) {
        const auto reason = refuse_operand(*shape, *view, views.begin() == gradients.begin());
        if (reason) fail("fused attention cannot use ", text(*view), ": ", *reason);
      }
    }
    if (const auto reason = refuse_lse(*shape, op.lse))
      fail("fused attention cannot use ", text(op.lse), ": ", *reason);
    const std::int64_t bytes = workspace_bytes(*library, *shape);
    require(!is_absent(op.workspace), "is fused and has no workspace; it needs ", bytes, " bytes");
    contiguous(op.workspace);
    require(op.workspace.numel() * size_bytes(dtype_of(op.workspace)) >= bytes, "its workspace is ",
            text(op.workspace), ", but it needs ", bytes, " bytes");
  }

  void check_rows(const View& out, const View& rows, std::string_view role) const {
    four_dims(out), is_f32(rows, role);
    shaped(rows, {out.shape[0], out.shape[2], out.shape[1]}, role);
  }
  void check_attention(const View& q, const View& k, const View& v) const {
    four_dims(q), four_dims(k), four_dims(v);
    floating(q), same_dtype(q, k), same_dtype(q, v);
    shaped(k, {q.shape[0], k.shape[1], k.shape[2], q.shape[3]}, "k");
    shaped(v, {q.shape[0], k.shape[1], k.shape[2], v.shape[3]}, "v");
    const std::int64_t q_heads = q.shape[2], kv_heads = k.shape[2];
    require(kv_heads > 0 ? q_heads % kv_heads == 0 : q_heads == 0, "kv_heads=", kv_heads,
            " does not divide q_heads=", q_heads);
  }
  void check_slices(const std::vector<MaskSlice>& slices, std::int64_t q_len, std::int64_t k_len) const {
    for (const MaskSlice& slice : slices) {
      require(slice.q_begin >= 0 && slice.q_len >= 0 && slice.q_begin <= q_len &&
                  slice.q_len <= q_len - slice.q_begin && slice.k_begin >= 0 && slice.k_len >= 0 &&
                  slice.k_begin <= k_len && slice.k_len <= k_len - slice.k_begin,
              "mask slice of queries [", slice.q_begin, ", +", slice.q_len, ") and keys [", slice.k_begin,
              ", +", slice.k_len, ") leaves the ", q_len, " queries and ", k_len, " keys");
      require(slice.kind != MaskSlice::Kind::window || slice.window > 0, "mask slice with window ",
              slice.window, "; a window holds at least one key");
    }
  }

  // What changes scores and weights beside the scale and the mask.
  template <class Op>
  void check_scores(const Op& op) const {
    const AttentionDropout& dropout = op.dropout;
    require(op.softcap >= 0 && std::isfinite(op.softcap), "softcap ", op.softcap,
            " bounds no score; use a positive number, or 0 for none");
    require(op.engine == AttentionEngine::exact || (op.softcap == 0 && dropout == AttentionDropout{}),
            "is fused and has a softcap or dropout, which no library computes alike; use the exact engine");
    if (dropout.probability == 0) {
      require(dropout == AttentionDropout{} && is_absent(op.seed),
              "has a seed or numbers of rows for dropout, and no probability; leave them out");
      return;
    }
    require(dropout.probability > 0 && dropout.probability < 1, "dropout ", dropout.probability,
            " is not a probability below 1");
    require(!is_absent(op.seed), "has dropout and no seed; give it a view of one i64, or of ", kPlacedSeed);
    const bool is_row = op.seed.shape.size() == 1 && (op.seed.numel() == 1 || op.seed.strides[0] == 1);
    require(
        is_row && (op.seed.numel() == 1 || op.seed.numel() == kPlacedSeed) && dtype_of(op.seed) == DType::i64,
        "seed ", text(op.seed), " of ", name(dtype_of(op.seed)), " is neither one i64 nor a row of ",
        kPlacedSeed);
    check_numbers(dropout.queries, op.q.shape[1], "queries");
    check_numbers(dropout.keys, op.k.shape[1], "keys");
    require(dropout.layer >= 0 && dropout.layer <= kMostCounted && dropout.first_batch >= 0 &&
                dropout.first_head >= 0 && dropout.heads <= kMostCounted &&
                dropout.first_head <= dropout.heads - op.q.shape[2],
            "dropout of layer ", dropout.layer, ", batch entries from ", dropout.first_batch,
            " and heads from ", dropout.first_head, " of ", dropout.heads, ": the step has ", op.q.shape[2],
            " heads");
    require(dropout.first_batch <= kMostCounted - op.q.shape[0] &&
                (dropout.first_batch + op.q.shape[0]) <=
                    (kMostCounted + 1) / std::max<std::int64_t>(1, dropout.heads),
            "dropout counts ", dropout.first_batch + op.q.shape[0], " batch entries of ", dropout.heads,
            " heads in 32 bits; use fewer");
  }
  // The numbers of rows in the global tensors.
  void check_numbers(const IndexSet& rows, std::int64_t count, std::string_view role) const {
    std::int64_t numbers = 0;
    for (const Run& run : rows) {
      require(run.begin >= 0 && run.run >= 1 && run.count >= 1 && run.stride >= run.run &&
                  run.begin <= kMostCounted && run.stride <= kMostCounted && run.count <= kMostCounted &&
                  run.run <= kMostCounted &&
                  run.count - 1 <= (kMostCounted + 1 - run.begin - run.run) / run.stride,
              "dropout's ", role, " {", run.begin, ", ", run.run, ", ", run.stride, ", ", run.count,
              "} are no rows below 2^32");
      numbers += run.size();
    }
    require(numbers == count, "dropout has ", numbers, " numbers of ", role, ", and the step has ", count,
            " rows");
  }

  // Kernels have no in-place forms but those of the operands that they update.
  void check_kernel_aliases() const {
    std::vector<Access> seen;
    seen.reserve(16);  // as many as most steps have
    for_each_access(step_.work, index_, [&](const Access& access) {
      for (const Access& other : seen) {
        if (access.writes || other.writes)
          disjoint(*other.view, *access.view, "a kernel's output is its own");
      }
      seen.push_back(access);
    });
  }

  // Dropout's generator counts rows, heads and layers in 32 bits (shared/kernels/philox.h).
  static constexpr std::int64_t kMostCounted = 0xffffffff;

  std::int32_t index_ = 0;  // of the rank in the collective's group
  std::int64_t group_size_ = 0;
};

}  // namespace

void validate_step(const Plan& plan, const Step& step, std::int64_t repeat_count) {
  StepRules(plan, step, repeat_count).check();
}

}  // namespace cp
