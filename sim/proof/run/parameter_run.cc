#include "sim/proof/run/parameter_run.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <variant>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/index.h"
#include "shared/base/text.h"
#include "shared/plan/check.h"
#include "sim/proof/exhaustive/shard_data.h"

namespace cp::sim {
namespace {

constexpr int kMostRanks = 256;  // chosen: a thread each
// Parameters and contributions to gradients are whole numbers up to these.
constexpr std::int64_t kMostValue = 100, kMostContribution = 1;
// Whole numbers below this have an exact form in bf16, whose significand has eight bits.
constexpr std::int64_t kExactInBf16 = 256;

bool is_narrow(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

class RunOfParameter {
 public:
  explicit RunOfParameter(const ParameterRequest& request)
      : request_(request), param_(request.param), produced_(request.produced.value_or(param_.gradient())) {
    // Contributions of a mean are multiples of the number of ranks that it divides by.
    for (std::size_t axis = 0; axis < produced_.placements.size(); ++axis) {
      const auto* const partial = std::get_if<Partial>(&produced_.placements[axis]);
      if (partial != nullptr && partial->op == ReduceOp::avg)
        averaged_ *= produced_.mesh.axis_size(static_cast<int>(axis));
    }
    const std::int64_t contributions = num_contributions(produced_);
    const bool narrow = is_narrow(produced_.dtype) || is_narrow(param_.accumulated().dtype) ||
                        is_narrow(param_.sharded().dtype);
    const std::int64_t largest = averaged_ * contributions * request.micro_batches * kMostContribution;
    if (produced_.mesh.size() > kMostRanks)
      throw InvalidInput(str(produced_.mesh.to_string(), " has ", produced_.mesh.size(),
                             " ranks, and a parameter runs on ", kMostRanks, " at most; use smaller axes"));
    if (narrow && largest > kExactInBf16)
      throw InvalidInput(str("sums of ", contributions, " contributions in ", request.micro_batches,
                             " micro-batches are not exact in 16 bits; use f32, fewer ranks or fewer "
                             "micro-batches"));
  }

  ParameterRun run() && {
    const HsdpParam& p = param_;
    const auto value = [&](std::int64_t element) {
      return small_integer(request_.seed, element, 0, kMostValue);
    };
    buffers_["shard"] = make_shards(p.sharded(), value);
    move("unshard", p.sharded(), p.unsharded(), [&](Rank rank) { return p.unshard_plan(rank); });
    compare("parameter", p.unsharded(), value);
    for (int micro_batch = 0; micro_batch < request_.micro_batches; ++micro_batch) {
      const auto gradient = [&](std::int64_t element, std::int64_t contribution) {
        return this->gradient(micro_batch, element, contribution);
      };
      if (request_.produced) {
        buffers_["produced"] = make_shards(produced_, gradient);
        move("normalize", produced_, p.gradient(),
             [&](Rank rank) { return p.normalize_plan(rank, produced_); });
      } else {
        buffers_["gradient"] = make_shards(produced_, gradient);
      }
      move("accumulate", p.gradient(), p.accumulated(),
           [&](Rank rank) { return p.accumulate_plan(rank, micro_batch == 0); });
    }
    using Part = HsdpReduction::Part;
    move("scatter", p.accumulated(), p.scattered(), [&](Rank rank) {
      return p.reduce_plan(rank, {Part::scatter, /*accumulated=*/true});
    });
    move("all_reduce", p.scattered(), p.reduced(),
         [&](Rank rank) { return p.reduce_plan(rank, {Part::all_reduce}); });
    compare("reduced", p.reduced(), [&](std::int64_t element) {
      double sum = 0;
      for (int micro_batch = 0; micro_batch < request_.micro_batches; ++micro_batch) {
        for (std::int64_t c = 0; c < num_contributions(produced_); ++c)
          sum += gradient(micro_batch, element, c);
      }
      return sum / static_cast<double>(averaged_);
    });
    return std::move(result_);
  }

 private:
  double gradient(int micro_batch, std::int64_t element, std::int64_t contribution) const {
    const std::uint64_t seed = request_.seed + 1 + static_cast<std::uint64_t>(micro_batch);
    return static_cast<double>(averaged_) * small_integer(seed, element, contribution, kMostContribution);
  }

  // Runs the plan of each rank, with what the plans before it left.
  template <class PlanOf>
  void move(const char* name, const Layout& from, const Layout& to, const PlanOf& plan_of) {
    std::vector<Rank> ranks = produced_.mesh.ranks();
    std::sort(ranks.begin(), ranks.end());
    std::vector<Plan> plans;
    plans.reserve(ranks.size());
    for (const Rank rank : ranks) plans.push_back(plan_of(rank));
    check(plans);
    for (auto& [buffer, shards] : run_named(plans, buffers_)) buffers_[buffer] = std::move(shards);
    const auto is_this = [&](const ParameterMove& move) { return move.name == name; };
    if (std::any_of(result_.moves.begin(), result_.moves.end(), is_this)) return;
    std::int64_t most = 0;
    for (const Plan& plan : plans) most = std::max(most, sent_by(plan));
    result_.moves.push_back({name, from, to, most});
  }

  static std::int64_t sent_by(const Plan& plan) {
    std::int64_t bytes = 0;
    for (const StepRef& ref : steps_of(plan)) {
      if (!is_collective(*ref.step)) continue;
      for (const std::int64_t sent : volume(std::get<Collective>(ref.step->work), plan).sent)
        bytes += ref.count * sent;
    }
    return bytes;
  }

  void compare(const char* buffer, const Layout& layout, const std::function<double(std::int64_t)>& value) {
    if (!result_.finding.empty()) return;
    const Shards expected = make_shards(layout, value);
    for (const auto& [rank, wanted] : expected) {
      const std::vector<double>& found = buffers_.at(buffer).at(rank);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (found.at(i) == wanted[i]) continue;
        result_.finding = str(buffer, " of rank ", rank, ": element ", i, " of its shard is ", found[i],
                              ", and should be ", wanted[i]);
        return;
      }
    }
  }

  const ParameterRequest& request_;
  const HsdpParam& param_;
  const Layout produced_;
  std::int64_t averaged_ = 1;
  NamedShards buffers_;
  ParameterRun result_;
};

}  // namespace

ParameterRun run_parameter(const ParameterRequest& request) { return RunOfParameter(request).run(); }

}  // namespace cp::sim
