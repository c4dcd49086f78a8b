#include "shared/plan/row_rules.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

namespace cp {

float query_scale(const RotaryRule& rule, std::int64_t position) {
  const double whole = std::floor((static_cast<double>(position) + 1) / rule.floor);
  return static_cast<float>(1 + rule.temperature * std::log1p(whole));
}

// ---- rules by name ----

namespace {

template <std::size_t... kIndex>
bool choose(RowRule& rule, std::string_view name, std::index_sequence<kIndex...>) {
  return ((kRowRules[kIndex] == name && (rule.emplace<kIndex>(), true)) || ...);
}

template <class Rule, std::size_t kIndex = 0>
constexpr std::string_view name_of_rule() {
  if constexpr (std::is_same_v<std::variant_alternative_t<kIndex, RowRule>, Rule>) {
    return kRowRules[kIndex];
  } else {
    return name_of_rule<Rule, kIndex + 1>();
  }
}

}  // namespace

bool choose_rule(RowRule& rule, std::string_view name) {
  return choose(rule, name, std::make_index_sequence<std::variant_size_v<RowRule>>());
}

std::vector<RowResult> results_of(const RowKernel& kernel) {
  std::vector<RowResult> results;
  for (const bool of_weights : {false, true}) {
    for (const bool adds : {false, true}) {
      for (const View& view : adds ? kernel.updates : kernel.writes) {
        if ((view.shape.size() == 1) == of_weights) results.push_back({&view, adds});
      }
    }
  }
  return results;
}

std::optional<LookUp> look_up_of(const RowKernel& kernel) {
  const auto looked_up = [](const View& table, std::int64_t rows) {
    return LookUp{&table, std::min(table.shape.front(), rows)};
  };
  switch (kernel.operation) {
    case RowOperation::embed:
      if (kernel.reads.size() == 2) return looked_up(kernel.reads[1], kernel.reads[0].numel());
      break;
    case RowOperation::embed_backward:
      if (kernel.updates.size() == 1 && !kernel.reads.empty())
        return looked_up(kernel.updates[0], kernel.reads[0].numel());
      break;
    case RowOperation::rotary:
    case RowOperation::rotary_backward:
      if (const auto* rule = std::get_if<RotaryRule>(&kernel.rule); rule != nullptr && !kernel.reads.empty())
        return looked_up(kernel.reads.back(), rule->sequences * size(rule->positions));
      break;
    default:
      break;
  }
  return std::nullopt;
}

ConvolutionOperands convolution_operands(const RowKernel& kernel) {
  const bool backward = kernel.operation == RowOperation::short_convolution_backward;
  const std::vector<View>& reads = kernel.reads;
  ConvolutionOperands operands;
  operands.x = &reads[0], operands.weights = &reads[1];
  std::size_t at = 2;
  if (at < reads.size() && reads[at].shape.size() == 1) operands.bias = &reads[at++];
  // One gradient or three have a halo before them where there are two or four views.
  const std::size_t left = reads.size() - at;
  if (left > 0 && (!backward || left % 2 == 0)) operands.halo = &reads[at++];
  if (!backward) at = 0;
  const std::vector<View>& of_outputs = backward ? reads : kernel.writes;
  for (; at < of_outputs.size(); ++at) operands.outputs.push_back(&of_outputs[at]);
  return operands;
}

// ---- what all have ----

template <class Rule>
const Rule& RowRules::rule_of(const RowKernel& op) const {
  const Rule* rule = std::get_if<Rule>(&op.rule);
  if (rule == nullptr)
    fail("has the rule '", kRowRules[op.rule.index()], "'; it needs a rule '", name_of_rule<Rule>(), "'");
  return *rule;
}

void RowRules::counts(const RowKernel& op, std::size_t reads, std::size_t results) const {
  const std::size_t given = op.writes.size() + op.updates.size();
  require(op.reads.size() == reads, "reads ", op.reads.size(), " views; with this rule it reads ", reads);
  require(given == results, "writes or updates ", given, " views; with this rule it gives ", results);
}

void RowRules::two_dims(const View& view, std::string_view role) const {
  floating(view);
  require(view.shape.size() == 2, role, " is ", text(view), ", not a matrix of rows");
}
void RowRules::matrix(const View& view, std::int64_t rows, std::int64_t columns,
                      std::string_view role) const {
  floating(view), shaped(view, {rows, columns}, role);
}
void RowRules::statistic(const View& view, std::int64_t rows, std::int64_t columns,
                         std::string_view role) const {
  is_f32(view, role), shaped(view, {rows, columns}, role);
}
void RowRules::vector(const View& view, std::int64_t numel, std::string_view role) const {
  floating(view), shaped(view, {numel}, role);
}
void RowRules::integers(const View& view, const Shape& shape, std::string_view role) const {
  require(dtype_of(view) == DType::i32, role, " is ", name(dtype_of(view)), "; it is always i32");
  shaped(view, shape, role);
}

void RowRules::check(const RowKernel& op) const {
  require(!op.writes.empty() || !op.updates.empty(), "writes nothing; leave it out");
  switch (op.operation) {
    case RowOperation::rms_norm:
      return check_norm(op);
    case RowOperation::rms_norm_backward:
      return check_norm_backward(op);
    case RowOperation::norm_sums:
    case RowOperation::norm_sums_backward:
      return check_norm_sums(op);
    case RowOperation::rotary:
    case RowOperation::rotary_backward:
      return check_rotary(op);
    case RowOperation::gated_activation:
    case RowOperation::gated_activation_backward:
      return check_activation(op);
    case RowOperation::embed:
    case RowOperation::embed_backward:
      return check_embedding(op);
    case RowOperation::cross_entropy:
    case RowOperation::cross_entropy_backward:
      return check_loss(op);
    case RowOperation::route:
    case RowOperation::route_backward:
      return check_router(op);
    case RowOperation::dispatch:
    case RowOperation::combine:
      return check_slots(op);
    case RowOperation::add_bias:
      return check_bias(op);
    case RowOperation::group_bias:
    case RowOperation::group_bias_backward:
      return check_group_bias(op);
    case RowOperation::output_gate:
    case RowOperation::output_gate_backward:
      return check_gate(op);
    case RowOperation::squared_norm:
      return check_squared_norm(op);
    case RowOperation::optimizer:
      return check_optimizer(op);
    case RowOperation::short_convolution:
    case RowOperation::short_convolution_backward:
      return check_convolution(op);
    case RowOperation::decay_and_beta:
    case RowOperation::decay_and_beta_backward:
      return check_decay(op);
    case RowOperation::gated_norm:
    case RowOperation::gated_norm_backward:
      return check_gated_norm(op);
  }
}

// ---- norms ----

void RowRules::check_norm_columns(const NormRule& rule, const View& x) const {
  two_dims(x, "x");
  require(rule.eps > 0 && std::isfinite(rule.eps), "eps is ", rule.eps,
          "; it keeps a row of zeros from dividing by 0: use a positive number, as 1e-6");
  require(rule.groups >= 1 && rule.width >= 1 && rule.more_groups >= 0 && rule.ranks >= 1 &&
              (rule.more_groups == 0 ? rule.more_width == 0 : rule.more_width >= 1),
          "normalizes ", rule.groups, " groups of ", rule.width, " columns and ", rule.more_groups, " of ",
          rule.more_width, " over ", rule.ranks,
          " ranks; the first are at least 1, of the second both or none");
  require(rule.groups <= x.shape[1] / rule.width &&
              (rule.more_groups == 0 ||
               rule.more_groups <= (x.shape[1] - rule.groups * rule.width) / rule.more_width),
          "normalizes ", rule.groups, " x ", rule.width, " and ", rule.more_groups, " x ", rule.more_width,
          " columns, but its rows have ", x.shape[1]);
  require(rule.ranks == 1 || (rule.groups == 1 && rule.more_groups <= 1), "has groups on ", rule.ranks,
          " ranks and ", rule.groups, " and ", rule.more_groups,
          " of them on this one; what ranks share is one group for each weight");
  require(!rule.unweighted || !rule.unit_offset,
          "has no weights and adds 1 to them; leave unit_offset or unweighted out");
  require(!rule.centered || rule.ranks == 1, "subtracts the mean of groups on ", rule.ranks,
          " ranks, which add up squares alone; leave centered out, or use groups of one rank");
}

void RowRules::check_norm_weights(const NormRule& rule, const RowKernel& op) const {
  if (rule.unweighted) return;
  vector(op.reads[1], rule.width, "weight");
  if (rule.more_groups > 0) vector(op.reads[2], rule.more_width, "second weight");
}

void RowRules::check_norm(const RowKernel& op) const {
  const NormRule& rule = rule_of<NormRule>(op);
  const auto weights = idx(rule.weights());
  counts(op, 1 + weights + (rule.ranks > 1 ? 1 : 0), 1);
  require(op.updates.empty(), "updates its result; it writes it");
  check_norm_columns(rule, op.reads[0]), check_norm_weights(rule, op);
  const Shape& x = op.reads[0].shape;
  if (rule.ranks > 1) statistic(op.reads[1 + weights], x[0], rule.kinds_of_groups(), "squares");
  matrix(op.writes[0], x[0], x[1], "y");
}

void RowRules::check_norm_backward(const RowKernel& op) const {
  const NormRule& rule = rule_of<NormRule>(op);
  const auto weights = idx(rule.weights());
  counts(op, 2 + weights + (rule.ranks > 1 ? 2 : 0), 1 + weights);
  check_norm_columns(rule, op.reads[0]), check_norm_weights(rule, op);
  const Shape& x = op.reads[0].shape;
  matrix(op.reads[1 + weights], x[0], x[1], "dy");
  if (rule.ranks > 1) {
    statistic(op.reads[2 + weights], x[0], rule.kinds_of_groups(), "squares");
    statistic(op.reads[3 + weights], x[0], rule.kinds_of_groups(), "sums");
  }
  const std::vector<RowResult> results = results_of(op);
  matrix(*results[0].view, x[0], x[1], "dx");
  if (rule.unweighted) return;
  vector(*results[1].view, rule.width, "gradient of the weight");
  if (rule.more_groups > 0) vector(*results[2].view, rule.more_width, "gradient of the second weight");
}

void RowRules::check_norm_sums(const RowKernel& op) const {
  const NormRule& rule = rule_of<NormRule>(op);
  const bool backward = op.operation == RowOperation::norm_sums_backward;
  const auto weights = idx(rule.weights());
  counts(op, backward ? 2 + weights : 1, 1);
  require(op.updates.empty(), "updates its sums; it writes them");
  check_norm_columns(rule, op.reads[0]);
  const Shape& x = op.reads[0].shape;
  require(rule.groups == 1 && rule.more_groups <= 1, "adds up ", rule.groups, " and ", rule.more_groups,
          " groups; it has one number for the one group of each weight");
  if (backward) check_norm_weights(rule, op), matrix(op.reads[1 + weights], x[0], x[1], "dy");
  statistic(op.writes[0], x[0], rule.kinds_of_groups(), backward ? "sums" : "squares");
}

// ---- rotary ----

void RowRules::check_rotary(const RowKernel& op) const {
  if (op.rule.index() == 0) return;  // shapes only
  const RotaryRule& rule = rule_of<RotaryRule>(op);
  require(op.updates.empty(), "updates views; it writes them");
  require(rule.sequences >= 0 && !op.reads.empty(), "has ", rule.sequences, " sequences and reads ",
          op.reads.size(), " views; the last one it reads is its table");
  const std::int64_t rows = rule.sequences * size(rule.positions);
  const bool backward = op.operation == RowOperation::rotary_backward;
  std::vector<View> in(op.reads.begin(), op.reads.end() - 1);
  const std::vector<View>&sources = backward ? op.writes : in, &targets = backward ? in : op.writes;
  std::vector<std::int64_t> written(targets.size(), 0);
  std::int64_t rotated = 0;
  // Rows may lie in several dimensions, as in a cache, and so may heads.
  const auto columns = [&](const View& view) -> std::int64_t {
    floating(view);
    std::int64_t leading = 1;
    for (std::size_t dims = 0; dims < view.shape.size() && leading != rows; ++dims)
      leading *= view.shape[dims];
    require(leading == rows, text(view), " does not begin with the ", rows, " rows of ", rule.sequences,
            " sequences of ", size(rule.positions), " rows");
    return rows == 0 ? 0 : view.numel() / rows;
  };
  for (const ColumnMove& move : rule.moves) {
    require(move.source >= 0 && move.source < static_cast<std::int64_t>(sources.size()) && move.target >= 0 &&
                move.target < static_cast<std::int64_t>(targets.size()),
            "moves columns of matrix ", move.source, " to matrix ", move.target, "; there are ",
            sources.size(), " and ", targets.size());
    const auto inside = [&](const View& view, std::int64_t first, std::int64_t step, std::string_view role) {
      const std::int64_t all = columns(view);
      require(rows == 0 || (move.heads >= 0 && move.width >= 0 && first >= 0 && step >= 0 &&
                            move.heads <= kMaxElements && first <= all && move.width <= all - first &&
                            (move.heads <= 1 || step <= (all - first - move.width) / (move.heads - 1))),
              "moves ", move.heads, " heads of ", move.width, " columns, from column ", first, " on and ",
              step, " apart, but ", role, " ", text(view), " has ", all, " columns");
    };
    inside(sources[idx(move.source)], move.from, move.from_step, "the source");
    inside(targets[idx(move.target)], move.to, move.to_step, "the target");
    require(move.heads <= 1 || move.to_step >= move.width, "writes heads of ", move.width, " columns only ",
            move.to_step, " apart; they would overlap");
    written[idx(move.target)] += move.heads * move.width;
    require(!move.scaled || (!move.rotated && rule.floor > 0 && std::isfinite(rule.floor) &&
                             std::isfinite(rule.temperature)),
            "scales columns that are ", move.rotated ? "rotated, too" : "not rotated",
            ", with temperature=", rule.temperature, " and floor=", rule.floor,
            "; rotated ones stay as large as they are, and a floor is a finite number above 0, as 8192");
    if (!move.rotated) continue;
    require(move.width % 2 == 0 && move.width > 0, "rotates ", move.width,
            " columns of a head; pairs need an even number");
    require(rotated == 0 || rotated == move.width, "rotates ", rotated, " columns of some heads and ",
            move.width, " of others; they have one table");
    rotated = move.width;
  }
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const std::int64_t all = columns(targets[i]);
    require(rows == 0 || written[i] == all, "writes ", written[i], " columns of the ", all, " of ",
            text(targets[i]), "; each is written once");
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    (void)columns(sources[i]);
    require(std::any_of(rule.moves.begin(), rule.moves.end(),
                        [&](const ColumnMove& move) { return idx(move.source) == i; }),
            "moves no column of ", text(sources[i]), "; leave it out");
  }
  const View& table = op.reads.back();
  is_f32(table, "table"), two_dims(table, "table");
  require(rotated == 0 || table.shape[1] == rotated, "rotates ", rotated, " columns, and its table has ",
          table.shape[1]);
  for (const Run& run : rule.positions) {
    const std::int64_t last = run.begin + (run.count - 1) * run.stride + run.run - 1;
    require(run.begin >= 0 && (run.run <= 0 || run.count <= 0 || last < table.shape[0]),
            "has rows at positions ", run.begin, " to ", last, ", and a table of ", table.shape[0],
            " positions");
  }
}

