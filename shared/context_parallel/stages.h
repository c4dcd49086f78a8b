// The moves between the homes of rows and where a rank computes. Internal to shared/context_parallel.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shared/context_parallel/attention_writer.h"
#include "shared/context_parallel/routing.h"

namespace cp::detail {

inline Range range_of(const HeadPiece& piece, bool is_query) {
  return is_query ? Range{piece.q_begin, piece.q_end - piece.q_begin}
                  : Range{piece.kv_begin, piece.kv_end - piece.kv_begin};
}

// The two moves that may lie between them, in this order: the Ulysses all-to-all, which trades rows for
// heads, and the exchange of query rows (head_tail_exchange).
class Stages {
 public:
  explicit Stages(AttentionWriter& writer) : writer_(writer) {
    const AttentionSharding& sharding = writer.sharding();
    for (int u = 0; u < sharding.ulysses_degree(); ++u)
      pieces_.push_back(sharding.pieces(sharding.index_at(writer.ring_index(), u)));
    if (sharding.ulysses_degree() > 1) {
      for (const bool is_query : {true, false}) {
        std::vector<Routing::Member> members;
        for (int u = 0; u < sharding.ulysses_degree(); ++u) {
          const int index = sharding.index_at(writer.ring_index(), u);
          members.push_back(
              {(is_query ? sharding.home_q(index) : sharding.home_kv(index)).rows, std::nullopt});
        }
        (is_query ? ulysses_q_ : ulysses_kv_)
            .emplace(writer, writer.ulysses_team(), sharding.ulysses_index(writer.index()),
                     std::move(members));
      }
    }
    if (writer.strategy().balance.kind == Balance::Kind::head_tail_exchange && sharding.ring_size() > 1) {
      std::vector<Routing::Member> members;
      for (int r = 0; r < sharding.ring_size(); ++r) {
        members.push_back({arrived_rows(r), writer.context().q_rows(r)});
      }
      exchange_.emplace(writer, writer.ring_team(), writer.ring_index(), std::move(members));
    }
  }

  bool moves_q() const { return ulysses_q_.has_value() || exchange_.has_value(); }
  bool moves_kv() const { return ulysses_kv_.has_value(); }

  // q or dout from home to where the rank computes: `there` where a move ends, else home itself.
  Tensor bring_q(const Tensor& home, const Tensor& there, std::size_t piece, const std::string& name) {
    if (!moves_q()) return home;
    Tensor here = ulysses_q_ ? home : of_piece(home, piece);
    if (ulysses_q_) {
      here = exchange_ ? between(name, there) : there;
      ulysses_q_->gather({{home, here, heads(true, piece)}}, str(name, " to heads"));
    }
    if (exchange_)
      exchange_->gather({{here, there, exchange_->all_heads(there.heads)}}, str(name, " to its balance"));
    return there;
  }

  // k and v likewise, or latent rows, which all members of the Ulysses group get whole.
  void bring_kv(const std::vector<std::pair<Tensor, Tensor>>& home_and_there, std::size_t piece) {
    std::vector<Routing::Transport> transports;
    transports.reserve(home_and_there.size());
    for (const auto& [home, there] : home_and_there)
      transports.push_back({home, there, travelling_heads(piece)});
    ulysses_kv_->gather(transports, writer_.latent_travels() ? "latent to all" : "k, v to heads");
  }

  // A piece of out or dq back home. What it returns writes what has arrived.
  Routing::Arrival return_q(const Tensor& there, const Tensor& home, std::size_t piece,
                            const std::string& name) {
    const Routing::Heads of_users = ulysses_q_ ? heads(true, piece) : Routing::Heads{};
    const std::string to_rows = str(name, " to rows");
    if (!exchange_) return ulysses_q_->send_back({{home, there, of_users}}, false, to_rows);
    const Tensor here = ulysses_q_ ? between(name, there) : of_piece(home, piece);
    Routing::Arrival arrival = exchange_->send_back({{here, there, exchange_->all_heads(there.heads)}}, false,
                                                    str(name, " from its balance"));
    if (!ulysses_q_) return arrival;
    return [this, arrival, home, here, of_users, to_rows] {
      arrival();
      ulysses_q_->give_back({{home, here, of_users}}, false, to_rows);
    };
  }

  // Whether several ranks hold, and so have gradients of, one kv head, or latent rows.
  bool shares_kv_heads() const {
    if (moves_kv() && writer_.latent_travels()) return true;
    std::int64_t held = 0;
    for (std::size_t piece = 0; piece < pieces_.front().size(); ++piece) {
      for (const Range& range : heads(false, piece).of_user) held += range.len;
    }
    return moves_kv() && held > writer_.problem().kv_heads;
  }
  // A piece of dk and dv back home; added up there in f32 where ranks share heads, and the first piece begins
  // the sums.
  Routing::Arrival return_kv(const std::vector<std::pair<Tensor, Tensor>>& there_and_home,
                             std::size_t piece) {
    std::vector<Routing::Transport> transports;
    transports.reserve(there_and_home.size());
    for (const auto& [there, home] : there_and_home)
      transports.push_back({home, there, travelling_heads(piece), piece > 0});
    return ulysses_kv_->send_back(transports, shares_kv_heads(),
                                  writer_.latent_travels() ? "dlatent to rows" : "dk, dv to rows");
  }

  // The heads of this rank's pieces.
  const std::vector<HeadPiece>& pieces() const {
    return pieces_[static_cast<std::size_t>(writer_.sharding().ulysses_index(writer_.index()))];
  }

 private:
  // The query rows of a ring index after the Ulysses stage.
  IndexSet arrived_rows(int ring_index) const {
    std::vector<Run> rows;
    for (int u = 0; u < writer_.sharding().ulysses_degree(); ++u) {
      const IndexSet part = writer_.sharding().home_q(writer_.sharding().index_at(ring_index, u)).rows;
      rows.insert(rows.end(), part.begin(), part.end());
    }
    return canonical(rows);
  }
  // A tensor between the two moves.
  Tensor between(const std::string& name, const Tensor& there) {
    return writer_.temporary(str(name, " on its way"), there.dtype, Order::rows_outermost,
                             size(arrived_rows(writer_.ring_index())), there.heads, there.dim);
  }
  // Of keys and values, or of latent rows, which are one head.
  Routing::Heads travelling_heads(std::size_t piece) const {
    return writer_.latent_travels() ? ulysses_kv_->all_heads(1) : heads(false, piece);
  }
  // What each user has of a piece, among all heads.
  Routing::Heads heads(bool is_query, std::size_t piece) const {
    const AttentionSharding& sharding = writer_.sharding();
    Routing::Heads heads{{}, is_query ? writer_.problem().q_heads : writer_.problem().kv_heads};
    for (int u = 0; u < sharding.ulysses_degree(); ++u) {
      const int index = sharding.index_at(writer_.ring_index(), u);
      const TensorPart part = is_query ? sharding.compute_q(index) : sharding.compute_kv(index);
      const Range of_piece = range_of(pieces_[static_cast<std::size_t>(u)][piece], is_query);
      heads.of_user.push_back({part.head_begin + of_piece.begin, of_piece.len});
    }
    return heads;
  }
  // Without Ulysses a rank computes on all heads, and a tensor at home has the piece's among them.
  Tensor of_piece(const Tensor& home, std::size_t piece) const {
    return home.with_heads(range_of(pieces()[piece], true));
  }

  AttentionWriter& writer_;
  std::vector<std::vector<HeadPiece>> pieces_;  // by Ulysses index
  std::optional<Routing> ulysses_q_, ulysses_kv_, exchange_;
};

}  // namespace cp::detail
