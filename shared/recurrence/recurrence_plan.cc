#include "shared/recurrence/recurrence_plan.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "shared/plan/recurrence_rules.h"
#include "shared/recurrence/chunks.h"
#include "shared/recurrence/heads_trade.h"
#include "shared/recurrence/state_scan.h"

namespace cp {
namespace detail {
namespace {

// Of each of the cp ranks.
std::vector<IndexSet> home_rows(const RecurrenceRequest& request) {
  const Layout layout = row_layout(request, 1, 1, DType::f32);
  std::vector<IndexSet> rows;
  rows.reserve(request.ranks.size());
  for (const Rank rank : request.ranks) rows.push_back(indices(layout, 1, rank));
  return rows;
}

// What all ranks' plans of a request are made from.
struct Context {
  const RecurrenceRequest& request;
  std::vector<IndexSet> rows;  // by index among the cp ranks
  std::vector<Chunk> chunks;
  std::optional<HeadsTrade> trade;  // with StateScan::heads, on more than one rank
  Digest inputs;                    // of each pass, but for the pass itself

  Context(const RecurrenceRequest& asked, RecurrencePass pass, const Target& target)
      : request(asked), rows(home_rows(asked)) {
    if (request.strategy.scan == StateScan::heads && request.ranks.size() > 1)
      trade.emplace(request);
    else
      chunks = chunks_of(request.problem.document_starts(), rows);
    Hasher hasher;
    hasher.add(std::string_view("recurrence")).add(static_cast<int>(pass)).add_all(request.ranks);
    hash(hasher, request.problem), hash(hasher, request.strategy);
    hasher.add(request.keep_for_backward), hash(hasher, target);
    inputs = hasher.digest();
  }
};

// A tensor of rows, [batch, rows, heads, dim], or [batch, rows, heads] with a dim of 0.
struct RowTensor {
  BufferId buffer = -1;
  Shape shape;

  // Some of its rows.
  View rows(std::int64_t begin, std::int64_t count) const {
    View view = dense_view(buffer, begin * dense_view(buffer, 0, shape).strides[1], shape);
    view.shape[1] = count;
    return view;
  }
};

class PassWriter {
 public:
  PassWriter(const Context& context, RecurrencePass pass, Rank self, const Target& target)
      : context_(context),
        problem_(context.request.problem),
        pass_(pass),
        self_(self),
        builder_(self, target),
        compute_(builder_.stream("compute")) {
    const std::vector<Rank>& ranks = context.request.ranks;
    index_ = static_cast<int>(std::find(ranks.begin(), ranks.end(), self) - ranks.begin());
    // With heads a rank has all rows of some heads, as one chunk; else its own rows of all heads.
    share_ = context.trade ? static_cast<std::int64_t>(ranks.size()) : 1;
    if (context.trade) {
      Chunk all{index_, 0, problem_.seq_len, 0, false, false, problem_.document_starts()};
      all.starts.erase(all.starts.begin());
      own_ = {{0, all}};
      rows_ = problem_.seq_len;
    } else {
      for (std::size_t i = 0; i < context.chunks.size(); ++i) {
        if (context.chunks[i].index == index_) own_.push_back({i, context.chunks[i]});
      }
      std::sort(own_.begin(), own_.end(),
                [](const Own& a, const Own& b) { return a.chunk.local_row < b.chunk.local_row; });
      rows_ = size(context.rows[static_cast<std::size_t>(index_)]);
    }
  }

  Plan write() && {
    pass_ == RecurrencePass::forward ? forward() : backward();
    return std::move(builder_).build(context_.inputs);
  }

 private:
  struct Own {
    std::size_t place;  // among all chunks, in the order of the sequence
    Chunk chunk;
  };
  using Has = bool (*)(const Chunk&);
  static bool has_incoming(const Chunk& chunk) { return chunk.comes_in; }
  static bool has_transition(const Chunk& chunk) { return chunk.hands_on(); }

  // ---- tensors ----

  // Of the rows and heads that the rank computes on.
  RowTensor tensor(BufferId buffer, std::int64_t heads, std::int64_t dim) const {
    RowTensor made{buffer, {problem_.batch, rows_, heads / share_, dim}};
    if (dim == 0) made.shape.pop_back();
    return made;
  }
  std::int64_t numel(std::int64_t heads, std::int64_t dim, std::int64_t rows) const {
    return problem_.batch * rows * heads * std::max<std::int64_t>(1, dim);
  }
  std::int64_t home_rows() const { return size(context_.rows[static_cast<std::size_t>(index_)]); }

