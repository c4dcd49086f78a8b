#include "sim/proof/run/recurrence_tolerance.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "shared/base/index.h"
#include "sim/base/parallel_for.h"
#include "sim/proof/run/recurrence_reference.h"

namespace cp::sim {
namespace {

// How many standard errors a result may be off (see the header). Chosen: for one element the bound fails with
// a probability of at most 2 exp(-8) = 7e-4 even if every rounding were as bad as can be.
constexpr double kDeviations = 4;
// What all numbers that a device takes as 0 may amount to (see the header).
constexpr double kTakenAsZero = 0x1p-100;

double squared(double x) { return x * x; }

// The symbols of the header that are a row's and not a column's, and what the row adds to those of its
// columns.
struct RowNumbers {
  double a = 0, b = 0, k = 0, q = 0;  // norms of k and q
  double c = 0, eta = 1, rho = 0;
  double transition2 = 0;  // of (u D)^2: what the row adds to a transition's error
  bool begins = false;     // a document
  double joins2 = 0;       // of (u D)^2: what all joins of the row's document add
};

// The bounds of one value head of one batch entry.
class RecurrenceBounds {
 public:
  RecurrenceBounds(const RecurrenceTestData& data, int ranks, std::int64_t batch, std::int64_t head)
      : data_(data),
        p_(data.problem()),
        batch_(batch),
        head_(head),
        key_head_(head / (p_.value_heads / p_.key_heads)),
        columns_(idx(p_.value_dim)),
        scans_(ranks > 1),
        d_(static_cast<double>(p_.key_dim)),
        m_(static_cast<double>(p_.value_dim)),
        added_(2 * static_cast<double>(p_.value_heads) / static_cast<double>(p_.key_heads)),
        scale_(std::abs(p_.output_scale())),
        errors2_(idx(p_.seq_len) * columns_),
        reaches_(scans_ ? errors2_.size() : 0) {
    for (std::int64_t row = 0; row < p_.seq_len; ++row) rows_.push_back(numbers_of(row));
    for (const std::int64_t begin : p_.document_starts()) rows_[idx(begin)].begins = true;
    for (std::size_t begin = 0, end = 1; begin < rows_.size(); begin = end++) {
      while (end < rows_.size() && !rows_[end].begins) ++end;
      const double chunks = scans_ ? std::min(2.0 * ranks, static_cast<double>(end - begin)) : 1;
      const auto n = static_cast<double>(p_.transition_dim());
      for (std::size_t row = begin; row < end; ++row) rows_[row].joins2 = 4 * (chunks - 1) * (2 * n * n + 1);
    }
  }

  void forward(RecurrenceTolerances& t) {
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const RowNumbers& x = rows_[row];
      double most = 0;
      for (std::size_t j = 0; j < columns_; ++j) {
        const Before before = before_row(row, j);
        const double s = norm(row, j), reach = before.reach, p = before.p + x.a * reach,
                     w = std::abs(written(row, j)) + (is_delta() ? x.k * x.a * reach : 0);
        double error2 = squared(x.rho) * before.error2;
        double own2 = squared(5 * x.eta * p) + d_ * squared(x.c * p) + squared(3 * x.b * x.k * w);
        if (scans_) {
          const double reached = std::max(s, x.rho * reach);
          reaches_[row * columns_ + j] = reached;
          own2 += squared(s + reached) + x.transition2 * squared(reached);
        } else {
          own2 += squared(s);
        }
        error2 += kU2 * own2;
        errors2_[row * columns_ + j] = error2;
        most = std::max(most, error2_behind(row, j) + (d_ + 4) * kU2 * squared(s));
      }
      t.out.rows[value_row(row)] = kDeviations * scale_ * x.q * std::sqrt(most) + kTakenAsZero;
    }
  }

