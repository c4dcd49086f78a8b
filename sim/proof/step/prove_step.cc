#include "sim/proof/step/prove_step.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/check.h"
#include "shared/transformer/rank_groups.h"
#include "shared/transformer/step_buffers.h"
#include "shared/transformer/step_order.h"
#include "sim/fabric/fabric.h"
#include "sim/proof/reference/reference_parameters.h"
#include "sim/proof/run/tensor_tolerance.h"
#include "sim/proof/step/dropped_tokens.h"
#include "sim/proof/step/step_tolerance.h"

namespace cp::sim {
namespace {

constexpr int kGradientRole = 1;
constexpr std::array<const char*, 3> kRoles = {"parameter", "first moment", "second moment"};
// Of errors: a first moment as it would be had the rank clipped by the norm of one device.
constexpr int kUnclippedRole = 3;

// The errors of one tensor in one role, as ranks find them.
struct Errors {
  double sum_of_squares = 0, largest = 0, of_found = 0, of_expected = 0;
  double found_squares = 0, expected_squares = 0, products = 0;  // sums
  std::int64_t count = 0, row = 0, column = 0;
  Rank rank = -1;

  void add(double found, double expected, Rank on, std::int64_t at_row, std::int64_t at_column) {
    const double error = std::abs(found - expected);
    ++count, sum_of_squares += error * error;
    found_squares += found * found, expected_squares += expected * expected, products += found * expected;
    if (rank >= 0 && error <= largest) return;
    largest = std::isnan(error) ? HUGE_VAL : error;
    of_found = found, of_expected = expected, rank = on, row = at_row, column = at_column;
  }
  void add(const Errors& other) {
    count += other.count, sum_of_squares += other.sum_of_squares;
    found_squares += other.found_squares, expected_squares += other.expected_squares;
    products += other.products;
    if (rank >= 0 && !(other.largest > largest)) return;
    largest = other.largest, of_found = other.of_found, of_expected = other.of_expected;
    rank = other.rank, row = other.row, column = other.column;
  }
  // By how much all of it is too large, as far as it is that alone.
  double scale() const { return products / expected_squares; }
  // The root mean square of what is left if all that is expected is multiplied with this.
  double root_beside(double scale) const {
    const double sum = found_squares - 2 * scale * products + scale * scale * expected_squares;
    return std::sqrt(std::max(0.0, sum) / static_cast<double>(std::max<std::int64_t>(1, count)));
  }
};

TensorProof proof_of(const std::string& tensor, int role, const Workload& workload,
                     const StepProofOptions& options, const StepExpectation::Of& of, const Errors& errors) {
  TensorProof proof;
  const double growth = options.growth;
  proof.tensor = tensor, proof.role = kRoles[idx(role)], proof.error = errors.largest;
  double size = 0;
  for (const double value : of.expected->values) size = std::max(size, std::abs(value));
  // The optimizer computes in f32. It rounds a parameter three times: its product with the decay, and both
  // differences; and a state no more often: products with both betas, and their sum. A state is then stored.
  const Optimizer& optimizer = workload.optimizer;
  const double u = roundoff(DType::f32),
               stored = optimizer.state_dtype == DType::f32 ? 0 : roundoff(optimizer.state_dtype);
  const bool by_moments = role == 0 && optimizer.is_adam() && is_trained(tensor);
  double rounded = (3 * u + (role == 0 ? 0 : stored)) * size, moved = of.movement.largest,
         moved_root = std::sqrt(of.movement.mean_square);
  // AdamW divides a gradient by its size, so that one that roundings turn around turns its parameter's step
  // around. The parameter is held against what the rank's own moments make of it, which are proved
  // themselves: of a step, which is of the size of the learning rate, seven operations round, and both
  // moments have been stored.
  if (by_moments) rounded += options.learning_rate * (7 * u + 2 * stored), moved = moved_root = 0;
  proof.allowed = growth * moved + rounded;
  const double root = std::sqrt(errors.sum_of_squares /
                                static_cast<double>(std::max<std::int64_t>(1, errors.count))),
               allowed_root = growth * moved_root + rounded;
  const std::string where =
      str("rank ", errors.rank, " has ", errors.of_found, " at [", errors.row, ", ", errors.column,
          "] where ", by_moments ? "its moments make " : "one device has ", errors.of_expected);
  const double expected_root =
      std::sqrt(errors.expected_squares / static_cast<double>(std::max<std::int64_t>(1, errors.count)));
  // A router's choice that hangs on a rounding moves gradients by their own size.
  proof.moved_away = role == kGradientRole && expected_root > 0 && allowed_root >= expected_root;
  if (errors.count == 0)
    proof.finding = "no rank owns an element of it";
  else if (proof.moved_away)
    proof.finding = str("roundings move it by as much as it is (", allowed_root / growth, " of ",
                        expected_root, "), so that nothing is proved; use another seed, or f32");
  else if (!(errors.largest <= proof.allowed))
    proof.finding = str(where, ", more than ", proof.allowed, " away");
  else if (!(root <= allowed_root))
    proof.finding =
        str("errors have a root mean square of ", root, ", more than ", allowed_root, "; ", where);
  proof.allowed_root = allowed_root;
  return proof;
}

class StepRun {
 public:
  StepRun(const StepRequest& request, const StepPlans& plans, const StepProofOptions& options)
      : request_(request), options_(options), fabric_(request.layout.world(), {.record_traces = false}) {
    const auto phase = [&](const char* name) {
      if (options.on_phase) options.on_phase(name);
    };
    phase("planning");
    timed(proof_.plan_s, [&] { make_plans(plans); });
    phase("the reference");
    timed(proof_.reference_s, [&] { expect(); });
    phase("running");
    timed(proof_.run_s, [&] { run(); });
  }

