#include "shared/context_parallel/attention_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "shared/base/error.h"
#include "shared/context_parallel/attention_writer.h"
#include "shared/context_parallel/core.h"
#include "shared/context_parallel/gathered.h"
#include "shared/context_parallel/latent_keys.h"
#include "shared/context_parallel/stages.h"
#include "shared/context_parallel/travelling_keys.h"
#include "shared/plan/fused_attention.h"

namespace cp {
namespace detail {
namespace {

// ---- the two passes ----

class PassWriter {
 public:
  PassWriter(const AttentionContext& context, AttentionPass pass, Rank self, const Target& target)
      : writer_(context, pass, self, target),
        stages_(writer_),
        home_(home_order(context.request.problem.format)) {
    const AttentionSharding& sharding = context.sharding;
    home_q_ = sharding.home_q(writer_.index()), home_kv_ = sharding.home_kv(writer_.index());
    q_ = sharding.compute_q(writer_.index()), kv_ = sharding.compute_kv(writer_.index());
  }

  Plan forward() && {
    const AttentionProblem& p = writer_.problem();
    const Tensor q = home_input("q", home_q_, p.head_dim);
    const LatentKeys::Pair keys = home_keys();
    const Tensor &k = keys.k, &v = keys.v;
    const Tensor out = home_output("out", home_q_, p.v_head_dim);
    const bool lse_moves = moves_lse();
    const TensorPart& lse_part = lse_moves ? home_q_ : q_;
    const RowStatistic lse =
        writer_.statistic(BufferKind::output, "lse", lse_part.num_rows(), lse_part.num_heads());
    // If nothing moves, the core works on the caller's buffers themselves. Otherwise it works on tensors
    // between two moves, which are outputs ("saved_...") if the backward pass wants them, and temporaries if
    // not.
    RowStatistic there = lse;
    if (lse_moves) {
      const bool keeps = writer_.context().request.keep_for_backward;
      there = writer_.statistic(keeps ? BufferKind::output : BufferKind::temporary, "saved_lse",
                                q_.num_rows(), q_.num_heads());
    }
    std::vector<ForwardTensors> pieces;
    std::vector<std::optional<Gathered>> gathered;
    const auto bring = [&](std::size_t i) {
      const Range of_q = q_heads(i), of_kv = kv_heads(i);
      ForwardTensors t{q.with_heads(of_q), of_keys(k, of_kv, false), of_keys(v, of_kv, false),
                       out.with_heads(of_q), there.with_heads(of_q)};
      if (stages_.moves_q()) {
        t.q = stages_.bring_q(q, kept("saved_q", q_, of_q, p.head_dim), i, "q");
        t.out = kept("saved_out", q_, of_q, p.v_head_dim);
      }
      if (stages_.moves_kv() && writer_.latent_travels()) {
        t.k = kept("saved_latent", rows_of(kv_), {0, 1}, p.latent.dim());
        stages_.bring_kv({{k, t.k}}, i);
      } else if (stages_.moves_kv()) {
        t.k = kept("saved_k", kv_, of_kv, p.head_dim), t.v = kept("saved_v", kv_, of_kv, p.v_head_dim);
        stages_.bring_kv({{k, t.k}, {v, t.v}}, i);
      }
      gathered.emplace_back();
      if (comes_gathered(writer_)) gathered.back().emplace(gather_kv(writer_, t.k, t.v));
      pieces.push_back(t);
    };
    const std::size_t n = stages_.pieces().size();
    Routing::Arrival before = [] {};
    bring(0);
    for (std::size_t i = 0; i < n; ++i) {
      // What the next piece needs is packed and sent before this one is computed, and what came home of the
      // piece before is unpacked only behind this one: so attention waits for neither.
      if (i + 1 < n) bring(i + 1);
      writer_.choose_heads(stages_.pieces()[i]);
      const ForwardTensors& t = pieces[i];
      gathered[i] ? write_gathered(writer_, t, *gathered[i]) : run_core(t);
      std::exchange(before, [] {})();
      if (!stages_.moves_q()) continue;
      const Routing::Arrival of_out = stages_.return_q(t.out, out, i, "out");
      if (i + 1 == n) {
        of_out();
        if (lse_moves) return_lse(t.lse, lse, i)();
        continue;
      }
      const Routing::Arrival of_lse = lse_moves ? return_lse(t.lse, lse, i) : [] {};
      before = [of_out, of_lse] { of_out(), of_lse(); };
    }
    return std::move(writer_).build("forward");
  }

