#include "sim/proof/run/attention_shards.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "shared/base/error.h"
#include "shared/kernels/elements.h"
#include "sim/proof/ledger/expected_traffic.h"
#include "sim/proof/ledger/part_pairs.h"
#include "sim/proof/run/attention_reference.h"
#include "sim/proof/run/attention_tolerance.h"
#include "sim/proof/run/latent_reference.h"

namespace cp::sim {
namespace {

// A global tensor of the reference, [batch, heads, seq, dim].
struct Global {
  const std::vector<double>* values = nullptr;
  std::int64_t heads = 0, seq_len = 0, dim = 1;

  std::size_t row_number(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return static_cast<std::size_t>((batch * heads + head) * seq_len + row);
  }
  const double* row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return values->data() + row_number(batch, head, row) * static_cast<std::size_t>(dim);
  }
};

Global global_of(const AttentionTestData& data, Tensor tensor) {
  const AttentionProblem& p = data.problem();
  switch (tensor) {
    case Tensor::q:
      return {&data.q(), p.q_heads, p.q_len, p.head_dim};
    case Tensor::k:
      return {&data.k(), p.kv_heads, p.kv_len, p.head_dim};
    case Tensor::v:
      return {&data.v(), p.kv_heads, p.kv_len, p.v_head_dim};
    case Tensor::dout:
      return {&data.dout(), p.q_heads, p.q_len, p.v_head_dim};
    case Tensor::out:
      return {&data.out(), p.q_heads, p.q_len, p.v_head_dim};
    case Tensor::lse:
      return {&data.lse(), p.q_heads, p.q_len, 1};
    case Tensor::dq:
      return {&data.dq(), p.q_heads, p.q_len, p.head_dim};
    case Tensor::dk:
      return {&data.dk(), p.kv_heads, p.kv_len, p.head_dim};
    case Tensor::dv:
      return {&data.dv(), p.kv_heads, p.kv_len, p.v_head_dim};
    case Tensor::sinks:
      return {&data.sinks(), p.q_heads, 1, 1};
    case Tensor::latent:
      return {&data.latent(), 1, p.kv_len, p.latent.dim()};
    case Tensor::kv_up:
      return {&data.kv_up(), p.kv_heads, p.up_rows(), p.latent.rank};
    case Tensor::dlatent:
      return {&data.dlatent(), 1, p.kv_len, p.latent.dim()};
    case Tensor::dkv_up:
    case Tensor::dsinks:
    case Tensor::seed:
    case Tensor::delta:
      break;
  }
  CP_INVARIANT(false, "no buffer of the caller holds ", name(tensor));
  return {};
}

const TensorTolerance& tolerance_of(const AttentionTolerances& tolerances, Tensor tensor) {
  switch (tensor) {
    case Tensor::out:
      return tolerances.out;
    case Tensor::lse:
      return tolerances.lse;
    case Tensor::dq:
      return tolerances.dq;
    case Tensor::dk:
      return tolerances.dk;
    case Tensor::k:
      return tolerances.k;
    case Tensor::v:
      return tolerances.v;
    case Tensor::dlatent:
      return tolerances.dlatent;
    default:
      return tolerances.dv;
  }
}

std::vector<double>& result_of(AttentionResults& results, Tensor tensor) {
  switch (tensor) {
    case Tensor::out:
      return results.out;
    case Tensor::lse:
      return results.lse;
    case Tensor::dq:
      return results.dq;
    case Tensor::dk:
      return results.dk;
    case Tensor::dlatent:
      return results.dlatent;
    default:
      return results.dv;
  }
}

// Copies of q, k, v and latent rows: what was moved, and nothing added up. What rows were expanded to was.
bool only_moved(const AttentionProblem& problem, const Buffer& buffer) {
  const bool of_heads = buffer.name == "saved_k" || buffer.name == "saved_v";
  return buffer.name == "saved_q" || buffer.name == "saved_latent" || (of_heads && !problem.has_latent());
}

bool computed(const AttentionProblem& problem, const Buffer& buffer) {
  return buffer.kind == BufferKind::output && !only_moved(problem, buffer);
}
bool is_of_rows(const BufferRole& role) {
  return role.tensor != Tensor::dsinks && role.tensor != Tensor::dkv_up;
}

template <class T>
TensorError error_of(const AttentionTestData& data, const BufferRole& role, const T* values_here,
                     const TensorTolerance& tolerance, Rank rank) {
  const Global global = global_of(data, role.tensor);
  TensorError error{std::string(name(role.tensor)), 0, 0, ""};
  role.for_each_row(data.problem().batch, [&](std::int64_t b, std::int64_t h, std::int64_t row,
                                              std::int64_t at) {
    const double* values = global.row(b, h, row);
    const std::size_t number = global.row_number(b, h, row);
    for (std::int64_t d = 0; d < role.dim; ++d) {
      const double found = static_cast<double>(load(values_here[at + d * role.strides[3]]));
      const double difference = found == values[d] ? 0 : std::abs(found - values[d]);  // -inf equals -inf
      const double allowed = tolerance.at(number, values[d]);
      if (!tolerance.holds(number, values[d], found) && error.finding.empty()) {
        error.finding = str("rank ", rank, ", batch ", b, ", head ", h, ", row ", row, ", column ", d, ": ",
                            found, " where one device has ", values[d], ", more than ", allowed, " away");
      }
      error.tolerance = std::max(error.tolerance, allowed);
      error.max_error = std::isnan(difference) ? std::numeric_limits<double>::infinity()
                                               : std::max(error.max_error, difference);
    }
  });
  return error;
}

}  // namespace