  StepProof take() && {
    const ReferenceStep& step = expectation_->step();
    proof_.labelled = step.pass.loss.labelled;
    proof_.choices = step.pass.loss.choices, proof_.dropped = step.pass.loss.dropped;
    proof_.expected_loss = step.pass.loss.loss();
    proof_.loss = loss_sum_ / static_cast<double>(proof_.labelled);
    std::sort(proof_.wrong_rows.begin(), proof_.wrong_rows.end(), [](const RowProof& a, const RowProof& b) {
      return std::tie(a.sequence, a.row) < std::tie(b.sequence, b.row);
    });
    proof_.allowed_loss = options_.growth * expectation_->loss_movement() +
                          roundoff(DType::f32) * std::abs(proof_.expected_loss);
    proof_.expected_norm = step.norm;
    // Each rank rounds its sum of squares, and as each stage of it, its addition to the others: of the root
    // that is half as much.
    const double roundings = static_cast<double>(request_.layout.world()) * request_.layout.virtual_stages;
    proof_.allowed_norm =
        options_.growth * expectation_->norm_movement() + roundoff(DType::f32) * roundings * step.norm;
    for (const auto& [tensor, matrix] : step.parameters.all()) {
      const int states = is_trained(tensor) ? request_.workload.optimizer.states : 0;
      for (int role = 0; role <= states; ++role) {
        const StepExpectation::Of of =
            role == 0 ? expectation_->parameter(tensor) : expectation_->state(tensor, role - 1);
        proof_.tensors.push_back(
            proof_of(tensor, role, request_.workload, options_, of, errors_[{tensor, role}]));
      }
    }
    look_for_scale();
    return std::move(proof_);
  }

 private:
  using Key = std::pair<std::string, int>;  // a tensor and its role

