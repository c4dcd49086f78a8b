#include "sim/run/attention_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "shared/kernels/elements.h"
#include "shared/plan/check.h"
#include "shared/plan/execute.h"
#include "sim/ledger/attention_ledger.h"
#include "sim/ledger/buffer_roles.h"
#include "sim/ledger/peak_bound.h"
#include "sim/run/attention_memory.h"
#include "sim/run/attention_tolerance.h"

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
    case Tensor::delta:
      break;
  }
  CP_INVARIANT(false, "no buffer of the caller holds ", name(tensor));
  return {};
}

class Runner {
 public:
  Runner(const AttentionTestData& data, const AttentionRequest& request, const AttentionRunOptions& options)
      : data_(data),
        problem_(data.problem()),
        request_(request),
        options_(options),
        sharding_(request.problem, static_cast<int>(request.ranks.size()), request.strategy),
        fabric_(*std::max_element(request.ranks.begin(), request.ranks.end()) + 1,
                {.schedule = options.schedule, .seed = options.seed}),
        memory_(static_cast<std::size_t>(fabric_.world_size())) {
    for (std::size_t i = 0; i < request.ranks.size(); ++i) index_of_[request.ranks[i]] = static_cast<int>(i);
  }

  AttentionRun run(std::span<const Plan> forward, std::span<const Plan> backward) {
    result_.num_ranks = static_cast<int>(request_.ranks.size());
    tolerances_ = attention_tolerances(data_, request_, !backward.empty());
    result_.forward = pass(AttentionPass::forward, forward);
    if (!backward.empty()) result_.backward = pass(AttentionPass::backward, backward);
    for (auto& [tensor, error] : errors_) result_.errors.push_back(std::move(error));
    add_verdict("mask cells", cells_);
    add_verdict("bytes", bytes_);
    add_verdict("peak memory", peaks_);
    return std::move(result_);
  }

 private:
  using Memory = std::map<std::string, std::vector<std::byte>>;  // the caller's buffers of a rank, by name

  template <class Work>
  void phase(std::string_view name, double& seconds, const Work& work) {
    if (options_.on_phase) options_.on_phase(name);
    const auto begin = std::chrono::steady_clock::now();
    work();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  void add_verdict(std::string name, const Findings& findings) {
    result_.verdicts.push_back(
        {std::move(name), findings.empty(), findings.empty() ? "" : findings.summary()});
  }

  AttentionPassResult pass(AttentionPass which, std::span<const Plan> plans) {
    AttentionPassResult result;
    phase("checking the plans", result_.check_s, [&] { check_plans(which, plans, result); });
    fabric_.clear_traces();
    by_rank_.assign(memory_.size(), nullptr);
    for (const Plan& plan : plans) by_rank_[static_cast<std::size_t>(plan.self)] = &plan;
    phase("running", result_.run_s, [&] {
      fabric_.run([&](Rank rank, Device& device) {
        const Plan* plan = by_rank_[static_cast<std::size_t>(rank)];
        if (plan == nullptr) return;
        const Bindings bindings = bind(which, *plan);
        execute(*plan, device, bindings, &fabric_.traces()[static_cast<std::size_t>(rank)]);
      });
    });
    const std::int64_t delivered = keep_traces();
    phase("keeping the ledger", result_.ledger_s, [&] { keep_books(which, plans, delivered, result); });
    phase("comparing", result_.compare_s, [&] {
      make_room_for_results(which);
      fabric_.run([&](Rank rank, Device&) {
        const Plan* plan = by_rank_[static_cast<std::size_t>(rank)];
        if (plan != nullptr) compare(which, *plan);
      });
    });
    return result;
  }

  void check_plans(AttentionPass which, std::span<const Plan> plans, AttentionPassResult& result) {
    check(plans);
    for (const Plan& plan : plans) {
      const std::int64_t bound = peak_bound_bytes(request_, which, index_of_.at(plan.self));
      const std::int64_t peak = peak_bytes(plan);
      result.steps = std::max(result.steps, static_cast<int>(steps_of(plan).size()));
      if (peak > result.peak_bytes) result.peak_bytes = peak;
      result.peak_bound_bytes = std::max(result.peak_bound_bytes, bound);
      if (peak > bound) {
        peaks_.add([&] {
          return str("rank ", plan.self, " needs ", peak, " bytes, where its parts and the strategy allow ",
                     bound);
        });
      }
    }
  }

  BufferRole role_of(AttentionPass which, const Plan& plan, const Buffer& buffer) const {
    const auto role = buffer_role(request_, sharding_, which, index_of_.at(plan.self), buffer.name);
    CP_INVARIANT(role.has_value(), "buffer ", buffer.name, " of rank ", plan.self);
    return *role;
  }

  // Inputs of the problem are made here; what the forward pass kept is there already.
  Bindings bind(AttentionPass which, const Plan& plan) {
    Memory& memory = memory_[static_cast<std::size_t>(plan.self)];
    Bindings bindings;
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
      const Buffer& buffer = plan.buffers[i];
      if (buffer.kind == BufferKind::temporary) continue;
      std::vector<std::byte>& bytes = memory[buffer.name];
      const bool made = buffer.kind == BufferKind::input && bytes.empty();
      if (bytes.empty()) bytes.resize(static_cast<std::size_t>(buffer.bytes()), std::byte{0xfb});
      if (made) fill(role_of(which, plan, buffer), buffer.dtype, bytes.data());
      bindings.push_back({static_cast<BufferId>(i), bytes.data(), static_cast<std::int64_t>(bytes.size())});
    }
    return bindings;
  }