  // An input of the rank's rows, brought to where it computes; what was brought in the forward pass is kept
  // for the backward pass under another name.
  RowTensor input(const std::string& name, std::int64_t heads, std::int64_t dim, DType dtype) {
    const bool keeps = pass_ == RecurrencePass::forward && context_.request.keep_for_backward;
    const bool was_brought = pass_ == RecurrencePass::backward && name != "dout";
    const std::string saved = "saved_" + name;
    if (!context_.trade)
      return tensor(builder_.input(name, dtype, numel(heads, dim, home_rows())), heads, dim);
    const std::int64_t there = numel(heads / share_, dim, rows_);
    if (was_brought) return tensor(builder_.input(saved, dtype, there), heads, dim);
    const BufferId home = builder_.input(name, dtype, numel(heads, dim, home_rows()));
    const BufferId brought =
        keeps ? builder_.output(saved, dtype, there) : builder_.temporary(name + " of heads", dtype, there);
    context_.trade->to_heads(builder_, self_, {heads, dim, dtype}, home, brought);
    return tensor(brought, heads, dim);
  }

  // An output, at home or where the rank computes: then bring_home() moves it.
  struct Output {
    BufferId home = -1;
    RowTensor there;
    std::int64_t heads = 0, dim = 0;
    DType dtype = DType::f32;
  };
  Output output(const std::string& name, std::int64_t heads, std::int64_t dim, DType dtype) {
    const BufferId home = builder_.output(name, dtype, numel(heads, dim, home_rows()));
    const BufferId there =
        context_.trade ? builder_.temporary(name + " of heads", dtype, numel(heads / share_, dim, rows_))
                       : home;
    return {home, tensor(there, heads, dim), heads, dim, dtype};
  }
  void bring_home(const Output& output) {
    if (!context_.trade) return;
    context_.trade->to_rows(builder_, self_, {output.heads, output.dim, output.dtype}, output.there.buffer,
                            output.home);
  }

  // States of the rank's heads, one for each own chunk that has one, by position in own_.
  std::vector<View> states(const std::string& name, BufferKind kind, Has has, std::int64_t rows,
                           std::int64_t columns) {
    const Shape shape = {problem_.batch, problem_.value_heads / share_, rows, columns};
    const std::int64_t each = cp::numel(shape);
    std::vector<View> views(own_.size());
    const auto count =
        std::count_if(own_.begin(), own_.end(), [&](const Own& own) { return has(own.chunk); });
    if (count == 0) return views;
    const BufferId buffer = kind == BufferKind::input    ? builder_.input(name, DType::f32, count * each)
                            : kind == BufferKind::output ? builder_.output(name, DType::f32, count * each)
                                                         : builder_.temporary(name, DType::f32, count * each);
    std::int64_t at = 0;
    for (std::size_t i = 0; i < own_.size(); ++i) {
      if (has(own_[i].chunk)) views[i] = dense_view(buffer, std::exchange(at, at + each), shape);
    }
    return views;
  }
  std::vector<View> saved_states(BufferKind kind) {
    return states("saved_states", kind, has_incoming, problem_.key_dim, problem_.value_dim);
  }
  std::vector<View> saved_transitions(BufferKind kind) {
    return states("saved_transitions", kind, has_transition, problem_.transition_dim(),
                  problem_.transition_dim());
  }

  // ---- the cached state ----

