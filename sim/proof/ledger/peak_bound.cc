#include "sim/proof/ledger/peak_bound.h"

#include <algorithm>

#include "shared/plan/fused_attention.h"
#include "sim/proof/ledger/expected_traffic.h"

namespace cp::sim {
namespace {

// The bytes of an f32.
constexpr std::int64_t kF32 = 4;

class Bound {
 public:
  Bound(const AttentionRequest& request, int index, const Plan& plan)
      : problem_(request.problem),
        wanted_(request.options.gradients),
        lse_place_(request.options.lse),
        plan_(plan),
        strategy_(request.strategy),
        rows_travel_(keys_of_fewest_bytes(request) == Strategy::Keys::latent),
        sharding_(request.problem, static_cast<int>(request.ranks.size()), request.strategy),
        index_(index) {
    for (int i = 0; i < sharding_.cp_size(); ++i) {
      const TensorPart q = sharding_.compute_q(i), kv = sharding_.compute_kv(i);
      for (const TensorPart& part : {q, sharding_.home_q(i)}) {
        q_values_ = std::max(q_values_, values(part, problem_.head_dim));
        out_values_ = std::max(out_values_, values(part, problem_.v_head_dim));
        statistics_ = std::max(statistics_, values(part, 1));
      }
      for (const TensorPart& part : {kv, sharding_.home_kv(i)}) {
        head_kv_values_ = std::max(head_kv_values_, values(part, problem_.head_dim + problem_.v_head_dim));
        head_dkv_values_ = std::max(head_dkv_values_, values(part, dkv_dim()));
        latent_values_ = std::max(latent_values_, rows(part) * problem_.latent.dim());
      }
      most_heads_ = std::max(most_heads_, kv.num_heads());
      most_rows_ = std::max(most_rows_, rows(kv));
    }
    dq_values_ = wanted_.dq ? q_values_ : 0;
    kv_values_ = rows_travel_ ? latent_values_ : head_kv_values_;
    dkv_values_ = !rows_travel_ ? head_dkv_values_ : wanted_.dk ? latent_values_ : 0;
    bytes_ = size_bytes(problem_.dtype);
  }

  std::int64_t of(AttentionPass pass) const {
    const bool backward = pass == AttentionPass::backward;
    const bool is_fused = uses_fused_attention(problem_, pass, plan_.target);
    return bindings(backward) + numbers(backward) + moves(backward) + core(backward) + merging(backward) +
           (is_fused ? fused(backward) : 0) + (problem_.has_latent() ? latent(backward, is_fused) : 0) +
           (merges_beside() ? waiting(backward) : 0) + alignment();
  }

 private:
  std::int64_t values(const TensorPart& part, std::int64_t dim) const {
    return problem_.batch * part.num_rows() * part.num_heads() * dim;
  }

  std::int64_t rows(const TensorPart& part) const { return problem_.batch * part.num_rows(); }

  // Of dk and dv, as far as they are asked for.
  std::int64_t dkv_dim() const {
    return (wanted_.dk ? problem_.head_dim : 0) + (wanted_.dv ? problem_.v_head_dim : 0);
  }

  bool moves_q() const {
    return strategy_.ulysses_degree > 1 || strategy_.balance.kind == Balance::Kind::head_tail_exchange;
  }

  // Exactly the caller's buffers, as attention_plan.h names them.
  std::int64_t bindings(bool backward) const {
    const TensorPart home_q = sharding_.home_q(index_), home_kv = sharding_.home_kv(index_),
                     q = sharding_.compute_q(index_), kv = sharding_.compute_kv(index_);
    const std::int64_t d = problem_.head_dim, dv = problem_.v_head_dim;
    const std::int64_t given =
        problem_.has_latent() ? rows(home_kv) * problem_.latent.dim() : values(home_kv, d + dv);
    const std::int64_t given_gradients = !problem_.has_latent() ? values(home_kv, dkv_dim())
                                         : wanted_.dk           ? given
                                                                : 0;
    std::int64_t total = values(home_q, dv);  // (d)out
    total += backward ? values(home_q, wanted_.dq ? d : 0) + given_gradients : values(home_q, d) + given;
    const bool kept_q = moves_q(), kept_kv = strategy_.ulysses_degree > 1;
    if (backward || kept_q) total += values(kept_q ? q : home_q, d + dv);
    if (backward && (!kept_kv || (problem_.has_latent() && !rows_travel_))) total += given;
    if (kept_kv) total += rows_travel_ ? rows(kv) * problem_.latent.dim() : values(kv, d + dv);
    const std::int64_t own_lse = !backward && kept_q && lse_comes_home() ? values(home_q, 1) : 0;
    return total * bytes_ + (values(q, 1) + own_lse) * kF32;
  }
  // The weight that latent rows are expanded by, and its gradient; the seed of dropout; sinks, and backward
  // their gradient, forward a row of zeros that they are the lse of.
  std::int64_t numbers(bool backward) const {
    const std::int64_t up = problem_.kv_heads * problem_.up_rows() * problem_.latent.rank;
    const std::int64_t sinks = problem_.q_heads * kF32;
    return (problem_.drops() ? size_bytes(DType::i64) : 0) +
           (problem_.sinks ? sinks + (backward ? sinks : problem_.v_head_dim * bytes_) : 0) +
           (problem_.has_latent() ? up * (bytes_ + (backward && wanted_.dk ? kF32 : 0)) : 0);
  }
  bool lse_comes_home() const { return lse_place_ == LsePlace::home; }