void TensorError::add(const TensorError& other) {
  max_error = std::max(max_error, other.max_error);
  tolerance = std::max(tolerance, other.tolerance);
  if (finding.empty()) finding = other.finding;
}

AttentionShards::AttentionShards(const AttentionTestData& data, const AttentionRequest& request)
    : data_(data),
      request_(request),
      sharding_(request.problem, static_cast<int>(request.ranks.size()), request.strategy) {
  for (std::size_t i = 0; i < request.ranks.size(); ++i) index_of_[request.ranks[i]] = static_cast<int>(i);
}

BufferRole AttentionShards::role_of(AttentionPass pass, const Plan& plan, const Buffer& buffer) const {
  const auto role = buffer_role(request_, sharding_, pass, index_of(plan.self), buffer.name);
  CP_INVARIANT(role.has_value(), "buffer ", buffer.name, " of rank ", plan.self);
  return *role;
}

Bindings AttentionShards::bind(AttentionPass pass, const Plan& plan, RankBuffers& buffers) const {
  Bindings bindings;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    if (buffer.kind == BufferKind::temporary) continue;
    std::vector<std::byte>& bytes = buffers[buffer.name];
    const bool made = buffer.kind == BufferKind::input && bytes.empty();
    if (bytes.empty()) bytes.resize(static_cast<std::size_t>(buffer.bytes()), std::byte{0xfb});
    if (made) fill(role_of(pass, plan, buffer), buffer.dtype, bytes.data());
    bindings.push_back({static_cast<BufferId>(i), bytes.data(), static_cast<std::int64_t>(bytes.size())});
  }
  return bindings;
}

void AttentionShards::fill(const BufferRole& role, DType dtype, std::byte* bytes) const {
  if (role.tensor == Tensor::seed) {
    const std::uint64_t seed = data_.seed();
    std::memcpy(bytes, &seed, sizeof seed);
    return;
  }
  const Global global = global_of(data_, role.tensor);
  with_floating_type(dtype, [&]<class T>(std::type_identity<T>) {
    T* const data = reinterpret_cast<T*>(bytes);
    role.for_each_row(data_.problem().batch,
                      [&](std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t at) {
                        const double* values = global.row(b, h, row);
                        for (std::int64_t d = 0; d < role.dim; ++d)
                          data[at + d * role.strides[3]] = convert<T>(values[d]);
                      });
  });
}

std::map<Tensor, TensorError> AttentionShards::compare(AttentionPass pass, const Plan& plan,
                                                       const RankBuffers& buffers,
                                                       const AttentionTolerances& tolerances) const {
  std::map<Tensor, TensorError> errors;
  for (const Buffer& buffer : plan.buffers) {
    if (!computed(data_.problem(), buffer)) continue;
    const BufferRole role = role_of(pass, plan, buffer);
    if (!is_of_rows(role)) {
      const auto* numbers = reinterpret_cast<const float*>(buffers.at(buffer.name).data());
      errors.emplace(role.tensor, role.tensor == Tensor::dsinks ? compare_dsinks(plan, numbers, tolerances)
                                                                : compare_dkv_up(plan, numbers, tolerances));
      continue;
    }
    with_floating_type(buffer.dtype, [&]<class T>(std::type_identity<T>) {
      const TensorError error =
          error_of(data_, role, reinterpret_cast<const T*>(buffers.at(buffer.name).data()),
                   tolerance_of(tolerances, role.tensor), plan.self);
      const auto [known, added] = errors.try_emplace(role.tensor, error);
      if (!added) known->second.add(error);
    });
  }
  return errors;
}