  template <class Work>
  static void timed(double& seconds, const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  int stages() const { return request_.layout.pp * request_.layout.virtual_stages; }

  // A loss or sums that count otherwise make all gradients wrong by one factor, which clipping hides: the
  // median says which, and which tensors are wrong beside. Where any gradient is right, there is none.
  void look_for_scale() {
    std::vector<double> scales;
    for (const auto& [key, errors] : errors_) {
      if (key.second == kUnclippedRole && errors.expected_squares > 0 && std::isfinite(errors.scale()))
        scales.push_back(errors.scale());
    }
    if (scales.empty()) return;
    const auto differs_at = [&](const TensorProof& tensor, double scale) {
      // What is left of a sum of squares is known to some units of its own roundoff.
      const Errors& errors = errors_[{tensor.tensor, kUnclippedRole}];
      const double known = 1e-7 * std::sqrt(errors.found_squares /
                                            static_cast<double>(std::max<std::int64_t>(1, errors.count)));
      // A NaN differs.
      return !(errors.root_beside(scale) <= std::max(1.0, scale) * (tensor.allowed_root + known));
    };
    bool all_differ = true;
    for (TensorProof& tensor : proof_.tensors) {
      if (tensor.role != kRoles[kGradientRole]) continue;
      tensor.differs_unclipped = differs_at(tensor, 1);
      const bool is_zero = errors_[{tensor.tensor, kUnclippedRole}].expected_squares == 0;
      all_differ = all_differ && (tensor.differs_unclipped || is_zero);
    }
    if (all_differ) {
      const auto middle = scales.begin() + std::ssize(scales) / 2;
      std::nth_element(scales.begin(), middle, scales.end());
      proof_.gradient_scale = *middle;
    }
    for (TensorProof& tensor : proof_.tensors) {
      if (tensor.role == kRoles[kGradientRole])
        tensor.differs_beside_scale = differs_at(tensor, proof_.gradient_scale);
    }
  }

  void make_plans(const StepPlans& plans) {
    for (int stage = 0; stage < stages(); ++stage) {
      std::vector<StepPart> parts = parts_of(request_);
      const std::vector<StepPart> transfers = transfers_of(request_, stage);
      parts.insert(parts.end(), transfers.begin(), transfers.end());
      for (const StepPart part : parts) {
        for (std::int64_t micro_batch = 0; micro_batch < plans_of(part); ++micro_batch) {
          for (Plan& plan : plans(part, stage, micro_batch)) {
            const Rank rank = plan.self;
            plans_.insert_or_assign({part, stage, rank, micro_batch}, std::move(plan));
          }
        }
      }
    }
    for (const StepPart part : parts_of(request_)) {
      for (std::int64_t micro_batch = 0; micro_batch < plans_of(part); ++micro_batch)
        check_part(part, micro_batch);
    }
    check_step_order(request_,
                     [&](StepPart part, int stage, Rank rank, std::int64_t micro_batch) -> const Plan& {
                       return plan_of(part, stage, rank, micro_batch);
                     });
  }

  // Reductions of a rank's first stages meet those of others' second ones, which no check of one plan for
  // each rank knows.
  void check_part(StepPart part, std::int64_t micro_batch) const {
    if (part == StepPart::reduce) return;
    for (int round = 0; round < request_.layout.virtual_stages; ++round) {
      std::vector<Plan> all;
      for (const auto& [key, plan] : plans_) {
        const auto& [of, stage, rank, number] = key;
        if (of == part && stage / request_.layout.pp == round && number == micro_batch) all.push_back(plan);
      }
      check(all);
    }
  }

  // Micro-batches with documents of their own have plans of their own.
  std::int64_t plans_of(StepPart part) const {
    const bool has_own = !request_.workload.cu_seqlens_of_sequence.empty() && sees_documents(part);
    return has_own ? accumulation(request_.workload, request_.layout) : 1;
  }
  const Plan& plan_of(StepPart part, int stage, Rank rank, std::int64_t micro_batch) const {
    return plans_.at({part, stage, rank, plans_of(part) == 1 ? 0 : micro_batch});
  }

  void expect() {
    const Workload& workload = request_.workload;
    values_.parameters = draw_parameters(request_.model, options_.seed, workload.dtype);
    values_.state = begin_optimizer(workload.optimizer, values_.parameters);
    BatchOptions batch;
    batch.vocab = request_.model.vocab, batch.sequences = workload.global_batch;
    batch.seq_len = workload.seq_len;
    batch.cu_seqlens = workload.cu_seqlens;
    batch.cu_seqlens_of_sequence = workload.cu_seqlens_of_sequence;
    batch.ignored = options_.ignored, batch.seed = options_.seed;
    batch.without_label = std::min(options_.without_label, workload.global_batch - 1);
    values_.batch = draw_batch(batch);
    ReferenceRules rules = reference_rules(request_);
    rules.correction_rate = options_.correction_rate;
    rules.dropout_seed = static_cast<std::uint64_t>(dropout_seed(options_.seed, values_.state.steps + 1));
    expectation_.emplace(request_, values_, rules, optimizer_rules(workload, options_.learning_rate));
    // Losses are computed and stored in f32, from statistics that are, too: three numbers of about this size.
    const std::vector<double>& rows = expectation_->step().pass.loss.of_rows;
    proof_.allowed_row = options_.growth * expectation_->row_movement() +
                         3 * roundoff(DType::f32) * *std::max_element(rows.begin(), rows.end());
  }

  void run() {
    fabric_.run([&](Rank rank, Device& device) { run_rank(rank, device); });
  }

  void run_rank(Rank rank, Device& device) {
    StepBuffers buffers(request_, rank, values_of(values_.parameters));
    StepBatch batch{values_.batch.tokens, values_.batch.labels, options_.learning_rate,
                    values_.state.steps + 1};
    batch.correction_rate = options_.correction_rate, batch.seed = options_.seed;
    buffers.begin_step(std::move(batch));
    change_inputs(rank, buffers);
    run_step([&](StepPart part, int stage,
                 std::int64_t micro_batch) -> const Plan& { return plan_of(part, stage, rank, micro_batch); },
             device, buffers);
    compare(rank, buffers);
    const std::lock_guard lock(mutex_);
    const double norm = buffers.norm();
    proof_.least_norm = ranks_done_ == 0 || !(norm >= proof_.least_norm) ? norm : proof_.least_norm;
    proof_.largest_norm = ranks_done_ == 0 || !(norm <= proof_.largest_norm) ? norm : proof_.largest_norm;
    ++ranks_done_;
    // The tp ranks have the same losses.
    if (RankGroups(request_.layout, rank).tp() == 0) compare_losses(rank, buffers);
  }

  void compare_losses(Rank rank, const StepBuffers& buffers) {
    const std::vector<double>& expected = expectation_->step().pass.loss.of_rows;
    buffers.for_each_loss([&](const StepBuffers::RowLoss& row) {
      loss_sum_ += row.loss;
      const double of_row = expected[idx(row.sequence * request_.workload.seq_len + row.row)];
      if (!(std::abs(row.loss - of_row) <= proof_.allowed_row))
        proof_.wrong_rows.push_back({row.sequence, row.row, row.loss, of_row, row.ends_shard, rank});
    });
  }

  // What is bound once stays.
  void change_inputs(Rank rank, StepBuffers& buffers) const {
    if (!options_.on_input) return;
    const StepPart part = parts_of(request_).front();
    for (const PartRun& run : buffers.order().passes)
      buffers.make_room(plan_of(run.part, run.stage, rank, run.micro_batch));
    for (const PartRun& run : buffers.order().passes) {
      if (run.part != part) continue;
      const Plan& plan = plan_of(run.part, run.stage, rank, run.micro_batch);
      for (const Binding& binding : buffers.bind(plan, run)) {
        const Buffer& buffer = plan.buffers[idx(binding.buffer)];
        if (buffer.kind == BufferKind::input)
          options_.on_input(rank, buffer, {static_cast<std::byte*>(binding.data), idx(binding.size_bytes)});
      }
    }
  }

  void compare(Rank rank, const StepBuffers& buffers) {
    std::map<Key, Errors> own;
    const ReferenceStep& step = expectation_->step();
    // What this rank's first moments are multiplied with to be of gradients that were clipped rightly.
    const OptimizerRules optimizer = optimizer_rules(request_.workload, options_.learning_rate);
    const double reclipped = step.clip_factor / clip_factor(optimizer, buffers.norm());
    for (const int stage : buffers.stages()) {
      buffers.for_each_owned(stage, [&](const StepBuffers::Owned& owned) {
        const std::string& tensor = owned.run.block.tensor;
        // Adds what found(i) gives of element i of the run, in a role, where expected(row, column) is right.
        const auto add = [&](int role, const auto& found, const auto& expected) {
          Errors& errors = own[{tensor, role}];
          for_each_row(
              owned.run, [&](std::int64_t row, std::int64_t column, std::int64_t at, std::int64_t count) {
                for (std::int64_t i = 0; i < count; ++i)
                  errors.add(found(at + i), expected(row, column + i, at + i), rank, row, column + i);
              });
        };
        const auto has = [&](int role) {
          return [&owned, role](std::int64_t i) { return owned.value(role, i); };
        };
        const auto of = [&](const NamedMatrices& all) {
          return [&matrix = all.at(tensor)](std::int64_t row, std::int64_t column, std::int64_t) {
            return matrix.row(row)[column];
          };
        };
        if (optimizer.optimizer.is_adam() && owned.unit.trained) {
          const Matrix64& before = values_.parameters.at(tensor);
          add(0, has(0), [&](std::int64_t row, std::int64_t column, std::int64_t i) {
            return adam_updated(optimizer, step.state.steps, before.row(row)[column], owned.value(1, i),
                                owned.value(2, i));
          });
        } else {
          add(0, has(0), of(step.parameters));
        }
        for (int state = 1; state <= std::ssize(owned.states); ++state)
          add(state, has(state), of(state == 1 ? step.state.first : step.state.second));
        if (!owned.states.empty())
          add(
              kUnclippedRole, [&](std::int64_t i) { return reclipped * owned.value(1, i); },
              of(step.state.first));
      });
    }
    const std::lock_guard lock(mutex_);
    for (const auto& [key, errors] : own) errors_[key].add(errors);
  }

  const StepRequest& request_;
  const StepProofOptions& options_;
  Fabric fabric_;
  std::map<std::tuple<StepPart, int, Rank, std::int64_t>, Plan> plans_;
  StepValues values_;
  std::optional<StepExpectation> expectation_;
  std::mutex mutex_;  // of what follows
  std::map<Key, Errors> errors_;
  double loss_sum_ = 0;
  int ranks_done_ = 0;
  StepProof proof_;
};

}  // namespace

bool StepProof::loss_holds() const {
  return std::abs(loss - expected_loss) <= allowed_loss && wrong_rows.empty();
}

bool StepProof::norm_holds() const {
  return std::abs(least_norm - expected_norm) <= allowed_norm &&
         std::abs(largest_norm - expected_norm) <= allowed_norm;
}

bool StepProof::holds() const {
  return loss_holds() && norm_holds() &&
         std::all_of(tensors.begin(), tensors.end(),
                     [](const TensorProof& tensor) { return tensor.holds(); });
}

bool StepProof::is_unknown() const {
  if (holds() || !loss_holds() || !norm_holds()) return false;
  std::set<std::string_view> unknown;
  for (const TensorProof& of : tensors) {
    if (of.moved_away) unknown.insert(of.tensor);
  }
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const TensorProof& of) { return of.holds() || unknown.contains(of.tensor); });
}