  std::int64_t moves(bool backward) const {
    if (!moves_q()) return 0;
    if (!backward) {
      return 3 * (q_values_ + out_values_ + kv_values_) * bytes_ +
             (lse_comes_home() ? 3 * statistics_ * kF32 : 0);
    }
    // Shared kv heads come back in f32.
    return 3 * (dq_values_ + out_values_) * bytes_ + (3 + 2) * dkv_values_ * kF32;
  }

  bool gathers() const {
    return strategy_.core == Core::all_gather || strategy_.core == Core::need_only ||
           (strategy_.core == Core::ring && strategy_.rotation == Strategy::Rotation::all_gather);
  }

  std::int64_t fused(bool backward) const {
    const std::int64_t n = sharding_.ring_size(), keys = head_kv_values_ * (gathers() ? n : 1);
    std::int64_t total = 2 * statistics_ * kF32 + workspace(backward, keys);
    if (strategy_.core == Core::pass_q && backward) total += 2 * out_values_ * bytes_;
    if (!backward) return total + out_values_ * (bytes_ + kF32);
    return total + (q_values_ + keys) * (bytes_ + kF32) + keys * bytes_;
  }
  // Of calls with all of the rank's queries and keys: one mask, or documents of at least a query each, or of
  // one query.
  std::int64_t workspace(bool backward, std::int64_t keys) const {
    const TensorPart q = sharding_.compute_q(index_), kv = sharding_.compute_kv(index_);
    if (q.num_heads() == 0) return 0;
    FusedShape shape;
    shape.backward = backward, shape.dtype = problem_.dtype, shape.batch = problem_.batch;
    shape.q_heads = q.num_heads(), shape.kv_heads = kv.num_heads();
    shape.head_dim = problem_.head_dim, shape.v_head_dim = problem_.v_head_dim;
    const std::int64_t of_row = problem_.batch * problem_.head_dim,
                       of_key = of_row + problem_.batch * problem_.v_head_dim;
    shape.q_len = ceil_div(q_values_, of_row * q.num_heads());
    shape.k_len = ceil_div(keys, of_key * kv.num_heads());
    std::int64_t most = 0;
    for (const std::int64_t documents : {std::int64_t{0}, shape.q_len}) {
      // Of one batch entry; entries with documents of their own have calls of their own.
      const bool alone = problem_.batch == 1 || !problem_.shares_mask();
      if (documents > 0 && (!alone || !plan_.target.fused_attention->packed)) continue;
      if (documents > 0) shape.batch = 1;
      shape.documents.assign(static_cast<std::size_t>(documents), {1, 1});
      most = std::max(most, workspace_bytes(*plan_.target.fused_attention, shape));
    }
    shape.documents.clear(), shape.q_len = 1, shape.batch = problem_.batch;
    return std::max(most, workspace_bytes(*plan_.target.fused_attention, shape));
  }

  // All places are multiples of the smallest element, so that what is lost before an aligned one is a
  // multiple of it, too: of buffers of one dtype on the host nothing, and at most 2 bytes before f32 behind
  // bf16.
  std::int64_t alignment() const {
    std::int64_t lost = 0, smallest = kF32;
    const auto each_temporary = [&](const auto& visit) {
      for (const Buffer& buffer : plan_.buffers) {
        if (buffer.kind == BufferKind::temporary) visit(size_bytes(buffer.dtype));
      }
    };
    each_temporary([&](std::int64_t element) { smallest = std::min(smallest, element); });
    each_temporary([&](std::int64_t element) {
      lost += std::max(plan_.target.alignment_bytes, element) - smallest;
      // Symmetric ones begin at multiples of 256 bytes.
      if (by_copy_engine()) lost += 255;
    });
    return lost + (by_copy_engine() ? 4095 : 0);  // their segment ends at a multiple of 4096
  }
  bool by_copy_engine() const { return strategy_.transfers == Strategy::Transfers::copy_engine; }

