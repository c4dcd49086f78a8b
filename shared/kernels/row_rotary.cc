// Rotary embeddings: columns of rows move to where attention takes them, and some are turned by the angles of
// the row's position (Su et al. 2021).
#include <algorithm>
#include <optional>
#include <vector>

#include "shared/kernels/row_kernels.h"
#include "shared/kernels/row_views.h"

namespace cp {
namespace {

// Cosines and sines of a position.
class Angles {
 public:
  Angles(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration)
      : rule_(std::get<RotaryRule>(kernel.rule)) {
    for (const ColumnMove& move : rule_.moves) rotated_ = move.rotated ? move.width : rotated_;
    values_.resize(idx(rotated_));
    if (rotated_ > 0) table_.emplace(kernel.reads.back(), memory, iteration);
  }

  void go_to(std::int64_t position) {
    if (table_) table_->load(position, values_.data());
  }

  // to = from turned by the angles, or back by them.
  void turn(const float* from, float* to, bool back) const {
    const std::int64_t pairs = rotated_ / 2;
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const std::int64_t a = rule_.interleaved ? 2 * pair : pair,
                         b = rule_.interleaved ? 2 * pair + 1 : pair + pairs;
      const float cos = values_[idx(pair)],
                  sin = back ? -values_[idx(pair + pairs)] : values_[idx(pair + pairs)];
      const float first = from[a], second = from[b];
      to[a] = first * cos - second * sin;
      to[b] = second * cos + first * sin;
    }
  }

 private:
  const RotaryRule& rule_;
  std::int64_t rotated_ = 0;
  std::optional<RowView> table_;  // unless nothing is rotated
  std::vector<float> values_;
};

struct Matrix {
  RowView view;
  std::vector<float> row;
};

}  // namespace

void rotary(const RowKernel& kernel, const HostMemory& memory, std::int64_t iteration) {
  const auto& rule = std::get<RotaryRule>(kernel.rule);
  const bool backward = kernel.operation == RowOperation::rotary_backward;
  const std::int64_t of_sequence = size(rule.positions), rows = rule.sequences * of_sequence;
  if (rows == 0) return;
  const auto matrices = [&](const std::vector<View>& views, std::size_t count) {
    std::vector<Matrix> all;
    for (std::size_t i = 0; i < count; ++i) {
      const RowView view(views[i], rows, memory, iteration);
      all.push_back({view, std::vector<float>(idx(view.columns()))});
    }
    return all;
  };
  std::vector<Matrix> in = matrices(kernel.reads, kernel.reads.size() - 1),
                      out = matrices(kernel.writes, kernel.writes.size());
  Angles angles(kernel, memory, iteration);
  std::vector<float> turned;
  for (std::int64_t row = 0; row < rows; ++row) {
    angles.go_to(to_global(rule.positions, row % of_sequence));
    for (Matrix& matrix : in) matrix.view.load(row, matrix.row.data());
    for (Matrix& matrix : out) std::fill(matrix.row.begin(), matrix.row.end(), 0.0F);
    for (const ColumnMove& move : rule.moves) {
      const float scale = move.scaled ? query_scale(rule, to_global(rule.positions, row % of_sequence)) : 1;
      turned.resize(idx(move.width));
      for (std::int64_t head = 0; head < move.heads; ++head) {
        const std::int64_t at_source = move.from + head * move.from_step,
                           at_target = move.to + head * move.to_step;
        const float* from = backward ? in[idx(move.target)].row.data() + at_target
                                     : in[idx(move.source)].row.data() + at_source;
        float* to = backward ? out[idx(move.source)].row.data() + at_source
                             : out[idx(move.target)].row.data() + at_target;
        if (move.rotated) {
          angles.turn(from, turned.data(), backward);
          from = turned.data();
        }
        // Several moves may read one source, whose gradient is the sum of theirs.
        for (std::int64_t i = 0; i < move.width; ++i) to[i] += scale * from[i];
      }
    }
    for (const Matrix& matrix : out) matrix.view.store(row, matrix.row.data());
  }
}

}  // namespace cp
