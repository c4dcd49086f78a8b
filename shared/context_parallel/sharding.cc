#include "shared/context_parallel/sharding.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/context_parallel/mask_slices.h"
#include "shared/placement/runs.h"

namespace cp {
namespace {

// Blocks of queries for ranks so that all have about as many allowed cells, and equally many blocks up to
// one: the heaviest block left goes to the rank with the least work that still may take one.
Dealt deal_by_cost(const AttentionProblem& problem, std::int64_t block, int parts) {
  const std::int64_t blocks = ceil_div(problem.q_len, block), most = ceil_div(blocks, parts);
  std::vector<std::int64_t> cells(idx(blocks));
  for (const MaskGroup& group : mask_groups(problem)) {
    const std::int64_t entries = problem.shares_mask() ? 1 : group.problem.batch;
    for (std::int64_t i = 0; i < blocks; ++i) {
      const std::int64_t end = std::min(problem.q_len, (i + 1) * block);
      cells[idx(i)] += entries * allowed_cells(group.problem, i * block, end);
    }
  }
  std::vector<std::int64_t> order(idx(blocks));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return cells[idx(a)] > cells[idx(b)]; });
  using Load = std::pair<std::int64_t, std::int64_t>;  // cells, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (std::int64_t rank = 0; rank < parts; ++rank) least.push({0, rank});
  std::vector<std::int64_t> taken(idx(parts));
  Dealt dealt{block, std::vector<std::int64_t>(idx(blocks))};
  for (const std::int64_t i : order) {
    const auto [load, rank] = least.top();
    least.pop();
    dealt.owners[idx(i)] = rank;
    if (++taken[idx(rank)] < most) least.push({load + cells[idx(i)], rank});
  }
  return dealt;
}

// The documents' ends as positions among the rows of q or k; what lies before the first document and behind
// the last one is a document of its own. Of all batch entries together.
std::vector<std::int64_t> document_cuts(const AttentionProblem& problem, bool is_query) {
  const std::int64_t length = is_query ? problem.q_len : problem.kv_len;
  const std::int64_t offset = is_query ? problem.offset() : 0;
  std::vector<std::int64_t> cuts = {0};
  for (const MaskGroup& group : mask_groups(problem)) {
    for (const std::int64_t end : group.problem.cu_seqlens)
      cuts.push_back(std::clamp<std::int64_t>(end - offset, 0, length));
  }
  cuts.push_back(length);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  if (cuts.size() == 1) cuts.push_back(length);
  return cuts;
}

// As an InnerSplit or as a Split.
template <class AnySplit>
AnySplit split_of(const Balance& balance) {
  if (balance.kind == Balance::Kind::head_tail) return HeadTail{};
  if (balance.kind == Balance::Kind::striped) return Striped{balance.block};
  return Balanced{};
}

// How the ring axis splits the rows of q or k.
Split ring_split(const AttentionProblem& problem, const Balance& balance, int ring_size, bool is_query) {
  if (balance.kind == Balance::Kind::cost) {
    if (!is_query && (problem.kv_len != problem.q_len || problem.offset() != 0)) return Balanced{};
    return deal_by_cost(problem, balance.block, ring_size);
  }
  if (balance.per_document)
    return PerSequence{document_cuts(problem, is_query), split_of<InnerSplit>(balance)};
  return split_of<Split>(balance);
}

// Ring axis first, then the Ulysses axis, whichever of them neighbouring ranks differ in.
Layout layout_of(const AttentionProblem& problem, const Mesh& mesh, const Strategy& strategy, bool is_query,
                 std::int64_t dim, DType dtype) {
  const int rows_dim = seq_dim(problem.format);
  const int ring = mesh.axis_index("ring"), ulysses = mesh.axis_index("ulysses");
  std::vector<Placement> placements(2);
  placements[idx(ring)] =
      Shard{rows_dim, ring_split(problem, strategy.balance, mesh.axis_size(ring), is_query)};
  placements[idx(ulysses)] = Shard{rows_dim, Balanced{}};
  std::vector<std::vector<int>> order(4);
  order[idx(rows_dim)] = {ring, ulysses};
  const std::int64_t rows = is_query ? problem.q_len : problem.kv_len;
  const std::int64_t heads = is_query ? problem.q_heads : problem.kv_heads;
  Shape shape;
  for (const char letter : name(problem.format)) {
    shape.push_back(letter == 'b' ? problem.batch : letter == 's' ? rows : letter == 'd' ? dim : heads);
  }
  return make_layout(mesh, std::move(placements), std::move(shape), dtype, std::move(order));
}

Mesh grid(const std::vector<Rank>& ranks, const Strategy& strategy) {
  const int cp = static_cast<int>(ranks.size());
  const MeshAxis ulysses{"ulysses", strategy.ulysses_degree}, ring{"ring", cp / strategy.ulysses_degree};
  return strategy.ulysses_inner ? Mesh({ring, ulysses}, ranks) : Mesh({ulysses, ring}, ranks);
}

