#include "sim/proof/reference/operations.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace cp::sim {
namespace {

void add_to(Matrix64& sum, const Matrix64& term, double factor = 1) {
  for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += factor * term.values[i];
}

Matrix64 transposed(const Matrix64& a) {
  Matrix64 out(a.columns, a.rows);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.columns; ++j) out.row(j)[i] = a.row(i)[j];
  }
  return out;
}

// out += a b
void add_product(const Matrix64& a, const Matrix64& b, Matrix64& out) {
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t k = 0; k < a.columns; ++k) {
      const double factor = a.row(i)[k];
      const double* const from = b.row(k);
      double* const to = out.row(i);
      for (std::int64_t j = 0; j < b.columns; ++j) to[j] += factor * from[j];
    }
  }
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
// sqrt(2/pi) (x + 0.044715 x^3)
double gelu_argument(double x) {
  return std::numbers::sqrt2 * std::numbers::inv_sqrtpi * (x + 0.044715 * x * x * x);
}
double gelu_tanh(double x) { return x / 2 * (1 + std::tanh(gelu_argument(x))); }
double gelu_tanh_slope(double x) {
  const double t = std::tanh(gelu_argument(x)),
               inner = std::numbers::sqrt2 * std::numbers::inv_sqrtpi * (1 + 3 * 0.044715 * x * x);
  return (1 + t) / 2 + x / 2 * (1 - t * t) * inner;
}
// Of the normal distribution, the share below x.
double normal_share(double x) { return (1 + std::erf(x / std::numbers::sqrt2)) / 2; }
// Written so that exp() does not overflow.
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace

// ---- element by element ----

const ScalarFunction kSigmoid{sigmoid, [](double x) { return sigmoid(x) * (1 - sigmoid(x)); }};
const ScalarFunction kSilu{silu, [](double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }};
const ScalarFunction kGeluTanh{gelu_tanh, gelu_tanh_slope};
const ScalarFunction kReluSquared{[](double x) { return x > 0 ? x * x : 0; },
                                  [](double x) { return 2 * std::max(x, 0.0); }};
const ScalarFunction kRelu{[](double x) { return std::max(x, 0.0); },
                           [](double x) { return x > 0 ? 1.0 : 0.0; }};
const ScalarFunction kGelu{[](double x) { return x * normal_share(x); },
                           [](double x) {
                             const double density =
                                 std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
                             return normal_share(x) + x * density;
                           }};
// 1.702: Hendrycks and Gimpel (2016, arXiv 1606.08415) fit sigmoid(1.702 x) to the normal distribution.
const ScalarFunction kQuickGelu{[](double x) { return x * sigmoid(1.702 * x); },
                                [](double x) {
                                  const double share = sigmoid(1.702 * x);
                                  return share + 1.702 * x * share * (1 - share);
                                }};
const ScalarFunction kTanh{[](double x) { return std::tanh(x); },
                           [](double x) { return 1 - std::tanh(x) * std::tanh(x); }};
const ScalarFunction kSoftplus{softplus, sigmoid};
const ScalarFunction kMinusExp{[](double x) { return -std::exp(x); }, [](double x) { return -std::exp(x); }};

Variable add(Variable x, Variable y) {
  Matrix64 out = x.value();
  add_to(out, y.value());
  return x.tape().record(std::move(out), [x, y](const Matrix64&, const Matrix64& d) {
    add_to(x.gradient(), d);
    add_to(y.gradient(), d);
  });
}

Variable clamp(Variable x, double least, double most) {
  Matrix64 out = x.value();
  for (double& value : out.values) value = std::clamp(value, least, most);
  return x.tape().record(std::move(out), [x, least, most](const Matrix64&, const Matrix64& d) {
    for (std::size_t i = 0; i < d.values.size(); ++i) {
      const double value = x.value().values[i];
      if (value >= least && value <= most) x.gradient().values[i] += d.values[i];
    }
  });
}

Variable multiply(Variable x, Variable y) {
  Matrix64 out = x.value();
  for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] *= y.value().values[i];
  return x.tape().record(std::move(out), [x, y](const Matrix64&, const Matrix64& d) {
    for (std::size_t i = 0; i < d.values.size(); ++i) {
      x.gradient().values[i] += d.values[i] * y.value().values[i];
      y.gradient().values[i] += d.values[i] * x.value().values[i];
    }
  });
}

