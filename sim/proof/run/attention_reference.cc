#include "sim/proof/run/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "shared/base/index.h"
#include "sim/base/parallel_for.h"
#include "sim/proof/ledger/mask_rule.h"
#include "sim/proof/run/host_blas.h"

namespace cp::sim {
namespace {

// The largest tile of scores. Chosen: 2^19 doubles are 4 MiB for each core, so that a tile stays small at any
// length; and the rows of one tile see about the same keys, as there are few of them.
constexpr std::int64_t kTileRows = 128;
constexpr std::int64_t kTileCells = std::int64_t{1} << 19;

// [rows, columns] of doubles that lie row after row.
struct Matrix {
  const double* data;
  std::int64_t rows, columns;
};

// out (+)= factor * a * b, each transposed or not. Where nothing is to be added up, out stays as it is:
// zeros.
void multiply(const Matrix& a, bool a_transposed, const Matrix& b, bool b_transposed, double factor,
              bool accumulate, double* out) {
  const auto rows = a_transposed ? a.columns : a.rows, inner = a_transposed ? a.rows : a.columns;
  const auto columns = b_transposed ? b.rows : b.columns;
  if (rows == 0 || columns == 0 || inner == 0) return;
  host_blas().dgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans,
                    b_transposed ? CblasTrans : CblasNoTrans, static_cast<blasint>(rows),
                    static_cast<blasint>(columns), static_cast<blasint>(inner), factor, a.data,
                    static_cast<blasint>(a.columns), b.data, static_cast<blasint>(b.columns),
                    accumulate ? 1 : 0, out, static_cast<blasint>(columns));
}

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Philox4x32-10 as Salmon et al. (2011) give it: ten rounds, each of which multiplies two of the four words
// by constants, and puts the halves of the products and the other two words together. Says whether the weight
// is dropped.
bool is_dropped(const AttentionProblem& problem, std::uint64_t seed, std::int64_t batch, std::int64_t head,
                std::int64_t query, std::int64_t key) {
  std::uint64_t c0 = static_cast<std::uint64_t>(key / 4), c1 = static_cast<std::uint64_t>(query),
                c2 = static_cast<std::uint64_t>(batch * problem.q_heads + head),
                c3 = static_cast<std::uint64_t>(problem.dropout.layer);
  std::uint64_t k0 = seed % (1ULL << 32), k1 = seed >> 32;
  constexpr std::uint64_t kMask = 0xffffffff;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = 0xD2511F53 * c0, p1 = 0xCD9E8D57 * c2;
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c1 = p1 & kMask, c3 = p0 & kMask;
    k0 = (k0 + 0x9E3779B9) & kMask, k1 = (k1 + 0xBB67AE85) & kMask;
  }
  const std::uint64_t words[] = {c0, c1, c2, c3};
  return static_cast<double>(words[key % 4]) < std::floor(problem.dropout.probability * 0x1p32 + 0.5);
}

// work(head), the heads shared among the cores.
template <class Work>
void for_each_head(std::int64_t heads, const Work& work) {
  host_blas().set_num_threads(1);
  parallel_for(idx(heads), num_cores(),
               [&](std::size_t head, std::size_t) { work(static_cast<std::int64_t>(head)); });
}

class Reference {
 public:
  explicit Reference(const ReferenceInputs& inputs)
      : in_(inputs), problem_(inputs.problem), keys_(visible_keys(inputs.problem)) {}

  std::int64_t heads() const { return problem_.batch * problem_.q_heads; }
  std::int64_t kv_head(std::int64_t head) const {
    const std::int64_t batch = head / problem_.q_heads, h = head % problem_.q_heads;
    return batch * problem_.kv_heads + h / problem_.heads_per_kv();
  }

  const std::vector<KeyInterval>& keys_of(std::int64_t head) const {
    return keys_[idx(head / problem_.q_heads)];
  }

  // Queries [begin, begin + size) of a head and the keys that they can see together.
  struct Tile {
    std::int64_t head, begin, size, key_begin, keys;
  };

  template <class Visit>
  void for_each_tile(std::int64_t head, const Visit& visit) const {
    for (std::int64_t begin = 0; begin < problem_.q_len;) {
      Tile tile{head, begin, 0, 0, 0};
      while (begin + tile.size < problem_.q_len && tile.size < kTileRows) {
        const KeyInterval& next = keys_of(head)[idx(begin + tile.size)];
        Tile wider = tile;
        ++wider.size;
        if (next.begin < next.end) {
          const std::int64_t first = tile.keys == 0 ? next.begin : std::min(tile.key_begin, next.begin);
          const std::int64_t last =
              tile.keys == 0 ? next.end : std::max(tile.key_begin + tile.keys, next.end);
          wider.key_begin = first;
          wider.keys = last - first;
        }
        if (tile.size > 0 && wider.size * wider.keys > kTileCells) break;
        tile = wider;
      }
      visit(tile);
      begin += tile.size;
    }
  }