// ---- MLP ----

void RowRules::check_activation(const RowKernel& op) const {
  const ActivationRule& rule = rule_of<ActivationRule>(op);
  require(rule.limit >= 0 && std::isfinite(rule.limit) && std::isfinite(rule.offset) &&
              (rule.gated || rule.offset == 0),
          "has limit=", rule.limit, " and offset=", rule.offset,
          "; a limit is a finite number above 0, or 0 for none, and an offset is of what a gate multiplies");
  const bool backward = op.operation == RowOperation::gated_activation_backward;
  require(op.updates.empty(), "updates views; it writes them");
  const bool weighted = op.reads.size() == (backward ? 3U : 2U);
  counts(op, (backward ? 2U : 1U) + (weighted ? 1U : 0U), backward && weighted ? 2 : 1);
  const View &up = op.reads[0], &y = backward ? op.reads.back() : op.writes[0];
  two_dims(up, "up"), two_dims(y, "y");
  matrix(up, y.shape[0], (rule.gated ? 2 : 1) * y.shape[1], rule.gated ? "gate and up" : "up");
  if (weighted) statistic(op.reads[1], y.shape[0], 1, "weights");
  if (!backward) return;
  matrix(op.writes[0], up.shape[0], up.shape[1], "d up");
  if (weighted) statistic(op.writes[1], y.shape[0], 1, "d weights");
}

