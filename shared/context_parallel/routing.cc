#include "shared/context_parallel/routing.h"

#include <algorithm>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/placement/runs.h"

namespace cp::detail {

Routing::Routing(AttentionWriter& writer, Team team, int self, std::vector<Member> members)
    : writer_(writer), team_(std::move(team)), self_(self), members_(std::move(members)) {
  RunBuilder arriving;
  std::int64_t begin = 0;
  for (int other = 0; other < static_cast<int>(size()); ++other) {
    to_user_.push_back(piece(self_, other));
    from_home_.push_back(piece(other, self_));
    from_home_.back().user_begin = begin;
    begin += from_home_.back().rows;
    for (const Overlap& stretch : from_home_.back().stretches) {
      arriving.append({stretch.global, stretch.run, stretch.stride_global, stretch.count});
    }
  }
  arriving_ = arriving.take();
}

Routing::Heads Routing::all_heads(std::int64_t heads) const {
  return {std::vector<Range>(size(), Range{0, heads}), heads};
}

// ---- who has what for whom ----

Routing::Piece Routing::piece(int home, int user) const {
  const IndexSet& held = members_[idx(home)].held;
  const std::optional<IndexSet>& wanted = members_[idx(user)].wanted;
  Piece piece;
  if (wanted) {
    piece.stretches = intersect(held, *wanted);
  } else {
    std::int64_t local = 0;
    for (const Run& run : held) {
      piece.stretches.push_back({run.run, run.count, run.begin, run.stride, local, run.run, 0, 0});
      local += run.size();
    }
  }
  for (const Overlap& stretch : piece.stretches) piece.rows += stretch.run * stretch.count;
  return piece;
}

std::int64_t Routing::rows_between(int home, int user) const {
  if (home == self_) return to_user_[idx(user)].rows;
  if (user == self_) return from_home_[idx(home)].rows;
  const std::optional<IndexSet>& wanted = members_[idx(user)].wanted;
  const IndexSet& held = members_[idx(home)].held;
  return wanted ? intersection_size(held, *wanted) : cp::size(held);
}

bool Routing::wants_all() const {
  return std::none_of(members_.begin(), members_.end(), [](const Member& m) { return m.wanted.has_value(); });
}

bool Routing::all_equal(const std::vector<Transport>& transports) const {
  const std::int64_t rows = cp::size(members_.front().held);
  const bool equal_rows = wants_all() && rows > 0 &&
                          std::all_of(members_.begin(), members_.end(),
                                      [&](const Member& m) { return cp::size(m.held) == rows; });
  return equal_rows && std::all_of(transports.begin(), transports.end(), [](const Transport& transport) {
           const std::vector<Range>& heads = transport.heads.of_user;
           return std::all_of(heads.begin(), heads.end(),
                              [&](const Range& range) { return range.len == heads.front().len; });
         });
}

std::vector<Count> Routing::counts(const std::vector<Transport>& transports, bool to_home) const {
  std::vector<Count> counts;
  for (int home = 0; home < static_cast<int>(size()); ++home) {
    for (int user = 0; user < static_cast<int>(size()); ++user) {
      const std::int64_t rows = home == user ? 0 : rows_between(home, user);
      if (rows == 0) continue;
      std::int64_t per_row = 0;
      for (const Transport& t : transports)
        per_row += t.home.batch * t.heads.of_user[idx(user)].len * t.home.dim;
      counts.push_back({to_home ? user : home, to_home ? home : user, rows * per_row});
    }
  }
  return counts;
}

void Routing::issue(Exchange exchange, std::vector<Count> counts, const std::string& label) {
  // Nobody sends anything; all members see the same counts, so all leave the step out.
  if (counts.empty()) return;
  exchange.counts = counts_digest(std::move(counts));
  writer_.builder().add(writer_.comm(), std::move(exchange), label);
}

std::int64_t Routing::block_numel(const Transport& transport, int user) const {
  return to_user_[idx(user)].rows * transport.heads.of_user[idx(user)].len * transport.home.batch *
         transport.home.dim;
}

// ---- views ----

View Routing::stretch_view(const Tensor& home, const Overlap& stretch, Range heads) const {
  return {
      home.buffer,
      home.offset + stretch.in_a * home.row_stride() + heads.begin * home.head_stride(),
      {stretch.count, stretch.run, home.batch, heads.len, home.dim},
      {stretch.stride_a * home.row_stride(), home.row_stride(), home.batch_stride(), home.head_stride(), 1},
      {}};
}

std::optional<View> Routing::contiguous_at_home(const Transport& transport, int user) const {
  const Piece& piece = to_user_[idx(user)];
  const bool whole_rows = transport.heads.of_user[idx(user)].len == transport.home.heads;
  if (!whole_rows || !transport.home.has_rows_outermost()) return std::nullopt;
  const Overlap& first = piece.stretches.front();
  std::int64_t next = first.in_a;
  for (const Overlap& stretch : piece.stretches) {
    if (stretch.in_a != next || (stretch.count > 1 && stretch.stride_a != stretch.run)) return std::nullopt;
    next += stretch.run * stretch.count;
  }
  return transport.home.row_block({first.in_a, piece.rows});
}

void Routing::pack(const Transport& transport, int user, BufferId staging, std::int64_t offset,
                   const std::string& label) {
  const Range heads = transport.heads.of_user[idx(user)];
  for (const Overlap& stretch : to_user_[idx(user)].stretches) {
    const View from = stretch_view(transport.home, stretch, heads);
    writer_.convert(from, dense_view(staging, offset, from.shape), str("pack ", label));
    offset += from.numel();
  }
}

void Routing::unpack(const Transport& transport, int user, const View& from, bool add,
                     const std::string& label, AttentionWriter::Of of) {
  std::int64_t offset = from.offset;
  for (const Overlap& stretch : to_user_[idx(user)].stretches) {
    const View to = stretch_view(transport.home, stretch, transport.heads.of_user[idx(user)]);
    const View block = dense_view(from.buffer, offset, to.shape);
    offset += to.numel();
    if (add) {
      writer_.accumulate(block, to, str("add ", label));
    } else {
      writer_.convert(block, to, str("unpack ", label), of);
    }
  }
}

void Routing::copy_own(const Transport& transport, const std::string& label) {
  const Tensor& user = transport.user;
  pack(transport, self_, user.buffer,
       user.offset + from_home_[idx(self_)].user_begin * user.batch * user.heads * user.dim,
       str("own ", label));
}

// ---- home to user ----

void Routing::gather(const std::vector<Transport>& transports, const std::string& label) {
  if (!all_equal(transports)) return gather_by_exchange(transports, label);
  for (const Transport& transport : transports) gather_equal(transport, label);
}

void Routing::gather_equal(const Transport& transport, const std::string& label) {
  const std::int64_t block = transport.user.numel() / static_cast<std::int64_t>(size());
  // All heads for everybody is an AllGather. Different heads for each user (Ulysses) are an AllToAll.
  const bool same_for_all = transport.heads.of_user.front().len == transport.heads.all;
  if (same_for_all) {
    View in = transport.home.flat();
    if (!contiguous_at_home(transport, self_) || team_.copy_engine()) {
      const BufferId packed =
          writer_.reached(str(label, " packed"), transport.home.dtype, transport.home.numel());
      pack(transport, self_, packed, 0, label);
      in = flat_view(packed, 0, transport.home.numel());
    }
    arrive(transport.user, label, [&](const View& out) { return AllGather{team_.moves(), in, out}; });
    return;
  }
  const std::int64_t all = block * static_cast<std::int64_t>(size());
  const BufferId staging = writer_.reached(str(label, " packed"), transport.home.dtype, all);
  for (int user = 0; user < static_cast<int>(size()); ++user)
    pack(transport, user, staging, user * block, label);
  arrive(transport.user, label, [&](const View& out) {
    return AllToAll{team_.moves(), flat_view(staging, 0, all), out};
  });
}

template <class Make>
void Routing::arrive(const Tensor& user, const std::string& label, const Make& into) {
  if (!team_.copy_engine() || writer_.builder().is_symmetric(user.buffer)) {
    writer_.builder().add(writer_.comm(), into(user.flat()), label);
    return;
  }
  const View arrived =
      flat_view(writer_.reached(str(label, " arrived"), user.dtype, user.numel()), 0, user.numel());
  writer_.builder().add(writer_.comm(), into(arrived), label);
  writer_.convert(arrived, user.flat(), str("keep ", label));
}

View Routing::readable(const Tensor& tensor, const std::string& label) {
  if (!team_.copy_engine() || writer_.builder().is_symmetric(tensor.buffer)) return tensor.flat();
  View placed =
      flat_view(writer_.reached(str(label, " sent"), tensor.dtype, tensor.numel()), 0, tensor.numel());
  writer_.convert(tensor.flat(), placed, str("place ", label));
  return placed;
}

void Routing::gather_by_exchange(const std::vector<Transport>& transports, const std::string& label) {
  Exchange exchange{team_.sums(), {}, {}, {}};
  for (const Transport& t : transports) {
    for (const auto& [user, view] : sends_of(t, label)) exchange.sends.push_back({user, view});
    for (int home = 0; home < static_cast<int>(size()); ++home) {
      const Piece& piece = from_home_[idx(home)];
      if (home == self_ || piece.rows == 0) continue;
      exchange.recvs.push_back({home, t.user.row_block({piece.user_begin, piece.rows})});
    }
  }
  issue(std::move(exchange), counts(transports, false), label);
  for (const Transport& t : transports) copy_own(t, label);
}

std::vector<std::pair<int, View>> Routing::sends_of(const Transport& transport, const std::string& label) {
  const std::vector<Range>& heads = transport.heads.of_user;
  // What all users get alike is packed once.
  const bool alike = wants_all() && std::all_of(heads.begin(), heads.end(), [&](const Range& range) {
                       return range.len == transport.home.heads;
                     });
  std::vector<std::pair<int, View>> sends;
  std::vector<int> packed;  // users whose pieces are not contiguous at home
  std::int64_t numel = 0;
  for (int user = 0; user < static_cast<int>(size()); ++user) {
    if (user == self_ || block_numel(transport, user) == 0) continue;
    if (std::optional<View> direct = contiguous_at_home(transport, user)) {
      sends.emplace_back(user, *std::move(direct));
    } else {
      packed.push_back(user);
      numel = alike ? block_numel(transport, user) : numel + block_numel(transport, user);
    }
  }
  if (packed.empty()) return sends;
  const BufferId staging = writer_.builder().temporary(str(label, " packed"), transport.home.dtype, numel);
  std::int64_t offset = 0;
  for (const int user : packed) {
    if (!alike || user == packed.front()) pack(transport, user, staging, offset, label);
    sends.emplace_back(user, flat_view(staging, offset, block_numel(transport, user)));
    if (!alike) offset += block_numel(transport, user);
  }
  return sends;
}

// ---- user to home ----

void Routing::give_back(const std::vector<Transport>& transports, bool sum, const std::string& label) {
  send_back(transports, sum, label, [](const Arrival& arrival) { arrival(); });
}

Routing::Arrival Routing::send_back(const std::vector<Transport>& transports, bool sum,
                                    const std::string& label) {
  std::vector<Arrival> arrivals;
  send_back(transports, sum, label, [&](Arrival arrival) { arrivals.push_back(std::move(arrival)); });
  return [arrivals] {
    for (const Arrival& arrival : arrivals) arrival();
  };
}

void Routing::send_back(const std::vector<Transport>& transports, bool sum, const std::string& label,
                        const Arrive& arrive) {
  if (!all_equal(transports)) return arrive(give_back_by_exchange(transports, sum, label));
  for (const Transport& transport : transports) {
    const bool same_for_all = transport.heads.of_user.front().len == transport.heads.all;
    if (sum && same_for_all) {
      arrive(reduce_scatter(transport, label));
    } else if (sum) {
      arrive(give_back_by_exchange({transport}, sum, label));
    } else {
      arrive(give_back_equal(transport, label));
    }
  }
}

Routing::Arrival Routing::reduce_scatter(const Transport& transport, const std::string& label) {
  const Tensor& home = transport.home;
  const Tensor block = writer_.temporary(str(label, " reduced"), transport.user.dtype, Order::rows_outermost,
                                         home.rows, home.heads, home.dim);
  writer_.builder().add(
      writer_.comm(), ReduceScatter{team_.sums(), ReduceOp::sum, transport.user.flat(), block.flat()}, label);
  // A sum, which whoever asked for it turns into its own dtype.
  return [=, this] { unpack(transport, self_, block.flat(), false, label, AttentionWriter::Of::merge); };
}

Routing::Arrival Routing::give_back_equal(const Transport& transport, const std::string& label) {
  const auto n = static_cast<std::int64_t>(size());
  const std::int64_t block = transport.user.numel() / n;
  const BufferId staging = writer_.reached(str(label, " arrived"), transport.user.dtype, block * n);
  const View from = readable(transport.user, label);
  writer_.builder().add(writer_.comm(), AllToAll{team_.moves(), from, flat_view(staging, 0, block * n)},
                        label);
  return [=, this] {
    for (int user = 0; user < n; ++user)
      unpack(transport, user, flat_view(staging, user * block, block), false, label);
  };
}

Routing::Arrival Routing::give_back_by_exchange(const std::vector<Transport>& transports, bool sum,
                                                const std::string& label) {
  Exchange exchange{team_.sums(), {}, {}, {}};
  std::vector<BufferId> stagings;
  for (const Transport& t : transports) {
    for (int home = 0; home < static_cast<int>(size()); ++home) {
      const Piece& piece = from_home_[idx(home)];
      if (home == self_ || piece.rows == 0) continue;
      exchange.sends.push_back({home, t.user.row_block({piece.user_begin, piece.rows})});
    }
    std::int64_t arriving = 0;
    for (int user = 0; user < static_cast<int>(size()); ++user) {
      if (user != self_) arriving += block_numel(t, user);
    }
    stagings.push_back(
        arriving == 0 ? -1 : writer_.builder().temporary(str(label, " arrived"), t.user.dtype, arriving));
    std::int64_t offset = 0;
    for (int user = 0; user < static_cast<int>(size()); ++user) {
      const std::int64_t numel = block_numel(t, user);
      if (user == self_ || numel == 0) continue;
      exchange.recvs.push_back({user, flat_view(stagings.back(), offset, numel)});
      offset += numel;
    }
  }
  issue(std::move(exchange), counts(transports, true), label);
  return [=, this] { unpack_all(transports, stagings, sum, label); };
}

void Routing::unpack_all(const std::vector<Transport>& transports, const std::vector<BufferId>& stagings,
                         bool sum, const std::string& label) {
  for (std::size_t i = 0; i < transports.size(); ++i) {
    const Transport& t = transports[i];
    if (sum && !t.begun) writer_.fill(t.home, 0, str("no ", label, " yet"), AttentionWriter::Of::merge);
    std::int64_t offset = 0;
    for (int user = 0; user < static_cast<int>(size()); ++user) {
      const std::int64_t numel = block_numel(t, user);
      if (numel == 0) continue;
      if (user == self_) {
        const View own = t.user.row_block({from_home_[idx(self_)].user_begin, to_user_[idx(self_)].rows});
        unpack(t, user, own, sum, str("own ", label));
        continue;
      }
      unpack(t, user, flat_view(stagings[i], offset, numel), sum, label);
      offset += numel;
    }
  }
}

}  // namespace cp::detail
