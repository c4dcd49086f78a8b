#include "sim/proof/ledger/expected_traffic.h"

#include <algorithm>
#include <functional>

#include "shared/base/index.h"
#include "sim/proof/ledger/part_pairs.h"

namespace cp::sim {
namespace {

// A trip of a block round a ring of `size`: receivers at distances 1 .. last; partial results of it start at
// distance `first` and come home from distance `last`; 0 where there are none.
struct Trip {
  int first = 0, last = 0;
  int messages() const { return last > 0 ? last - first + 1 : 0; }
};
Trip trip(int size, bool all_the_way, const std::function<bool(int)>& has_pair) {
  Trip trip;
  for (int distance = 1; distance < size; ++distance) {
    if (!all_the_way && !has_pair(distance)) continue;
    if (trip.first == 0) trip.first = distance;
    trip.last = distance;
  }
  return trip;
}

int modulo(int value, int size) { return ((value % size) + size) % size; }

class Traffic {
 public:
  Traffic(const AttentionRequest& request, AttentionPass pass, bool fused, Strategy::Keys keys)
      : problem_(request.problem),
        rows_travel_(keys == Strategy::Keys::latent),
        wanted_(request.options.gradients),
        lse_comes_home_(request.options.lse == LsePlace::home),
        strategy_(request.strategy),
        sharding_(request.problem, static_cast<int>(request.ranks.size()), request.strategy),
        pairs_(request.problem, sharding_),
        backward_(pass == AttentionPass::backward),
        fused_(fused),
        ring_(sharding_.ring_size()),
        dtype_bytes_(size_bytes(request.problem.dtype)),
        received_(request.ranks.size()) {}

  std::vector<Received> count() {
    for (int ulysses = 0; ulysses < sharding_.ulysses_degree(); ++ulysses) {
      ulysses_ = ulysses;
      count_core();
      for (int r = 0; r < ring_; ++r) {
        count_ulysses(r);
        if (strategy_.balance.kind == Balance::Kind::head_tail_exchange) count_query_exchange(r);
      }
    }
    return std::move(received_);
  }

 private:
  // ---- sizes, at the current Ulysses index ----

  std::int64_t partial_bytes() const { return strategy_.input_dtype_gradients ? dtype_bytes_ : 4; }
  std::int64_t dim(Tensor tensor) const { return TagSpace(problem_).dim(tensor); }
  // Of `rows` rows of a number of heads.
  std::int64_t bytes(Tensor tensor, std::int64_t rows, std::int64_t heads, std::int64_t element_bytes) const {
    return problem_.batch * rows * heads * dim(tensor) * element_bytes;
  }
  std::int64_t q_heads(int ulysses) const {
    return sharding_.compute_q(sharding_.index_at(0, ulysses)).num_heads();
  }
  std::int64_t kv_heads(int ulysses) const {
    return sharding_.compute_kv(sharding_.index_at(0, ulysses)).num_heads();
  }
  std::int64_t q_rows(int r) const { return sharding_.compute_q(sharding_.index_at(r, 0)).num_rows(); }
  std::int64_t k_rows(int r) const { return sharding_.compute_kv(sharding_.index_at(r, 0)).num_rows(); }

  Received& at(int r) { return received_[idx(sharding_.index_at(modulo(r, ring_), ulysses_))]; }
  // Keys of some heads, or their gradients. The rotated part of each is a part of the latent row.
  void add_keys(Received& received, Tensor keys, std::int64_t rows, std::int64_t heads,
                std::int64_t element_bytes) const {
    const std::int64_t rotated = problem_.batch * rows * heads * problem_.latent.rope_dim * element_bytes;
    received.of(keys) += bytes(keys, rows, heads, element_bytes) - rotated;
    received.of(keys == Tensor::k ? Tensor::latent : Tensor::dlatent) += rotated;
  }
  void receive_kv(int r, std::int64_t rows) {
    if (rows_travel_) {
      at(r).of(Tensor::latent) += bytes(Tensor::latent, rows, 1, dtype_bytes_);
      return;
    }
    add_keys(at(r), Tensor::k, rows, kv_heads(ulysses_), dtype_bytes_);
    at(r).of(Tensor::v) += bytes(Tensor::v, rows, kv_heads(ulysses_), dtype_bytes_);
  }
  void receive_dkv(int r, std::int64_t rows) {
    add_key_gradients(at(r), rows, kv_heads(ulysses_), partial_bytes());
  }
  void add_key_gradients(Received& received, std::int64_t rows, std::int64_t heads,
                         std::int64_t element_bytes) const {
    if (rows_travel_) {
      if (wanted_.dk) received.of(Tensor::dlatent) += bytes(Tensor::dlatent, rows, 1, partial_bytes());
      return;
    }
    if (wanted_.dk) add_keys(received, Tensor::dk, rows, heads, element_bytes);
    if (wanted_.dv) received.of(Tensor::dv) += bytes(Tensor::dv, rows, heads, element_bytes);
  }
  void receive_query(Tensor tensor, int r, std::int64_t rows, std::int64_t element_bytes) {
    at(r).of(tensor) += bytes(tensor, rows, q_heads(ulysses_), element_bytes);
  }