  bool is_first(const Own& own) const { return problem_.cached_state && own.place == 0; }
  bool is_last(const Own& own) const {
    return problem_.cached_state && (context_.trade || own.place + 1 == context_.chunks.size());
  }
  View state_of(BufferId buffer) const {
    return dense_view(buffer, 0,
                      {problem_.batch, problem_.value_heads / share_, problem_.key_dim, problem_.value_dim});
  }
  // Absent where the rank holds none.
  View cached_state() {
    const std::int64_t numel = cached_state_numel(context_.request, index_);
    return numel > 0 ? state_of(builder_.inout("state", DType::f32, numel)) : View{};
  }
  // Where the state behind the last row is made: in the cache, or in a place that it is sent from.
  View final_state(const View& cached) {
    if (!is_absent(cached)) return cached;
    return state_of(builder_.temporary("final state", DType::f32, problem_.state_numel()));
  }
  void send_final_state(const View& made, const View& cached) {
    if (!problem_.cached_state || context_.trade) return;
    const int from = context_.chunks.back().index, to = context_.chunks.front().index;
    if (from == to) return;
    Exchange exchange;
    exchange.group = builder_.group("cp", context_.request.ranks);
    exchange.counts = counts_digest({{from, to, problem_.state_numel()}});
    if (from == index_) exchange.sends.push_back({to, made});
    if (to == index_) exchange.recvs.push_back({from, cached});
    builder_.add(builder_.stream("comm"), std::move(exchange), "final state");
  }

  // ---- passes ----

  void forward() {
    const RowTensor q = input("q", problem_.key_heads, problem_.key_dim, problem_.dtype),
                    k = input("k", problem_.key_heads, problem_.key_dim, problem_.dtype),
                    v = input("v", problem_.value_heads, problem_.value_dim, problem_.dtype),
                    log_decay = input("log_decay", problem_.value_heads, 0, DType::f32),
                    beta = input("beta", problem_.value_heads, 0, DType::f32);
    const Output out = output("out", problem_.value_heads, problem_.value_dim, problem_.dtype);
    const BufferKind kept = context_.request.keep_for_backward ? BufferKind::output : BufferKind::temporary;
    const std::vector<View> incoming = saved_states(kept), transitions = saved_transitions(kept);
    const std::vector<View> own = states(
        "states of own rows", BufferKind::temporary, [](const Chunk& chunk) { return chunk.goes_on; },
        problem_.key_dim, problem_.value_dim);
    const View cached = cached_state();
    View last_state;
    const auto compute = [&](std::size_t i) {
      const Chunk& chunk = own_[i].chunk;
      const auto rows = [&](const RowTensor& tensor) { return tensor.rows(chunk.local_row, chunk.rows); };
      RecurrenceForward forward{
          rows(q),     rows(k),         rows(v),      rows(log_decay),         rows(beta),
          incoming[i], rows(out.there), chunk.starts, problem_.output_scale(), problem_.rule};
      if (is_first(own_[i])) forward.state = cached, forward.final_state = own[i];
      if (is_last(own_[i])) forward.final_state = last_state = final_state(cached);
      builder_.add(compute_, std::move(forward), str("chunk ", own_[i].place));
    };
    // What others wait for comes first, then what waits for nobody, while states are on their way. The first
    // chunk behind a cached state has no summary: its outputs' kernel leaves the whole state. A summary would
    // have to be joined with what was cached, by a transition, and takes about as long with one.
    for (std::size_t i = 0; i < own_.size(); ++i) {
      const Chunk& chunk = own_[i].chunk;
      if (!chunk.goes_on || is_first(own_[i])) continue;
      const auto tail = [&](const RowTensor& tensor) {
        return tensor.rows(chunk.local_row + chunk.tail_begin(), chunk.rows - chunk.tail_begin());
      };
      builder_.add(compute_,
                   RecurrenceSummary{tail(k), tail(v), tail(log_decay), tail(beta), own[i], transitions[i],
                                     problem_.rule},
                   str("summary of chunk ", own_[i].place));
    }
    compute_around_scan(own, transitions, incoming, compute);
    bring_home(out);
    send_final_state(last_state, cached);
  }

