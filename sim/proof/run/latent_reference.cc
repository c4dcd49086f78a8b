#include "sim/proof/run/latent_reference.h"

#include <algorithm>

#include "shared/base/index.h"
#include "sim/proof/run/attention_reference.h"
#include "sim/proof/run/host_blas.h"

namespace cp::sim {
namespace {

// Elements of rows that may be apart.
struct Panel {
  const double* data;
  std::int64_t rows, columns, stride;
};

// out += a b, each transposed or not; rows of `out` are `stride` apart.
void add_product(const Panel& a, bool a_transposed, const Panel& b, bool b_transposed, double* out,
                 std::int64_t stride) {
  const auto rows = a_transposed ? a.columns : a.rows, inner = a_transposed ? a.rows : a.columns;
  const auto columns = b_transposed ? b.rows : b.columns;
  if (rows == 0 || columns == 0 || inner == 0) return;
  host_blas().dgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans,
                    b_transposed ? CblasTrans : CblasNoTrans, static_cast<blasint>(rows),
                    static_cast<blasint>(columns), static_cast<blasint>(inner), 1, a.data,
                    static_cast<blasint>(a.stride), b.data, static_cast<blasint>(b.stride), 1, out,
                    static_cast<blasint>(stride));
}

// The sizes, and the parts of the tensors that belong to a batch entry and a kv head.
struct Parts {
  explicit Parts(const LatentInputs& inputs)
      : in(inputs),
        p(inputs.problem),
        rank(p.latent.rank),
        rope(p.latent.rope_dim),
        nope(p.head_dim - rope),
        up(nope + p.v_head_dim) {
    host_blas().set_num_threads(1);  // ranks compare at the same time, each on a thread of its own
  }

  Panel c(std::int64_t batch) const {
    return {in.latent.data() + batch * p.kv_len * (rank + rope), p.kv_len, rank, rank + rope};
  }
  std::int64_t of_key_rows(std::int64_t head) const { return head * up * rank; }
  std::int64_t of_value_rows(std::int64_t head) const { return (head * up + nope) * rank; }
  Panel key_rows(std::int64_t head) const { return {in.kv_up.data() + of_key_rows(head), nope, rank, rank}; }
  Panel value_rows(std::int64_t head) const {
    return {in.kv_up.data() + of_value_rows(head), p.v_head_dim, rank, rank};
  }
  // Where the rows of a batch entry and a head begin in a tensor [batch, heads, rows, dim].
  static std::int64_t begin(std::int64_t batch, std::int64_t heads, std::int64_t head, std::int64_t rows,
                            std::int64_t dim) {
    return (batch * heads + head) * rows * dim;
  }

  const LatentInputs& in;
  const AttentionProblem& p;
  std::int64_t rank, rope, nope, up;
};

}  // namespace

ExpandedKeys reference_expand(const LatentInputs& inputs) {
  const Parts parts(inputs);
  const AttentionProblem& p = inputs.problem;
  const std::int64_t heads = p.batch * p.kv_heads * p.kv_len, dim = parts.rank + parts.rope;
  ExpandedKeys keys{std::vector<double>(idx(heads * p.head_dim)),
                    std::vector<double>(idx(heads * p.v_head_dim))};
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.kv_heads; ++h) {
      double* const k = keys.k.data() + Parts::begin(b, p.kv_heads, h, p.kv_len, p.head_dim);
      double* const v = keys.v.data() + Parts::begin(b, p.kv_heads, h, p.kv_len, p.v_head_dim);
      add_product(parts.c(b), false, parts.key_rows(h), true, k, p.head_dim);
      add_product(parts.c(b), false, parts.value_rows(h), true, v, p.v_head_dim);
      for (std::int64_t row = 0; row < p.kv_len; ++row) {
        const double* const rotated = inputs.latent.data() + (b * p.kv_len + row) * dim + parts.rank;
        std::copy_n(rotated, parts.rope, k + row * p.head_dim + parts.nope);
      }
    }
  }
  return keys;
}