  // ---- the core, along the ring of the current Ulysses index ----

  void count_core() {
    if (ring_ == 1) return;
    switch (strategy_.core) {
      case Core::all_gather:
        return count_all_gather();
      case Core::ring:
        if (strategy_.rotation == Strategy::Rotation::all_gather) return count_all_gather();
        return count_rings();
      case Core::need_only:
        return count_need_only();
      case Core::pass_q:
        return count_pass_q();
    }
  }

  void count_all_gather() {
    for (int r = 0; r < ring_; ++r) {
      for (int other = 0; other < ring_; ++other) {
        if (other == r) continue;
        receive_kv(r, k_rows(other));
        if (backward_) receive_dkv(r, k_rows(r));
      }
    }
  }

  void count_need_only() {
    for (int r = 0; r < ring_; ++r) {
      for (int other = 0; other < ring_; ++other) {
        if (other == r) continue;
        const std::int64_t rows = pairs_.needed_rows(r, other);
        receive_kv(r, rows);
        if (backward_) receive_dkv(other, rows);
      }
    }
  }

  Trip query_trip(int home, int direction) const {
    return trip(ring_, strategy_.send_empty,
                [&](int distance) { return pairs_.any(home, modulo(home + direction * distance, ring_)); });
  }
  std::int64_t query_hops(int direction) const {  // of rows
    std::int64_t sum = 0;
    for (int home = 0; home < ring_; ++home) sum += query_trip(home, direction).last * q_rows(home);
    return sum;
  }

  void count_pass_q() {
    const int direction = query_hops(-1) < query_hops(1) ? -1 : 1;
    for (int home = 0; home < ring_; ++home) {
      const std::int64_t rows = q_rows(home);
      const Trip way = query_trip(home, direction);
      for (int distance = 1; distance <= way.last; ++distance) {
        const int r = home + direction * distance;
        receive_query(Tensor::q, r, rows, dtype_bytes_);
        if (!backward_) continue;
        receive_query(Tensor::dout, r, rows, dtype_bytes_);
        receive_query(Tensor::lse, r, rows, 4);
        if (fused_) {
          receive_query(Tensor::out, r, rows, dtype_bytes_);
        } else {
          receive_query(Tensor::delta, r, rows, 4);
        }
      }
      for (int other = 0; other < ring_; ++other) {
        if (other == home || !pairs_.any(home, other)) continue;
        if (backward_) {
          if (wanted_.dq) receive_query(Tensor::dq, home, rows, partial_bytes());
          continue;
        }
        receive_query(Tensor::out, home, rows, strategy_.input_dtype_merge ? dtype_bytes_ : 4);
        receive_query(Tensor::lse, home, rows, 4);
      }
    }
  }

  // ---- rings of K and V ----

  // Inner rings of `width` neighbours; a plain ring is one inner ring.
  int width() const { return strategy_.inner_ring > 1 ? strategy_.inner_ring : ring_; }
  int nodes() const { return ring_ / width(); }
  int ring_index(int node, int position) const {
    return modulo(node, nodes()) * width() + modulo(position, width());
  }
  bool node_needs(int node, int block) const {
    if (strategy_.send_empty) return true;
    for (int position = 0; position < width(); ++position) {
      if (pairs_.any(ring_index(node, position), block)) return true;
    }
    return false;
  }
  Trip outer_trip(int block, int direction) const {
    return trip(nodes(), strategy_.send_empty,
                [&](int distance) { return node_needs(block / width() + direction * distance, block); });
  }
  Trip inner_trip(int block, int node, int direction) const {
    return trip(width(), strategy_.send_empty, [&](int distance) {
      return pairs_.any(ring_index(node, block % width() + direction * distance), block);
    });
  }