namespace {

// Which rows lose another loss, and where they stand.
std::string words_of_rows(const StepProof& proof) {
  if (proof.wrong_rows.empty()) return str(", more than ", proof.allowed_loss, " away");
  const RowProof& first = proof.wrong_rows.front();
  const bool at_ends = std::all_of(proof.wrong_rows.begin(), proof.wrong_rows.end(),
                                   [](const RowProof& row) { return row.ends_shard; });
  const std::size_t count = proof.wrong_rows.size();
  const char* const where = !at_ends     ? ""
                            : count == 1 ? ", before a row of another rank"
                                         : ", each before a row of another rank";
  return str("; ", count, count == 1 ? " row loses" : " rows lose", " another one", where, ": row ",
             first.row, " of sequence ", first.sequence, " on rank ", first.rank, " loses ", first.loss,
             " where one device has ", first.expected);
}

}  // namespace

std::string StepProof::finding() const {
  if (!loss_holds())
    return str("the loss is ", loss, " where one device has ", expected_loss, words_of_rows(*this));
  const auto words = [](const TensorProof& tensor) {
    return str(tensor.role, " of ", tensor.tensor, ": ", tensor.finding);
  };
  const auto first = [&](const auto& is) { return std::find_if(tensors.begin(), tensors.end(), is); };
  // Causes before effects: one tensor's gradient, all gradients, the norm, then a state or a parameter.
  const auto wrong = first([](const TensorProof& t) { return !t.holds() && t.differs_beside_scale; });
  if (wrong != tensors.end()) return words(*wrong);
  if (!norm_holds()) {
    const std::string norms = least_norm == largest_norm ? str("a norm of ", largest_norm)
                                                         : str("norms of ", least_norm, " to ", largest_norm);
    const auto scaled = first([](const TensorProof& t) { return t.differs_unclipped; });
    if (scaled != tensors.end())
      return str("all gradients are ", gradient_scale,
                 " times those of one device before they are clipped: ", norms, " where one device has ",
                 expected_norm);
    return str("ranks clip by ", norms, " where one device has ", expected_norm, ", more than ", allowed_norm,
               " away");
  }
  const auto gradient = first(
      [](const TensorProof& t) { return !t.holds() && !t.moved_away && t.role == kRoles[kGradientRole]; });
  if (gradient != tensors.end()) return words(*gradient);
  const auto known = first([](const TensorProof& t) { return !t.holds() && !t.moved_away; });
  if (known != tensors.end()) return words(*known);
  const auto unknown = first([](const TensorProof& t) { return !t.holds(); });
  return unknown == tensors.end() ? "" : words(*unknown);
}