void RowRules::check_bias(const RowKernel& op) const {
  rule_of<std::monostate>(op), counts(op, 1, 1);
  const bool backward = op.reads[0].shape.size() == 2;
  const View &rows = backward             ? op.reads[0]
                     : op.updates.empty() ? op.writes[0]
                                          : op.updates[0],
             &bias = backward ? *results_of(op)[0].view : op.reads[0];
  require(backward || op.writes.empty(), "writes the rows; it adds the bias to them");
  two_dims(rows, "y"), vector(bias, rows.shape[1], "bias");
}

void RowRules::check_group_bias(const RowKernel& op) const {
  rule_of<std::monostate>(op);
  const bool backward = op.operation == RowOperation::group_bias_backward;
  const bool weighted = op.reads.size() == (backward ? 3U : 2U);
  counts(op, weighted ? op.reads.size() : 1, backward && weighted ? 2 : 1);
  require(backward || op.writes.empty(), "writes the rows; it adds biases to them");
  const std::vector<RowResult> results = results_of(op);
  const View &rows = backward ? op.reads[0] : op.updates[0],
             &biases = backward ? *results[0].view : op.reads[0];
  two_dims(rows, "rows"), two_dims(biases, "biases");
  const std::int64_t groups = biases.shape[0];
  matrix(biases, groups, rows.shape[1], "biases");
  require(groups > 0 && rows.shape[0] % groups == 0, "has ", groups, " biases for ", rows.shape[0],
          " rows; each is of equally many");
  if (!weighted) return;
  if (backward) matrix(op.reads[1], groups, rows.shape[1], "biases");
  statistic(op.reads.back(), rows.shape[0], 1, "weights");
  if (!backward) return;
  require(results[1].adds, "writes the gradients of its weights; it adds to them");
  statistic(*results[1].view, rows.shape[0], 1, "gradients of weights");
}

