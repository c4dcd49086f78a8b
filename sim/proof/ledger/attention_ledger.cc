#include "sim/proof/ledger/attention_ledger.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "sim/proof/ledger/buffer_roles.h"
#include "sim/proof/ledger/expected_traffic.h"
#include "sim/proof/ledger/part_pairs.h"

namespace cp::sim {
namespace {

bool is_result(Tensor tensor) {
  return tensor == Tensor::out || tensor == Tensor::lse || tensor == Tensor::dq || tensor == Tensor::dk ||
         tensor == Tensor::dv || tensor == Tensor::dsinks || tensor == Tensor::dlatent ||
         tensor == Tensor::dkv_up;
}

class Keeper {
 public:
  Keeper(const AttentionRequest& request, AttentionPass pass, std::span<const Plan> plans)
      : request_(request),
        problem_(request.problem),
        pass_(pass),
        plans_(plans),
        sharding_(request.problem, static_cast<int>(request.ranks.size()), request.strategy),
        space_(request.problem),
        weights_(request.problem),
        book_(request.problem),
        keys_(keys_of_fewest_bytes(request)) {
    for (const Plan& plan : plans) {
      const auto found = std::find(request.ranks.begin(), request.ranks.end(), plan.self);
      if (found == request.ranks.end()) {
        throw InvalidInput(
            str("a plan of rank ", plan.self, ", which is none of the cp ranks ", join(request.ranks, ", ")));
      }
      indices_.push_back(static_cast<int>(found - request.ranks.begin()));
      needed_.push_back(seen_keys(problem_, sharding_.compute_q(indices_.back()).rows));
    }
    memory_.emplace(plans, [this](std::size_t plan, BufferId buffer) {
      const Buffer& b = plans_[plan].buffers[idx(buffer)];
      const auto role = b.kind == BufferKind::temporary ? std::nullopt : role_of(plan, b);
      if (!role) return std::int64_t{0};
      // The rotated part of a key is another tensor's.
      return role->tensor == Tensor::k ? std::gcd(role->dim, problem_.nope_dim()) : role->dim;
    });
  }

  AttentionLedger keep() {
    AttentionLedger ledger;
    ledger.received.resize(plans_.size());
    for_each_role(BufferKind::input, [&](std::size_t plan, BufferId buffer, const BufferRole& role) {
      put_input(plan, buffer, role);
    });
    StepNames names(plans_);
    shadow_run(
        {plans_, problem_, space_, weights_, needed_, *memory_, book_, ledger.cells, ledger.received,
         request_.strategy, !plans_.empty() && uses_fused_attention(problem_, pass_, plans_.front().target),
         keys_ == Strategy::Keys::latent},
        names);
    ledger.num_cells = book_.close({[&](std::int32_t step) { return names.text(step); },
                                    [&](std::int64_t lane, std::int64_t query, std::int64_t key) {
                                      return holders_text(lane % problem_.q_heads, query, key);
                                    }},
                                   ledger.cells);
    for_each_role(BufferKind::output, [&](std::size_t plan, BufferId buffer, const BufferRole& role) {
      audit_output(plan, buffer, role, ledger.cells);
    });
    find_missing_outputs(ledger.cells);
    audit_bytes(ledger);
    return ledger;
  }

 private:
  std::optional<BufferRole> role_of(std::size_t plan, const Buffer& buffer) const {
    return buffer_role(request_, sharding_, pass_, indices_[plan], buffer.name);
  }

  template <class Visit>
  void for_each_role(BufferKind kind, const Visit& visit) {
    for (std::size_t plan = 0; plan < plans_.size(); ++plan) {
      for (std::size_t b = 0; b < plans_[plan].buffers.size(); ++b) {
        const Buffer& buffer = plans_[plan].buffers[b];
        if (buffer.kind == BufferKind::temporary) continue;
        const std::optional<BufferRole> role = role_of(plan, buffer);
        if (!role || buffer.numel != role->numel(problem_.batch) || buffer.kind == BufferKind::inout) {
          throw InvalidInput(str("rank ", plans_[plan].self, ": ", buffer.name, " with ", buffer.numel,
                                 " elements is no buffer of attention plans",
                                 role ? str("; its part has ", role->numel(problem_.batch)) : ""));
        }
        if (buffer.kind == kind) visit(plan, static_cast<BufferId>(b), *role);
      }
    }
  }