StepBuffers::Values values_of(const NamedMatrices& parameters) {
  return [&](int role, const TensorRun& run, std::span<double> values) {
    if (role > 0) return std::fill(values.begin(), values.end(), 0.0);
    const Matrix64& tensor = parameters.at(run.block.tensor);
    for_each_row(run, [&](std::int64_t row, std::int64_t column, std::int64_t at, std::int64_t count) {
      std::copy_n(tensor.row(row) + column, count, values.begin() + at);
    });
  };
}

namespace {

RotaryRules rotary_rules(const Numerics& numerics, const RotaryFrequencies& rotary) {
  RotaryRules rules;
  rules.theta = rotary.theta, rules.factor = rotary.factor, rules.low = rotary.low, rules.high = rotary.high;
  rules.scale = [&] {
    switch (rotary.scaling) {
      case RotaryScaling::linear:
        return RotaryScale::linear;
      case RotaryScaling::llama3:
        return RotaryScale::llama3;
      case RotaryScaling::yarn:
        return RotaryScale::yarn;
      case RotaryScaling::none:
        break;
    }
    return RotaryScale::none;
  }();
  rules.original = static_cast<double>(rotary.original);
  rules.truncate = rotary.whole_pairs, rules.size = rotary.magnitude;
  rules.neighbours = numerics.interleaved_rotary, rules.share = numerics.rotary_share;
  return rules;
}

}  // namespace

