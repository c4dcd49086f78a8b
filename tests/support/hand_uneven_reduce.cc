// Partial(sum) to Shard(0) of rows that the ranks do not divide evenly. Every rank holds addends of all rows.
#include <algorithm>

#include "shared/base/text.h"
#include "shared/plan/builder.h"
#include "tests/support/hand_plans.h"
#include "tests/support/values.h"

namespace cp::testing {
namespace {

constexpr std::int64_t kColumns = 3;

struct Rows {
  std::int64_t begin = 0, count = 0;
};

class UnevenReduceBuilder {
 public:
  UnevenReduceBuilder(int ranks, int self, std::int64_t rows, DType dtype)
      : n_(ranks), self_(self), rows_(rows), dtype_(dtype), b_(self, host_target()) {
    std::vector<Rank> members;
    for (Rank rank = 0; rank < n_; ++rank) members.push_back(rank);
    stream_ = b_.stream("main");
    group_ = b_.group("tp", members);
    x_ = b_.input("x", dtype_, rows_ * kColumns);
    y_ = b_.output("y", dtype_, rows_of(self_).count * kColumns);
  }

  Rows rows_of(int index) const {
    const std::int64_t begin = std::min(rows_, index * chunk());
    return {begin, std::min(rows_, begin + chunk()) - begin};
  }

  // The blocks of a ReduceScatter are equal: the rows are padded to n chunks with zeros.
  Plan with_reduce_scatter() {
    if (rows_ == 0) return build();
    const std::int64_t block = chunk() * kColumns, given = rows_ * kColumns, padding = n_ * block - given;
    View in = flat_view(x_, 0, given);
    if (padding > 0) {
      const BufferId padded = b_.temporary("padded", dtype_, n_ * block);
      b_.add(stream_, Copy{in, flat_view(padded, 0, given)}, "rows");
      b_.add(stream_, Fill{flat_view(padded, given, padding), 0}, "padding");
      in = flat_view(padded, 0, n_ * block);
    }
    const std::int64_t mine = rows_of(self_).count * kColumns;
    if (mine == block) {
      b_.add(stream_, ReduceScatter{group_, ReduceOp::sum, in, flat_view(y_, 0, block)});
      return build();
    }
    const BufferId reduced = b_.temporary("reduced", dtype_, block);
    b_.add(stream_, ReduceScatter{group_, ReduceOp::sum, in, flat_view(reduced, 0, block)});
    if (mine > 0)
      b_.add(stream_, Copy{flat_view(reduced, 0, mine), flat_view(y_, 0, mine)}, "without padding");
    return build();
  }

  // Nothing is padded: each row goes to its owner, which adds the addends in the order of the ranks.
  Plan with_exchange() {
    const std::int64_t mine = rows_of(self_).count * kColumns;
    const BufferId received = b_.temporary("received", dtype_, n_ * mine);
    Exchange exchange{.group = group_, .sends = {}, .recvs = {}, .counts = {}};
    std::vector<Count> counts;
    for (int peer = 0; peer < n_; ++peer) {
      for (int from = 0; from < n_; ++from) {
        if (from != peer) counts.push_back({from, peer, rows_of(peer).count * kColumns});
      }
      if (peer == self_) continue;
      const Rows theirs = rows_of(peer);
      if (theirs.count > 0) {
        exchange.sends.push_back({peer, flat_view(x_, theirs.begin * kColumns, theirs.count * kColumns)});
      }
      if (mine > 0) exchange.recvs.push_back({peer, flat_view(received, peer * mine, mine)});
    }
    exchange.counts = counts_digest(std::move(counts));
    b_.add(stream_, std::move(exchange));
    for (int from = 0; from < n_ && mine > 0; ++from) {
      const View addend = from == self_ ? flat_view(x_, rows_of(self_).begin * kColumns, mine)
                                        : flat_view(received, from * mine, mine);
      const View sum = flat_view(y_, 0, mine);
      if (from == 0) {
        b_.add(stream_, Copy{addend, sum});
      } else {
        b_.add(stream_, Accumulate{ReduceOp::sum, addend, sum});
      }
    }
    return build();
  }

 private:
  std::int64_t chunk() const { return ceil_div(rows_, n_); }
  Plan build() {
    Hasher inputs;
    inputs.add(std::string_view("uneven_reduce")).add(n_).add(rows_).add(name(dtype_));
    return std::move(b_).build(inputs.digest());
  }

  int n_, self_;
  std::int64_t rows_;
  DType dtype_;
  PlanBuilder b_;
  StreamId stream_ = -1;
  GroupId group_ = -1;
  BufferId x_ = -1, y_ = -1;
};

}  // namespace

PlanCase uneven_reduce(int ranks, std::int64_t rows, UnevenReduce form, DType dtype) {
  const bool padded = form == UnevenReduce::reduce_scatter;
  PlanCase result{str("uneven_", padded ? "reduce_scatter_" : "exchange_", name(dtype), "_", rows, "_rows_",
                      ranks, "_ranks"),
                  {},
                  {},
                  {},
                  0};
  std::vector<double> sum(static_cast<std::size_t>(rows * kColumns));
  for (int self = 0; self < ranks; ++self) {
    const std::vector<double> addends =
        small_integers(rows * kColumns, static_cast<std::uint64_t>(self), 100);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += addends[i];
    result.inputs.push_back({{"x", addends}});
  }
  for (int self = 0; self < ranks; ++self) {
    UnevenReduceBuilder builder(ranks, self, rows, dtype);
    const Rows mine = builder.rows_of(self);
    const auto begin = sum.begin() + mine.begin * kColumns;
    result.expected.push_back({{"y", std::vector<double>(begin, begin + mine.count * kColumns)}});
    result.plans.push_back(padded ? builder.with_reduce_scatter() : builder.with_exchange());
  }
  return result;
}

}  // namespace cp::testing