Variable multiply(Variable x, double factor) {
  Matrix64 out(x.rows(), x.columns());
  add_to(out, x.value(), factor);
  return x.tape().record(
      std::move(out), [x, factor](const Matrix64&, const Matrix64& d) { add_to(x.gradient(), d, factor); });
}

Variable add(Variable x, double number) {
  Matrix64 out = x.value();
  for (double& value : out.values) value += number;
  return x.tape().record(std::move(out),
                         [x](const Matrix64&, const Matrix64& d) { add_to(x.gradient(), d); });
}

Variable add_to_rows(Variable x, Variable vector) {
  Matrix64 out = x.value();
  for (std::int64_t i = 0; i < out.rows; ++i) {
    for (std::int64_t j = 0; j < out.columns; ++j) out.row(i)[j] += vector.value().row(0)[j];
  }
  return x.tape().record(std::move(out), [x, vector](const Matrix64&, const Matrix64& d) {
    add_to(x.gradient(), d);
    for (std::int64_t i = 0; i < d.rows; ++i) {
      for (std::int64_t j = 0; j < d.columns; ++j) vector.gradient().row(0)[j] += d.row(i)[j];
    }
  });
}

Variable multiply_rows(Variable x, Variable vector) {
  Matrix64 out = x.value();
  for (std::int64_t i = 0; i < out.rows; ++i) {
    for (std::int64_t j = 0; j < out.columns; ++j) out.row(i)[j] *= vector.value().row(0)[j];
  }
  return x.tape().record(std::move(out), [x, vector](const Matrix64&, const Matrix64& d) {
    for (std::int64_t i = 0; i < d.rows; ++i) {
      for (std::int64_t j = 0; j < d.columns; ++j) {
        x.gradient().row(i)[j] += d.row(i)[j] * vector.value().row(0)[j];
        vector.gradient().row(0)[j] += d.row(i)[j] * x.value().row(i)[j];
      }
    }
  });
}

Variable weigh_rows(Variable x, Variable column) {
  Matrix64 out = x.value();
  for (std::int64_t i = 0; i < out.rows; ++i) {
    for (std::int64_t j = 0; j < out.columns; ++j) out.row(i)[j] *= column.value().row(i)[0];
  }
  return x.tape().record(std::move(out), [x, column](const Matrix64&, const Matrix64& d) {
    for (std::int64_t i = 0; i < d.rows; ++i) {
      for (std::int64_t j = 0; j < d.columns; ++j) {
        x.gradient().row(i)[j] += d.row(i)[j] * column.value().row(i)[0];
        column.gradient().row(i)[0] += d.row(i)[j] * x.value().row(i)[j];
      }
    }
  });
}

Variable map(Variable x, const ScalarFunction& function) {
  Matrix64 out = x.value();
  for (double& value : out.values) value = function.at(value);
  return x.tape().record(std::move(out), [x, slope = function.slope](const Matrix64&, const Matrix64& d) {
    for (std::size_t i = 0; i < d.values.size(); ++i)
      x.gradient().values[i] += d.values[i] * slope(x.value().values[i]);
  });
}

// ---- rows and columns ----

Variable linear(Variable x, Variable weight) {
  Matrix64 out(x.rows(), weight.rows());
  add_product(x.value(), transposed(weight.value()), out);
  return x.tape().record(std::move(out), [x, weight](const Matrix64&, const Matrix64& d) {
    add_product(d, weight.value(), x.gradient());
    add_product(transposed(d), x.value(), weight.gradient());
  });
}

Variable take_columns(Variable x, std::vector<std::int64_t> columns) {
  Matrix64 out(x.rows(), std::ssize(columns));
  for (std::int64_t i = 0; i < out.rows; ++i) {
    for (std::int64_t j = 0; j < out.columns; ++j) out.row(i)[j] = x.value().row(i)[columns[idx(j)]];
  }
  return x.tape().record(std::move(out),
                         [x, columns = std::move(columns)](const Matrix64&, const Matrix64& d) {
                           for (std::int64_t i = 0; i < d.rows; ++i) {
                             for (std::int64_t j = 0; j < d.columns; ++j)
                               x.gradient().row(i)[columns[idx(j)]] += d.row(i)[j];
                           }
                         });
}

