// Matrices in float64, and lists of them by name: the parameters of a model, their gradients, the states of
// an optimizer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shared/base/index.h"

namespace cp::sim {

// Row-major. A vector has one row.
struct Matrix64 {
  Matrix64() = default;
  Matrix64(std::int64_t row_count, std::int64_t column_count)  // zeros
      : rows(row_count), columns(column_count), values(idx(row_count * column_count)) {}

  std::int64_t rows = 0, columns = 0;
  std::vector<double> values;

  double* row(std::int64_t i) { return values.data() + i * columns; }
  const double* row(std::int64_t i) const { return values.data() + i * columns; }
  bool operator==(const Matrix64&) const = default;
};

struct NamedMatrix {
  std::string name;
  Matrix64 matrix;
};

// In a fixed order. No two have one name.
class NamedMatrices {
 public:
  void add(std::string name, Matrix64 matrix);

  const std::vector<NamedMatrix>& all() const { return all_; }
  // Both throw InvalidInput, with the nearest name, if none has this one.
  Matrix64& at(std::string_view name);
  const Matrix64& at(std::string_view name) const;

  std::int64_t numel() const;   // of all together
  NamedMatrices zeros() const;  // others with the same names and sizes

 private:
  std::vector<NamedMatrix> all_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

}  // namespace cp::sim