  // Behind forward(). Adds squares to the rows of dq and dk, of which finish() makes bounds.
  void backward(RecurrenceTolerances& t) const {
    std::vector<double> errors2(columns_), reaches(columns_);  // F'^2 and D
    for (std::size_t row = rows_.size(); row-- > 0;) {
      const RowNumbers& x = rows_[row];
      if (row + 1 < rows_.size() && rows_[row + 1].begins) {
        std::fill(errors2.begin(), errors2.end(), 0);
        std::fill(reaches.begin(), reaches.end(), 0);
      }
      const double k2 = squared(x.k), b2 = squared(x.b);
      double dq2 = 0, dk2 = 0, dv2 = 0, dlog_decay2 = 0, dbeta2 = 0;
      Sums sums;
      for (std::size_t j = 0; j < columns_; ++j) {
        const std::size_t at = value_row(row) * columns_ + j;
        const Before before = before_row(row, j);
        const double p = before.p, w = std::abs(written(row, j)), h = data_.backward().dstate_norms[at],
                     z = std::abs(data_.backward().dwritten[at]), dout = std::abs(data_.dout()[at]);
        const double of_part = scans_ ? h + reaches[j] : h;
        const double own2 = errors2[j] + kU2 * (squared(3 * scale_ * x.q * dout) + squared(of_part));
        const double f2 = own2 + x.joins2 * kU2 * squared(reaches[j]);
        const double e_p2 = squared(x.a) * (before.error2 + before.joins2) + kU2 * squared(5 * p);
        const double e_w2 = is_delta() ? k2 * e_p2 + kU2 * (d_ * k2 * squared(p) + squared(w)) : 0;
        const double f_z2 = k2 * f2 + d_ * kU2 * k2 * squared(h), f_v2 = b2 * (f_z2 + kU2 * squared(z));
        const double f_p2 =
            squared(x.eta) * f2 + kU2 * squared(h) * ((d_ + 4) * squared(x.c) + squared(x.eta));
        dv2 = std::max(dv2, f_v2);
        dbeta2 += f_z2 * squared(w) + squared(z) * e_w2;
        dlog_decay2 += f_p2 * squared(p) + squared(x.eta * h) * e_p2;
        dq2 += squared(dout) * (e_p2 + b2 * k2 * e_w2);
        dk2 += b2 * (f2 * squared(w) + squared(h) * e_w2);
        if (is_delta()) dk2 += squared(p) * f_v2 + b2 * squared(z) * e_p2;
        sums.add({p, w, h, z, dout, p + x.b * x.k * w});
        errors2[j] = squared(x.rho) * own2 +
                     kU2 * squared(of_part) * (squared(6 * x.rho) + (d_ + 4) * squared(x.a * x.c));
        if (scans_) {
          reaches[j] = x.rho * std::max(h, reaches[j]);
          errors2[j] += kU2 * x.transition2 * squared(reaches[j]);
        }
      }
      // Roundings of sums over columns, whose partial sums are at most products of norms.
      dq2 += kU2 * (m_ + 16 + added_) * sums.dout2 * sums.state2;
      dk2 += kU2 * (m_ + 9 + added_) * b2 * sums.h2 * sums.w2;
      if (is_delta()) dk2 += kU2 * (m_ + 9 + added_) * b2 * sums.p2 * sums.z2;
      dbeta2 += kU2 * m_ * sums.z2 * sums.w2;
      dlog_decay2 += kU2 * (m_ + d_) * squared(x.eta) * sums.h2 * sums.p2;
      const auto bound = [](double square) { return kDeviations * std::sqrt(square) + kTakenAsZero; };
      t.dq.rows[key_row(row)] += squared(scale_) * dq2, t.dk.rows[key_row(row)] += dk2;
      t.dv.rows[value_row(row)] = bound(dv2);
      t.dlog_decay.rows[value_row(row)] = bound(dlog_decay2);
      t.dbeta.rows[value_row(row)] = bound(dbeta2);
    }
  }

  // Makes bounds of the squares that all value heads of a key head have added up.
  static void finish(TensorTolerance& tolerance) {
    for (double& row : tolerance.rows) row = kDeviations * std::sqrt(row) + kTakenAsZero;
  }

 private:
  static constexpr double kU2 = roundoff(DType::f32) * roundoff(DType::f32);

  // Of a column before a row: the squares of its error without that of joins, and of that; D; and p.
  struct Before {
    double error2 = 0, joins2 = 0, reach = 0, p = 0;
  };
  // Of a row, over its columns: the sums of squares of what the header calls p, w, h, z, dout, and of the
  // norm of the state behind the row, in its two parts.
  struct Sums {
    double p2 = 0, w2 = 0, h2 = 0, z2 = 0, dout2 = 0, state2 = 0;
    struct Column {
      double p, w, h, z, dout, state;
    };
    void add(const Column& c) {
      p2 += squared(c.p), w2 += squared(c.w), h2 += squared(c.h), z2 += squared(c.z);
      dout2 += squared(c.dout), state2 += squared(c.state);
    }
  };