  Plan backward() && {
    const AttentionProblem& p = writer_.problem();
    const Gradients& wanted = writer_.gradients();
    const Tensor dout = home_input("dout", home_q_, p.v_head_dim);
    const bool moves_q = stages_.moves_q(), moves_kv = stages_.moves_kv();
    // What the forward pass moved is not moved again: its outputs are inputs here. Only dout travels.
    const Tensor q = moves_q ? saved("saved_q", q_, p.head_dim) : home_input("q", home_q_, p.head_dim);
    const Tensor out =
        moves_q ? saved("saved_out", q_, p.v_head_dim) : home_input("out", home_q_, p.v_head_dim);
    const LatentKeys::Pair keys = moves_kv ? saved_keys() : home_keys();
    const Tensor &k = keys.k, &v = keys.v;
    const RowStatistic lse = writer_.statistic(BufferKind::input, moves_lse() ? "saved_lse" : "lse",
                                               q_.num_rows(), q_.num_heads());
    const Tensor dq = wanted.dq ? home_output("dq", home_q_, p.head_dim) : Tensor{};
    const LatentKeys::Pair of_home = home_gradients();
    const Tensor &dk = of_home.k, &dv = of_home.v;
    // If several ranks compute with copies of one kv head, their gradients are parts of a sum, and keep the
    // wider dtype until they have been added up.
    const DType kv_dtype = stages_.shares_kv_heads() ? writer_.gradient_dtype() : p.dtype;
    const auto piece_of = [](const Tensor& tensor, Range heads, bool moved) {
      return moved ? tensor.piece(heads) : tensor.with_heads(heads);
    };
    std::vector<BackwardTensors> pieces;
    const auto bring = [&](std::size_t i) {
      const Range of_q = q_heads(i), of_kv = kv_heads(i);
      BackwardTensors t{
          piece_of(q, of_q, moves_q),   of_keys(k, of_kv, moves_kv), of_keys(v, of_kv, moves_kv),
          piece_of(out, of_q, moves_q), piece_of(dout, of_q, false), lse.with_heads(of_q),
          piece_of(dq, of_q, false),    of_keys(dk, of_kv, false),   of_keys(dv, of_kv, false)};
      if (moves_q)
        t.dout = stages_.bring_q(dout, moved("dout there", p.dtype, q_, of_q, p.v_head_dim), i, "dout");
      if (moves_q && wanted.dq) t.dq = moved("dq there", p.dtype, q_, of_q, p.head_dim);
      if (moves_kv && wanted.dk && writer_.latent_travels()) {
        t.dk = moved("dlatent there", kv_dtype, kv_, {0, 1}, p.latent.dim());
      } else if (moves_kv) {
        if (wanted.dk) t.dk = moved("dk there", kv_dtype, kv_, of_kv, p.head_dim);
        if (wanted.dv) t.dv = moved("dv there", kv_dtype, kv_, of_kv, p.v_head_dim);
      }
      pieces.push_back(t);
    };
    const std::size_t n = stages_.pieces().size();
    std::vector<std::optional<Gathered>> gathered(n);
    Routing::Arrival before = [] {};
    bring(0);
    for (std::size_t i = 0; i < n; ++i) {
      if (i + 1 < n) bring(i + 1);
      writer_.choose_heads(stages_.pieces()[i]);
      BackwardTensors& t = pieces[i];
      Routing::Arrival of_gathered;
      if (comes_gathered(writer_)) {
        of_gathered = write_gathered(writer_, t, [&] {
          if (!gathered[i]) gathered[i].emplace(gather_kv(writer_, t.k, t.v));
          if (i + 1 < n) gathered[i + 1].emplace(gather_kv(writer_, pieces[i + 1].k, pieces[i + 1].v));
          return *gathered[i];
        });
      } else {
        t.lse = travels_whole(t.lse);
        run_core(t);
      }
      if (p.sinks) writer_.sink_gradient(t.out, t.dout, t.lse);
      std::exchange(before, [] {})();
      const bool is_last = i + 1 == n;
      // The last piece has nothing to hide behind.
      if (is_last && of_gathered) std::exchange(of_gathered, {})();
      Routing::Arrival of_dq = moves_q && wanted.dq ? stages_.return_q(t.dq, dq, i, "dq") : [] {};
      if (is_last) std::exchange(of_dq, [] {})();
      const std::vector<KeyGradient> of_keys = {{writer_.latent_travels() ? "dlatent" : "dk", t.dk, dk},
                                                {"dv", t.dv, dv}};
      // What is gathered has to be added up at the rank that gathered it before it can go on from there.
      const Routing::Arrival of_kv = of_gathered || !moves_kv ? [] {} : return_kv(of_keys, i);
      before = [this, of_gathered, of_dq, of_kv, of_keys, i, moves_kv] {
        if (of_gathered) of_gathered();
        of_dq(), of_kv();
        if (of_gathered && moves_kv) return_kv(of_keys, i)();
      };
    }
    before();
    for (const auto& [name, there, home] : sums_) writer_.finish(there, home, name);
    if (!dlatent_.is_absent() && !writer_.latent_travels()) {
      LatentKeys& latent = writer_.latent_keys();
      latent.contract({dk, dv}, latent_, latent.all_heads(), dlatent_, false, "home");
    }
    return std::move(writer_).build("backward");
  }