  void fill(const BufferRole& role, DType dtype, std::byte* bytes) const {
    const Global global = global_of(data_, role.tensor);
    with_floating_type(dtype, [&]<class T>(std::type_identity<T>) {
      T* const data = reinterpret_cast<T*>(bytes);
      role.for_each_row(problem_.batch,
                        [&](std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t at) {
                          const double* values = global.row(b, h, row);
                          for (std::int64_t d = 0; d < role.dim; ++d)
                            data[at + d * role.strides[3]] = convert<T>(values[d]);
                        });
    });
  }

  // Returns the bytes that all ranks received.
  std::int64_t keep_traces() {
    const std::vector<RankTrace>& traces = fabric_.traces();
    const auto difference = first_difference(traces, traces);
    const auto verdict = std::find_if(result_.verdicts.begin(), result_.verdicts.end(),
                                      [](const Verdict& known) { return known.name == "traces"; });
    if (verdict == result_.verdicts.end()) {
      result_.verdicts.push_back({"traces", !difference, difference.value_or("")});
    } else if (difference) {
      *verdict = {"traces", false, *difference};
    }
    std::int64_t delivered = 0;
    std::size_t place = 0;
    for (const auto& [rank, index] : index_of_) {
      const RankTrace& trace = traces[static_cast<std::size_t>(rank)];
      for (const OpRecord& record : trace.observed) {
        for (const std::int64_t bytes : record.received) delivered += bytes;
      }
      if (result_.traces.size() <= place) result_.traces.push_back({rank, {}, {}, {}});
      RankTrace& kept = result_.traces[place++];
      kept.issued.insert(kept.issued.end(), trace.issued.begin(), trace.issued.end());
      kept.observed.insert(kept.observed.end(), trace.observed.begin(), trace.observed.end());
    }
    return delivered;
  }

  void keep_books(AttentionPass which, std::span<const Plan> plans, std::int64_t delivered,
                  AttentionPassResult& result) {
    const AttentionLedger ledger = keep_ledger(request_, which, plans);
    for (const std::string& text : ledger.cells.texts()) cells_.add([&] { return text; });
    for (const std::string& text : ledger.bytes.texts()) bytes_.add([&] { return text; });
    result.cells = ledger.num_cells;
    for (const Received& received : ledger.received) {
      result.bytes_received += received.total();
      result.bytes_received_max = std::max(result.bytes_received_max, received.total());
      result.redundant_kv_bytes += received.redundant_kv;
    }
    for (const Received& expected : ledger.expected) result.expected_bytes += expected.total();
    if (delivered != result.bytes_received) {
      bytes_.add([&] {
        return str("the fabric delivered ", delivered, " bytes, where the plans move ",
                   result.bytes_received);
      });
    }
  }

  const TensorTolerance& tolerance_of(Tensor tensor) const {
    switch (tensor) {
      case Tensor::out:
        return tolerances_.out;
      case Tensor::lse:
        return tolerances_.lse;
      case Tensor::dq:
        return tolerances_.dq;
      case Tensor::dk:
        return tolerances_.dk;
      default:
        return tolerances_.dv;
    }
  }

  std::vector<double>& result_of(Tensor tensor) {
    AttentionResults& results = result_.results;
    switch (tensor) {
      case Tensor::out:
        return results.out;
      case Tensor::lse:
        return results.lse;
      case Tensor::dq:
        return results.dq;
      case Tensor::dk:
        return results.dk;
      default:
        return results.dv;
    }
  }

