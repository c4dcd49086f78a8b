#include "sim/proof/reference/matrix64.h"

#include <utility>

#include "shared/base/error.h"
#include "shared/base/nearest.h"
#include "shared/base/text.h"

namespace cp::sim {

void NamedMatrices::add(std::string name, Matrix64 matrix) {
  if (!index_.emplace(name, all_.size()).second)
    throw InvalidInput(str("two matrices have the name ", name, "; give each its own"));
  all_.push_back({std::move(name), std::move(matrix)});
}

const Matrix64& NamedMatrices::at(std::string_view name) const {
  if (const auto found = index_.find(name); found != index_.end()) return all_[found->second].matrix;
  std::vector<std::string> names;
  for (const NamedMatrix& known : all_) names.push_back(known.name);
  const std::string near = nearest(name, names);
  throw InvalidInput(str("none of ", names.size(), " matrices has the name ", name,
                         near.empty() ? "" : "; did you mean ", near));
}
Matrix64& NamedMatrices::at(std::string_view name) {
  return const_cast<Matrix64&>(std::as_const(*this).at(name));
}

std::int64_t NamedMatrices::numel() const {
  std::int64_t numel = 0;
  for (const NamedMatrix& known : all_) numel += known.matrix.rows * known.matrix.columns;
  return numel;
}

NamedMatrices NamedMatrices::zeros() const {
  NamedMatrices others;
  for (const auto& [name, matrix] : all_) others.add(name, Matrix64(matrix.rows, matrix.columns));
  return others;
}

}  // namespace cp::sim