 private:
  // ---- keys and values, or the latent rows that stand for them ----

  static TensorPart rows_of(const TensorPart& part) { return {part.rows, 0, 1}; }
  Tensor latent_input() {
    return latent_ = home_input("latent", rows_of(home_kv_), writer_.problem().latent.dim());
  }
  // Where latent rows travel they are k, and v is absent. Where heads do, they are expanded here, so that all
  // that follows is as if k and v had been given.
  LatentKeys::Pair home_keys() {
    const AttentionProblem& p = writer_.problem();
    if (!p.has_latent()) {
      const Tensor k = home_input("k", home_kv_, p.head_dim);
      return {k, home_input("v", home_kv_, p.v_head_dim)};
    }
    const Tensor latent = latent_input();
    if (writer_.latent_travels()) return {latent, {}};
    LatentKeys& keys = writer_.latent_keys();
    const bool leaves_as_it_lies = facts(writer_.strategy().core).rotates == Rotates::keys &&
                                   writer_.sharding().ring_size() > 1 && !stages_.moves_kv();
    return leaves_as_it_lies ? keys.expand_densely(latent, keys.all_heads(), "home")
                             : keys.expand(latent, keys.all_heads(), "home");
  }
  // What the forward pass kept of what traveled. Gradients of heads are contracted with the rows at home.
  LatentKeys::Pair saved_keys() {
    const AttentionProblem& p = writer_.problem();
    if (writer_.latent_travels()) return {saved("saved_latent", rows_of(kv_), p.latent.dim()), {}};
    if (p.has_latent()) latent_input();
    const Tensor k = saved("saved_k", kv_, p.head_dim);
    return {k, saved("saved_v", kv_, p.v_head_dim)};
  }
  LatentKeys::Pair home_gradients() {
    const AttentionProblem& p = writer_.problem();
    const Gradients& wanted = writer_.gradients();
    if (!p.has_latent()) {
      const Tensor dk = wanted.dk ? home_output("dk", home_kv_, p.head_dim) : Tensor{};
      return {dk, wanted.dv ? home_output("dv", home_kv_, p.v_head_dim) : Tensor{}};
    }
    if (!wanted.dk) return {};
    dlatent_ = home_output("dlatent", rows_of(home_kv_), p.latent.dim());
    if (writer_.latent_travels()) return {dlatent_, {}};
    return writer_.latent_keys().gradients(latent_, writer_.latent_keys().all_heads());
  }
  // Some heads of keys, values or their gradients; of latent rows all.
  Tensor of_keys(const Tensor& tensor, Range heads, bool moved) const {
    if (tensor.is_absent() || writer_.latent_travels()) return tensor;
    return moved ? tensor.piece(heads) : tensor.with_heads(heads);
  }

  // The core; where rows travel and keys stay during it, they are expanded before it and contracted behind
  // it.
  void run_core(const ForwardTensors& t) {
    ForwardTensors expanded = t;
    if (writer_.latent_travels() && !writer_.core_moves_latent()) {
      const LatentKeys::Pair keys = writer_.latent_keys().expand(t.k, writer_.kv_heads(), "there");
      expanded.k = keys.k, expanded.v = keys.v;
    }
    facts(writer_.strategy().core).forward(writer_, expanded);
  }
  void run_core(const BackwardTensors& t) {
    if (!writer_.latent_travels() || writer_.core_moves_latent())
      return facts(writer_.strategy().core).backward(writer_, t);
    LatentKeys& latent = writer_.latent_keys();
    const Range heads = writer_.kv_heads();
    BackwardTensors expanded = t;
    const LatentKeys::Pair keys = latent.expand(t.k, heads, "there");
    expanded.k = keys.k, expanded.v = keys.v;
    if (t.dk.is_absent()) return facts(writer_.strategy().core).backward(writer_, expanded);
    const LatentKeys::Pair gradients = latent.gradients(t.k, heads);
    expanded.dk = gradients.k, expanded.dv = gradients.v;
    facts(writer_.strategy().core).backward(writer_, expanded);
    latent.contract(gradients, t.k, heads, t.dk, false, "there");
  }