  Tag finished(Tensor tensor, std::int64_t batch, std::int64_t head, std::int64_t row) const {
    const Cells all = weights_.all(tensor, batch, head, row);
    return {space_.id(tensor, batch, head, row), all.count, all.print};
  }

  // What the rank's rows add to a head's dsinks, if it computes on that head.
  Tag dsink(std::size_t plan, std::int64_t head) const {
    const TensorPart part = sharding_.compute_q(indices_[plan]);
    Cells cells;
    for (std::int64_t i = 0; i < part.num_rows() && head >= part.head_begin && head < part.head_end; ++i) {
      for (std::int64_t b = 0; b < problem_.batch; ++b) cells += weights_.of_dsink(to_global(part.rows, i));
    }
    return {space_.id(Tensor::dsinks, 0, head, 0), cells.count, cells.print};
  }

  // What the rank adds to a head's dkv_up.
  Cells dkv_up_cells(std::size_t plan, std::int64_t head) const {
    Cells cells;
    const WeightShare share = weight_share(request_, sharding_, indices_[plan]);
    const std::int64_t begin = std::max(share.head_begin, head * problem_.heads_per_kv()),
                       end = std::min(share.head_end, (head + 1) * problem_.heads_per_kv());
    for (std::int64_t b = 0; b < problem_.batch; ++b) {
      for_each_index(share.rows, [&](std::int64_t row) {
        Cells of_row = share.of_queries ? weights_.all(Tensor::dq, b, 0, row)
                                        : weights_.of_dkv_up(row, weights_.of_key(b, row));
        if (share.of_queries) of_row.print *= weights_.query(row);
        for (std::int64_t h = begin; h < end; ++h) cells += {of_row.count, of_row.print * weights_.head(h)};
      });
    }
    return cells;
  }

  void put_input(std::size_t plan, BufferId buffer, const BufferRole& role) {
    const std::span<Tag> tags = memory_->tags(plan, buffer);
    const std::int64_t granule = memory_->granule(plan, buffer);
    role.for_each_row(problem_.batch, [&](std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t at) {
      const Tag first = finished(role.tensor, b, h, row);
      for (std::int64_t column = 0; column < role.dim; column += granule)
        tags[idx((at + column) / granule)] = space_.later_in_row(first, column);
    });
  }

  void audit_output(std::size_t plan, BufferId buffer, const BufferRole& role, Findings& findings) {
    const std::span<const Tag> tags = memory_->tags(plan, buffer);
    const std::int64_t granule = memory_->granule(plan, buffer);
    std::vector<Cells> of_up;
    for (std::int64_t h = 0; role.tensor == Tensor::dkv_up && h < problem_.kv_heads; ++h)
      of_up.push_back(dkv_up_cells(plan, h));
    role.for_each_row(problem_.batch, [&](std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t at) {
      Tag first = finished(role.tensor, b, h, row);
      if (role.tensor == Tensor::dsinks) first = dsink(plan, h);
      if (role.tensor == Tensor::dkv_up) {
        first.cells = of_up[idx(h)].count, first.print = of_up[idx(h)].print;
      }
      // Constants stand for what no pair contributes to: of a row without keys lse is the sink alone.
      const bool of_rows = role.tensor == Tensor::out || role.tensor == Tensor::lse;
      const bool no_pair = of_rows ? weights_.all(Tensor::dq, b, h, row).count == 0 : first.cells == 0;
      const bool is_sink = problem_.sinks && role.tensor == Tensor::lse;
      const std::uint64_t nothing = is_sink ? space_.id(Tensor::sinks, 0, h, 0) : nothing_in(role.tensor);
      for (std::int64_t column = 0; column < role.dim; column += granule) {
        const Tag& found = tags[idx((at + column) / granule)];
        const Tag expected = space_.later_in_row(first, column);
        const bool nothing_to_add = no_pair && found.id == nothing && is_result(role.tensor);
        if (found != expected && !nothing_to_add) {
          return findings.add([&] { return output_text(plan, buffer, expected, found); });
        }
      }
    });
  }