  // NaN until a rank has written it.
  void make_room_for_results(AttentionPass which) {
    if (!options_.keep_results) return;
    const auto make_room = [&](std::vector<double>& result, const std::vector<double>& expected) {
      result.assign(expected.size(), std::numeric_limits<double>::quiet_NaN());
    };
    if (which == AttentionPass::forward) {
      make_room(result_.results.out, data_.out()), make_room(result_.results.lse, data_.lse());
    } else {
      make_room(result_.results.dq, data_.dq()), make_room(result_.results.dk, data_.dk());
      make_room(result_.results.dv, data_.dv());
    }
  }

  void compare(AttentionPass which, const Plan& plan) {
    for (const Buffer& buffer : plan.buffers) {
      if (buffer.kind != BufferKind::output || buffer.name.starts_with("saved_q") ||
          buffer.name.starts_with("saved_k") || buffer.name.starts_with("saved_v")) {
        continue;
      }
      const BufferRole role = role_of(which, plan, buffer);
      const std::byte* bytes = memory_[static_cast<std::size_t>(plan.self)].at(buffer.name).data();
      with_floating_type(buffer.dtype, [&]<class T>(std::type_identity<T>) {
        compare_as(role, reinterpret_cast<const T*>(bytes), plan.self);
        if (options_.keep_results && buffer.name != "saved_out") {
          gather(role, reinterpret_cast<const T*>(bytes));
        }
      });
    }
  }

  // Each rank writes rows of its own.
  template <class T>
  void gather(const BufferRole& role, const T* data) {
    const Global global = global_of(data_, role.tensor);
    double* const result = result_of(role.tensor).data();
    role.for_each_row(problem_.batch, [&](std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t at) {
      double* values = result + (global.row(b, h, row) - global.values->data());
      for (std::int64_t d = 0; d < role.dim; ++d)
        values[d] = static_cast<double>(load(data[at + d * role.strides[3]]));
    });
  }

  template <class T>
  void compare_as(const BufferRole& role, const T* data, Rank rank) {
    const Global global = global_of(data_, role.tensor);
    const TensorTolerance& tolerance = tolerance_of(role.tensor);
    TensorError error{std::string(name(role.tensor)), 0, 0, ""};
    role.for_each_row(problem_.batch, [&](std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t at) {
      const double* values = global.row(b, h, row);
      const std::size_t number = global.row_number(b, h, row);
      for (std::int64_t d = 0; d < role.dim; ++d) {
        const double found = static_cast<double>(load(data[at + d * role.strides[3]]));
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
    const std::lock_guard lock(mutex_);
    const auto [known, added] = errors_.try_emplace(role.tensor, error);
    if (added) return;
    known->second.max_error = std::max(known->second.max_error, error.max_error);
    known->second.tolerance = std::max(known->second.tolerance, error.tolerance);
    if (known->second.finding.empty()) known->second.finding = error.finding;
  }

  const AttentionTestData& data_;
  const AttentionProblem& problem_;
  const AttentionRequest& request_;
  const AttentionRunOptions& options_;
  const AttentionSharding sharding_;
  Fabric fabric_;
  std::vector<Memory> memory_;        // by rank
  std::vector<const Plan*> by_rank_;  // of the pass; null for ranks outside
  std::map<Rank, int> index_of_;      // of the cp ranks
  AttentionTolerances tolerances_;
  AttentionRun result_;
  Findings cells_, bytes_, peaks_;
  std::mutex mutex_;  // of errors_
  std::map<Tensor, TensorError> errors_;
};

}  // namespace

bool AttentionRun::holds() const {
  return std::all_of(verdicts.begin(), verdicts.end(),
                     [](const Verdict& verdict) { return verdict.holds; }) &&
         std::all_of(errors.begin(), errors.end(), [](const TensorError& error) { return error.holds(); });
}

AttentionRun run_attention(const AttentionTestData& data, const AttentionRequest& request,
                           const AttentionRunOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  if (options.on_phase) options.on_phase("planning");
  const std::vector<Plan> forward = attention_plans(request, AttentionPass::forward);
  std::vector<Plan> backward;
  if (options.backward) backward = attention_plans(request, AttentionPass::backward);
  const double plan_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  AttentionRun run = run_attention(data, request, forward, backward, options);
  run.plan_s = plan_s;
  return run;
}

AttentionRun run_attention(const AttentionTestData& data, const AttentionRequest& request,
                           const std::vector<Plan>& forward, const std::vector<Plan>& backward,
                           const AttentionRunOptions& options) {
  if (options.memory_limit_bytes) {
    require_memory(data.problem(), "the ranks", ranks_bytes(forward, backward), *options.memory_limit_bytes);
  }
  return Runner(data, request, options).run(forward, backward);
}

}  // namespace cp::sim