  std::int64_t core(bool backward) const {
    const std::int64_t n = sharding_.ring_size();
    if (n == 1) return 0;
    switch (strategy_.core) {
      case Core::all_gather:
        return gathered(1, backward);
      case Core::need_only:
        return gathered(n, backward);  // each user's rows on their own
      case Core::ring:
        return gathers() ? gathered(1, backward) : ring(backward);
      case Core::pass_q:
        return pass_q(backward);
    }
    return 0;
  }
  std::int64_t gathered(std::int64_t packed, bool backward) const {
    const std::int64_t n = sharding_.ring_size();
    return (n + packed) * kv_values_ * bytes_ +
           (backward ? ((2 * (n + packed) + 3) * dkv_values_ + dq_values_) * kF32 : 0);
  }
  std::int64_t ring(bool backward) const {
    const std::int64_t levels =
        strategy_.inner_ring > 1 && strategy_.inner_ring < sharding_.ring_size() ? 2 : 1;
    // Copy engines send the rank's own block from a place of its own.
    const std::int64_t own = by_copy_engine() ? 1 : 0;
    return (levels * strategy_.slots + own) * kv_values_ * bytes_ +
           (backward ? (levels * 8 * dkv_values_ + dq_values_) * kF32 : 0);
  }
  std::int64_t pass_q(bool backward) const {
    const std::int64_t n = sharding_.ring_size();
    const std::int64_t travels =
        q_values_ * bytes_ + (backward ? out_values_ * bytes_ + 2 * statistics_ * kF32 : 0);
    const std::int64_t partial = (backward ? dq_values_ : out_values_ + statistics_) * kF32;
    return strategy_.slots * travels + 2 * n * partial +
           (backward ? (head_dkv_values_ + 2 * dq_values_) * kF32 : 0);
  }

  std::int64_t merging(bool backward) const {
    return (backward ? statistics_ : 2 * (out_values_ + statistics_)) * kF32;
  }

  // Of each result one part more waits for its merge beside attention, however many steps there are. Rows of
  // lse may begin at multiples of 16 bytes, and up to five parts wait at once.
  std::int64_t waiting(bool backward) const {
    const std::int64_t keys = head_dkv_values_ * (gathers() ? sharding_.ring_size() : 1);
    return (backward ? dq_values_ + keys : out_values_ + 5 * 4 * statistics_) * kF32;
  }
  // Keys and values that latent rows are expanded to, and their gradients until they are contracted.
  std::int64_t latent(bool backward, bool is_fused) const {
    const bool at_once = strategy_.core == Core::all_gather || strategy_.core == Core::need_only;
    const std::int64_t home = rows(sharding_.home_kv(index_)),
                       here = most_rows_ * (at_once ? sharding_.ring_size() : 1);
    const std::int64_t cells = rows_travel_ ? here * most_heads_ : home * problem_.kv_heads;
    const std::int64_t pair = problem_.head_dim + problem_.up_rows();
    // What travels as heads is saved, and not expanded again.
    const bool saved = backward && !rows_travel_ && strategy_.ulysses_degree > 1;
    return cells * ((saved ? 0 : pair + (rows_travel_ && !is_fused ? 0 : problem_.v_head_dim)) * bytes_ +
                    (backward && wanted_.dk ? pair * bytes_ + problem_.latent.rope_dim * kF32 : 0));
  }
  bool merges_beside() const { return strategy_.merges == Strategy::Merges::beside; }

  const AttentionProblem& problem_;
  const Gradients wanted_;
  const LsePlace lse_place_;
  const Plan& plan_;
  const Strategy& strategy_;
  const bool rows_travel_;  // latent ones
  const AttentionSharding sharding_;
  int index_;
  std::int64_t bytes_ = 4;
  // Of the largest rank; gradients as far as they are asked for.
  std::int64_t q_values_ = 0, kv_values_ = 0, out_values_ = 0, statistics_ = 0, dq_values_ = 0,
               dkv_values_ = 0;
  // Of heads, and of latent rows; kv_values_ and dkv_values_ are of what travels.
  std::int64_t head_kv_values_ = 0, head_dkv_values_ = 0, latent_values_ = 0, most_heads_ = 0, most_rows_ = 0;
};

}  // namespace

std::int64_t peak_bound_bytes(const AttentionRequest& request, AttentionPass pass, int index,
                              const Plan& plan) {
  return Bound(request, index, plan).of(pass);
}

}  // namespace cp::sim