  void count_rings() {
    const int outer = backward_ ? cheaper([&](int direction) { return outer_bytes(direction); }) : 1;
    const int inner = backward_ ? cheaper([&](int direction) { return inner_bytes(direction); }) : 1;
    for (int block = 0; block < ring_; ++block) {
      const int home_node = block / width(), position = block % width();
      const Trip way = outer_trip(block, outer);
      for (int distance = 0; distance <= way.last; ++distance) {
        const int node = home_node + outer * distance;
        if (distance > 0) receive_kv(ring_index(node, position), k_rows(block));
        count_inner(block, node, inner);
        if (backward_ && distance > 0 && node_needs(node, block)) receive_dkv(block, k_rows(block));
      }
    }
  }

  void count_inner(int block, int node, int direction) {
    const Trip way = inner_trip(block, node, direction);
    const auto member = [&](int distance) {
      return ring_index(node, block % width() + direction * distance);
    };
    for (int distance = 1; distance <= way.last; ++distance) receive_kv(member(distance), k_rows(block));
    if (!backward_) return;
    for (int distance = way.first + 1; distance <= way.last; ++distance)
      receive_dkv(member(distance), k_rows(block));
    if (way.last > 0) receive_dkv(member(0), k_rows(block));
  }

  static int cheaper(const std::function<std::int64_t(int)>& bytes_of) {
    return bytes_of(1) < bytes_of(-1) ? 1 : -1;
  }
  std::int64_t kv_bytes(int block) const {
    if (rows_travel_) return bytes(Tensor::latent, k_rows(block), 1, dtype_bytes_);
    return bytes(Tensor::k, k_rows(block), kv_heads(ulysses_), dtype_bytes_) +
           bytes(Tensor::v, k_rows(block), kv_heads(ulysses_), dtype_bytes_);
  }
  std::int64_t dkv_bytes(int block) const {
    if (rows_travel_) return wanted_.dk ? bytes(Tensor::dlatent, k_rows(block), 1, partial_bytes()) : 0;
    return (wanted_.dk ? bytes(Tensor::dk, k_rows(block), kv_heads(ulysses_), partial_bytes()) : 0) +
           (wanted_.dv ? bytes(Tensor::dv, k_rows(block), kv_heads(ulysses_), partial_bytes()) : 0);
  }
  std::int64_t outer_bytes(int direction) const {
    std::int64_t sum = 0;
    for (int block = 0; block < ring_; ++block) sum += outer_trip(block, direction).last * kv_bytes(block);
    return sum;
  }
  // The nodes that a block comes to do not depend on the inner direction; those where it is only handed on
  // have no inner trip unless everything goes all the way.
  std::int64_t inner_bytes(int direction) const {
    std::int64_t sum = 0;
    for (int block = 0; block < ring_; ++block) {
      for (int node = 0; node < nodes(); ++node) {
        const Trip way = inner_trip(block, node, direction);
        sum += way.last * kv_bytes(block) + way.messages() * dkv_bytes(block);
      }
    }
    return sum;
  }

  // ---- between home and where ranks compute ----