ReferenceRules reference_rules(const Transformer& model) {
  const Numerics& numerics = model.numerics;
  ReferenceRules rules;
  rules.norm_eps = numerics.norm_eps, rules.norm_unit_offset = numerics.norm_unit_offset;
  rules.norm_centered = numerics.norm_centered, rules.logit_scale = numerics.logit_scale;
  rules.embedding_scale = numerics.embedding_scale, rules.logit_softcap = numerics.logit_softcap;
  rules.rotary = rotary_rules(numerics, numerics.rotary);
  if (numerics.window_rotary) rules.window_rotary = rotary_rules(numerics, *numerics.window_rotary);
  rules.score_scale = numerics.score_scale;
  rules.activation = [&] {
    switch (numerics.activation) {
      case ActivationFunction::silu:
        return MlpActivation::silu;
      case ActivationFunction::gelu:
        return MlpActivation::gelu;
      case ActivationFunction::gelu_tanh:
        return MlpActivation::gelu_tanh;
      case ActivationFunction::relu:
        return MlpActivation::relu;
      case ActivationFunction::quick_gelu:
        return MlpActivation::quick_gelu;
      case ActivationFunction::identity:
        return MlpActivation::identity;
      case ActivationFunction::relu2:
        break;
    }
    return MlpActivation::relu_squared;
  }();
  rules.activation_limit = numerics.activation_limit, rules.up_offset = numerics.up_offset;
  rules.weighs_expert_inputs = numerics.weighs_expert_inputs;
  rules.temperature_scale = numerics.temperature.scale, rules.temperature_floor = numerics.temperature.floor;
  const RouterRule& router = numerics.router;
  rules.router = {router.sigmoid, router.normalized, router.scale, router.groups, router.top_groups};
  return rules;
}

ReferenceRules reference_rules(const StepRequest& request) {
  ReferenceRules rules = reference_rules(request.model);
  rules.micro_batch = request.layout.micro_batch;
  rules.attention_dropout = request.workload.attention_dropout;
  if (request.model.experts) rules.drops = drops_of(request);
  return rules;
}

OptimizerRules optimizer_rules(const Workload& workload, double learning_rate) {
  const Optimizer& optimizer = workload.optimizer;
  OptimizerRules rules{optimizer, learning_rate};
  rules.weight_decay = optimizer.decay, rules.beta1 = optimizer.beta1, rules.beta2 = optimizer.beta2;
  rules.eps = optimizer.eps, rules.momentum = optimizer.beta1;
  rules.clip_norm = optimizer.max_norm > 0 ? std::optional(optimizer.max_norm) : std::nullopt;
  return rules;
}

void require_provable(const StepRequest& request) {
  if (request.workload.phase != Phase::training)
    throw InvalidInput(str("phase ", name(request.workload.phase), " has no loss; prove a step of training"));
}

StepProof prove_step(const StepRequest& request, const StepPlans& plans, const StepProofOptions& options) {
  require_provable(request);
  return StepRun(request, plans, options).take();
}

StepProof prove_step(const StepRequest& request, const StepProofOptions& options) {
  MixerPlanCache cache;
  return prove_step(
      request,
      [&](StepPart part, int stage, std::int64_t micro_batch) {
        return step_plans(request, part, stage, &cache, micro_batch);
      },
      options);
}

}  // namespace cp::sim