Variable beside(Variable x, Variable y) {
  Matrix64 out(x.rows(), x.columns() + y.columns());
  for (std::int64_t i = 0; i < out.rows; ++i) {
    std::copy_n(x.value().row(i), x.columns(), out.row(i));
    std::copy_n(y.value().row(i), y.columns(), out.row(i) + x.columns());
  }
  return x.tape().record(std::move(out), [x, y](const Matrix64&, const Matrix64& d) {
    for (std::int64_t i = 0; i < d.rows; ++i) {
      for (std::int64_t j = 0; j < x.columns(); ++j) x.gradient().row(i)[j] += d.row(i)[j];
      for (std::int64_t j = 0; j < y.columns(); ++j) y.gradient().row(i)[j] += d.row(i)[x.columns() + j];
    }
  });
}

Variable take_rows(Variable x, std::vector<std::int64_t> rows) {
  Matrix64 out(std::ssize(rows), x.columns());
  for (std::int64_t i = 0; i < out.rows; ++i)
    std::copy_n(x.value().row(rows[idx(i)]), out.columns, out.row(i));
  return x.tape().record(std::move(out), [x, rows = std::move(rows)](const Matrix64&, const Matrix64& d) {
    for (std::int64_t i = 0; i < d.rows; ++i) {
      for (std::int64_t j = 0; j < d.columns; ++j) x.gradient().row(rows[idx(i)])[j] += d.row(i)[j];
    }
  });
}

Variable add_up_rows(Variable x, std::vector<std::int64_t> rows, std::int64_t count) {
  Matrix64 out(count, x.columns());
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    for (std::int64_t j = 0; j < out.columns; ++j) out.row(rows[idx(i)])[j] += x.value().row(i)[j];
  }
  return x.tape().record(std::move(out), [x, rows = std::move(rows)](const Matrix64&, const Matrix64& d) {
    for (std::int64_t i = 0; i < x.rows(); ++i) {
      for (std::int64_t j = 0; j < d.columns; ++j) x.gradient().row(i)[j] += d.row(rows[idx(i)])[j];
    }
  });
}

Variable take_elements(Variable x, std::vector<std::int64_t> columns, std::int64_t k) {
  Matrix64 out(x.rows(), k);
  for (std::int64_t i = 0; i < out.rows; ++i) {
    for (std::int64_t j = 0; j < k; ++j) out.row(i)[j] = x.value().row(i)[columns[idx(i * k + j)]];
  }
  return x.tape().record(std::move(out),
                         [x, k, columns = std::move(columns)](const Matrix64&, const Matrix64& d) {
                           for (std::int64_t i = 0; i < d.rows; ++i) {
                             for (std::int64_t j = 0; j < k; ++j)
                               x.gradient().row(i)[columns[idx(i * k + j)]] += d.row(i)[j];
                           }
                         });
}

// ---- norms and probabilities ----

// With r = (factor s + eps)^(-1/2): y = r x, and dr = -r^3 factor sum(x dx), so that
//   dx = r dy - r^3 factor x sum(x dy).
Variable normalize(Variable x, std::int64_t width, double factor, double eps) {
  const auto inverse_norm = [factor, eps, width](const double* group) {
    double squares = 0;
    for (std::int64_t j = 0; j < width; ++j) squares += group[j] * group[j];
    return 1 / std::sqrt(factor * squares + eps);
  };
  Matrix64 out = x.value();
  for (std::int64_t first = 0; first < std::ssize(out.values); first += width) {
    double* const group = out.values.data() + first;
    const double r = inverse_norm(group);
    for (std::int64_t j = 0; j < width; ++j) group[j] *= r;
  }
  return x.tape().record(
      std::move(out), [x, width, factor, inverse_norm](const Matrix64&, const Matrix64& d) {
        for (std::int64_t first = 0; first < std::ssize(d.values); first += width) {
          const double *const group = x.value().values.data() + first, *const dy = d.values.data() + first;
          double* const dx = x.gradient().values.data() + first;
          const double r = inverse_norm(group);
          double products = 0;
          for (std::int64_t j = 0; j < width; ++j) products += group[j] * dy[j];
          for (std::int64_t j = 0; j < width; ++j)
            dx[j] += r * dy[j] - r * r * r * factor * group[j] * products;
        }
      });
}