  void backward() {
    const RowTensor q = input("q", problem_.key_heads, problem_.key_dim, problem_.dtype),
                    k = input("k", problem_.key_heads, problem_.key_dim, problem_.dtype),
                    v = input("v", problem_.value_heads, problem_.value_dim, problem_.dtype),
                    log_decay = input("log_decay", problem_.value_heads, 0, DType::f32),
                    beta = input("beta", problem_.value_heads, 0, DType::f32),
                    dout = input("dout", problem_.value_heads, problem_.value_dim, problem_.dtype);
    const Output dq = output("dq", problem_.key_heads, problem_.key_dim, problem_.dtype),
                 dk = output("dk", problem_.key_heads, problem_.key_dim, problem_.dtype),
                 dv = output("dv", problem_.value_heads, problem_.value_dim, problem_.dtype),
                 dlog_decay = output("dlog_decay", problem_.value_heads, 0, DType::f32),
                 dbeta = output("dbeta", problem_.value_heads, 0, DType::f32);
    const std::vector<View> before = saved_states(BufferKind::input),
                            transitions = saved_transitions(BufferKind::input);
    const std::vector<View> own = states("gradients of own rows", BufferKind::temporary, has_incoming,
                                         problem_.key_dim, problem_.value_dim);
    const std::vector<View> incoming = states(
        "gradients behind chunks", BufferKind::temporary, [](const Chunk& chunk) { return chunk.goes_on; },
        problem_.key_dim, problem_.value_dim);
    const auto compute = [&](std::size_t i) {
      const Chunk& chunk = own_[i].chunk;
      const auto rows = [&](const RowTensor& tensor) { return tensor.rows(chunk.local_row, chunk.rows); };
      builder_.add(compute_,
                   RecurrenceBackward{rows(q), rows(k), rows(v), rows(log_decay), rows(beta), before[i],
                                      rows(dout), incoming[i], rows(dq.there), rows(dk.there), rows(dv.there),
                                      rows(dlog_decay.there), rows(dbeta.there), workspace(chunk.rows),
                                      chunk.starts, problem_.output_scale(), problem_.rule},
                   str("chunk ", own_[i].place));
    };
    for (std::size_t i = 0; i < own_.size(); ++i) {
      const Chunk& chunk = own_[i].chunk;
      if (!chunk.comes_in) continue;
      const auto head = [&](const RowTensor& tensor) {
        return tensor.rows(chunk.local_row, chunk.head_rows());
      };
      builder_.add(compute_,
                   RecurrenceSummaryGradient{head(q), head(k), head(log_decay), head(beta), head(dout),
                                             own[i], problem_.output_scale(), problem_.rule},
                   str("summary of chunk ", own_[i].place));
    }
    compute_around_scan(own, transitions, incoming, compute);
    for (const Output* gradient : {&dq, &dk, &dv, &dlog_decay, &dbeta}) bring_home(*gradient);
  }

  // The views are by position in own_.
  template <class Compute>
  void compute_around_scan(const std::vector<View>& own, const std::vector<View>& transitions,
                           const std::vector<View>& incoming, const Compute& compute) {
    for (std::size_t i = 0; i < own_.size(); ++i) {
      if (is_absent(incoming[i])) compute(i);
    }
    if (!context_.trade) {
      const std::vector<ScanPlace> places = scan_order(context_.chunks, pass_);
      std::vector<ScanViews> views(places.size());
      for (std::size_t i = 0; i < own_.size(); ++i) {
        const std::size_t place = own_[i].place;
        views[pass_ == RecurrencePass::forward ? place : places.size() - 1 - place] = {own[i], transitions[i],
                                                                                       incoming[i]};
      }
      StateScanWriter(builder_, context_.request, pass_, places, std::move(views), index_).write();
    }
    for (std::size_t i = 0; i < own_.size(); ++i) {
      if (!is_absent(incoming[i])) compute(i);
    }
  }

  // A host computes head by head. A GPU computes as many key heads side by side as it has room for.
  View workspace(std::int64_t rows) {
    const std::int64_t key_heads = problem_.key_heads / share_;
    const bool is_gpu = builder_.target().name != host_target().name;
    const std::int64_t lanes = is_gpu ? std::min(kRecurrenceLanes, problem_.batch * key_heads) : 1;
    const std::int64_t numel =
        lanes * recurrence_workspace_numel(rows, problem_.value_heads / problem_.key_heads, problem_.key_dim,
                                           problem_.value_dim);
    if (workspace_ < 0) workspace_ = builder_.temporary("states of rows", DType::f32, numel);
    builder_.grow(workspace_, numel);
    return flat_view(workspace_, 0, numel);
  }