void RowRules::check_gate(const RowKernel& op) const {
  const bool backward = op.operation == RowOperation::output_gate_backward;
  rule_of<std::monostate>(op), counts(op, backward ? 3 : 2, backward ? 2 : 1);
  require(op.updates.empty(), "updates views; it writes them");
  two_dims(op.reads[0], "x");
  const Shape& rows = op.reads[0].shape;
  for (const View& view : op.reads) matrix(view, rows[0], rows[1], "operand");
  for (const View& view : op.writes) matrix(view, rows[0], rows[1], "result");
}

// ---- recurrent layers ----

void RowRules::check_convolution(const RowKernel& op) const {
  if (op.rule.index() == 0) return;  // shapes only
  const ConvolutionRule& rule = rule_of<ConvolutionRule>(op);
  const bool backward = op.operation == RowOperation::short_convolution_backward;
  const std::size_t least = backward ? 3 : 2, most = backward ? 7 : 4;
  require(op.reads.size() >= least && op.reads.size() <= most, "reads ", op.reads.size(),
          " views; it reads x, weights, a bias if there is one, a halo if there is one",
          backward ? ", and the gradients of q, k and v, or that of y" : "");
  const ConvolutionOperands operands = convolution_operands(op);
  const bool has_bias = operands.bias != nullptr, has_halo = operands.halo != nullptr;
  if (!has_bias && op.reads.size() >= most)
    fail("reads ", text(op.reads[2]), " where its bias stands, a vector before the halo");
  const std::size_t outputs = operands.outputs.size();
  require(outputs == 1 || outputs == 3, backward ? "reads the gradients of " : "writes ", outputs,
          " outputs; they are q, k and v, or y alone");
  counts(op, op.reads.size(), backward ? 2U + (has_halo ? 1 : 0) + (has_bias ? 1 : 0) : outputs);
  require(backward || op.updates.empty(), "updates views; it writes them");
  two_dims(*operands.x, "x");
  if (has_halo) two_dims(*operands.halo, "halo");
  const std::int64_t rows = operands.x->shape[0], columns = operands.x->shape[1],
                     halo_rows = has_halo ? operands.halo->shape[0] : 0;
  require(rule.taps >= 1 && rule.taps <= kMaxElements / std::max<std::int64_t>(1, columns), "has ", rule.taps,
          " taps; it has 1 at least, of each of ", columns, " columns");
  vector(*operands.weights, columns * rule.taps, "weights");
  if (has_bias) vector(*operands.bias, columns, "bias");
  if (has_halo) matrix(*operands.halo, halo_rows, columns, "halo");
  const bool alone = outputs == 1;
  std::int64_t all = 0;
  for (const View* view : operands.outputs) {
    const std::string_view role = alone ? "y" : "q, k or v";
    two_dims(*view, role), matrix(*view, rows, view->shape[1], role);
    all += view->shape[1];
  }
  require(all == columns, "has ", columns, " columns of x, and ", all, alone ? " of y" : " of q, k and v",
          "; they are the same");
  require(!alone || rule.normalized == 0, "normalizes heads of ", rule.normalized,
          " columns of y, which has none: use 0, or write q, k and v");
  const std::int64_t q = operands.outputs[0]->shape[1], k = alone ? 0 : operands.outputs[1]->shape[1];
  require(rule.normalized >= 0 && std::isfinite(rule.eps) && rule.eps >= 0 &&
              (rule.normalized == 0 || (q % rule.normalized == 0 && k % rule.normalized == 0)),
          "normalizes heads of ", rule.normalized, " columns with eps=", rule.eps, ", but q and k have ", q,
          " and ", k, " columns");
  check_runs(rule, rows, halo_rows);
  if (!backward) return;
  const std::vector<RowResult> results = results_of(op);
  matrix(*results[0].view, rows, columns, "dx");
  if (has_halo) matrix(*results[1].view, halo_rows, columns, "d halo");
  vector(*results[has_halo ? 2 : 1].view, columns * rule.taps, "d weights");
  if (has_bias) vector(*results.back().view, columns, "d bias");
}