  // Whether lse is wanted elsewhere than where it is computed.
  bool moves_lse() const {
    return stages_.moves_q() && writer_.context().request.options.lse == LsePlace::home;
  }
  // Whatever travels has its rows outermost, but lse is [batch, heads, rows]: it is packed before.
  Routing::Arrival return_lse(const RowStatistic& there, const RowStatistic& home, std::size_t piece) {
    const Tensor rows =
        writer_.reached("lse there", DType::f32, Order::rows_outermost, there.rows, there.heads, 1);
    const View by_head{rows.buffer,
                       0,
                       {there.batch, there.heads, there.rows},
                       {rows.batch_stride(), rows.head_stride(), rows.row_stride()},
                       {}};
    // Behind the merge that made it, not behind the next piece's attention.
    writer_.convert(there.view(), by_head, "pack lse", AttentionWriter::Of::merge);
    return stages_.return_q(
        rows, {home.buffer, DType::f32, home.batch, home.rows, home.heads, 1, Order::bnsd}, piece, "lse");
  }

  struct KeyGradient {
    std::string name;
    Tensor there, home;
  };
  // dK and dV of a piece. The pieces come together in sums that are made with the first one.
  Routing::Arrival return_kv(std::vector<KeyGradient> gradients, std::size_t piece) {
    std::erase_if(gradients, [](const KeyGradient& gradient) { return gradient.home.is_absent(); });
    if (gradients.empty()) return [] {};
    if (piece == 0) {
      for (const auto& [name, there, home] : gradients) {
        const bool adds = stages_.shares_kv_heads();
        sums_.push_back({name, adds ? writer_.accumulator(name + " of all", DType::f32, home) : home, home});
      }
    }
    std::vector<std::pair<Tensor, Tensor>> ways;
    for (std::size_t i = 0; i < gradients.size(); ++i) ways.emplace_back(gradients[i].there, sums_[i].there);
    return stages_.return_kv(ways, piece);
  }

  // Queries that rotate take lse along, which has to lie dense.
  RowStatistic travels_whole(const RowStatistic& lse) {
    if (lse.is_dense() || facts(writer_.strategy().core).rotates != Rotates::queries) return lse;
    const RowStatistic dense =
        writer_.statistic(BufferKind::temporary, "lse of the piece", lse.rows, lse.heads);
    writer_.convert(lse.view(), dense.view(), "lse of the piece");
    return dense;
  }

  Range q_heads(std::size_t piece) const { return range_of(stages_.pieces()[piece], true); }
  Range kv_heads(std::size_t piece) const { return range_of(stages_.pieces()[piece], false); }

  Tensor home_input(const char* name, const TensorPart& part, std::int64_t dim) {
    return writer_.input(name, home_, part.num_rows(), part.num_heads(), dim);
  }
  Tensor home_output(const char* name, const TensorPart& part, std::int64_t dim) {
    return writer_.output(name, home_, part.num_rows(), part.num_heads(), dim);
  }
  Tensor saved(const char* name, const TensorPart& part, std::int64_t dim) {
    return writer_.input(name, Order::rows_outermost, part.num_rows(), part.num_heads(), dim);
  }
  // A piece of what is kept: the pieces lie one after the other in one buffer.
  Tensor kept(const char* name, const TensorPart& part, Range heads, std::int64_t dim) {
    if (!writer_.context().request.keep_for_backward)
      return moved(name, writer_.problem().dtype, part, heads, dim);
    const auto [at, is_new] = kept_.try_emplace(name);
    if (is_new)
      at->second = writer_.output(name, Order::rows_outermost, part.num_rows(), part.num_heads(), dim);
    return at->second.piece(heads);
  }
  Tensor moved(const char* name, DType dtype, const TensorPart& part, Range heads, std::int64_t dim) {
    return writer_.reached(name, dtype, Order::rows_outermost, part.num_rows(), heads.len, dim);
  }