  const Context& context_;
  const RecurrenceProblem& problem_;
  const RecurrencePass pass_;
  const Rank self_;
  PlanBuilder builder_;
  const StreamId compute_;
  int index_ = 0;
  std::int64_t share_ = 1;  // the rank has one of so many parts of the heads
  std::int64_t rows_ = 0;   // that it computes on
  std::vector<Own> own_;    // in local order
  BufferId workspace_ = -1;
};

void validate(const RecurrenceRequest& request, RecurrencePass pass, const Target& target) {
  if (pass == RecurrencePass::backward && request.problem.cached_state) {
    throw InvalidInput(
        "a sequence that goes on from a cached state is served and has no backward pass; train without "
        "cached_state");
  }
  const std::set<Rank> ranks(request.ranks.begin(), request.ranks.end());
  if (ranks.size() != request.ranks.size()) {
    throw InvalidInput(
        str("a rank comes twice among the ", request.ranks.size(), " cp ranks; list each one once"));
  }
  const auto refusal =
      refuse(request.problem, static_cast<int>(request.ranks.size()), request.strategy, target);
  if (refusal) throw InvalidInput(refusal->reason);
}

}  // namespace
}  // namespace detail

Layout row_layout(const RecurrenceRequest& request, std::int64_t heads, std::int64_t dim, DType dtype) {
  const RecurrenceProblem& problem = request.problem;
  const Balance& balance = request.strategy.balance;
  const auto of_kind = [&]<class AnySplit>(std::type_identity<AnySplit>) -> AnySplit {
    if (balance.kind == Balance::Kind::head_tail) return HeadTail{};
    if (balance.kind == Balance::Kind::striped) return Striped{balance.block};
    return Balanced{};
  };
  Split split = of_kind(std::type_identity<Split>{});
  if (balance.per_document) {
    std::vector<std::int64_t> ends = problem.document_starts();
    ends.push_back(problem.seq_len);
    split = PerSequence{std::move(ends), of_kind(std::type_identity<InnerSplit>{})};
  }
  const int cp = static_cast<int>(request.ranks.size()), inner = request.strategy.ulysses_degree;
  Shape shape = {problem.batch, problem.seq_len, heads, dim};
  if (inner == 1)
    return make_layout(Mesh({{"cp", cp}}, request.ranks), {Shard{1, std::move(split)}}, std::move(shape),
                       dtype);
  const MeshAxis outer_axis{"ring", cp / inner}, inner_axis{"ulysses", inner};
  const bool last = request.strategy.ulysses_inner;
  const Mesh mesh =
      last ? Mesh({outer_axis, inner_axis}, request.ranks) : Mesh({inner_axis, outer_axis}, request.ranks);
  std::vector<Placement> placements = {Shard{1, std::move(split)}, Shard{1, Balanced{}}};
  if (!last) std::swap(placements[0], placements[1]);
  std::vector<std::vector<int>> order(4);
  order[1] = last ? std::vector<int>{0, 1} : std::vector<int>{1, 0};
  return make_layout(mesh, std::move(placements), std::move(shape), dtype, std::move(order));
}

std::vector<Chunk> chunks_of(const RecurrenceRequest& request) {
  return chunks_of(request.problem.document_starts(), detail::home_rows(request));
}

std::int64_t cached_state_numel(const RecurrenceRequest& request, int index) {
  const auto ranks = static_cast<std::int64_t>(request.ranks.size());
  if (!request.problem.cached_state) return 0;
  if (request.strategy.scan == StateScan::heads && ranks > 1) return request.problem.state_numel() / ranks;
  return chunks_of(request).front().index == index ? request.problem.state_numel() : 0;
}

Plan recurrence_plan(const RecurrenceRequest& request, RecurrencePass pass, Rank self, const Target& target) {
  detail::validate(request, pass, target);
  if (std::find(request.ranks.begin(), request.ranks.end(), self) == request.ranks.end()) {
    throw InvalidInput(
        str("rank ", self, " is none of the cp ranks ", join(request.ranks, ", "), "; ask for one of them"));
  }
  return detail::PassWriter(detail::Context(request, pass, target), pass, self, target).write();
}

std::vector<Plan> recurrence_plans(const RecurrenceRequest& request, RecurrencePass pass,
                                   const Target& target) {
  detail::validate(request, pass, target);
  const detail::Context context(request, pass, target);
  std::vector<Rank> ranks = request.ranks;
  std::sort(ranks.begin(), ranks.end());
  std::vector<Plan> plans;
  plans.reserve(ranks.size());
  for (const Rank rank : ranks) plans.push_back(detail::PassWriter(context, pass, rank, target).write());
  return plans;
}

}  // namespace cp