void RowRules::check_runs(const ConvolutionRule& rule, std::int64_t rows, std::int64_t halo_rows) const {
  require(rule.sequences >= 1 && rows % rule.sequences == 0 && halo_rows % rule.sequences == 0, "has ", rows,
          " rows and ", halo_rows, " of a halo, of ", rule.sequences, " sequences; each has as many");
  require(rule.runs.empty() || rule.runs.front().begins, "has a first run with no run before it; it begins");
  // Of one sequence, and in the halo of all.
  std::vector<Run> own, of_halo;
  for (const ConvolvedRun& run : rule.runs) {
    const std::int64_t most = run.of_halo ? halo_rows : rows / rule.sequences,
                       count = run.of_halo ? rule.sequences : 1;
    require(
        run.rows >= 1 && run.rows <= most / count && run.first >= 0 && run.first <= most - run.rows * count,
        "has a run of ", run.rows, " rows from ", run.first, " on, outside of the ", most,
        run.of_halo ? " rows of the halo" : " rows of a sequence");
    (run.of_halo ? of_halo : own).push_back({run.first, run.rows * count, run.rows * count, 1});
  }
  const auto covers = [&](std::vector<Run>& runs, std::int64_t all, const char* what) {
    std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.begin < b.begin; });
    std::int64_t at = 0;
    for (const Run& run : runs) {
      require(run.begin == at, "has row ", std::min(run.begin, at), " of ", what,
              run.begin < at ? " in two runs" : " in no run", "; each is in one");
      at += run.run;
    }
    require(at == all, "has row ", at, " of ", what, " in no run; each is in one");
  };
  covers(own, rows / rule.sequences, "a sequence"), covers(of_halo, halo_rows, "the halo");
}