  Matrix rows(const std::vector<double>& tensor, std::int64_t head, std::int64_t seq_len, std::int64_t dim,
              std::int64_t begin, std::int64_t size) const {
    return {tensor.data() + (head * seq_len + begin) * dim, size, dim};
  }
  Matrix q(std::int64_t head, const Tile& tile) const {
    return rows(in_.q, head, problem_.q_len, problem_.head_dim, tile.begin, tile.size);
  }
  Matrix k(std::int64_t head, const Tile& tile) const {
    return rows(in_.k, kv_head(head), problem_.kv_len, problem_.head_dim, tile.key_begin, tile.keys);
  }
  // The latent rows of the tile's keys, without what is rotated. Their rows are longer: `columns` is the
  // distance from row to row.
  Matrix c(std::int64_t head, const Tile& tile) const {
    return rows(*in_.latent, head / problem_.q_heads, problem_.kv_len, problem_.latent.dim(), tile.key_begin,
                tile.keys);
  }
  Matrix v(std::int64_t head, const Tile& tile) const {
    return rows(in_.v, kv_head(head), problem_.kv_len, problem_.v_head_dim, tile.key_begin, tile.keys);
  }

  // The scores behind the scale, capped.
  void cap(std::vector<double>& scores) const {
    if (problem_.softcap == 0) return;
    for (double& score : scores) score = problem_.softcap * std::tanh(score / problem_.softcap);
  }
  // The scores become weights: exp(score - lse) where allowed, else 0. Finds each row's lse, and its sum of
  // p^2.
  void weigh(const Tile& tile, std::vector<double>& scores, double* lse, double* p2) const {
    const double sink = problem_.sinks ? in_.sinks[idx(tile.head % problem_.q_heads)]
                                       : -std::numeric_limits<double>::infinity();
    for_each_row(tile, scores, [&](std::int64_t i, std::span<double> row) {
      lse[i] = sink;
      if (row.empty()) return;
      const double greatest = std::max(sink, *std::max_element(row.begin(), row.end()));
      double sum = std::exp(sink - greatest);
      for (double& score : row) sum += score = std::exp(score - greatest);
      for (double& weight : row) weight /= sum;
      p2[i] = dot(row.data(), row.data(), static_cast<std::int64_t>(row.size()));
      lse[i] = greatest + std::log(sum);
    });
  }
  // What dropout multiplies the weights of the tile by; nothing without it.
  std::vector<double> kept(const Tile& tile) const {
    if (!problem_.drops()) return {};
    std::vector<double> factors(idx(tile.size * tile.keys));
    // Of the probability that 32 bits can say.
    const double factor = 1 / (1 - std::floor(problem_.dropout.probability * 0x1p32 + 0.5) / 0x1p32);
    for (std::int64_t i = 0; i < tile.size; ++i) {
      for (std::int64_t j = 0; j < tile.keys; ++j) {
        const bool dropped = is_dropped(problem_, in_.seed, in_.first_batch + tile.head / problem_.q_heads,
                                        tile.head % problem_.q_heads, tile.begin + i, tile.key_begin + j);
        factors[idx(i * tile.keys + j)] = dropped ? 0 : factor;
      }
    }
    return factors;
  }
  static void multiply_by(const std::vector<double>& factors, std::vector<double>& values) {
    for (std::size_t i = 0; i < factors.size(); ++i) values[i] *= factors[i];
  }
  // The same as weigh() where lse is known.
  void weigh_by(const double* lse, const Tile& tile, std::vector<double>& scores) const {
    for_each_row(tile, scores, [&](std::int64_t i, std::span<double> row) {
      for (double& score : row) score = std::exp(score - lse[i]);
    });
  }

 private:
  // Calls visit(i, the scores of the allowed keys of query i of the tile), and makes the others 0.
  template <class Visit>
  void for_each_row(const Tile& tile, std::vector<double>& scores, const Visit& visit) const {
    for (std::int64_t i = 0; i < tile.size; ++i) {
      const KeyInterval& allowed = keys_of(tile.head)[idx(tile.begin + i)];
      const std::span row(scores.data() + i * tile.keys, idx(tile.keys));
      const std::size_t size = idx(allowed.end - allowed.begin);
      const std::size_t begin = size > 0 ? idx(allowed.begin - tile.key_begin) : 0;
      std::fill_n(row.begin(), begin, 0);
      std::fill(row.begin() + static_cast<std::ptrdiff_t>(begin + size), row.end(), 0);
      visit(i, row.subspan(begin, size));
    }
  }