IndexSet half(const IndexSet& rows, int which) { return split_part(Balanced{}, rows, 2, which); }

IndexSet concatenated(const IndexSet& a, const IndexSet& b) {
  RunBuilder all;
  for (const Run& run : a) all.append(run);
  for (const Run& run : b) all.append(run);
  return all.take();
}

}  // namespace

AttentionSharding::AttentionSharding(const AttentionProblem& problem, int cp, const Strategy& strategy)
    : ring_size_(cp / strategy.ulysses_degree),
      ulysses_degree_(strategy.ulysses_degree),
      pieces_(strategy.pieces),
      ulysses_inner_(strategy.ulysses_inner),
      q_heads_(problem.q_heads),
      kv_heads_(problem.kv_heads) {
  std::vector<Rank> indices_of_ranks(idx(cp));
  std::iota(indices_of_ranks.begin(), indices_of_ranks.end(), 0);
  const Mesh mesh = grid(indices_of_ranks, strategy);
  for (const bool is_query : {true, false}) {
    const Layout layout = layout_of(problem, mesh, strategy, is_query, 1, problem.dtype);
    std::vector<IndexSet>& home = is_query ? home_q_ : home_kv_;
    std::vector<IndexSet>& compute = is_query ? compute_q_ : compute_kv_;
    for (int index = 0; index < cp; ++index) home.push_back(indices(layout, seq_dim(problem.format), index));
    for (int r = 0; r < ring_size_; ++r) {
      IndexSet rows;
      for (int u = 0; u < ulysses_degree_; ++u) rows = concatenated(rows, home[idx(index_at(r, u))]);
      compute.push_back(std::move(rows));
    }
  }
  if (strategy.balance.kind == Balance::Kind::head_tail_exchange) {
    const std::vector<IndexSet> arrived = compute_q_;
    for (int r = 0; r < ring_size_; ++r) {
      const int peer = ring_size_ - 1 - r;
      if (peer == r) continue;
      const IndexSet kept = half(arrived[idx(r)], 0), from_peer = half(arrived[idx(peer)], 1);
      compute_q_[idx(r)] = r < peer ? concatenated(kept, from_peer) : concatenated(from_peer, kept);
    }
  }
}

int AttentionSharding::ring_index(int index) const {
  return ulysses_inner_ ? index / ulysses_degree_ : index % ring_size_;
}
int AttentionSharding::ulysses_index(int index) const {
  return ulysses_inner_ ? index % ulysses_degree_ : index / ring_size_;
}
int AttentionSharding::index_at(int ring_index, int ulysses_index) const {
  return ulysses_inner_ ? ring_index * ulysses_degree_ + ulysses_index
                        : ulysses_index * ring_size_ + ring_index;
}

TensorPart AttentionSharding::home_q(int index) const { return {home_q_[idx(index)], 0, q_heads_}; }
TensorPart AttentionSharding::home_kv(int index) const { return {home_kv_[idx(index)], 0, kv_heads_}; }

TensorPart AttentionSharding::compute_q(int index) const {
  const IndexRange heads = *split_range(Balanced{}, {0, q_heads_}, ulysses_degree_, ulysses_index(index));
  return {compute_q_[idx(ring_index(index))], heads.begin, heads.end};
}

TensorPart AttentionSharding::compute_kv(int index) const {
  const TensorPart q = compute_q(index);
  const std::int64_t heads_per_kv = q_heads_ / kv_heads_;
  return {compute_kv_[idx(ring_index(index))], q.head_begin / heads_per_kv,
          ceil_div(q.head_end, heads_per_kv)};
}

std::vector<HeadPiece> AttentionSharding::pieces(int index) const {
  const TensorPart q = compute_q(index), kv = compute_kv(index);
  const std::int64_t per_kv = q_heads_ / kv_heads_;
  std::vector<HeadPiece> pieces;
  for (int i = 0; i < pieces_; ++i) {
    const IndexRange heads = *split_range(Balanced{}, {kv.head_begin, kv.head_end}, pieces_, i);
    pieces.push_back({std::max(q.head_begin, heads.begin * per_kv) - q.head_begin,
                      std::min(q.head_end, heads.end * per_kv) - q.head_begin, heads.begin - kv.head_begin,
                      heads.end - kv.head_begin});
  }
  return pieces;
}

Layout home_layout(const AttentionProblem& problem, const std::vector<Rank>& ranks, const Strategy& strategy,
                   bool is_query, std::int64_t dim) {
  return layout_of(problem, grid(ranks, strategy), strategy, is_query, dim, problem.dtype);
}

}  // namespace cp