  AttentionWriter writer_;
  Stages stages_;
  Order home_;
  TensorPart home_q_, home_kv_, q_, kv_;
  Tensor latent_, dlatent_;  // at home
  std::map<std::string_view, Tensor> kept_;
  std::vector<KeyGradient> sums_;  // `there` is the sum, or home itself
};

void validate(const AttentionRequest& request, AttentionPass pass, const Target& target) {
  if (pass == AttentionPass::backward && request.problem.latent.absorbed) {
    throw InvalidInput(str("latent rows of ", request.problem.latent.rank, "+",
                           request.problem.latent.rope_dim,
                           " with absorbed queries have no backward pass, since only decoding absorbs them; "
                           "leave the backward pass out, or let the plan expand the rows (absorbed=false)"));
  }
  const std::set<Rank> ranks(request.ranks.begin(), request.ranks.end());
  if (ranks.size() != request.ranks.size()) {
    throw InvalidInput(
        str("a rank comes twice among the ", request.ranks.size(), " cp ranks; list each one once"));
  }
  if (request.options.gradients == Gradients{false, false, false})
    throw InvalidInput(
        "a backward pass needs at least one gradient of dq, dk and dv; ask for one, or leave the backward "
        "pass out");
  if (request.problem.has_latent() && request.options.gradients.dk != request.options.gradients.dv) {
    throw InvalidInput(
        str("gradients ", to_string(request.options.gradients),
            ": dk and dv of latent rows become dlatent and dkv_up together; ask for both, or for "
            "dq alone"));
  }
  const auto refusal =
      refuse(request.problem, static_cast<int>(request.ranks.size()), request.strategy, target);
  if (refusal) throw InvalidInput(refusal->reason);
}

Plan write(const AttentionContext& context, AttentionPass pass, Rank self, const Target& target) {
  PassWriter writer(context, pass, self, target);
  return pass == AttentionPass::forward ? std::move(writer).forward() : std::move(writer).backward();
}

}  // namespace
}  // namespace detail

std::string to_string(const Gradients& gradients) {
  std::vector<std::string_view> names;
  if (gradients.dq) names.emplace_back("dq");
  if (gradients.dk) names.emplace_back("dk");
  if (gradients.dv) names.emplace_back("dv");
  return join(names, ",");
}

Gradients parse_gradients(std::string_view text) {
  Gradients gradients{false, false, false};
  if (trim(text).empty()) throw InvalidInput("no gradient is named; use some of dq,dk,dv");
  for (const std::string_view part : split(text, ',')) {
    const std::string_view word = trim(part);
    bool* const wanted = word == "dq"   ? &gradients.dq
                         : word == "dk" ? &gradients.dk
                         : word == "dv" ? &gradients.dv
                                        : nullptr;
    if (wanted == nullptr) throw InvalidInput(str("'", word, "' is not a gradient; use some of dq,dk,dv"));
    if (std::exchange(*wanted, true)) throw InvalidInput(str(word, " comes twice; name it once"));
  }
  return gradients;
}

std::string_view name(LsePlace place) { return place == LsePlace::home ? "home" : "computed"; }

Strategy::Keys travelling_keys(const AttentionRequest& request) {
  return detail::AttentionContext(request).keys();
}

bool uses_fused_attention(const AttentionProblem& problem, AttentionPass pass, const Target& target) {
  // No library caps scores or drops weights as we do, whatever the number of ranks.
  if (!target.fused_attention || problem.softcap != 0 || problem.drops()) return false;
  FusedShape one;  // call as any other
  one.backward = pass == AttentionPass::backward;
  one.dtype = problem.dtype, one.head_dim = problem.head_dim, one.v_head_dim = problem.v_head_dim;
  one.q_len = one.k_len = 128, one.q_heads = one.kv_heads = 1;
  return !refuse(*target.fused_attention, one);
}

Plan attention_plan(const AttentionRequest& request, AttentionPass pass, Rank self, const Target& target) {
  detail::validate(request, pass, target);
  return detail::write(detail::AttentionContext(request), pass, self, target);
}

std::vector<Plan> attention_plans(const AttentionRequest& request, AttentionPass pass, const Target& target) {
  detail::validate(request, pass, target);
  const detail::AttentionContext context(request);
  std::vector<Rank> ranks = request.ranks;
  std::sort(ranks.begin(), ranks.end());
  std::vector<Plan> plans;
  for (const Rank rank : ranks) plans.push_back(detail::write(context, pass, rank, target));
  return plans;
}

}  // namespace cp