  void find_missing_outputs(Findings& findings) const {
    for (const Plan& plan : plans_) {
      for (const std::string_view wanted : asked_outputs(request_, pass_)) {
        const bool there = std::any_of(plan.buffers.begin(), plan.buffers.end(), [&](const Buffer& buffer) {
          return buffer.kind == BufferKind::output && buffer.name == wanted;
        });
        if (!there) findings.add([&] { return str("rank ", plan.self, " has no output ", wanted); });
      }
    }
  }

  std::string output_text(std::size_t plan, BufferId buffer, const Tag& expected, const Tag& found) const {
    const std::string where = str("rank ", plans_[plan].self, ": ", plans_[plan].buffers[idx(buffer)].name);
    if (found.id != expected.id) {
      return str(where, " ends with ", space_.text(found), " where ", space_.text(expected), " belongs");
    }
    return str(
        where, " ends with ", space_.text(found), " made of ", found.cells, " cells, not of its ",
        expected.cells,
        found.cells == expected.cells ? str(", but of other ones: some are missing, some came twice") : "");
  }

  // Who might have computed a pair.
  std::string holders_text(std::int64_t q_head, std::int64_t query, std::int64_t key) const {
    std::string text;
    for (std::size_t plan = 0; plan < plans_.size(); ++plan) {
      const TensorPart q = sharding_.compute_q(indices_[plan]), kv = sharding_.compute_kv(indices_[plan]);
      if (q_head < q.head_begin || q_head >= q.head_end) continue;
      if (to_local(q.rows, query)) text += str("; rank ", plans_[plan].self, " computes the query");
      if (to_local(kv.rows, key)) text += str("; rank ", plans_[plan].self, " holds the key");
    }
    return text;
  }

  void audit_bytes(AttentionLedger& ledger) const {
    const bool fused = uses_fused_attention(problem_, pass_, plans_.front().target);
    const std::vector<Received> expected = expected_traffic(request_, pass_, fused);
    for (std::size_t plan = 0; plan < plans_.size(); ++plan) {
      ledger.expected.push_back(expected[idx(indices_[plan])]);
      Received& received = ledger.received[plan];
      const auto audit = [&](std::string_view what, std::int64_t found, std::int64_t wanted) {
        if (found == wanted) return;
        ledger.bytes.add([&] {
          return str("rank ", plans_[plan].self, " received ", found, " bytes of ", what,
                     " where the index sets say ", wanted);
        });
      };
      // The lse of rows without keys, which travels as that of others.
      received.of(Tensor::lse) += std::exchange(received.of(Tensor::sinks), 0);
      for (int t = 0; t < kTensors; ++t) {
        const auto tensor = static_cast<Tensor>(t);
        std::int64_t& found = received.of(tensor);
        const std::int64_t wanted = ledger.expected[plan].of(tensor);
        if (is_result(tensor)) {  // constants that stand for what no pair contributes to
          const std::int64_t zeros = std::clamp<std::int64_t>(wanted - found, 0, received.padding);
          found += zeros, received.padding -= zeros;
        }
        audit(name(tensor), found, wanted);
      }
      audit("padding", received.padding, 0);
    }
  }

  const AttentionRequest& request_;
  const AttentionProblem& problem_;
  AttentionPass pass_;
  std::span<const Plan> plans_;
  AttentionSharding sharding_;
  TagSpace space_;
  CellWeights weights_;
  std::optional<ShadowMemory> memory_;
  CellBook book_;
  const Strategy::Keys keys_;
  std::vector<int> indices_;               // by plan: which cp rank it is
  std::vector<std::vector<bool>> needed_;  // by plan
};

}  // namespace

AttentionLedger keep_ledger(const AttentionRequest& request, AttentionPass pass,
                            std::span<const Plan> plans) {
  return Keeper(request, pass, plans).keep();
}

}  // namespace cp::sim