namespace {

void subtract_means(std::vector<double>& values, std::int64_t width) {
  for (auto group = values.begin(); group != values.end(); group += width) {
    const double mean = std::accumulate(group, group + width, 0.0) / static_cast<double>(width);
    std::for_each(group, group + width, [mean](double& value) { value -= mean; });
  }
}

}  // namespace

// A symmetric projection, which is its own transpose.
Variable center(Variable x, std::int64_t width) {
  Matrix64 out = x.value();
  subtract_means(out.values, width);
  return x.tape().record(std::move(out), [x, width](const Matrix64&, const Matrix64& d) {
    std::vector<double> dx = d.values;
    subtract_means(dx, width);
    for (std::size_t i = 0; i < dx.size(); ++i) x.gradient().values[i] += dx[i];
  });
}

namespace {

// The logarithm of the sum of exponentials.
double log_sum_exp(const double* row, std::int64_t columns) {
  const double greatest = *std::max_element(row, row + columns);
  double sum = 0;
  for (std::int64_t j = 0; j < columns; ++j) sum += std::exp(row[j] - greatest);
  return greatest + std::log(sum);
}

}  // namespace

// dx = y (dy - sum(y dy))
Variable softmax(Variable x) {
  Matrix64 out = x.value();
  for (std::int64_t i = 0; i < out.rows; ++i) {
    const double lse = log_sum_exp(x.value().row(i), out.columns);
    for (std::int64_t j = 0; j < out.columns; ++j) out.row(i)[j] = std::exp(out.row(i)[j] - lse);
  }
  return x.tape().record(std::move(out), [x](const Matrix64& y, const Matrix64& d) {
    for (std::int64_t i = 0; i < d.rows; ++i) {
      double products = 0;
      for (std::int64_t j = 0; j < d.columns; ++j) products += y.row(i)[j] * d.row(i)[j];
      for (std::int64_t j = 0; j < d.columns; ++j)
        x.gradient().row(i)[j] += y.row(i)[j] * (d.row(i)[j] - products);
    }
  });
}

// With s = sum(x): y = x / s, and dx = (dy - sum(y dy)) / s.
Variable divide_by_row_sums(Variable x) {
  std::vector<double> sums(idx(x.rows()));
  Matrix64 out = x.value();
  for (std::int64_t i = 0; i < out.rows; ++i) {
    for (std::int64_t j = 0; j < out.columns; ++j) sums[idx(i)] += out.row(i)[j];
    for (std::int64_t j = 0; j < out.columns; ++j) out.row(i)[j] /= sums[idx(i)];
  }
  return x.tape().record(std::move(out), [x, sums = std::move(sums)](const Matrix64& y, const Matrix64& d) {
    for (std::int64_t i = 0; i < d.rows; ++i) {
      double products = 0;
      for (std::int64_t j = 0; j < d.columns; ++j) products += y.row(i)[j] * d.row(i)[j];
      for (std::int64_t j = 0; j < d.columns; ++j)
        x.gradient().row(i)[j] += (d.row(i)[j] - products) / sums[idx(i)];
    }
  });
}

// The gradient of a row's logits is softmax(logits), less 1 at the label.
Variable cross_entropy(Variable logits, std::vector<std::int64_t> labels) {
  Matrix64 out(logits.rows(), 1);
  for (std::int64_t i = 0; i < logits.rows(); ++i) {
    const double* const row = logits.value().row(i);
    if (labels[idx(i)] >= 0) out.values[idx(i)] = log_sum_exp(row, logits.columns()) - row[labels[idx(i)]];
  }
  return logits.tape().record(std::move(out),
                              [logits, labels = std::move(labels)](const Matrix64&, const Matrix64& d) {
                                for (std::int64_t i = 0; i < logits.rows(); ++i) {
                                  if (labels[idx(i)] < 0) continue;
                                  const double* const row = logits.value().row(i);
                                  double* const gradient = logits.gradient().row(i);
                                  const double lse = log_sum_exp(row, logits.columns());
                                  for (std::int64_t j = 0; j < logits.columns(); ++j)
                                    gradient[j] += d.values[idx(i)] * std::exp(row[j] - lse);
                                  gradient[labels[idx(i)]] -= d.values[idx(i)];
                                }
                              });
}

}  // namespace cp::sim