void RowRules::check_decay(const RowKernel& op) const {
  const bool backward = op.operation == RowOperation::decay_and_beta_backward;
  rule_of<std::monostate>(op), counts(op, backward ? 4 : 2, 2);
  require(backward || op.updates.empty(), "updates views; it writes them");
  const View &numbers = op.reads[0], &decay = backward ? op.reads[2] : op.writes[0],
             &beta = backward ? op.reads[3] : op.writes[1];
  two_dims(numbers, "numbers"), two_dims(decay, "log decay");
  const std::int64_t rows = numbers.shape[0], heads = decay.shape[1];
  require(numbers.shape[1] == heads || numbers.shape[1] == 2 * heads, "has ", numbers.shape[1],
          " numbers for ", heads, " heads; each has one or two");
  statistic(decay, rows, heads, "log decay"), statistic(beta, rows, heads, "beta");
  vector(op.reads[1], 2 * heads, "A_log and dt_bias");
  if (!backward) return;
  const std::vector<RowResult> results = results_of(op);
  matrix(*results[0].view, rows, numbers.shape[1], "d numbers");
  vector(*results[1].view, 2 * heads, "d A_log and dt_bias");
}

void RowRules::check_gated_norm(const RowKernel& op) const {
  if (op.rule.index() == 0) return;  // shapes only
  const GatedNormRule& rule = rule_of<GatedNormRule>(op);
  const bool backward = op.operation == RowOperation::gated_norm_backward;
  const std::size_t rows_read = backward ? 3 : 2;
  const bool skips = op.reads.size() > rows_read + 1;
  counts(op, rows_read + (skips ? 3 : 1), backward ? (skips ? 5 : 3) : 1);
  require(backward || op.updates.empty(), "updates views; it writes them");
  two_dims(op.reads[0], "x");
  const std::int64_t rows = op.reads[0].shape[0], columns = op.reads[0].shape[1];
  for (std::size_t i = 0; i < rows_read + (skips ? 1 : 0); ++i) matrix(op.reads[i], rows, columns, "operand");
  const View& weight = op.reads[rows_read + (skips ? 1 : 0)];
  floating(weight);
  require(rule.width >= 1 && columns % rule.width == 0 && std::isfinite(rule.eps) && rule.eps > 0,
          "normalizes groups of ", rule.width, " of ", columns, " columns with eps=", rule.eps,
          "; a width divides the columns, and eps is positive");
  require(weight.shape.size() == 1 && weight.numel() >= 1 && columns % weight.numel() == 0, "has the weight ",
          text(weight), " for ", columns, " columns; its length divides them");
  if (skips) {
    const View& skip = op.reads.back();
    floating(skip);
    require(skip.shape.size() == 1 && skip.numel() >= 1 && columns % skip.numel() == 0, "has the skip ",
            text(skip), " for ", columns, " columns; it has one number for each head");
  }
  const std::vector<RowResult> results = results_of(op);
  const std::size_t of_rows = backward ? (skips ? 3 : 2) : 1;
  for (std::size_t i = 0; i < of_rows; ++i) matrix(*results[i].view, rows, columns, "result");
  if (!backward) return;
  vector(*results[of_rows].view, weight.numel(), "d weight");
  if (skips) vector(*results.back().view, op.reads.back().numel(), "d skip");
}

// ---- both ends ----

void RowRules::check_vocabulary(const VocabularyRule& rule, std::int64_t rows) const {
  require(rule.first >= 0 && rule.count >= 0 && rule.count <= rows, "has the tokens ", rule.first, " to ",
          rule.first + rule.count - 1, ", but a table or logits of ", rows);
  require(std::isfinite(rule.scale) && rule.softcap >= 0 && std::isfinite(rule.softcap), "has the scale ",
          rule.scale, " and the cap ", rule.softcap, "; use numbers, and 0 for no cap");
  require(std::isfinite(rule.logit_scale) && rule.logit_scale > 0, "multiplies logits with ",
          rule.logit_scale, "; use a number above 0, and 1 where they stay");
}

