#include "sim/proof/run/recurrence_shards.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "shared/base/error.h"
#include "shared/kernels/host_kernels.h"

namespace cp::sim {
namespace {

// What was moved, and nothing computed. States and transitions are computed, with an order of sums that the
// device chooses.
bool is_moved(const Buffer& buffer) {
  return buffer.kind == BufferKind::output && buffer.name.starts_with("saved_") &&
         buffer.name != "saved_states" && buffer.name != "saved_transitions";
}
// States that are cached are no results: what is read from them in later steps is compared.
bool is_result(const Buffer& buffer) {
  return buffer.kind == BufferKind::output && !buffer.name.starts_with("saved_");
}

const TensorTolerance& tolerance_of(const RecurrenceTolerances& tolerances, std::string_view name) {
  if (name == "out") return tolerances.out;
  if (name == "dq") return tolerances.dq;
  if (name == "dk") return tolerances.dk;
  if (name == "dv") return tolerances.dv;
  return name == "dbeta" ? tolerances.dbeta : tolerances.dlog_decay;
}

}  // namespace

const std::vector<double>& global_tensor(const RecurrenceTestData& data, std::string_view name) {
  using Values = const std::vector<double>& (RecurrenceTestData::*)() const;
  static constexpr std::pair<std::string_view, Values> kNamed[] = {
      {"q", &RecurrenceTestData::q},         {"k", &RecurrenceTestData::k},
      {"v", &RecurrenceTestData::v},         {"log_decay", &RecurrenceTestData::log_decay},
      {"beta", &RecurrenceTestData::beta},   {"dout", &RecurrenceTestData::dout},
      {"out", &RecurrenceTestData::out},     {"dq", &RecurrenceTestData::dq},
      {"dk", &RecurrenceTestData::dk},       {"dv", &RecurrenceTestData::dv},
      {"dbeta", &RecurrenceTestData::dbeta}, {"dlog_decay", &RecurrenceTestData::dlog_decay}};
  for (const auto& [known, tensor] : kNamed) {
    if (known == name) return (data.*tensor)();
  }
  CP_INVARIANT(false, "a recurrence has no tensor ", name);
  return data.q();
}

RecurrenceShards::RecurrenceShards(const RecurrenceTestData& data, const RecurrenceRequest& request,
                                   std::int64_t first_row)
    : data_(data), request_(request), first_row_(first_row) {
  const Layout layout = row_layout(request, 1, 1, DType::f32);
  for (const Rank rank : request.ranks) rows_[rank] = indices(layout, 1, rank);
}

std::pair<std::int64_t, std::int64_t> RecurrenceShards::sizes_of(const std::string& tensor) const {
  const RecurrenceProblem& p = request_.problem;
  if (tensor == "q" || tensor == "k" || tensor == "dq" || tensor == "dk") return {p.key_heads, p.key_dim};
  if (tensor == "v" || tensor == "out" || tensor == "dout" || tensor == "dv")
    return {p.value_heads, p.value_dim};
  return {p.value_heads, 1};
}

template <class Visit>
void RecurrenceShards::for_each_row(const Plan& plan, std::int64_t heads, std::int64_t dim,
                                    const Visit& visit) const {
  const RecurrenceProblem& p = request_.problem;
  const IndexSet& rows = rows_.at(plan.self);
  std::int64_t here = 0;
  for (std::int64_t batch = 0; batch < p.batch; ++batch) {
    for (const Run& run : rows) {
      for (std::int64_t i = 0; i < run.size(); ++i) {
        const std::int64_t row = run.begin + i / run.run * run.stride + i % run.run;
        for (std::int64_t head = 0; head < heads; ++head, here += dim)
          visit(here, ((batch * data_.problem().seq_len + first_row_ + row) * heads + head) * dim);
      }
    }
  }
}

Bindings RecurrenceShards::bind(const Plan& plan, RankBuffers& buffers) const {
  Bindings bindings;
  for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& buffer = plan.buffers[i];
    if (buffer.kind == BufferKind::temporary) continue;
    std::vector<std::byte>& bytes = buffers[buffer.name];
    const bool made = buffer.kind == BufferKind::input && bytes.empty();
    if (bytes.empty()) bytes.resize(static_cast<std::size_t>(buffer.bytes()), std::byte{0xfb});
    if (made && !bytes.empty()) {
      const std::vector<double>& values = global_tensor(data_, buffer.name);
      const auto [heads, dim] = sizes_of(buffer.name);
      for_each_row(plan, heads, dim, [&, columns = dim](std::int64_t here, std::int64_t there) {
        for (std::int64_t d = 0; d < columns; ++d)
          store_element(buffer.dtype, bytes.data(), here + d, values[static_cast<std::size_t>(there + d)]);
      });
    }
    bindings.push_back({static_cast<BufferId>(i), bytes.data(), static_cast<std::int64_t>(bytes.size())});
  }
  return bindings;
}

std::map<std::string, TensorError> RecurrenceShards::compare(const Plan& plan, const RankBuffers& buffers,
                                                             const RecurrenceTolerances& tolerances) const {
  std::map<std::string, TensorError> errors;
  for (const Buffer& buffer : plan.buffers) {
    if (!is_result(buffer)) continue;
    const std::vector<double>& values = global_tensor(data_, buffer.name);
    const TensorTolerance& tolerance = tolerance_of(tolerances, buffer.name);
    const std::byte* const bytes = buffers.at(buffer.name).data();
    TensorError error{buffer.name, 0, 0, ""};
    const auto [heads, dim] = sizes_of(buffer.name);
    for_each_row(plan, heads, dim, [&, columns = dim](std::int64_t here, std::int64_t there) {
      const auto row = static_cast<std::size_t>(there / columns);
      for (std::int64_t d = 0; d < columns; ++d) {
        const double wanted = values[static_cast<std::size_t>(there + d)];
        const double found = load_element(buffer.dtype, bytes, here + d);
        const double allowed = tolerance.at(row, wanted), off = std::abs(found - wanted);
        if (!tolerance.holds(row, wanted, found) && error.finding.empty()) {
          error.finding = str("rank ", plan.self, ", row and head ", row, " of all, column ", d, ": ", found,
                              " where one device has ", wanted, ", more than ", allowed, " away");
        }
        error.tolerance = std::max(error.tolerance, allowed);
        error.max_error =
            std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(error.max_error, off);
      }
    });
    errors.emplace(buffer.name, error);
  }
  return errors;
}

std::map<std::string, Digest> RecurrenceShards::digests(const Plan& plan, const RankBuffers& buffers) {
  std::map<std::string, Digest> digests;
  for (const Buffer& buffer : plan.buffers) {
    if (!is_moved(buffer)) continue;
    Hasher hasher;
    hasher.add(std::span<const std::byte>(buffers.at(buffer.name)));
    digests[buffer.name] = hasher.digest();
  }
  return digests;
}

void RecurrenceShards::gather(const Plan& plan, const RankBuffers& buffers,
                              std::map<std::string, std::vector<double>>& results) const {
  for (const Buffer& buffer : plan.buffers) {
    if (!is_result(buffer)) continue;
    std::vector<double>& values = results.at(buffer.name);
    const std::byte* const bytes = buffers.at(buffer.name).data();
    const auto [heads, dim] = sizes_of(buffer.name);
    for_each_row(plan, heads, dim, [&, columns = dim](std::int64_t here, std::int64_t there) {
      for (std::int64_t d = 0; d < columns; ++d)
        values[static_cast<std::size_t>(there + d)] = load_element(buffer.dtype, bytes, here + d);
    });
  }
}

}  // namespace cp::sim