  bool is_delta() const { return p_.rule == RecurrenceRule::delta; }
  std::size_t row_of(std::size_t row) const { return idx(batch_ * p_.seq_len) + row; }
  std::size_t value_row(std::size_t row) const { return row_of(row) * idx(p_.value_heads) + idx(head_); }
  std::size_t key_row(std::size_t row) const { return row_of(row) * idx(p_.key_heads) + idx(key_head_); }
  double norm(std::size_t row, std::size_t column) const {
    return data_.forward().state_norms[value_row(row) * columns_ + column];
  }
  double written(std::size_t row, std::size_t column) const {
    return data_.forward().written[value_row(row) * columns_ + column];
  }

  RowNumbers numbers_of(std::int64_t row) const {
    const std::size_t at = value_row(idx(row)), keys = idx(p_.key_dim);
    const auto norm_of = [&](const std::vector<double>& tensor) {
      double sum = 0;
      for (std::size_t i = key_row(idx(row)) * keys; i < (key_row(idx(row)) + 1) * keys; ++i)
        sum += tensor[i] * tensor[i];
      return std::sqrt(sum);
    };
    RowNumbers x;
    x.a = std::exp(data_.log_decay()[at]), x.b = std::abs(data_.beta()[at]);
    x.k = norm_of(data_.k()), x.q = norm_of(data_.q());
    x.transition2 = squared(5);
    if (is_delta()) {
      x.c = x.b * x.k * x.k;
      x.eta = std::max(1.0, std::abs(1 - data_.beta()[at] * x.k * x.k));
      x.transition2 = squared(4 + 2) + (d_ + 4) * squared(x.c / x.eta);
    }
    x.rho = x.a * x.eta;
    return x;
  }

  double joins2_behind(std::size_t row, std::size_t column) const {
    return scans_ ? rows_[row].joins2 * kU2 * squared(reaches_[row * columns_ + column]) : 0;
  }
  double error2_behind(std::size_t row, std::size_t column) const {
    return errors2_[row * columns_ + column] + joins2_behind(row, column);
  }
  Before before_row(std::size_t row, std::size_t column) const {
    if (rows_[row].begins) return {};
    const std::size_t before = (row - 1) * columns_ + column;
    return {errors2_[before], joins2_behind(row - 1, column), scans_ ? reaches_[before] : 0,
            rows_[row].a * norm(row - 1, column)};
  }

  const RecurrenceTestData& data_;
  const RecurrenceProblem& p_;
  const std::int64_t batch_, head_, key_head_;
  const std::size_t columns_;
  const bool scans_;  // whether states may come in from other chunks
  const double d_, m_;
  const double added_;  // 2 g
  const double scale_;
  std::vector<RowNumbers> rows_;
  std::vector<double> errors2_, reaches_;  // E^2 and D behind each row, by column
};

}  // namespace

RecurrenceTolerances recurrence_tolerances(const RecurrenceTestData& data, int ranks, bool backward) {
  const RecurrenceProblem& p = data.problem();
  const std::size_t rows = idx(p.batch * p.seq_len), key_rows = rows * idx(p.key_heads),
                    value_rows = rows * idx(p.value_heads);
  const auto of_rows = [&](std::size_t count) {
    TensorTolerance tolerance{std::vector<double>(count)};
    if (p.dtype != DType::f32)
      tolerance.relative = roundoff(p.dtype), tolerance.least = half_least_step(p.dtype);
    return tolerance;
  };
  RecurrenceTolerances t;
  t.out = of_rows(value_rows);
  data.forward();
  if (backward) {
    data.backward();
    t.dq = of_rows(key_rows), t.dk = of_rows(key_rows);
    t.dv = of_rows(value_rows);
    t.dlog_decay.rows.resize(value_rows), t.dbeta.rows.resize(value_rows);
  }
  parallel_for(idx(p.batch * p.key_heads), num_cores(), [&](std::size_t lane, std::size_t) {
    const std::int64_t each = p.value_heads / p.key_heads,
                       batch = static_cast<std::int64_t>(lane) / p.key_heads,
                       key_head = static_cast<std::int64_t>(lane) % p.key_heads;
    for (std::int64_t head = key_head * each; head < (key_head + 1) * each; ++head) {
      RecurrenceBounds bounds(data, ranks, batch, head);
      bounds.forward(t);
      if (backward) bounds.backward(t);
    }
  });
  RecurrenceBounds::finish(t.dq), RecurrenceBounds::finish(t.dk);
  return t;
}

}  // namespace cp::sim