// A rank has what its own rows and heads add, and zeros for other heads.
TensorError AttentionShards::compare_dsinks(const Plan& plan, const float* dsinks,
                                            const AttentionTolerances& tolerances) const {
  const AttentionProblem& p = data_.problem();
  const TensorPart part = sharding_.compute_q(index_of(plan.self));
  std::vector<double> expected(static_cast<std::size_t>(p.q_heads)), allowed(expected.size()),
      squares(expected.size());
  constexpr double kUnit = 0x1p-24;
  const std::int64_t rows = part.num_rows();
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = to_global(part.rows, i);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t h = part.head_begin; h < part.head_end; ++h) {
        const auto number = static_cast<std::size_t>((b * p.q_heads + h) * p.q_len + row);
        const double term = data_.backward().row_dsink[number];
        const auto head = static_cast<std::size_t>(h);
        expected[head] += term, squares[head] += tolerances.row_dsink2[number];
        allowed[head] += tolerances.row_dsink[number] + kUnit * std::abs(term);
      }
    }
  }
  TensorError error{std::string(name(Tensor::dsinks)), 0, 0, ""};
  for (std::size_t h = 0; h < expected.size(); ++h) {
    const auto found = static_cast<double>(dsinks[h]);
    const double tolerance = allowed[h] + std::sqrt(squares[h]), difference = std::abs(found - expected[h]);
    if (!(difference <= tolerance) && error.finding.empty()) {
      error.finding =
          str("rank ", plan.self, ", head ", h, ": ", found, " where one device's rows of the rank add ",
              expected[h], ", more than ", tolerance, " away");
    }
    error.tolerance = std::max(error.tolerance, tolerance);
    error.max_error = std::isnan(difference) ? std::numeric_limits<double>::infinity()
                                             : std::max(error.max_error, difference);
  }
  return error;
}

// A rank has its share of the weight's gradient.
TensorError AttentionShards::compare_dkv_up(const Plan& plan, const float* dkv_up,
                                            const AttentionTolerances& tolerances) const {
  const AttentionProblem& p = data_.problem();
  const LatentInputs inputs{p, data_.latent(), data_.kv_up()};
  const WeightShare share = weight_share(request_, sharding_, index_of(plan.self));
  RowsAndHeads rows{{}, share.head_begin, share.head_end};
  for_each_index(share.rows, [&](std::int64_t row) { rows.rows.push_back(row); });
  const std::vector<double> expected =
      share.of_queries
          ? reference_dkv_up_of_queries(inputs, data_.backward(), {data_.q(), data_.dout()}, rows)
          : reference_dkv_up_of_keys(inputs, data_.backward(), rows);
  TensorError error{std::string(name(Tensor::dkv_up)), 0, 0, ""};
  const auto of_head = static_cast<std::size_t>(p.up_rows() * p.latent.rank);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto found = static_cast<double>(dkv_up[i]);
    const double tolerance = tolerances.dkv_up[i / of_head], difference = std::abs(found - expected[i]);
    if (!(difference <= tolerance) && error.finding.empty()) {
      error.finding =
          str("rank ", plan.self, ", head ", i / of_head, ", row ",
              i % of_head / static_cast<std::size_t>(p.latent.rank), ", column ",
              i % static_cast<std::size_t>(p.latent.rank), ": ", found,
              " where one device's rows of the rank add ", expected[i], ", more than ", tolerance, " away");
    }
    error.tolerance = std::max(error.tolerance, tolerance);
    error.max_error = std::isnan(difference) ? std::numeric_limits<double>::infinity()
                                             : std::max(error.max_error, difference);
  }
  return error;
}

std::map<std::string, Digest> AttentionShards::digests(const AttentionProblem& problem, const Plan& plan,
                                                       const RankBuffers& buffers) {
  std::map<std::string, Digest> digests;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.kind != BufferKind::output || !only_moved(problem, buffer)) continue;
    Hasher hasher;
    hasher.add(std::span<const std::byte>(buffers.at(buffer.name)));
    digests[buffer.name] = hasher.digest();
  }
  return digests;
}

void AttentionShards::make_room(AttentionPass pass, AttentionResults& results) const {
  const auto make_room = [&](std::vector<double>& result, const std::vector<double>& expected) {
    result.assign(expected.size(), std::numeric_limits<double>::quiet_NaN());
  };
  if (pass == AttentionPass::forward) {
    make_room(results.out, data_.out()), make_room(results.lse, data_.lse());
  } else {
    make_room(results.dq, data_.dq());
    if (data_.problem().has_latent()) return make_room(results.dlatent, data_.dlatent());
    make_room(results.dk, data_.dk()), make_room(results.dv, data_.dv());
  }
}

void AttentionShards::gather(AttentionPass pass, const Plan& plan, const RankBuffers& buffers,
                             AttentionResults& results) const {
  for (const Buffer& buffer : plan.buffers) {
    if (!computed(data_.problem(), buffer) || buffer.name.starts_with("saved_")) continue;
    const BufferRole role = role_of(pass, plan, buffer);
    if (!is_of_rows(role)) continue;
    const Global global = global_of(data_, role.tensor);
    double* const result = result_of(results, role.tensor).data();
    with_floating_type(buffer.dtype, [&]<class T>(std::type_identity<T>) {
      const T* const data = reinterpret_cast<const T*>(buffers.at(buffer.name).data());
      role.for_each_row(data_.problem().batch,
                        [&](std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t at) {
                          double* values = result + (global.row(b, h, row) - global.values->data());
                          for (std::int64_t d = 0; d < role.dim; ++d)
                            values[d] = static_cast<double>(load(data[at + d * role.strides[3]]));
                        });
    });
  }
}

}  // namespace cp::sim