void RowRules::check_embedding(const RowKernel& op) const {
  const VocabularyRule& rule = rule_of<VocabularyRule>(op);
  const bool backward = op.operation == RowOperation::embed_backward;
  counts(op, 2, 1);
  require(backward ? op.writes.empty() : op.updates.empty(),
          backward ? "writes the table's gradient; it adds to it, so fill it first"
                   : "updates embedded rows; it writes them");
  const View &table = backward ? op.updates[0] : op.reads[1], &x = backward ? op.reads[1] : op.writes[0];
  two_dims(table, "table"), two_dims(x, "x");
  integers(op.reads[0], {x.shape[0]}, "tokens");
  matrix(x, x.shape[0], table.shape[1], "x");
  check_vocabulary(rule, table.shape[0]);
}

void RowRules::check_loss(const RowKernel& op) const {
  const VocabularyRule& rule = rule_of<VocabularyRule>(op);
  require(op.updates.empty() && !op.reads.empty(), "updates views or reads none; it writes from logits");
  const View& logits = op.reads[0];
  two_dims(logits, "logits");
  const std::int64_t rows = logits.shape[0];
  check_vocabulary(rule, logits.shape[1]);
  if (op.operation == RowOperation::cross_entropy_backward) {
    counts(op, 5, 2);
    statistic(op.reads[1], rows, 1, "maxima"), statistic(op.reads[2], rows, 2, "sums");
    integers(op.reads[3], {rows}, "labels");
    is_f32(op.reads[4], "weight"), shaped(op.reads[4], {1}, "weight");
    matrix(op.writes[0], rows, logits.shape[1], "d logits");
    is_f32(op.writes[1], "losses"), shaped(op.writes[1], {rows}, "losses");
    return;
  }
  const std::size_t reads = op.reads.size();
  require(reads <= 3, "reads ", reads, " views; it reads logits, maxima and labels at most");
  counts(op, reads, reads == 2 ? 2 : 1);
  if (reads == 3) statistic(op.reads[1], rows, 1, "maxima");
  if (reads > 1) integers(op.reads.back(), {rows}, "labels"), statistic(op.writes.back(), rows, 2, "sums");
  if (reads < 3) statistic(op.writes[0], rows, 1, "maxima");
}

// ---- experts ----

void RowRules::check_router(const RowKernel& op) const {
  const RouterRule& rule = rule_of<RouterRule>(op);
  const bool backward = op.operation == RowOperation::route_backward;
  const bool corrects = !backward && op.reads.size() == 2;
  const bool loads = !backward && op.updates.size() == 1;
  counts(op, backward ? 3 : corrects ? 2 : 1, backward ? 1 : loads ? 3 : 2);
  require(op.updates.empty() || loads, "updates views; it writes them, and updates loads at most");
  const View &logits = op.reads[0], &chosen = backward ? op.reads[1] : op.writes[1];
  two_dims(logits, "logits");
  const std::int64_t rows = logits.shape[0], experts = logits.shape[1];
  require(chosen.shape.size() == 2, "its choice ", text(chosen), " is no matrix");
  const std::int64_t top_k = chosen.shape[1];
  integers(chosen, {rows, top_k}, "experts");
  require(rule.groups >= 1 && experts % rule.groups == 0 && rule.top_groups >= 1 &&
              rule.top_groups <= rule.groups && rule.ranks >= 1 && experts % rule.ranks == 0,
          "has ", experts, " experts in ", rule.groups, " groups, of which ", rule.top_groups,
          " are chosen, on ", rule.ranks, " ranks; groups and ranks divide the experts");
  require(top_k >= 1 && top_k <= experts / rule.groups * rule.top_groups, "chooses ", top_k, " of the ",
          experts / rule.groups * rule.top_groups, " experts of ", rule.top_groups, " groups");
  require(std::isfinite(rule.scale), "scales by ", rule.scale);
  if (corrects) is_f32(op.reads[1], "correction"), shaped(op.reads[1], {experts}, "correction");
  if (loads) is_f32(op.updates[0], "loads"), shaped(op.updates[0], {experts}, "loads");
  if (!backward) return statistic(op.writes[0], rows, top_k, "weights");
  is_f32(op.reads[2], "d weights");
  require(
      op.reads[2].shape.size() == 2 && op.reads[2].shape[1] == 1 && op.reads[2].shape[0] % rule.ranks == 0,
      "d weights are ", text(op.reads[2]), "; they are [slots, 1], in equal blocks for ", rule.ranks,
      " ranks");
  matrix(op.writes[0], rows, experts, "d logits");
}