  // Rows that come from, or go back to, the other members of the Ulysses group.
  void count_ulysses(int r) {
    const int index = sharding_.index_at(r, ulysses_);
    std::int64_t group_q = 0, group_kv = 0;
    for (int u = 0; u < sharding_.ulysses_degree(); ++u) {
      group_q += sharding_.home_q(sharding_.index_at(r, u)).num_rows();
      group_kv += sharding_.home_kv(sharding_.index_at(r, u)).num_rows();
    }
    const std::int64_t own_q = sharding_.home_q(index).num_rows(),
                       own_kv = sharding_.home_kv(index).num_rows();
    const std::int64_t away_q_heads = problem_.q_heads - q_heads(ulysses_);
    Received& received = received_[idx(index)];
    if (!backward_) {
      receive_query(Tensor::q, r, group_q - own_q, dtype_bytes_);
      receive_kv(r, group_kv - own_kv);
      received.of(Tensor::out) += bytes(Tensor::out, own_q, away_q_heads, dtype_bytes_);
      if (lse_comes_home_) received.of(Tensor::lse) += bytes(Tensor::lse, own_q, away_q_heads, 4);
      return;
    }
    receive_query(Tensor::dout, r, group_q - own_q, dtype_bytes_);
    if (wanted_.dq) received.of(Tensor::dq) += bytes(Tensor::dq, own_q, away_q_heads, dtype_bytes_);
    const std::int64_t element_bytes = shares_kv_heads() ? partial_bytes() : dtype_bytes_;
    for (int other = 0; other < sharding_.ulysses_degree(); ++other) {
      if (other != ulysses_) add_key_gradients(received, own_kv, kv_heads(other), element_bytes);
    }
  }
  // Whether several Ulysses indices compute with one kv head: what they send home are parts of a sum.
  // Otherwise it is final.
  bool shares_kv_heads() const {
    std::int64_t held = 0;
    for (int u = 0; u < sharding_.ulysses_degree(); ++u) held += kv_heads(u);
    return held > problem_.kv_heads;
  }

  // Query rows that the ring index computes and does not own, and the other way round.
  void count_query_exchange(int r) {
    std::vector<bool> owned(idx(problem_.q_len));
    std::int64_t num_owned = 0;
    for (int u = 0; u < sharding_.ulysses_degree(); ++u) {
      for_each_index(sharding_.home_q(sharding_.index_at(r, u)).rows, [&](std::int64_t row) {
        owned[idx(row)] = true;
        ++num_owned;
      });
    }
    std::int64_t kept = 0;
    const IndexSet computed = sharding_.compute_q(sharding_.index_at(r, ulysses_)).rows;
    for_each_index(computed, [&](std::int64_t row) { kept += owned[idx(row)] ? 1 : 0; });
    receive_query(backward_ ? Tensor::dout : Tensor::q, r, size(computed) - kept, dtype_bytes_);
    if (!backward_ && lse_comes_home_) receive_query(Tensor::lse, r, num_owned - kept, 4);
    if (backward_ && !wanted_.dq) return;
    receive_query(backward_ ? Tensor::dq : Tensor::out, r, num_owned - kept, dtype_bytes_);
  }

  const AttentionProblem& problem_;
  const bool rows_travel_;  // latent ones
  const Gradients wanted_;
  const bool lse_comes_home_;
  const Strategy& strategy_;
  AttentionSharding sharding_;
  PartPairs pairs_;
  bool backward_, fused_;
  int ring_;
  std::int64_t dtype_bytes_;
  int ulysses_ = 0;
  std::vector<Received> received_;
};

}  // namespace

std::vector<Received> expected_traffic(const AttentionRequest& request, AttentionPass pass, bool fused) {
  return Traffic(request, pass, fused, keys_of_fewest_bytes(request)).count();
}

Strategy::Keys keys_of_fewest_bytes(const AttentionRequest& request) {
  using enum Strategy::Keys;
  const Strategy& strategy = request.strategy;
  if (!request.problem.has_latent() || strategy.keys == heads) return heads;
  if (strategy.keys == latent) return latent;
  const bool keys_stay = strategy.core == Core::pass_q && strategy.ulysses_degree == 1;
  if (strategy.pieces > 1 || keys_stay) return heads;
  const auto bytes = [&](Strategy::Keys keys) {
    std::int64_t sum = 0;
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      if (pass == AttentionPass::backward && !request.keep_for_backward) break;
      for (const Received& received : Traffic(request, pass, false, keys).count()) sum += received.payload();
    }
    return sum;
  };
  return bytes(latent) < bytes(heads) ? latent : heads;
}

WeightShare weight_share(const AttentionRequest& request, const AttentionSharding& sharding, int index) {
  const TensorPart q = sharding.compute_q(index);
  if (keys_of_fewest_bytes(request) == Strategy::Keys::heads)
    return {false, sharding.home_kv(index).rows, 0, request.problem.q_heads};
  const bool queries_come = request.strategy.core == Core::pass_q && sharding.ring_size() > 1;
  if (queries_come) return {false, sharding.compute_kv(index).rows, q.head_begin, q.head_end};
  return {true, q.rows, q.head_begin, q.head_end};
}

}  // namespace cp::sim