  const ReferenceInputs& in_;
  const AttentionProblem& problem_;
  std::vector<std::vector<KeyInterval>> keys_;  // [batch][query]
};

// Of one query head; `dk`, `dv` and the sums over queries are that head's share.
struct HeadGradients {
  double *dq, *dk, *dv, *row_ds, *row_ds2, *key_p, *key_p2, *key_ds, *key_ds2;
  double *row_dsink, *row_sink;  // null without sinks
  double *row_ds_c, *row_p_c;    // null without latent rows
};

// out = factor * weights * the first `rank` elements of each latent row.
void multiply_latent(const Matrix& weights, const Matrix& latent, std::int64_t rank, double factor,
                     double* out) {
  if (weights.rows == 0 || weights.columns == 0) return;
  host_blas().dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<blasint>(weights.rows),
                    static_cast<blasint>(rank), static_cast<blasint>(weights.columns), factor, weights.data,
                    static_cast<blasint>(weights.columns), latent.data, static_cast<blasint>(latent.columns),
                    0, out, static_cast<blasint>(rank));
}

void head_backward(const Reference& reference, const ReferenceInputs& in, const ReferenceForward& forward,
                   const std::vector<double>& dout, std::int64_t head, const HeadGradients& grads) {
  const AttentionProblem& problem = in.problem;
  std::vector<double> p, ds;
  reference.for_each_tile(head, [&](const Reference::Tile& tile) {
    const std::int64_t first = head * problem.q_len + tile.begin;
    const Matrix q = reference.q(head, tile), k = reference.k(head, tile), v = reference.v(head, tile);
    const Matrix d = reference.rows(dout, head, problem.q_len, problem.v_head_dim, tile.begin, tile.size);
    const Matrix out =
        reference.rows(forward.out, head, problem.q_len, problem.v_head_dim, tile.begin, tile.size);
    p.resize(idx(tile.size * tile.keys));
    ds.resize(p.size());
    multiply(q, false, k, true, problem.scale(), false, p.data());
    reference.cap(p);
    std::vector<double> slopes(problem.softcap == 0 ? 0 : p.size());
    for (std::size_t i = 0; i < slopes.size(); ++i)
      slopes[i] = 1 - p[i] / problem.softcap * (p[i] / problem.softcap);
    reference.weigh_by(forward.lse.data() + first, tile, p);
    multiply(d, false, v, true, 1, false, ds.data());
    const std::vector<double> kept = reference.kept(tile);
    Reference::multiply_by(kept, ds);
    for (std::int64_t i = 0; i < tile.size; ++i) {
      const double delta = dot(d.data + i * d.columns, out.data + i * d.columns, d.columns);
      double *ds_i = ds.data() + i * tile.keys, *p_i = p.data() + i * tile.keys;
      if (grads.row_sink != nullptr) {
        const double sink = std::exp(in.sinks[idx(head % problem.q_heads)] - forward.lse[idx(first + i)]);
        grads.row_sink[tile.begin + i] = sink;
        grads.row_dsink[tile.begin + i] = -sink * delta;
      }
      for (std::int64_t j = 0; j < tile.keys; ++j) {
        const std::int64_t key = tile.key_begin + j;
        ds_i[j] = p_i[j] * (ds_i[j] - delta);
        grads.key_p[key] += p_i[j];
        grads.key_p2[key] += p_i[j] * p_i[j];
        grads.key_ds[key] += std::abs(ds_i[j]);
        grads.key_ds2[key] += ds_i[j] * ds_i[j];
      }
      grads.row_ds[tile.begin + i] = host_blas().dasum(static_cast<blasint>(tile.keys), ds_i, 1);
      grads.row_ds2[tile.begin + i] = dot(ds_i, ds_i, tile.keys);
    }
    Reference::multiply_by(slopes, ds), Reference::multiply_by(kept, p);
    const Matrix p_tile{p.data(), tile.size, tile.keys}, ds_tile{ds.data(), tile.size, tile.keys};
    multiply(ds_tile, false, k, false, problem.scale(), false, grads.dq + tile.begin * problem.head_dim);
    multiply(ds_tile, true, q, false, problem.scale(), true, grads.dk + tile.key_begin * problem.head_dim);
    multiply(p_tile, true, d, false, 1, true, grads.dv + tile.key_begin * problem.v_head_dim);
    if (grads.row_p_c == nullptr) return;
    const std::int64_t rank = problem.latent.rank;
    const Matrix c = reference.c(head, tile);
    multiply_latent(ds_tile, c, rank, problem.scale(), grads.row_ds_c + tile.begin * rank);
    multiply_latent(p_tile, c, rank, 1, grads.row_p_c + tile.begin * rank);
  });
}