void RowRules::check_slots(const RowKernel& op) const {
  const SlotsRule& rule = rule_of<SlotsRule>(op);
  const bool dispatches = op.operation == RowOperation::dispatch;
  require(op.updates.empty() && !op.reads.empty(), "updates views or reads none; it writes rows");
  require(rule.experts >= 1 && rule.ranks >= 1 && rule.experts % rule.ranks == 0, "has ", rule.experts,
          " experts on ", rule.ranks, " ranks; each has as many");
  const std::size_t reads = op.reads.size();
  require(reads <= (dispatches ? 3U : 2U), "reads ", reads, " views; ", name(op.operation), " reads at most ",
          dispatches ? 3 : 2);
  counts(op, reads, reads == 3 ? 2 : 1);
  two_dims(op.reads[0], "rows"), two_dims(op.writes[0], "rows");
  const Shape &in = op.reads[0].shape, &out = op.writes[0].shape;
  require(in[1] == out[1], "reads rows of ", in[1], " columns and writes rows of ", out[1]);
  const std::int64_t capacity = dispatches ? out[0] : in[0];
  require(capacity % rule.ranks == 0, "has ", capacity, " slots, not as many for each of ", rule.ranks,
          " ranks");
  if (reads == 1) return shaped(op.writes[0], in, "rows");
  const View& chosen = op.reads.back();
  require(chosen.shape.size() == 2, "its choice ", text(chosen), " is no matrix");
  integers(chosen, {dispatches ? in[0] : out[0], chosen.shape[1]}, "experts");
  if (reads < 3) return;
  statistic(op.reads[1], in[0], chosen.shape[1], "weights");
  statistic(op.writes[1], capacity, 1, "weights of slots");
}

// ---- update ----

void RowRules::check_squared_norm(const RowKernel& op) const {
  const SquaredNormRule& rule = rule_of<SquaredNormRule>(op);
  require(op.writes.size() == 1 && op.updates.empty(), "gives ", op.writes.size() + op.updates.size(),
          " views; it writes one number");
  is_f32(op.writes[0], "squared norm"), shaped(op.writes[0], {1}, "squared norm");
  require(rule.copies.size() == op.reads.size(), "reads ", op.reads.size(), " views and has ",
          rule.copies.size(), " numbers of copies; each view has one");
  for (const View& view : op.reads) floating(view);
  for (const std::int64_t copies : rule.copies)
    require(copies >= 1, "counts a view as one of ", copies, " copies; it is one itself");
}

void RowRules::check_optimizer(const RowKernel& op) const {
  const OptimizerRule& rule = rule_of<OptimizerRule>(op);
  require(rule.states >= 0 && rule.states <= 2, "has ", rule.states,
          " states; AdamW has 2, SGD 1 with momentum and else 0");
  const auto share = [&](double value, std::string_view role) {
    require(value >= 0 && value < 1, role, " is ", value, "; use a number in [0, 1)");
  };
  share(rule.beta1, "beta1"), share(rule.beta2, "beta2");
  require(rule.eps > 0 && rule.decay >= 0 && rule.max_norm >= 0 && std::isfinite(rule.eps) &&
              std::isfinite(rule.decay) && std::isfinite(rule.max_norm),
          "has eps=", rule.eps, ", decay=", rule.decay, ", max_norm=", rule.max_norm,
          "; eps is positive, and the others at least 0");
  require(op.reads.size() == 3, "reads ", op.reads.size(),
          " views; it reads gradients, the squared norm and the schedule");
  require(op.updates.size() == (rule.states > 0 ? 2U : 1U) && op.writes.size() <= 1, "updates ",
          op.updates.size(), " views and writes ", op.writes.size(), "; with ", rule.states,
          " states it updates ", rule.states > 0 ? "parameters and states" : "parameters",
          ", and writes one view at most");
  const std::int64_t numel = op.reads[0].numel();
  vector(op.reads[0], numel, "gradients");
  is_f32(op.reads[1], "squared norm"), shaped(op.reads[1], {1}, "squared norm");
  is_f32(op.reads[2], "schedule"), shaped(op.reads[2], {2}, "schedule");
  is_f32(op.updates[0], "parameters"), shaped(op.updates[0], {numel}, "parameters");
  if (!op.writes.empty()) vector(op.writes[0], numel, "parameters in another dtype");
  if (rule.states == 0) return;
  floating(op.updates[1]);
  require(op.updates[1].numel() == rule.states * numel, "has ", op.updates[1].numel(), " numbers of states; ",
          numel, " parameters have ", rule.states, " each");
}

}  // namespace cp