std::vector<double> reference_dlatent(const LatentInputs& inputs, const ReferenceBackward& gradients) {
  const Parts parts(inputs);
  const AttentionProblem& p = inputs.problem;
  const std::int64_t dim = parts.rank + parts.rope;
  std::vector<double> dlatent(inputs.latent.size());
  for (std::int64_t b = 0; b < p.batch; ++b) {
    double* const out = dlatent.data() + b * p.kv_len * dim;
    for (std::int64_t h = 0; h < p.kv_heads; ++h) {
      const double* const dk = gradients.dk.data() + Parts::begin(b, p.kv_heads, h, p.kv_len, p.head_dim);
      const double* const dv = gradients.dv.data() + Parts::begin(b, p.kv_heads, h, p.kv_len, p.v_head_dim);
      add_product({dk, p.kv_len, parts.nope, p.head_dim}, false, parts.key_rows(h), false, out, dim);
      add_product({dv, p.kv_len, p.v_head_dim, p.v_head_dim}, false, parts.value_rows(h), false, out, dim);
      for (std::int64_t row = 0; row < p.kv_len; ++row) {
        for (std::int64_t i = 0; i < parts.rope; ++i)
          out[row * dim + parts.rank + i] += dk[row * p.head_dim + parts.nope + i];
      }
    }
  }
  return dlatent;
}

namespace {

// Some rows of a tensor, one behind the other; the first `columns` elements of each.
std::vector<double> picked(const double* tensor, std::int64_t dim, std::int64_t columns,
                           const std::vector<std::int64_t>& rows) {
  std::vector<double> result;
  result.reserve(rows.size() * idx(columns));
  for (const std::int64_t row : rows)
    result.insert(result.end(), tensor + row * dim, tensor + row * dim + columns);
  return result;
}

// out [a's columns, b's columns] += a^T b, of [rows, columns] that lie dense.
void add_outer(const std::vector<double>& a, const std::vector<double>& b, std::size_t rows, double* out) {
  if (rows == 0) return;
  const auto n = static_cast<std::int64_t>(rows), of_a = static_cast<std::int64_t>(a.size() / rows),
             of_b = static_cast<std::int64_t>(b.size() / rows);
  add_product({a.data(), n, of_a, of_a}, true, {b.data(), n, of_b, of_b}, false, out, of_b);
}

}  // namespace

std::vector<double> reference_dkv_up_of_keys(const LatentInputs& inputs, const ReferenceBackward& gradients,
                                             const RowsAndHeads& keys) {
  const Parts parts(inputs);
  const AttentionProblem& p = inputs.problem;
  std::vector<double> dkv_up(inputs.kv_up.size());
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::vector<double> c = picked(parts.c(b).data, parts.c(b).stride, parts.rank, keys.rows);
    for (std::int64_t h = keys.head_begin; h < keys.head_end; ++h) {
      const std::int64_t kv = h / p.heads_per_kv();
      const auto some = [&](const std::vector<double>& tensor, std::int64_t dim, std::int64_t columns) {
        return picked(tensor.data() + Parts::begin(b, p.q_heads, h, p.kv_len, dim), dim, columns, keys.rows);
      };
      add_outer(some(gradients.head_dk, p.head_dim, parts.nope), c, keys.rows.size(),
                dkv_up.data() + parts.of_key_rows(kv));
      add_outer(some(gradients.head_dv, p.v_head_dim, p.v_head_dim), c, keys.rows.size(),
                dkv_up.data() + parts.of_value_rows(kv));
    }
  }
  return dkv_up;
}

std::vector<double> reference_dkv_up_of_queries(const LatentInputs& inputs,
                                                const ReferenceBackward& gradients,
                                                const QueryInputs& queries, const RowsAndHeads& rows) {
  const Parts parts(inputs);
  const AttentionProblem& p = inputs.problem;
  std::vector<double> dkv_up(inputs.kv_up.size());
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = rows.head_begin; h < rows.head_end; ++h) {
      const std::int64_t kv = h / p.heads_per_kv();
      const auto some = [&](const std::vector<double>& tensor, std::int64_t dim, std::int64_t columns) {
        return picked(tensor.data() + Parts::begin(b, p.q_heads, h, p.q_len, dim), dim, columns, rows.rows);
      };
      add_outer(some(queries.q, p.head_dim, parts.nope), some(gradients.row_ds_c, parts.rank, parts.rank),
                rows.rows.size(), dkv_up.data() + parts.of_key_rows(kv));
      add_outer(some(queries.dout, p.v_head_dim, p.v_head_dim),
                some(gradients.row_p_c, parts.rank, parts.rank), rows.rows.size(),
                dkv_up.data() + parts.of_value_rows(kv));
    }
  }
  return dkv_up;
}

}  // namespace cp::sim