// [batch, q_heads, width] added up over the query heads of each kv head: [batch, kv_heads, width].
std::vector<double> over_groups(const AttentionProblem& problem, std::int64_t width,
                                std::vector<double> by_head) {
  const std::int64_t group = problem.heads_per_kv();
  if (group == 1) return by_head;
  std::vector<double> sums(idx(problem.batch * problem.kv_heads * width));
  for (std::size_t i = 0; i < by_head.size(); ++i) {
    const std::size_t head = i / idx(width);
    sums[head / idx(group) * idx(width) + i % idx(width)] += by_head[i];
  }
  return sums;
}

}  // namespace

ReferenceForward reference_forward(const ReferenceInputs& inputs) {
  const Reference reference(inputs);
  const AttentionProblem& problem = inputs.problem;
  ReferenceForward result;
  result.out.resize(idx(reference.heads() * problem.q_len * problem.v_head_dim));
  result.lse.resize(idx(reference.heads() * problem.q_len));
  result.row_p2.resize(result.lse.size());
  for_each_head(reference.heads(), [&](std::int64_t head) {
    std::vector<double> scores;
    reference.for_each_tile(head, [&](const Reference::Tile& tile) {
      scores.resize(idx(tile.size * tile.keys));
      const std::int64_t first = head * problem.q_len + tile.begin;
      multiply(reference.q(head, tile), false, reference.k(head, tile), true, problem.scale(), false,
               scores.data());
      reference.cap(scores);
      reference.weigh(tile, scores, result.lse.data() + first, result.row_p2.data() + first);
      Reference::multiply_by(reference.kept(tile), scores);
      multiply({scores.data(), tile.size, tile.keys}, false, reference.v(head, tile), false, 1, false,
               result.out.data() + first * problem.v_head_dim);
    });
  });
  return result;
}

ReferenceBackward reference_backward(const ReferenceInputs& inputs, const ReferenceForward& forward,
                                     const std::vector<double>& dout) {
  const Reference reference(inputs);
  const AttentionProblem& problem = inputs.problem;
  const std::int64_t heads = reference.heads(), q_len = problem.q_len, kv_len = problem.kv_len;
  const std::int64_t dk_size = kv_len * problem.head_dim, dv_size = kv_len * problem.v_head_dim;
  ReferenceBackward result;
  result.dq.resize(idx(heads * q_len * problem.head_dim));
  result.row_ds.resize(idx(heads * q_len));
  result.row_ds2.resize(result.row_ds.size());
  if (problem.sinks)
    result.row_dsink.resize(result.row_ds.size()), result.row_sink.resize(result.row_ds.size());
  const std::int64_t row_size = q_len * problem.latent.rank;
  result.row_ds_c.resize(idx(heads * row_size)), result.row_p_c.resize(idx(heads * row_size));
  std::vector<double> dk(idx(heads * dk_size)), dv(idx(heads * dv_size));
  std::vector<double> key_p(idx(heads * kv_len)), key_p2(key_p.size()), key_ds(key_p.size()),
      key_ds2(key_p.size());
  for_each_head(heads, [&](std::int64_t head) {
    head_backward(
        reference, inputs, forward, dout, head,
        {result.dq.data() + head * q_len * problem.head_dim, dk.data() + head * dk_size,
         dv.data() + head * dv_size, result.row_ds.data() + head * q_len,
         result.row_ds2.data() + head * q_len, key_p.data() + head * kv_len, key_p2.data() + head * kv_len,
         key_ds.data() + head * kv_len, key_ds2.data() + head * kv_len,
         problem.sinks ? result.row_dsink.data() + head * q_len : nullptr,
         problem.sinks ? result.row_sink.data() + head * q_len : nullptr,
         problem.has_latent() ? result.row_ds_c.data() + head * row_size : nullptr,
         problem.has_latent() ? result.row_p_c.data() + head * row_size : nullptr});
  });
  if (problem.has_latent()) result.head_dk = dk, result.head_dv = dv;
  result.dk = over_groups(problem, dk_size, std::move(dk));
  result.dv = over_groups(problem, dv_size, std::move(dv));
  result.key_p = over_groups(problem, kv_len, std::move(key_p));
  result.key_p2 = over_groups(problem, kv_len, std::move(key_p2));
  result.key_ds = over_groups(problem, kv_len, std::move(key_ds));
  result.key_ds2 = over_groups(problem, kv_len, std::move(key_ds2));
  return result;
}

}  // namespace cp::sim
