#include "shared/plan/recurrence_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cp {

std::int64_t recurrence_block_rows(std::int64_t rows) {
  auto root = static_cast<std::int64_t>(std::sqrt(static_cast<double>(rows)));
  while (root * root < rows) ++root;
  while (root > 1 && (root - 1) * (root - 1) >= rows) --root;
  return std::max<std::int64_t>(1, root);
}

std::int64_t recurrence_workspace_numel(std::int64_t rows, std::int64_t value_heads, std::int64_t key_dim,
                                        std::int64_t value_dim) {
  const std::int64_t block = recurrence_block_rows(rows);
  const std::int64_t states = block + (rows + block - 1) / block + 2;
  // No buffer has kMaxElements; a product beyond it must not wrap to a size that one has.
  const double numel = static_cast<double>(states) * static_cast<double>(value_heads) *
                       static_cast<double>(key_dim) * static_cast<double>(value_dim);
  if (numel >= static_cast<double>(kMaxElements)) return kMaxElements;
  return states * value_heads * key_dim * value_dim;
}

// The keys of rows, with what else each row has.
void RecurrenceRules::check_keys(const View& keys, std::string_view role, const View& log_decay,
                                 const View& beta) const {
  four_dims(keys), floating(keys);
  const Shape& shape = keys.shape;
  is_f32(log_decay, "log_decay"), is_f32(beta, "beta");
  require(log_decay.shape.size() == 3, text(log_decay), " has not the shape [batch, rows, value_heads]");
  const std::int64_t value_heads = log_decay.shape[2];
  shaped(log_decay, {shape[0], shape[1], value_heads}, "log_decay");
  shaped(beta, log_decay.shape, "beta");
  require(shape[2] > 0 ? value_heads % shape[2] == 0 : value_heads == 0, role, " has ", shape[2],
          " heads, which do not divide the ", value_heads, " value heads");
}

void RecurrenceRules::check_values(const View& keys, const View& values, const View& log_decay,
                                   std::string_view role) const {
  four_dims(values), same_dtype(keys, values);
  shaped(values, {keys.shape[0], keys.shape[1], log_decay.shape[2], values.shape[3]}, role);
}

void RecurrenceRules::check_state(const View& state, const View& keys, const View& values,
                                  std::string_view role) const {
  is_f32(state, role);
  shaped(state, {keys.shape[0], values.shape[2], keys.shape[3], values.shape[3]}, role);
}

void RecurrenceRules::check_starts(const std::vector<std::int64_t>& starts, std::int64_t rows) const {
  std::int64_t before = 0;
  for (const std::int64_t start : starts) {
    require(start > before && start < rows, "a document starts at row ", start, ", behind one at row ",
            before, ", of ", rows, " rows; starts ascend, and row 0 is none of them");
    before = start;
  }
}

void RecurrenceRules::check_scale(double scale) const {
  require(std::abs(scale) <= static_cast<double>(std::numeric_limits<float>::max()), "scale ", scale,
          " is no number of f32");
}

void RecurrenceRules::check(const RecurrenceForward& op) const {
  check_keys(op.k, "k", op.log_decay, op.beta);
  same_dtype(op.q, op.k), shaped(op.q, op.k.shape, "q");
  check_values(op.k, op.v, op.log_decay, "v");
  same_dtype(op.v, op.out), shaped(op.out, op.v.shape, "out");
  if (!is_absent(op.state)) check_state(op.state, op.k, op.v, "state");
  if (!is_absent(op.final_state)) check_state(op.final_state, op.k, op.v, "final_state");
  check_starts(op.starts, op.k.shape[1]), check_scale(op.scale);
}

void RecurrenceRules::check(const RecurrenceSummary& op) const {
  check_keys(op.k, "k", op.log_decay, op.beta);
  check_values(op.k, op.v, op.log_decay, "v");
  check_state(op.state, op.k, op.v, "state");
  if (is_absent(op.transition)) return;
  is_f32(op.transition, "transition");
  const std::int64_t n = op.rule == RecurrenceRule::decay ? 1 : op.k.shape[3];
  shaped(op.transition, {op.k.shape[0], op.v.shape[2], n, n}, "transition");
}

void RecurrenceRules::check(const RecurrenceSummaryGradient& op) const {
  check_keys(op.k, "k", op.log_decay, op.beta);
  same_dtype(op.q, op.k), shaped(op.q, op.k.shape, "q");
  check_values(op.k, op.dout, op.log_decay, "dout");
  check_state(op.dstate, op.k, op.dout, "dstate"), check_scale(op.scale);
}

void RecurrenceRules::check(const RecurrenceJoin& op) const {
  for (const View* view : {&op.transition, &op.in, &op.out}) four_dims(*view), is_f32(*view, "a state");
  const Shape &in = op.in.shape, &by = op.transition.shape;
  shaped(op.out, in, "out");
  // A number, which multiplies whatever it meets, or a matrix.
  const std::int64_t n = by[2] == 1 ? 1 : in[2];
  shaped(op.transition, {in[0], in[1], n, n}, "transition");
}

void RecurrenceRules::check(const RecurrenceBackward& op) const {
  check_keys(op.k, "k", op.log_decay, op.beta);
  same_dtype(op.q, op.k), shaped(op.q, op.k.shape, "q");
  check_values(op.k, op.v, op.log_decay, "v");
  same_dtype(op.v, op.dout), shaped(op.dout, op.v.shape, "dout");
  if (!is_absent(op.state)) check_state(op.state, op.k, op.v, "state");
  if (!is_absent(op.dstate)) check_state(op.dstate, op.k, op.v, "dstate");
  const auto gradient = [&](const View& view, const View& of, std::string_view role) {
    same_dtype(view, of), shaped(view, of.shape, role);
  };
  gradient(op.dq, op.q, "dq"), gradient(op.dk, op.k, "dk"), gradient(op.dv, op.v, "dv");
  gradient(op.dlog_decay, op.log_decay, "dlog_decay"), gradient(op.dbeta, op.beta, "dbeta");
  check_starts(op.starts, op.k.shape[1]), check_scale(op.scale);
  is_f32(op.workspace, "workspace"), contiguous(op.workspace);
  const std::int64_t key_heads = std::max<std::int64_t>(1, op.k.shape[2]);
  const std::int64_t least =
      recurrence_workspace_numel(op.k.shape[1], op.v.shape[2] / key_heads, op.k.shape[3], op.v.shape[3]);
  require(op.workspace.numel() >= least, "its workspace is ", text(op.workspace), ", but a key head needs ",
          least, " elements");
}

}  // namespace cp
